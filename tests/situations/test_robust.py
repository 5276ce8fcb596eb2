"""Robust mutexes that are held while the memory around them is swapped out: whoever waits learns that the owner has
died."""

import json
import unittest

from situation import NOBODY, Situation, build, unless_root


class Robust(Situation):
    def run_robust(self, *how):
        stats = self.dir / "stats"
        done = self.run_farpage(build("robust.c"), 48, *how, ram="20M", options=("--verify", "--stats-json", stats))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout, json.loads(stats.read_text())

    def test_of_a_thread_that_ends(self):
        out, stats = self.run_robust("threads")
        self.assertEqual(out, "told of 8 of 8\n")
        self.assertGreater(stats["pswpout"], 0)

    def test_a_shared_one_behind_private_ones_of_a_killed_child(self):
        self.assertEqual(self.run_robust("killed")[0], "told of 1 of 1\n")

    @unless_root
    def test_of_a_server_that_has_become_another_user(self):
        for how, told in (("threads", 8), ("killed", 1)):
            self.assertEqual(self.run_robust(how, NOBODY)[0], f"told of {told} of {told}\n")


if __name__ == "__main__":
    unittest.main()
