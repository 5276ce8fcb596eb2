"""Messages that many processes, or many pages, would repeat; what a command says of its progress."""

import os
import pty
import sys
import threading
import unittest

from situation import FARPAGE, Situation, build

NO_BUDGET = "this process goes on without a budget"

# Has no standard error any more, but a file of its own under that number; fills more than budget and device have.
DATA = f"""
import os, subprocess, sys
os.close(2)
data = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
assert data == 2
os.write(data, b"DATA-1\\n")
kept = [os.urandom(4096).hex() for _ in range(8 << 8)]
os.write(data, b"DATA-2\\n")
print(subprocess.run([{str(FARPAGE)!r}, "stat", str(os.getpid())], stdout=subprocess.PIPE, text=True).stdout)
"""


class Messages(Situation):
    @unittest.skipUnless(os.access("/dev/userfaultfd", os.R_OK | os.W_OK), "/dev/userfaultfd cannot be passed on")
    def test_a_tree_says_once_that_it_has_no_budget(self):
        # No program of it can have the file that its engine is told to write.
        conf = "export FARPAGE_CONF='ram:20971520;swap:zram;trace:/nowhere/file'"
        script = conf + "; for i in 1 2 3; do $0 large 40; sh -c '$0 large 40; $0 large 40' $0; done"
        grow = build("grow.c")
        plain = self.run_plain("sh", "-c", script, grow)
        done = self.run_farpage("sh", "-c", script, grow, ram="20M")
        self.assertEqual((done.returncode, done.stdout), (0, plain.stdout))
        self.assertEqual(done.stderr.count(NO_BUDGET), 1, done.stderr)
        # Another tree says it anew.
        again = self.run_farpage("sh", "-c", script, grow, ram="20M")
        self.assertEqual(again.stderr, done.stderr)

    def test_lost_pages_are_summed_up(self):
        program = build("../../stress/lost.c", output="lost")
        done = self.run_farpage(program, "64", "10", ram="24M", options=("--swap", "file:/var/tmp,fault=lost:7"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [line for line in done.stderr.splitlines() if "cannot be read back" in line]
        self.assertIn("threads that touch it get SIGBUS", lines[0])
        for number, line in enumerate(lines[1:], 1):
            self.assertIn(f"{10 ** number} pages cannot be read back by now", line)
        self.assertGreater(len(lines), 1)

    def test_a_file_of_data_with_the_number_2_gets_no_messages(self):
        data = self.dir / "data"
        done = self.run_farpage("/usr/bin/python3", "-c", DATA, data, ram="16M", options=("--swap", "zram,size=4M"))
        self.assertEqual((done.returncode, data.read_text()), (0, "DATA-1\nDATA-2\n"))
        # They are kept for who looks.
        self.assertIn("messages not written", done.stdout)

    def on_terminal(self, *argv):
        """What comes of a command whose standard error is a terminal, and what is on that."""
        terminal, end = pty.openpty()
        shown = []

        def read():
            # EIO: nobody has the other end any more.
            try:
                while some := os.read(terminal, 4096):
                    shown.append(some)
            except OSError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            done = self.run_plain(*argv, stderr=end, env=os.environ | {"TERM": "xterm"})
        finally:
            os.close(end)
            reader.join()
            os.close(terminal)
        return done, b"".join(shown).decode()

    def test_progress_is_shown_on_a_terminal_only_and_goes(self):
        argv = [FARPAGE, "bench", "program", "--no-kernel", "--ram", "32M", "--rounds", "1", "--", "sleep", "1.5"]
        self.assertEqual(self.run_plain(*argv).stderr, "")
        done, text = self.on_terminal(*argv)
        self.assertEqual(done.returncode, 0, text)
        self.assertIn("sleep: ", done.stdout)
        self.assertIn("farpage bench program, ", text)
        self.assertIn("sleep with 32.0 MiB, round 1 of 1", text)
        # The line is taken away, and nothing comes after it.
        self.assertRegex(text, r"\r\x1b\[2?K$")

    def test_on_a_terminal_it_is_said_once_that_swapping_has_begun(self):
        fills = "kept = [bytes([i]) * 1_000_000 for i in range(1, 80)]"
        both = f'{sys.executable} -c "{fills}"; {sys.executable} -c "{fills}"'
        for options, times in [(["32M"], 1), (["32M", "-q"], 0), (["1G"], 0)]:
            done, text = self.on_terminal(FARPAGE, "run", "--ram", *options, "--", "sh", "-c", both)
            self.assertEqual((done.returncode, text.count("swapping has begun")), (0, times), text)
        self.assertEqual(self.run_farpage("sh", "-c", both, ram="32M").stderr, "")


if __name__ == "__main__":
    unittest.main()
