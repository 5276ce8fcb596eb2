"""Loops through a little more memory than there is: most of it stays, and what stays costs hardly a fault."""

import json
import unittest

from situation import Situation, build

MIB = 40
RAM = "32M"
PASSES = 40


class Loops(Situation):
    def test_most_of_a_loop_stays(self):
        stats = self.dir / "stats"
        options = ("--stats-json", stats, "--swap", "file:/var/tmp")
        done = self.run_farpage(build("loop.c"), MIB, PASSES, ram=RAM, options=options)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""))
        counted = json.loads(stats.read_text())
        touched = MIB * 256 * PASSES
        # All would be read again in every pass if first in were first out. At least a fifth must be.
        self.assertLess(counted["pswpin"], touched // 2, counted)
        # What is looked at whether it is still in use comes back by the window.
        self.assertLess(counted["workingset_refault_cached"], touched // 10, counted)


if __name__ == "__main__":
    unittest.main()
