"""Programs that would exhaust their cgroup's memory get a budget from `farpage guard`, and nobody is killed."""

import re
import signal
import subprocess
import threading
import unittest
from pathlib import Path

from holder import MIB, PYTHON, Holding
from situation import FARPAGE, HANG, build, unless_root, unless_there

# Grows to argv[1] MiB, fills argv[2] MiB a second at most, says whether it has what it wrote. Where argv[3] is a
# cgroup, it waits while that has less than argv[4] MiB left: on a busy machine a guard may come late.
GREEDY = """
import hashlib, os, re, sys, time
def left():
    stat = open(sys.argv[3] + "/memory.stat").read()
    limit, rss = (int(re.search(f"^{name} (.*)", stat, re.M)[1]) for name in ("hierarchical_memory_limit", "total_rss"))
    return limit - rss >> 20
print("ready", flush=True)
sys.stdin.readline()
kept, sums, since = [], hashlib.sha1(), time.monotonic()
for i in range(int(sys.argv[1]) * 4):
    kept.append(os.urandom(4096).hex() * 32)
    sums.update(kept[-1].encode())
    while len(sys.argv) > 3 and left() < int(sys.argv[4]):
        time.sleep(0.02)
    time.sleep(max(0, (i + 1) / 4 / float(sys.argv[2]) - (time.monotonic() - since)))
print("full", flush=True)
sys.stdin.readline()
now = hashlib.sha1()
for text in kept:
    now.update(text.encode())
print(now.digest() == sums.digest(), flush=True)
sys.stdin.readline()
"""

# Under a budget, and above it: written pages of a private file mapping cannot be taken out.
ABOVE = """
import mmap, sys
file = open(sys.argv[1], "w+b")
file.truncate(90 << 20)
kept = mmap.mmap(file.fileno(), 90 << 20, access=mmap.ACCESS_COPY)
for at in range(0, len(kept), 4096):
    kept[at] = 1
print("ready", flush=True)
sys.stdin.read()
"""
# Says of itself, in its tree's memory, that it has a TiB, which will all go.
LIAR = """
import mmap, os, struct
tree = mmap.mmap(int(os.environ["FARPAGE_TREE_FD"].split(":")[0]), 0)
kept = bytearray(24 << 20)
print("ready", flush=True)
while True:
    for place in range(16):
        struct.pack_into("<QQ", tree, 4096 + 256 * place + 48, 4096, 1 << 28)
"""


