"""Idle programs give their memory, and have it back when they are used."""

import signal
import unittest
from pathlib import Path

from holder import HOLDER, MIB, PYTHON, Holding, resident
from situation import FARPAGE, HANG, unless_there

# Parked: the interpreter itself, and the engine.
PARKED = 24 * MIB


@unless_there(PYTHON)
class Park(Holding):
    def hold(self, *options):
        """A program under farpage that holds memory."""
        process = self.begin(FARPAGE, "run", *options, "--", PYTHON, "-c", HOLDER)
        self.assertGreater(resident(process.pid), 48 * MIB)
        return process

    def order(self, what, process):
        done = self.run_plain(FARPAGE, what, process.pid)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    # On a busy machine the commands do not wait for all of it.

    def wait_until_parked(self, pid):
        self.wait_until(f"{pid} is parked", lambda: resident(pid) < PARKED)

    def wait_until_back(self, pid):
        self.wait_until(f"{pid} is back", lambda: resident(pid) > 48 * MIB)

    def test_it_goes_and_comes_back(self):
        # Far from its budget: it has no engine before. Near to it. And with nowhere to go but the pool.
        for options in [("--ram", "4G"), ("--ram", "160M"), ("--ram", "160M", "--swap", "zram")]:
            process = self.hold(*options)
            for _ in range(2):
                self.order("park", process)
                self.wait_until_parked(process.pid)
                self.assertEqual(self.ask(process, "digest"), "True")
                self.assertGreater(resident(process.pid), 48 * MIB)
            self.assertEqual(self.ask(process, "fork"), "0")
            self.assertEqual(self.ask(process, "grow 1000"), "grown")
            self.assertEqual(self.ask(process, "digest"), "True")
            process.stdin.close()
            self.assertEqual((process.wait(HANG), process.stdout.read()), (0, ""))

    def test_a_process_that_is_stopped(self):
        process = self.hold("--ram", "160M")
        process.send_signal(signal.SIGSTOP)
        self.wait_until("it is stopped", lambda: "State:\tT" in Path(f"/proc/{process.pid}/status").read_text())
        for order in [["park", process.pid], ["set", process.pid, "--ram", "16M"]]:
            done = self.run_plain(FARPAGE, *order)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, rf"is stopped\n .*kill -CONT {process.pid}\n$")
        process.send_signal(signal.SIGCONT)
        self.assertEqual(self.ask(process, "digest"), "True")

    def test_it_comes_back_before_it_is_used(self):
        process = self.hold("--ram", "160M")
        self.order("park", process)
        self.wait_until_parked(process.pid)
        self.order("unpark", process)
        self.wait_until_back(process.pid)
        self.assertEqual(self.ask(process, "digest"), "True")

    def test_all_of_a_tree(self):
        process = self.hold("--ram", "400M")
        self.assertEqual(self.ask(process, "stay"), "staying")
        pids = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        self.assertEqual(len(pids), 1)
        self.order("park", process)
        for pid in [process.pid, *pids]:
            self.wait_until_parked(pid)
        self.assertEqual(self.ask(process, "digest"), "True")
        self.assertEqual(self.ask(process, "stayed"), "0")

    def test_by_itself(self):
        # For longer than this test may have to wait for a CPU before it looks.
        process = self.hold("--ram", "4G", "--idle", "3s")
        for _ in range(2):
            self.wait_until_parked(process.pid)
            self.assertEqual(self.ask(process, "digest"), "True")
            self.assertGreater(resident(process.pid), 48 * MIB)

    def test_what_is_wrong(self):
        for what in ["park", "unpark"]:
            done = self.run_plain(FARPAGE, what, 2**22 - 1)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("no such process", done.stderr)
        done = self.run_plain(FARPAGE, "run", "--idle", "soon", "--", "true")
        self.assertEqual(done.returncode, 125)
        self.assertIn("90s, 10m or 2h", done.stderr)


if __name__ == "__main__":
    unittest.main()
