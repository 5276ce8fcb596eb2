"""Loops through a little more memory than there is: most of it stays, and what stays costs hardly a fault."""

import json
import unittest

from situation import BENCH, Situation, build

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

    def test_the_simulator_says_what_a_run_reads(self):
        trace, stats = self.dir / "trace", self.dir / "stats"
        program, file = [build("loop.c"), "40", "8"], ("--swap", "file:/var/tmp")
        done = self.run_farpage(*program, ram="16M", options=("--trace", trace, *file))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""))
        done = self.run_farpage(*program, ram=RAM, options=("--stats-json", stats, *file))
        self.assertEqual((done.returncode, done.stdout), (0, "ok\n"), done.stderr)
        counted = json.loads(stats.read_text())
        memory = counted["resident_bytes"] + counted["cached_bytes"]
        sim = [BENCH, "sim", "--trace", trace, "--policy", "run", "--ram", str(memory), "--json", "-"]
        said = json.loads(self.run_plain(*sim).stdout)["rows"][0]
        self.assertGreater(counted["pswpin"], 20_000, counted)
        out = counted["pswpout"] + counted["swpout_clean"]
        for name, real, predicted in [("in", counted["pswpin"], said["pages_in"]), ("out", out, said["pages_out"])]:
            self.assertLess(abs(predicted - real), real // 5, f"{name}: {said}, {counted}")


if __name__ == "__main__":
    unittest.main()
