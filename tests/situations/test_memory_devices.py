"""Devices whose memory is part of the budget: what would leave no room for pages is refused, what is allowed comes to
an end."""

import unittest

from situation import Situation, build


class MemoryDevices(Situation):
    def test_more_than_the_budget_has_room_for_is_refused(self):
        for devices in (["ram,size=64M"], ["ram,size=80M", "file:/var/tmp"], ["ram,size=40M", "ram,size=40M"], ["zram", "ram,size=40M"]):
            options = [option for device in devices for option in ("--swap", device)]
            ran = self.run_farpage(build("fill_twice.c"), 72, ram="64M", options=options)
            with self.subTest(devices=devices):
                self.assertEqual((ran.returncode, ran.stdout), (125, ""))
                self.assertIn("would leave no room for pages", ran.stderr)
                self.assertIn("at most", ran.stderr)

    def test_the_largest_that_is_allowed_ends(self):
        ran = self.run_farpage(build("fill_twice.c"), 18, ram="16M", options=["-q", "--swap", "ram,size=14M"])
        self.assertEqual((ran.returncode, ran.stdout), (0, "0 words are wrong\n"))


if __name__ == "__main__":
    unittest.main()
