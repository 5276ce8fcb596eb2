"""Ways to lose the descriptor of /dev/userfaultfd that a program inherits: closed, or marked close-on-exec, one by one
or all at once, before another program is executed. That one has its memory managed all the same, also as a user who may
not open the device; and whoever may open it gives it to children, who may not. Nothing is said."""

import os
import shutil
import unittest

from situation import NOBODY, Situation, build, unless_root, unless_there

DEVICE = "/dev/userfaultfd"
# libc's functions do these; they leave the descriptor alone.
BY_FUNCTION = ("fcntl", "fcntl64", "fioclex", "cloexec", "close", "syscall", "ioctl", "spawn")


@unless_root
@unittest.skipUnless(os.path.exists(DEVICE), f"no {DEVICE}")
class Inherited(Situation):
    def setUp(self):
        super().setUp()
        # Where another user can execute it.
        self.dir.chmod(0o755)
        self.program = shutil.copy(build("inherited.c"), self.dir)

    def managed(self, how, *options):
        out = self.run_farpage(self.program, how, options=options)
        self.assertEqual((out.returncode, out.stdout, out.stderr), (0, "managed\nchild 0\n", ""), how)

    def test_another_users_programs_are_managed(self):
        for how in BY_FUNCTION:
            with self.subTest(how=how):
                self.managed(how, "--user", str(NOBODY))

    def test_children_of_who_gives_root_up_are_managed(self):
        self.managed("fcntl")

    def test_a_program_that_loses_its_tree_has_a_part_of_the_budget(self):
        out = self.run_farpage(self.program, "instruction")
        self.assertEqual((out.returncode, out.stdout), (0, "managed\nchild 0\n"))
        self.assertRegex(out.stderr, r"^farpage: [^\n]*\n$")

    def test_where_nothing_is_left_the_program_goes_on_without(self):
        out = self.run_farpage(self.program, "instruction", options=("--user", str(NOBODY)))
        self.assertEqual((out.returncode, out.stdout), (0, "not managed\nchild 0\n"))
        self.assertEqual(out.stderr.count("goes on without a budget"), 1, out.stderr)

    @unless_there("flock", "bash")
    def test_the_number_is_none_that_scripts_use(self):
        script = 'exec 200>"$0"; flock -n 200 && exec 9>"$0.9" 99>"$0.99" 255>"$0.255" && exec "$1" executed'
        out = self.run_farpage("bash", "-c", script, self.dir / "lock", self.program)
        self.assertEqual((out.returncode, out.stdout, out.stderr), (0, "managed\nchild 0\n", ""))


if __name__ == "__main__":
    unittest.main()
