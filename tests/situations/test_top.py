"""`farpage top` in a terminal emulator (tmux), by keys and screens: what it shows, and that the terminal is as it was
before, whatever ends it."""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from holder import MIB, resident
from situation import FARPAGE, HANG, Situation, unless_there

# Twice its budget, of which it goes on reading; ends with its input.
SWAPS = """
import os, select, sys
kept = [bytearray(os.urandom(2048) + bytes(2048)) for _ in range(12288)]
print("ready", flush=True)
at = 0
while not select.select([sys.stdin], [], [], 0.002)[0]:
    for _ in range(16):
        at = (at + 4999) % len(kept)
        kept[at][0] ^= 1
"""
# Nearly as much as its budget, which it leaves alone; ends with its input.
IDLE = "import os, sys; kept = os.urandom(16 << 20); print('ready', flush=True); sys.stdin.read()"
# Runs it and says how it ended; the modes of the terminal before and after it are in files.
WATCHED = 'stty -g >"$0/before"; "$@"; echo "status $?"; stty -g >"$0/after"; exec sleep 100000'
KEYS = "up/down   Enter details"
# What a terminal is sent for the selected row. (In 38;5;7 the seven is a colour.)
REVERSED = re.compile(r"\x1b\[([0-9]+;)*(?<![34]8;5;)7m")


