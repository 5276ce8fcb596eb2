"""What a process keeps that does nothing: its engine's own need and a few pages, whatever it had."""

import unittest

from situation import Situation, build

# KiB. The engine 0.6 MiB with 13 MiB out; of the program 0.2: what cannot be managed, and pages that always stay.
KEPT = 1200


class Floor(Situation):
    def settle(self, ram, *arguments, said=""):
        ours = self.run_farpage(build("floor.c"), *arguments, ram=f"{ram}M")
        self.assertEqual((ours.returncode, ours.stdout), (0, "right\n"), ours.stderr)
        self.assertRegex(ours.stderr, f"^{said}$")

    def test_a_busy_process_gets_what_idle_ones_have(self):
        self.settle(24, 4, 13, KEPT, 26, 40)

    def test_a_hundred_idle_workers(self):
        # A tenth more: it comes to the budget, but on a busy machine that takes long.
        # It may be said that they have too much while they fill their memory.
        self.settle(64, 100, 3, 64 << 10, 71, 0, said=r"(farpage: \d+ processes have .* and none can give more.*\n)?")


if __name__ == "__main__":
    unittest.main()
