"""Swap devices that cannot be used where the program runs: a read-only root, a sandbox."""

import sys
import unittest

from situation import FARPAGE, Situation, unless_root

# Prints its resident anonymous memory, MiB, when it has filled three times its budget.
FILL = """
import re
kept = [bytes([i % 255 + 1]) * 4000 for i in range(12288)]
print(int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10)
assert all(page[0] == i % 255 + 1 for i, page in enumerate(kept))
"""
READ_ONLY = 'mount --bind /var/tmp /var/tmp && mount -o remount,bind,ro /var/tmp && exec "$@"'


@unless_root
class Devices(Situation):
    sandbox = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]
    fill = [sys.executable, "-c", FILL]
    launch = [FARPAGE, "run", "--ram", "16M"]

    def test_without_the_default_file_compressed_memory_is_enough(self):
        done = self.run_plain(*self.sandbox, *self.launch, "--", *self.fill)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(int(done.stdout), 24)
        self.assertEqual(done.stderr.count("going on with compressed memory only"), 1)

    def test_so_it_is_for_a_program_in_a_sandbox(self):
        done = self.run_plain(*self.launch, "--", *self.sandbox, *self.fill)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLess(int(done.stdout), 24)
        told = self.run_plain(*self.launch, "-v", "--", *self.sandbox, *self.fill)
        self.assertIn("read-only file system", told.stderr)
        self.assertIn("going on with compressed memory only", told.stderr)

    def test_devices_that_were_asked_for_are_refused_or_said_to_be_left_out(self):
        asked = ["--swap", "zram", "--swap", "file:/var/tmp,prio=1"]
        done = self.run_plain(*self.sandbox, *self.launch, *asked, "--", "true")
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("read-only file system", done.stderr)
        done = self.run_plain(*self.launch, *asked, "--", *self.sandbox, *self.fill)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("going on without it"), 1, done.stderr)
        self.assertLess(int(done.stdout), 24)


if __name__ == "__main__":
    unittest.main()
