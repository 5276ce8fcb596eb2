"""Programs that something else runs, or watches: what stands between them and the kernel need not know what an engine
asks of the kernel, and may have another idea of what the kernel has told the program at its start."""

import re
import unittest

from situation import Situation, build, unless_there

SWAPS = ("40", "2", "1")


class Observed(Situation):
    def observed(self, *observer, says=""):
        """A program that swaps does so right under this one."""
        done = self.run_farpage(*observer, build("swaps.c"), *SWAPS, ram="20M")
        self.assertEqual((done.returncode, done.stderr), (0, says), done.stdout)
        self.assertIn("0 wrong\n", done.stdout)

    @unless_there("valgrind")
    def test_valgrind(self):
        says = "farpage: valgrind runs this program, and cannot run the engine's threads; this process goes on without a budget\n"
        self.assert_same("valgrind", "-q", "true", ram="1G")
        # What a fork could copy of valgrind's own memory may be much.
        done = self.run_farpage("valgrind", "-q", "--trace-children=yes", "sh", "-c", "echo a; (exit 3)", ram="1G")
        self.assertEqual((done.returncode, done.stdout, done.stderr.replace(says, "", 1)), (3, "a\n", ""))
        self.observed("valgrind", "-q", says=says)

    @unless_there("qemu-x86_64")
    def test_qemu(self):
        """The emulator is a program with a budget; the one in it has none of its own."""
        self.assert_same("qemu-x86_64", "/bin/true", ram="1G")
        done = self.run_farpage("qemu-x86_64", build("swaps.c"), *SWAPS, ram="64M")
        says = "farpage: cannot start an engine thread: invalid argument; this process goes on without a budget\n"
        # What it has counts, and may be named.
        named = r"(farpage: programs that cannot load farpage's library .*\n)?"
        self.assertEqual((done.returncode, done.stdout), (0, "0 wrong\n"))
        self.assertRegex(done.stderr, f"^{re.escape(says)}{named}$")

    @unless_there("gdb")
    def test_gdb(self):
        self.observed("gdb", "-q", "-nx", "-batch", "-ex", "run", "--args")

    @unless_there("strace")
    def test_strace(self):
        self.observed("strace", "-f", "-o", self.dir / "calls")

    @unless_there("setarch")
    def test_addresses_that_are_not_random(self):
        self.observed("setarch", "-R")


if __name__ == "__main__":
    unittest.main()