@unless_there("tmux", "stty")
class Top(Situation):
    def setUp(self):
        super().setUp()
        self.socket = self.dir / "tmux"
        self.addCleanup(self.tmux, "kill-server", check=False)

    def tmux(self, *arguments, check=True):
        argv = ["tmux", "-u", "-f", "/dev/null", "-S", self.socket, *arguments]
        return subprocess.run(argv, check=check, capture_output=True, text=True).stdout

    def start(self, *options, **variables):
        """`farpage top` in a terminal of 80 columns and 24 lines."""
        settings = [f"{name}={value}" for name, value in ({"LC_ALL": "C.UTF-8"} | variables).items()]
        argv = ["env", "-u", "NO_COLOR", *settings, FARPAGE, "top", "-n", "0.2", *options]
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", WATCHED, self.dir, *argv)

    def program(self, text=SWAPS):
        """A program that swaps, or another one."""
        argv = [FARPAGE, "run", "--ram", "24M", "--", sys.executable, "-c", text]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for end in (process.wait, process.kill, process.stdout.close, process.stdin.close):
            self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return process

    def screen(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def until(self, what, *parts):
        """The screen, once all parts are on it."""
        end = time.monotonic() + HANG
        while True:
            screen = self.screen()
            if all(part in screen for part in parts):
                return screen
            self.assertLess(time.monotonic(), end, f"{what}: {parts} is not on the screen:\n{screen}")
            time.sleep(0.05)

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def select(self, pid):
        """Goes to its row: other programs of this machine may be in the list, too."""
        end = time.monotonic() + HANG
        while True:
            lines = self.screen("-e").splitlines()
            wanted = next((at for at, line in enumerate(lines) if f" {pid} " in line), len(lines))
            selected = next((at for at, line in enumerate(lines) if REVERSED.search(line)), 0)
            if selected == wanted:
                return
            self.assertLess(time.monotonic(), end, f"{pid} cannot be selected:\n{self.screen()}")
            self.keys("Down" if selected < wanted else "Up")
            time.sleep(0.05)

    def resize(self, sizes):
        for columns, lines in sizes:
            self.tmux("resize-window", "-x", str(columns), "-y", str(lines))
            self.assertEqual(self.terminal("pane_width"), str(columns))

    def stopped_while(self, do, *arguments):
        """Does something while `farpage top` does nothing."""
        watching = self.pid()
        os.kill(watching, signal.SIGSTOP)
        stopped = lambda: Path(f"/proc/{watching}/stat").read_text().split(") ")[1].startswith("T")
        self.wait_until("it is stopped", stopped)
        do(*arguments)
        os.kill(watching, signal.SIGCONT)

    def terminal(self, what):
        return self.tmux("display-message", "-p", "#{" + what + "}").strip()

    def assert_as_before(self, status):
        """It has ended so, and the terminal is as it was."""
        screen = self.until("the end", f"status {status}\n")
        self.until_there(self.dir / "after")
        self.assertEqual((self.dir / "after").read_text(), (self.dir / "before").read_text())
        self.assertEqual((self.terminal("alternate_on"), self.terminal("cursor_flag")), ("0", "1"), screen)
        self.assertNotIn("farpage top", screen)

    def until_there(self, path):
        self.wait_until(f"{path} is there", lambda: path.exists() and path.read_text().endswith("\n"))

    def wait_until(self, what, true):
        end = time.monotonic() + HANG
        while not true():
            self.assertLess(time.monotonic(), end, f"not so: {what}\n{self.screen()}")
            time.sleep(0.05)

    def pid(self):
        """Of `farpage top`."""
        shell = self.terminal("pane_pid")
        with open(f"/proc/{shell}/task/{shell}/children", encoding="ascii") as children:
            return int(children.read().split()[0])

    def test_a_program_is_shown_in_the_list_and_in_detail(self):
        process = self.program()
        self.start()
        user = pwd.getpwuid(os.geteuid()).pw_name
        row = f" {process.pid} {user[:8]:8}  python"
        screen = self.until("the list", "farpage top", "USER", "FAULT/s", row, KEYS)
        lines = screen.splitlines()
        self.assertTrue(len(lines) <= 24 and all(len(line) <= 80 for line in lines), screen)
        self.select(process.pid)
        self.keys("Enter")
        screen = self.until("details", f"({process.pid}): managed", "Memory, 2 min:", "p99", "MAPPING", "Esc back")
        self.assertRegex(screen, r"(?m)^(anonymous|\[heap\]|python\S*) +[0-9a-f]+ ")
        self.assertTrue(any("\u2801" <= c <= "\u28ff" for c in screen), screen)
        self.assertIn("\x1b[3", self.screen("-e"))
        self.keys("Escape")
        self.until("the list again", KEYS)
        self.keys("?")
        self.until("the help", "Any key closes this.")
        self.keys("x")
        self.until("the list after the help", KEYS)
        self.keys("s", "r")
        self.until("another order", "by RSS, reversed")
        self.keys("q")
        self.assert_as_before(0)

    def test_without_colour_and_without_unicode_all_is_plain(self):
        process = self.program()
        self.start(NO_COLOR="1", LC_ALL="C")
        self.until("the list", f" {process.pid} ", KEYS)
        self.select(process.pid)
        self.keys("Enter")
        self.until("details", "s swap", "Esc back")
        screen = self.screen("-e")
        self.assertTrue(screen.isascii(), screen)
        self.assertNotRegex(screen, r"\x1b\[[0-9;]*\b(3[0-7]|38|9[0-7])\b")
        self.keys("C-c")
        self.assert_as_before(0)

    def test_the_budget_is_changed_as_by_set(self):
        process = self.program()
        self.start()
        self.until("the list", f" {process.pid} ", KEYS)
        self.select(process.pid)
        self.keys("b")
        self.until("the question", f"Budget of the tree of {process.pid} (now 24.0 MiB)")
        self.keys("4", "0", "M", "Enter")
        self.until("the answer", f"the tree of {process.pid} may have 40.0 MiB now")
        trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
        self.assertIn((process.pid, 40 << 20), [(tree["pid"], tree["budget_bytes"]) for tree in trees])
        self.keys("b", "1", "Q", "Enter")
        self.until("the refusal", "unknown unit")
        self.keys("q")
        self.assert_as_before(0)

    def test_a_program_is_parked_and_comes_back(self):
        process = self.program(IDLE)
        self.start()
        self.until("the list", f" {process.pid} ", KEYS)
        self.assertGreater(resident(process.pid), 12 * MIB)
        self.select(process.pid)
        question = f"Park the tree of {process.pid} (python"
        self.keys("p")
        self.until("the question", question, "y: yes")
        self.keys("n")
        self.until("the list again", KEYS)
        self.keys("p")
        self.until("the question again", question)
        self.keys("y")
        screen = self.until("the answer", f"the tree of {process.pid} is parked", "[ parked ]")
        self.wait_until("it is, and its tree", lambda: self.screen().count("[ parked ]") == 2)
        self.assertTrue(all(len(line) <= 80 for line in screen.splitlines()), screen)
        self.wait_until("it has gone", lambda: resident(process.pid) < 12 * MIB)
        self.keys("p")
        self.until("the other question", f"Bring back the tree of {process.pid} (python")
        self.keys("Enter")
        self.until("it is back", f"the tree of {process.pid} comes back")
        is_back = lambda: resident(process.pid) > 12 * MIB and "[ parked ]" not in self.screen()
        self.wait_until("it has come back", is_back)
        # One that has ended meanwhile.
        self.keys("p")
        self.until("the question", question)
        process.stdin.close()
        process.wait(HANG)
        self.keys("y")
        self.until("why not", f"cannot find process {process.pid}: no such process")
        self.keys("q")
        self.assert_as_before(0)

    def test_any_size_of_the_terminal_and_the_end_of_a_program(self):
        process = self.program()
        self.start()
        self.until("the list", f" {process.pid} ", KEYS)
        self.select(process.pid)
        for view in ("List", "Details"):
            self.resize(((20, 5), (200, 50), (2, 2), (80, 24)))
            foot = KEYS if view == "List" else "Esc back"
            self.until(f"{view} of 80 columns", foot)
            # Small for so short a time that it does not see that.
            self.stopped_while(self.resize, ((2, 2), (80, 24)))
            self.until(f"{view} after that", foot)
            self.keys("Enter")
        self.until("the list again", KEYS)
        self.keys("Enter")
        self.until("details", f"({process.pid}): managed")
        process.stdin.close()
        self.until("its end", f"process {process.pid} (", "has ended", "farpage top")
        self.keys("q")
        self.assert_as_before(0)

    def ended_by(self, signal, status):
        self.start()
        self.until("the screen", "farpage top")
        subprocess.run(["kill", f"-{signal}", str(self.pid())], check=True)
        self.assert_as_before(status)

    def test_sigterm_ends_it_and_the_terminal_is_as_before(self):
        self.ended_by("TERM", 143)

    def test_sigint_ends_it_and_the_terminal_is_as_before(self):
        self.ended_by("INT", 130)

    def test_sighup_ends_it_and_the_terminal_is_as_before(self):
        self.ended_by("HUP", 129)

    def test_a_terminal_that_goes_away_ends_it(self):
        self.start()
        self.until("the screen", "farpage top")
        watching = self.pid()
        self.tmux("kill-server")
        end = time.monotonic() + HANG
        while os.path.exists(f"/proc/{watching}"):
            self.assertLess(time.monotonic(), end, "it is still there")
            time.sleep(0.05)

    def test_it_is_stopped_and_goes_on(self):
        argv = ["bash", "--norc", "--noprofile", "-i"]
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", "env", "PS1=shell> ", "LC_ALL=C.UTF-8", *argv)
        self.until("the shell", "shell>")
        self.keys(f"{FARPAGE} top", "Enter")
        self.until("the screen", "farpage top", "? help")
        self.keys("C-z")
        self.until("the shell again", "Stopped")
        self.assertEqual((self.terminal("alternate_on"), self.terminal("cursor_flag")), ("0", "1"))
        self.keys("fg", "Enter")
        self.until("the screen again", "? help")
        self.keys("q")
        self.until("the shell at the end", "Stopped")
        self.assertEqual((self.terminal("alternate_on"), self.terminal("cursor_flag")), ("0", "1"))


if __name__ == "__main__":
    unittest.main()
