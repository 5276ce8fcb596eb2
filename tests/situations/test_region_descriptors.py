"""A program with regions closes all its descriptors: its pagers have a table of their own."""

import os
import unittest

from situation import Situation, build_with_regions

class RegionDescriptors(Situation):
    def check(self, mode, devices, close, inherit):
        program = build_with_regions("region_descriptors.c")
        with self.subTest(mode=mode, devices=devices, close=close, inherit=inherit):
            ran = self.run_plain(program, mode, devices, close, inherit, self.dir)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "", ""))

    def test_all_closed(self):
        for devices in ("zram;file:/var/tmp", "file:/var/tmp", "zram,alg=zstd;file:/var/tmp"):
            self.check("signal", devices, "range", 0)
        self.check("signal", "file:/var/tmp", "loop", 0)

    def test_children_after_all_was_closed(self):
        self.check("signal", "file:/var/tmp", "range", 1)
        self.check("signal", "zram;file:/var/tmp", "none", 1)

    @unittest.skipUnless(os.access("/dev/userfaultfd", os.W_OK) or os.geteuid() == 0, "needs a full userfaultfd")
    def test_fault_mode_thread(self):
        self.check("thread", "zram;file:/var/tmp", "range", 0)

    def test_a_named_swap_file_is_free_when_the_pager_is_gone(self):
        swap = self.dir / "swap"
        swap.touch()
        for close in ("none", "range"):
            self.check("signal", f"file:{swap}", close, 0)


if __name__ == "__main__":
    unittest.main()
