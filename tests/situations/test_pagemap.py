"""Programs that look into their own pagemap, where swapped-out memory looks never used: all of theirs is brought in,
with one warning."""

import json
import unittest

from situation import Situation, build

CLEAN = "old words: 0, wrong words: 0, child: 0\n"
MIB = 48


class Pagemap(Situation):
    def run_pool(self, *args, ram="24M", options=()):
        done = self.run_farpage(build("pagemap.c"), MIB, *args, ram=ram, options=("--verify", *options))
        self.assertEqual((done.returncode, done.stdout), (0, CLEAN), done.stderr)
        return done

    def test_opened_before_memory_is_managed(self):
        for how in ("open", "fopen", "syscall"):
            with self.subTest(how=how):
                done = self.run_pool(how, "early", "used")
                self.assertEqual(done.stderr.count("has opened its /proc/PID/pagemap"), 1, done.stderr)

    def test_opened_when_much_is_swapped_out(self):
        for how, what in (("open", "used"), ("openat", "written"), ("task", "words"), ("syscall", "used")):
            with self.subTest(how=how, what=what):
                done = self.run_pool(how, "late", what)
                self.assertEqual(done.stderr.count("has opened its /proc/PID/pagemap"), 1, done.stderr)

    def test_from_a_file(self):
        self.run_pool("fopen", "late", "written", options=("--swap", f"file:{self.dir}"))

    def test_silent_where_no_budget_is_wanted(self):
        done = self.run_pool("open", "late", "written", ram="256M")
        self.assertEqual(done.stderr, "")

    def test_that_of_another_process_changes_nothing(self):
        stats = self.dir / "stats"
        done = self.run_pool("parent", "late", "-", options=("--stats-json", stats))
        self.assertEqual(done.stderr, "")
        stats = json.loads(stats.read_text())
        self.assertGreater(stats["pswpout"], 0)
        self.assertGreater(stats["managed_bytes"], MIB << 20)


if __name__ == "__main__":
    unittest.main()
