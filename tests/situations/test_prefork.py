"""Servers that fork workers. What these copy of their parent by writing to it counts, without their having asked for
memory, and however small the parent is beside the budget. Many of them fit a small one, and none waits for long for the
others."""

import json
import os
import signal
import subprocess
import unittest

from situation import FARPAGE, Situation, build, without_waiting


class Prefork(Situation):
    def settle(self, ram, parent, workers, lives=0, own=0):
        """They come to the budget and 5 % of it, and every word is right."""
        ours = self.run_farpage(build("prefork.c"), parent, workers, ram * 105 // 100, lives, own, ram=f"{ram}M")
        self.assertEqual((ours.returncode, ours.stdout, ours.stderr), (0, "right\n", ""))

    def test_a_parent_of_a_third_of_the_budget(self):
        self.settle(60, 20, 4)

    def test_many_workers_of_a_small_parent(self):
        self.settle(64, 5, 24)

    def test_a_parent_with_an_engine(self):
        self.settle(64, 40, 3)

    def test_after_many_that_ended_at_once(self):
        self.settle(60, 20, 4, lives=100)

    def test_many_workers_with_memory_of_their_own(self):
        self.settle(32, 0, 12, own=12)

    def test_children_that_sleep_leave_the_others_what_they_do_not_use(self):
        # What they could fill is more than the budget, what they have a fifth of it.
        ours = self.run_farpage(build("sleepers.c"), 100, 30, ram="64M")
        self.assertEqual((ours.returncode, ours.stdout, ours.stderr), (0, "ok\n", ""))

    def family(self, *how):
        """The parent stores what it has, and so do its children, which sleep; what is read of that, and printed."""
        command = [FARPAGE, "run", "--ram", "48M", "--verify", "--", build("family.c"), "96", "4", *how]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as run:
            pids = run.stdout.readline().split()
            found = lambda pid: json.loads(self.run_plain(FARPAGE, "stat", pid, "--json").stdout)["swpout_shared"]
            self.wait_until("a child finds a copy of its parent's", lambda: any(found(pid) for pid in pids))
            out, err = run.communicate("\n")
            return out, without_waiting(err), run.returncode

    def test_what_all_have_is_stored_once(self):
        self.assertEqual(self.family("stays"), ("right\n" * 5, "", 0))

    def test_what_all_have_stays_when_the_parent_ends(self):
        self.assertEqual(self.family(), ("right\n" * 4, "", 0))

    def said(self, ram, *argv):
        """What it says first, of a program that goes on until it is killed."""
        said = self.dir / "said"
        with said.open("w") as file:
            process = subprocess.Popen([FARPAGE, "run", "--ram", ram, "--", *argv], stderr=file, process_group=0)
        self.addCleanup(process.wait)
        self.addCleanup(os.killpg, process.pid, signal.SIGKILL)
        self.wait_until("something is said", lambda: said.read_text().endswith("\n"))
        return said.read_text()

    def test_many_that_have_more_than_the_budget_and_cannot_give_are_told(self):
        self.assertRegex(
            self.said("24M", build("sleepers.c"), "60", "0", "700"),
            r"\Afarpage: \d\d processes have [2-4]\d\.\d MiB of the budget of 24\.0 MiB, and none can give more; the "
            r"largest is process \d+ \(sleepers\): .*\n\Z",
        )

    def test_children_that_are_forked_by_an_instruction_count(self):
        self.assertRegex(
            self.said("64M", build("sleepers.c"), "1", "40", "20000", "unseen"),
            r"\Afarpage: programs that cannot load farpage's library .* instruction\) have [1-5]\d\.\d MiB of the",
        )

    def test_no_request_waits_while_others_answer_theirs(self):
        # Four workers that need 24 MiB each, and each request takes a tenth of a second of its worker's own time: so
        # one that waits for its worker's turn for two seconds sees no more than twenty of another's.
        ours = self.run_farpage(build("requests.c"), 4, 24, 4, ram="48M")
        self.assertEqual((ours.returncode, ours.stderr), (0, ""))
        what, others = ours.stdout.split()
        self.assertEqual(what, "right")
        self.assertLessEqual(int(others), 60)


if __name__ == "__main__":
    unittest.main()
