"""SIGBUS is farpage's, and stays so: what other libraries do with it, and what is not farpage's still goes to them."""

import signal
import subprocess
import sys
import unittest

BEGIN = """
import faulthandler, mmap, os, signal, tempfile, threading
import farpage
a = farpage.Pager("16M").empty(6 << 20)
a[:] = 1

def foreign():
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        there = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        there[0]
"""


def python(code, *options):
    """The same in an interpreter of its own."""
    command = [sys.executable, *options, "-c", BEGIN + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


class Signals(unittest.TestCase):
    def right(self, done):
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "6291456.0\n", ""))

    def test_a_thread_that_blocks_all_signals(self):
        self.right(python("""
def read():
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    assert signal.SIGBUS in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    print(a.sum())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert signal.SIGBUS not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

thread = threading.Thread(target=read)
thread.start()
thread.join()
"""))

    def test_a_handler_that_is_enabled_later(self):
        self.right(python("faulthandler.enable()\nprint(a.sum())"))
        self.right(python("signal.signal(signal.SIGBUS, lambda *_: None)\nprint(a.sum())"))

    def test_a_handler_that_is_disabled_as_pytest_does_at_its_end(self):
        self.right(python("faulthandler.enable()\nfaulthandler.disable()\nprint(a.sum())"))
        # From before the first pager.
        self.right(python("faulthandler.disable()\nprint(a.sum())", "-X", "faulthandler"))

    def test_what_is_not_farpages_goes_to_the_handler(self):
        for options, code in [([], "faulthandler.enable()\n"), (["-X", "faulthandler"], "")]:
            done = python(code + "a.sum()\nforeign()", *options)
            self.assertEqual((done.returncode, done.stdout), (-signal.SIGBUS, ""))
            self.assertIn("Fatal Python error: Bus error", done.stderr)
            self.assertIn("in foreign", done.stderr)
        self.assertEqual(python("foreign()").returncode, -signal.SIGBUS)
        done = python("signal.signal(signal.SIGBUS, lambda *_: print('heard'))\nos.kill(os.getpid(), signal.SIGBUS)")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "heard\n", ""))


if __name__ == "__main__":
    unittest.main()
