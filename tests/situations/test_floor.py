"""What a process keeps that does nothing: its engine's own need and a few pages, whatever it had. And how often its
engine looks at it."""

import contextlib
import re
import time
import unittest
from pathlib import Path

from holder import PYTHON, Holding
from situation import FARPAGE, Situation, build, unless_there

# KiB. The engine 0.6 MiB with 13 MiB out; of the program 0.2: what cannot be managed, and pages that always stay.
KEPT = 1200


class Floor(Situation):
    def settle(self, ram, *arguments, said=""):
        ours = self.run_farpage(build("floor.c"), *arguments, ram=f"{ram}M")
        self.assertEqual((ours.returncode, ours.stdout), (0, "right\n"), ours.stderr)
        self.assertRegex(ours.stderr, f"^{said}$")

    def test_a_busy_process_gets_what_idle_ones_have(self):
        self.settle(24, 4, 13, KEPT, 26, 40)

    def test_a_hundred_idle_workers(self):
        # A tenth more: it comes to the budget, but on a busy machine that takes long.
        # It may be said that they have too much while they fill their memory.
        self.settle(64, 100, 3, 64 << 10, 71, 0, said=r"(farpage: \d+ processes have .* and none can give more.*\n)?")


WORKERS = 6
# Forked workers that share pages with each other and together have three times their budget, and then sleep.
ASLEEP = f"""import os, time
filled, end = os.pipe()
ends, stays = os.pipe()
for worker in range({WORKERS}):
    if os.fork() == 0:
        os.close(stays)
        kept = [os.urandom(2000) * 2 for _ in range(6000)]
        os.write(end, b".")
        os.read(ends, 1)
        os._exit(0)
for worker in range({WORKERS}): os.read(filled, 1)
print("ready", flush=True)
time.sleep(10_000)"""


def looks(process):
    """How often the monitor of each process of this tree has slept, by its thread."""
    counts, left = {}, [process]
    while left:
        pid = left.pop()
        # One may have ended.
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += (task / "children").read_text().split()
                if (task / "comm").read_text() == "farpage-monitor\n":
                    status = (task / "status").read_text()
                    counts[task.name] = int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", status)[1])
    return counts


@unless_there(PYTHON)
class Asleep(Holding):
    def test_workers_that_sleep_are_seldom_looked_at(self):
        process = self.begin(FARPAGE, "run", "-q", "--ram", "48M", "--", PYTHON, "-c", ASLEEP)

        def rest():
            before = looks(process.pid)
            time.sleep(1)
            after = looks(process.pid)
            return len(after) >= WORKERS and all(after[one] - before.get(one, 0) < 100 for one in after)
        self.wait_until("all monitors rest", rest)


if __name__ == "__main__":
    unittest.main()
