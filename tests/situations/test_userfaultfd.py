"""Programs that use userfaultfd themselves, on memory that was filled, and swapped out, before."""

import json
import unittest

from situation import Situation, build, unless_root


@unless_root
class Userfaultfd(Situation):
    def test_registered_late(self):
        for how in ("ioctl", "syscall"):
            with self.subTest(how=how):
                stats = self.dir / "stats"
                ours = self.assert_same(build("userfaultfd_late.c"), 32, how, ram="16M", options=("--verify", "--quiet"))
                self.assertEqual(ours.returncode, 0, ours.stdout)
                ours = self.run_farpage(build("userfaultfd_late.c"), 32, how, ram="16M", options=("--stats-json", stats))
                self.assertIn("userfaultfd of the program's own", ours.stderr)
                self.assertGreater(json.loads(stats.read_text())["pswpout"], 0)

    def test_registered_while_memory_comes_to_be_managed(self):
        """In one run of three or so it happened in that moment."""
        for _ in range(8):
            done = self.run_farpage(build("userfaultfd_soon.c"), 48, 64, ram="16M", options=("--quiet",))
            self.assertEqual((done.returncode, done.stdout), (0, "ok\n"))


if __name__ == "__main__":
    unittest.main()
