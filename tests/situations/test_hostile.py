"""A member of a tree that means harm writes anything into what the tree's processes share: others may be slow, and have
more or less memory than they should, but no byte is wrong, none hangs, and none crashes."""

import unittest

from situation import Situation, build

SEED = 1


class Hostile(Situation):
    def test_who_lies_in_the_segment_harms_nobody(self):
        program = build("liar.c")
        for where in ("all", "header", "members", "zeros", "ones"):
            with self.subTest(where=where):
                done = self.run_farpage(program, where, SEED, 2, 16, 2, ram="24M", options=("--verify",))
                self.assertEqual((done.returncode, done.stdout), (0, "0 wrong\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
