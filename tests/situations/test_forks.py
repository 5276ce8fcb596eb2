"""Forks while other threads are in the middle of something, and of processes that have moved elsewhere: to another
root, other mounts, another pid namespace."""

import unittest

from holder import Holding
from situation import FARPAGE, HANG, Situation, build, unless_root, unless_there


class Streams(Situation):
    def test_other_threads_open_and_close_streams(self):
        with self.busy():
            ran = self.run_farpage(build("streams.c"), 100, 40, ram="24M")
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "ok\n", ""))


class Newborn(Situation):
    def test_children_do_at_once_what_needs_the_engine(self):
        for ram in ("24M", "48M"):
            with self.subTest(ram):
                ran = self.run_farpage(build("newborn.c"), 3, 40, ram=ram)
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "ok\n", ""))


class Beginning(Situation):
    def engine_in_children(self, ram):
        for how in ("fork", "_Fork", "clone", "SYS_fork", "SYS_clone", "SYS_clone3"):
            with self.subTest(how):
                ran = self.run_farpage(build("grow.c"), "half", 70, "engine", how, ram=ram)
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "ok\n", ""))

    def test_children_of_an_engine_that_manages_nothing_yet(self):
        self.engine_in_children("64M")

    def test_children_of_a_process_without_an_engine(self):
        self.engine_in_children("180M")


class KeptStacks(Holding):
    """Of threads that have ended libc keeps the stacks, and touches them in a child."""

    def test_a_child_of_a_small_process_grows_and_forks(self):
        for ram in ("24M", "96M"):
            with self.subTest(ram):
                ran = self.run_farpage(build("stacks.c"), 112, ram=ram)
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "right\n", ""))

    def test_a_process_that_is_attached_to(self):
        process = self.begin(build("stacks.c"), 48, "wait")
        attached = self.run_plain(FARPAGE, "attach", process.pid, "--ram", "24M")
        self.assertEqual((attached.returncode, attached.stderr), (0, ""))
        self.assertEqual((self.ask(process, "go"), process.wait(HANG)), ("right", 0))


class Elsewhere(Situation):
    def jail(self, where):
        ran = self.run_farpage(build("jail.c"), where, 15, ram="24M")
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "ok\n", ""))

    @unless_root
    def test_in_another_root(self):
        # Children have no swap file there, and the compressed pages of all this take more than there is: that is said.
        ran = self.run_farpage(build("jail.c"), "chroot", 15, ram="24M")
        self.assertEqual((ran.returncode, ran.stdout), (0, "ok\n"), ran.stderr)
        self.assertRegex(ran.stderr, r"\A(farpage: a forked child has no swap file, because .*\n)?\Z")

    @unless_root
    def test_without_proc(self):
        self.jail("mounts")

    @unless_root
    def test_in_another_pid_namespace(self):
        self.jail("pids")

    @unless_root
    def test_not_dumpable(self):
        self.jail("undumpable")

    @unless_root
    @unless_there("unshare", "umount")
    def test_a_program_without_proc_goes_on_without_a_budget(self):
        # There may be one below another.
        inside = "while umount -l /proc 2>&-; do :; done; exec $0 large 40"
        ran = self.run_farpage("unshare", "--mount", "sh", "-c", inside, build("grow.c"), ram="20M")
        self.assertEqual((ran.returncode, ran.stdout), (0, "ok\n"), ran.stderr)
        self.assertRegex(ran.stderr, r"\Afarpage: cannot read /proc: [^\n]*goes on without a budget\n\Z")


if __name__ == "__main__":
    unittest.main()
