"""What a program advises the kernel about memory that is managed: nothing comes back that was discarded, guards
hold."""

import unittest

from situation import Situation, build

BUDGET = "16M"


class Advice(Situation):
    def advises(self, way):
        program = build("advice.c")
        plain = self.run_plain(program, way, 32)
        if plain.returncode == 77:
            self.skipTest(plain.stdout.strip())
        self.assert_same(program, way, 32, ram=BUDGET, options=["--verify"])
        self.assertNotRegex(plain.stdout, "(wrong|lost|guards) [1-9]")

    def test_by_functions_of_libc(self):
        for way in ("libc", "posix", "process", "syscall"):
            with self.subTest(way):
                self.advises(way)

    def test_by_a_system_call_instruction(self):
        self.advises("raw")

    def test_by_io_uring(self):
        self.advises("ring")

    def test_stacks_with_guards_that_nobody_tells_of(self):
        self.advises("stacks")


if __name__ == "__main__":
    unittest.main()
