"""What is said of a program that waited for memory for most of its time: for a disk that is slow, so that it is so on a
busy machine, too, where a program also waits for a CPU."""

import concurrent.futures
import json
import os
import re
import unittest

from holder import PYTHON
from situation import Situation, unless_there

# Touches pages of three times its budget at random, for so many seconds.
SLOW = """import sys, time
end = time.monotonic() + float(sys.argv[1])
kept, at = bytearray(72 << 20), 0
for i in range(0, len(kept), 4096): kept[i] = 1 + i % 251
while time.monotonic() < end:
    for _ in range(256):
        at = (at * 5 + 12289) % (72 << 8)
        kept[at << 12] |= 1
"""
# The same, with threads that have had faults, and wait for nothing any more.
SLOW_WITH_THREADS = """import threading
ended, begun = threading.Event(), threading.Barrier(8)
def rest():
    bytearray(1 << 20)
    begun.wait()
    ended.wait()
for _ in range(7): threading.Thread(target=rest).start()
""" + SLOW.replace("while", "begun.wait()\nwhile", 1) + "ended.set()\n"
# By another one, which ends by `_exit` if it is dash.
CHILD = ["sh", "-c", '"$@"; true', "sh"]
WAITED = r"for \d+% of the time at least one thread waited for memory"
FILES = "100% of major faults waited for files: give it more --ram"
LARGEST = r"; the largest process is python\S* \(\d+\), with [\d.]+ MiB"


class Waited(Situation):
    def slow(self, seconds, *options, before=(), program=SLOW, **rest):
        argv = [*before, PYTHON, "-c", program, str(seconds)]
        options = ("--swap", "file:/var/tmp,fault=seeks:500", *options)
        return self.run_farpage(*argv, ram="24M", options=options, waited=True, **rest)

    @unless_there(PYTHON)
    def test_a_program_that_waited_for_most_of_its_time_is_told(self):
        done = self.slow(6)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, f"\\Afarpage: {WAITED}, {FILES}; --stats says more, -q nothing\n\\Z")

    @unless_there(PYTHON)
    def test_threads_that_wait_for_nothing_hide_none_that_does(self):
        done = self.slow(6, program=SLOW_WITH_THREADS)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, f"\\Afarpage: {WAITED}, {FILES}; --stats")

    @unless_there(PYTHON)
    def test_who_waits_is_told_while_it_runs(self):
        """Half a minute long: that is what is looked at."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            alone, tree, quiet = (pool.submit(self.slow, 33, *options, before=before)
                                  for before, options in (([], []), (CHILD, ["--stats"]), ([], ["-q"])))
        for done, largest in (alone.result(), ""), (tree.result(), LARGEST):
            first, *rest = done.stderr.splitlines()
            last = WAITED.replace("the time", r"the last \d+ s")
            self.assertRegex(first, f"^farpage: {last}, {FILES}{largest}; farpage top shows it, -q nothing$")
            self.assertFalse([line for line in rest if "of the last" in line], "once")
        self.assertEqual(quiet.result().stderr, "")

    @unless_there(PYTHON)
    def test_a_program_is_told_that_what_it_started_waited(self):
        done = self.slow(6, before=CHILD)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, f"\\Afarpage: {WAITED}, {FILES}{LARGEST}; --stats says more, -q nothing\n\\Z")

    @unless_there(PYTHON)
    def test_the_report_is_of_all_processes(self):
        report = self.slow(2, "--stats", before=CHILD).stderr
        waited = re.search(r"waited for memory .* for (\d+)% of the time at least one waited\n", report)
        self.assertGreater(int(waited[1]), 50, report)
        self.assertRegex(report, r"\n  files +[\d.]+ MiB  written, [\d.]+ MiB read\n")
        self.assertRegex(report, r"\n  largest +[\d.]+ MiB  python\S* \(\d+\)\n")
        # The first process had no part in it.
        self.assertRegex(report, r"\n  swapped out +[\d.]+ MiB  \d+ pages")
        self.assertRegex(report, rf"\n  major faults +\d+  of [1-9]\d* faults served\n(.*\n)*  {WAITED}, {FILES}\n\Z")

    @unless_there(PYTHON)
    def test_who_had_no_room_on_its_devices_is_told(self):
        program = "import os; kept = [os.urandom(1 << 20) for _ in range(60)]"
        file = self.dir / "stats"
        for before in ([], CHILD):
            options = ["--swap", "zram,size=8M", "--stats", "--stats-json", file]
            report = self.run_farpage(*before, PYTHON, "-c", program, ram="24M", options=options).stderr
            self.assertGreater(json.loads(file.read_text())["tree"]["swap_full"], 0)
            self.assertRegex(report, r"\n  swap_full +[1-9]\d*  tries to swap a page out failed: no device had room\n"
                                     r"  the swap devices were full: more --swap keeps it within its budget\n\Z")

    @unless_there(PYTHON)
    def test_nothing_is_said_of_waiting_for_others_where_nothing_was_taken_out(self):
        program = "kept = bytearray(20 << 20); kept[::4096] = bytes(5120)"
        report = self.run_farpage(PYTHON, "-c", program, ram="29M", options=["--stats"]).stderr
        if re.search(r"swapped out +0 B", report):
            self.assertNotIn("were taken out", report)

    @unless_there(PYTHON)
    def test_who_is_not_told_that_it_waited(self):
        closed = "import atexit, os; atexit.register(os.close, 2)\n" + SLOW
        replaced = "import os; os.dup2(os.open(os.environ['FILE'], os.O_WRONLY | os.O_CREAT), 2)\n" + SLOW
        file = self.dir / "other"
        # All at the same time: so they wait the more.
        with concurrent.futures.ThreadPoolExecutor(5) as at_once:
            slow = lambda *options, **rest: at_once.submit(self.slow, 6, *options, **rest)
            quiet = {
                "who does not want it": slow("-q"),
                "who has somebody to say more": slow("--stats-json", self.dir / "stats"),
                "whose standard error is closed": slow(program=closed),
                "whose standard error is another file": slow(program=replaced, env=os.environ | {"FILE": str(file)}),
            }
        done = {what: run.result() for what, run in quiet.items()} | {"who took no time": self.slow(1)}
        for what, done in done.items():
            with self.subTest(what):
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(file.read_text(), "")


if __name__ == "__main__":
    unittest.main()
