"""The helpers of this folder: a hang fails, a difference fails, cgroups go."""

import subprocess
import unittest

from situation import Situation, unless_root


class Helpers(Situation):
    def test_a_hang_fails_and_is_killed(self):
        with self.assertRaisesRegex(AssertionError, "not done after"):
            self.run_plain("sh", "-c", "sleep 1000 & echo $!; wait", timeout=0.5)

    def test_a_difference_fails(self):
        with self.assertRaises(AssertionError):
            self.assert_same("sh", "-c", 'echo "${FARPAGE_CONF:+farpage}"')

    @unless_root
    def test_a_cgroup_holds_its_program_and_goes(self):
        group = self.cgroup("pids", pids_max=20)
        out = self.run_plain("cat", "/proc/self/cgroup", preexec_fn=self.enter(group))
        self.assertIn(group.name, out.stdout)
        with subprocess.Popen(["sleep", "1000"], preexec_fn=self.enter(group)) as sleeping:
            self._remove_cgroup(group)
            self.assertEqual(sleeping.wait(), -9)
        self.assertFalse(group.exists())


if __name__ == "__main__":
    unittest.main()
