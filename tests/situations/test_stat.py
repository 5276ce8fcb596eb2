"""Statistics: a process cannot mislead or hang who reads them, nor can a reader end the process that writes them."""

import contextlib
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from situation import FARPAGE, PRELOAD, Situation, unless_root

# Pages that do not compress, and three children that live for long enough to have an engine.
FORKS = """
import os, time
kept = [os.urandom(4096) for _ in range(36 * 256)]
for _ in range(3):
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)
for _ in range(3):
    os.wait()
"""

PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def need(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""
# Its first thread is called as the engine's is; a pipe has the name that a page has, in a tree of the process's own.
PIPE = PRELUDE + """
top = sys.argv[1].encode()
need(libc.unshare(0x20000))                              # CLONE_NEWNS
need(libc.mount(b"none", b"/", None, 0x44000, None))     # MS_REC | MS_PRIVATE
need(libc.mount(b"pages", top, b"tmpfs", 0, None))
os.mkdir(top + b"/old")
need(libc.syscall(155, top, top + b"/old"))              # pivot_root
os.mkfifo("/memfd:farpage-stat")
pipe = os.open("/memfd:farpage-stat", os.O_PATH)
need(libc.prctl(15, b"farpage-monitor"))                 # PR_SET_NAME
print("ready", flush=True)
sys.stdin.read()
"""
# Whoever opens it waits until the lease is given back, which it never is.
LEASE = """
import fcntl, os, signal, sys
tree = os.memfd_create("farpage-tree")
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(tree, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("ready", flush=True)
sys.stdin.read()
"""
NAMED = PRELUDE + """
need(libc.prctl(15, b"\\x1b[2J\\n\\xc3"))
print("ready", flush=True)
sys.stdin.read()
"""
# Has been given more than its budget, so that there is an engine, and fills more than that once it is told to go on.
FILL = """
import sys
given = bytes(32 << 20)
print("ready", flush=True)
sys.stdin.read()
kept = [bytes([i % 255 + 1]) * 4000 for i in range(12288)]
sys.exit(7 if all(page[0] == i % 255 + 1 for i, page in enumerate(kept)) else 1)
"""
# Goes twice over more than its budget, of which nothing compresses.
REREAD = """
import os
pages = [os.urandom(4000) for _ in range(12288)]
print(sum(page[0] for page in pages) > 0)
"""


class Running(Situation):
    @contextlib.contextmanager
    def running(self, *argv, **options):
        """A program that has said that it is ready, and waits for its input to end."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([str(a) for a in argv], **pipes, **options) as process:
            try:
                self.assertEqual(process.stdout.readline(), b"ready\n")
                yield process
            finally:
                process.kill()


class Stat(Running):
    def stat(self, *arguments):
        return self.run_plain(FARPAGE, "stat", *arguments, timeout=60)

    @unless_root
    def test_a_pipe_with_the_name_of_a_page_is_not_opened(self):
        with self.running(sys.executable, "-c", PIPE, self.dir) as process:
            done = self.stat(process.pid)
            self.assertEqual(done.returncode, 1)
            self.assertIn("does not run under farpage", done.stderr)
            self.assertEqual(self.stat().returncode, 0)

    def test_nobody_waits_for_who_holds_a_lease_on_what_it_calls_its_tree(self):
        with self.running(sys.executable, "-c", LEASE) as process:
            one, all_of_them = self.stat(process.pid), self.stat()
            self.assertEqual((one.returncode, all_of_them.returncode), (1, 0))
            self.assertIn(f"cannot open the tree of process {process.pid} (", all_of_them.stderr)
            self.assertEqual(process.poll(), None)

    def test_any_name_is_shown_and_nothing_in_it_obeyed(self):
        with self.running(FARPAGE, "run", "--ram", "64M", "--", sys.executable, "-c", NAMED) as process:
            name = r"\u{1b}[2J\n\xc3"
            one, all_of_them = self.stat(process.pid), self.stat()
            self.assertTrue(one.stdout.startswith(f"{name} ({process.pid}): "), one)
            self.assertRegex(all_of_them.stdout, rf"(?m)^ *{process.pid}  {re.escape(name)} ")
            self.assertNotIn("\x1b", one.stdout + all_of_them.stdout)
            self.assertEqual(json.loads(self.stat("--json", process.pid).stdout)["command"], name)

    def test_forked_children_do_not_count_again_what_their_parent_has(self):
        report = self.dir / "report.json"
        done = self.run_plain(FARPAGE, "run", "--ram", "20M", "--swap", "zram", "--swap", f"file:{self.dir}",
                              "--stats-json", report, "--", sys.executable, "-c", FORKS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        counted = json.loads(report.read_text())
        parents, all_of_it = counted["incompressible_pages"], counted["tree"]["incompressible_pages"]
        self.assertTrue(5000 < parents <= all_of_it < 1.5 * parents, (parents, all_of_it))

    def test_the_report_says_how_long_the_program_waited(self):
        report = self.dir / "report.json"
        command = [FARPAGE, "run", "--ram", "20M", "--swap", f"file:{self.dir}", "--stats", "--stats-json", report]
        done = self.run_plain(*command, "--", sys.executable, "-c", REREAD)
        self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done)
        waiting = r"(?m)^  budget .*\n  waited for memory +[\d.]+ \w+  by all threads; for \d+% of the time "
        self.assertRegex(done.stderr, waiting)
        self.assertRegex(done.stderr, r"(?m)^  files +[\d.]+ MiB  written, [\d.]+ MiB read$")
        self.assertRegex(done.stderr.splitlines()[-1], "--ram|taken out")
        counted = json.loads(report.read_text())
        waited = counted["fault_wait_ns"] + counted["alloc_wait_ns"]
        self.assertEqual(counted["fault_threads"], 1)
        # One thread cannot wait for longer than it runs.
        self.assertTrue(0 < counted["fault_wait_ns"] and waited < counted["wall_ns"], counted)
        self.assertAlmostEqual(counted["wait_share"], waited / counted["wall_ns"], places=2)
        # The histogram is of the same faults: half of them took about that or longer.
        self.assertGreater(counted["fault_wait_ns"], counted["pgfault"] // 2 * counted["fault_p50_ns"] * 0.7)
        self.assertGreater(counted["file_write_bytes"], 10 << 20)
        # What devices count may be 0.3 s old.
        self.assertGreater(counted["file_read_bytes"], 4096 * counted["pgmajfault_file"] // 2)

    def test_a_page_cannot_be_shortened(self):
        for options in [], ["--stats-json", self.dir / "stats.json"]:
            argv = [FARPAGE, "run", "--ram", "24M", *options, "--", sys.executable, "-c", FILL]
            with self.running(*argv) as process:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                pages = [fd for pid in [process.pid, *children] for fd in self.pages(pid)]
                self.assertTrue(pages)
                for fd in pages:
                    with self.assertRaises(PermissionError):
                        os.truncate(fd, 0)
                process.stdin.close()
                self.assertEqual(process.wait(), 7)

    def test_a_controller_is_held_and_shown(self):
        env = os.environ | {"LD_PRELOAD": str(PRELOAD), "FARPAGE_CONF": "ram:24M;tune:stage=7;tune:depth=0"}
        argv = [sys.executable, "-c", FILL]
        with self.running(*argv, env=env) as process:
            shown = json.loads(self.stat(process.pid, "--tuning", "--json").stdout)["tuning"]
            shown = {row["name"]: row for row in shown}
            self.assertEqual({name for name, row in shown.items() if row["held"]}, {"stage", "depth"})
            self.assertRegex(self.stat(process.pid, "--tuning").stdout, r"(?m)^depth +- +held +windows ")
            process.stdin.close()
            self.assertEqual(process.wait(), 7)
        # Once memory is managed, the value is what it is held at.
        argv[-1] = FILL.replace("sys.exit(7", "print('full', flush=True); sys.stdin.read(); sys.exit(7")
        argv[-1] = argv[-1].replace("sys.stdin.read()\nkept", "sys.stdin.readline()\nkept")
        with self.running(*argv, env=env) as process:
            process.stdin.write(b"\n")
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), b"full\n")
            rows = lambda: json.loads(self.stat(process.pid, "--tuning", "--json").stdout)["tuning"]
            held = lambda: ("stage", 7, True) in [(row["name"], row["now"], row["held"]) for row in rows()]
            self.wait_until("it is shown as held", held)

    @staticmethod
    def pages(pid):
        """The statistics pages in all of a process's descriptor tables."""
        for fd in Path(f"/proc/{pid}/task").glob("*/fd/*"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(fd).startswith("/memfd:farpage-stat"):
                    yield fd


class Nested(Running):
    def test_a_tree_within_a_tree_is_claimed_once(self):
        """Also where the launcher stays as the parent: the program is no process of the outer tree."""
        inner = f"{FARPAGE} run --ram 60M --stats-json {self.dir / 'stats'} -- sh -c 'echo ready; read x'"
        argv = [FARPAGE, "run", "--ram", "200M", "--", "sh", "-c", inner]
        with self.running(*argv) as process:

            def claims():
                trees = json.loads(self.run_plain(FARPAGE, "stat", "--json").stdout)["trees"]
                members = [member for tree in trees if tree["pid"] == process.pid for member in tree["members"]]
                return sorted((member["kind"], member["claim_bytes"] >> 20) for member in members)

            # The launcher hears of what it has started by and by.
            self.wait_until("one has claimed it", lambda: claims() == [("nested", 0), ("nested", 60), ("small", 0)])


if __name__ == "__main__":
    unittest.main()