@unless_root
@unless_there(PYTHON)
class Guard(Holding):
    def small(self, mib):
        """A cgroup that has no more memory than this, without swap."""
        return self.cgroup("memory", **{"memory_limit_in_bytes": mib * MIB})

    def kills(self, group):
        return int(re.search(r"^oom_kill (\d+)", (group / "memory.oom_control").read_text(), re.M)[1])

    def guard(self, group, *options):
        """A guard of it, which has begun."""
        process = subprocess.Popen([FARPAGE, "guard", "--cgroup", group, *options], text=True, bufsize=1,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end, process)
        hangs = threading.Timer(HANG, process.kill)
        hangs.start()
        self.addCleanup(hangs.cancel)
        self.assertIn("is watched", process.stderr.readline())
        return process

    def wait_for(self, pattern, guard):
        """Reads what a guard says until it says this."""
        said = []
        for line in guard.stderr:
            said.append(line)
            if re.search(pattern, line):
                return
        self.fail("".join(said))

    def said(self, guard):
        """Ends a guard; what it has said."""
        self.assertIsNone(guard.poll())
        guard.send_signal(signal.SIGTERM)
        out, err = guard.communicate(timeout=HANG)
        self.assertEqual((guard.returncode, out), (-signal.SIGTERM, ""))
        return err

    def greedy(self, group, mib, a_second, *before, waits=True):
        watched = (group, 8) if waits else ()
        return self.begin(*before, PYTHON, "-c", GREEDY, mib, a_second, *watched, preexec_fn=self.enter(group))

    def tell(self, *processes):
        for process in processes:
            process.stdin.write("go\n")

    def hear(self, word, *processes):
        for process in processes:
            self.assertEqual(process.stdout.readline(), word + "\n")

    def test_without_one_is_killed(self):
        group = self.small(160)
        two = [self.greedy(group, 120, 40, waits=False) for _ in range(2)]
        self.tell(*two)
        ended = [process.stdout.readline() for process in two]
        self.assertIn("", ended)
        self.assertGreaterEqual(self.kills(group), 1)

    def test_two_greedy_programs(self):
        group = self.small(160)
        guard = self.guard(group)
        two = [self.greedy(group, 120, 40) for _ in range(2)]
        self.tell(*two)
        self.hear("full", *two)
        self.tell(*two)
        self.hear("True", *two)
        self.assertEqual(self.kills(group), 0)
        said = self.said(guard)
        for process in two:
            self.assertRegex(said, rf"process {process.pid} \(python3[.\d]*\) had .*: it has a budget of")

    def test_who_has_a_budget_gets_a_smaller_one_and_then_more(self):
        group = self.small(200)
        guard = self.guard(group)
        managed = self.greedy(group, 120, 60, FARPAGE, "run", "--ram", "150M", "--")
        other = self.greedy(group, 90, 30)
        self.tell(managed)
        self.hear("full", managed)
        self.tell(other)
        self.hear("full", other)
        self.assertEqual(self.kills(group), 0)
        self.wait_for(rf"the tree of process {managed.pid} .* had .*: it has a budget of ", guard)
        # Its memory is given back: there is room for the other.
        self.end(other)
        # All that it had, and not only what it was cut from last.
        self.wait_for(rf"process {managed.pid} .* are out, has a budget of 150.0 MiB", guard)
        self.tell(managed)
        self.hear("True", managed)
        self.assertIsNone(guard.poll())

    def test_rules_and_who_is_refused(self):
        group = self.small(160)
        static = build("static_holder.c", "-static")
        guard = self.guard(group, "--never", "name=sleep")
        held = self.begin(static, 60, preexec_fn=self.enter(group))
        other = self.greedy(group, 110, 40)
        self.tell(other)
        self.hear("full", other)
        self.tell(other)
        self.hear("True", other)
        self.assertIsNone(held.poll())
        self.assertEqual(self.kills(group), 0)
        said = self.said(guard)
        self.assertIn(f"process {other.pid} ", said)

    def test_nobody_waits_for_who_stays_above_its_budget(self):
        """Neither for a tree that cannot become smaller, nor for one that only says that it will."""
        for others in ([PYTHON, "-c", ABOVE, self.dir / "file"], [PYTHON, "-c", LIAR]):
            with self.subTest(others=others[2]):
                group = self.small(200)
                guard = self.guard(group, "--keep", "30M")
                above = self.begin(FARPAGE, "run", "-q", "--ram", "16M", "--", *others,
                                   preexec_fn=self.enter(group))
                greedy = self.greedy(group, 150, 15)
                self.tell(greedy)
                self.hear("full", greedy)
                self.tell(greedy)
                self.hear("True", greedy)
                self.assertIsNone(above.poll())
                self.assertEqual(self.kills(group), 0)
                self.wait_for(f"process {greedy.pid} ", guard)
                self.said(guard)
                self.doCleanups()
                self.setUp()

    def test_dry_run(self):
        group = self.small(160)
        guard = self.guard(group, "--dry-run", "--keep", "40M")
        one = self.greedy(group, 100, 60)
        before = Path(f"/proc/{one.pid}/maps").read_text().count("libfarpage")
        self.tell(one)
        self.hear("full", one)
        self.wait_for(rf"process {one.pid} .*: it would get a budget of", guard)
        self.assertEqual((before, Path(f"/proc/{one.pid}/maps").read_text().count("libfarpage")), (0, 0))
        said = self.said(guard)
        self.assertLess(len(said.splitlines()), 5, said)

    def test_what_is_wrong(self):
        group = self.small(160)
        for options, why in [
            (["--cgroup", "/no/such/group"], "no such memory cgroup"),
            (["--cgroup", group, "--keep", "90%"], "twice as much"),
            (["--cgroup", group, "--keep", "much"], "--keep"),
            (["--only", "java"], "name=GLOB"),
            (["--cgroup", group, "--swap", "tape:0"], "tape"),
        ]:
            done = self.run_plain(FARPAGE, "guard", *options)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()
