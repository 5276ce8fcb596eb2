"""How a program ends: with the status that it has without farpage, and nothing of it is left."""

import os
import unittest

from situation import Situation, build

# Of 160 MiB, on however busy a machine; the budget has 32.
MOST = {"MOST_KIB": str(100 << 10)}


class Ends(Situation):
    def same(self, way, mib):
        with self.subTest(way=way, mib=mib):
            self.assert_same(build("ends.c", "-pthread"), way, mib, env=os.environ | MOST)

    def test_by_the_system_call_that_ends_one_thread(self):
        for way in ("exit", "exit by instruction", "strict"):
            for mib in (4, 64):
                self.same(way, mib)
        # After its monitor has begun to rest.
        self.same("rests, exit", 64)

    def test_a_thread_outlives_the_first_one(self):
        """The kernel says nothing of the memory of a thread that has ended."""
        plain = self.run_plain(build("ends.c", "-pthread"), "leaves", 160)
        self.assertEqual((plain.returncode, plain.stdout), (0, "ok\n"))
        for way in ("leaves", "leaves by exit"):
            done = self.run_farpage(build("ends.c", "-pthread"), way, 160, env=os.environ | MOST)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""), way)

    def test_a_filter_that_allows_hardly_more(self):
        for way in ("allows little", "allows little, returns"):
            for mib in (4, 64):
                self.same(way, mib)


if __name__ == "__main__":
    unittest.main()
