#!/usr/bin/env python3
"""One budget for a tree: the sum of what its processes have stays within it, and every page is right.

Usage: tree.py FARPAGE MEMBER [SEED]. Every 10 ms the anonymous memory of all processes is looked at: of a memory cgroup
where there is one and root may make it, else the sum of proportional shares (PSS). That sum takes so long that who ends
and who begins meanwhile is in it twice.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

FARPAGE, MEMBER = sys.argv[1:3]
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)


def pss_anon(pid):
    """MiB; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as text:
            return next(int(line.split()[1]) for line in text if line.startswith("Pss_Anon:")) / 1024
    except (OSError, StopIteration):
        return 0


def processes(group):
    """Of a process group, by the fifth field of /proc/PID/stat."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as text:
                    if int(text.read().rsplit(")", 1)[1].split()[2]) == group:
                        yield int(name)
            except (OSError, IndexError):
                pass


class Meter:
    """A memory cgroup without a limit."""

    TOPS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")

    def __init__(self):
        self.path = None
        for top in self.TOPS:
            path = f"{top}/farpage-tree-{os.getpid()}-{time.monotonic_ns()}"
            if os.path.exists(f"{top}/cgroup.procs") and os.path.exists(f"{top}/memory.stat"):
                try:
                    os.mkdir(path)
                    self.path = path
                    return
                except OSError:
                    pass

    def enter(self):
        if self.path:
            with open(f"{self.path}/cgroup.procs", "w") as procs:
                procs.write("0")

    def anonymous(self, group):
        """MiB."""
        if not self.path:
            return sum(pss_anon(pid) for pid in processes(group))
        with open(f"{self.path}/memory.stat") as text:
            stat = dict(line.split() for line in text)
        return int(stat.get("total_rss", stat.get("anon"))) / (1 << 20)

    def remove(self):
        for _ in range(500):
            try:
                return self.path and os.rmdir(self.path)
            except OSError:
                time.sleep(0.01)


class Tree:
    """A run under farpage, and the sums that were seen."""

    def __init__(self, ram, *command, options=()):
        self.ram, self.sums = ram, []
        argv = [FARPAGE, "run", "--ram", f"{ram}M", *options, "--", *map(str, command)]
        self.meter = Meter()
        self.program = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=self.meter.enter,
        )
        self.sampler = threading.Thread(target=self.sample)
        self.sampler.start()

    def sample(self):
        while self.program.poll() is None:
            self.sums.append(self.meter.anonymous(self.program.pid))
            time.sleep(0.01)
        self.meter.remove()

    def members(self):
        out = subprocess.run([FARPAGE, "stat", "--json"], capture_output=True, text=True, check=True).stdout
        mine = set(processes(self.program.pid))
        return next((tree for tree in json.loads(out)["trees"] if tree["pid"] in mine), None)

    def end(self, *, out, percent=110, mostly=None):
        stdout, stderr = self.program.communicate()
        self.sampler.join()
        peak = max(self.sums, default=0)
        what = f"{self.program.args[5:]}: {stdout!r} {stderr!r} peak {peak:.1f} of {self.ram} MiB"
        assert self.program.returncode == 0 and stdout == out, what
        assert peak <= self.ram * percent / 100, what
        if mostly and self.meter.path:
            most = sorted(self.sums)[len(self.sums) * 85 // 100]
            assert most <= self.ram * mostly / 100, f"{what}, 85 % of the time up to {most:.1f}"
        print(f"ok: peak {peak:5.1f} of {self.ram} MiB, {len(self.sums)} samples: {' '.join(self.program.args[7:])}"[:110])
        return stderr


def several(count, *member):
    one = " ".join([MEMBER, *map(str, member)])
    return f"for i in $(seq {count}); do {one} & done; wait"


def shapes():
    Tree(48, "sh", "-c", several(3, 40, 2, 200)).end(out="right\n" * 3)
    # One is idle when the others come.
    Tree(64, "sh", "-c", f"{MEMBER} 50 1 3000 & sleep 1; {MEMBER} 50 2 10; wait").end(out="right\n" * 2)
    # Six children that share most: there is room for all, so nothing that they share is copied.
    Tree(80, MEMBER, 40, 1, 800, 6).end(out="right\n")
    # And where there is not: a page that several have is gone when all of them have taken it out.
    Tree(40, MEMBER, 40, 1, 300, 3).end(out="right\n", percent=150, mostly=120)
    Tree(40, MEMBER, 100, 1, 1000, 6).end(out="right\n", percent=200, mostly=130)
    # Many short ones.
    Tree(32, "sh", "-c", "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done; echo right").end(out="right\n")
    # More than there are places, which end without a word.
    many = Tree(32, "sh", "-c", "i=0; while [ $i -lt 1100 ]; do (:); i=$((i+1)); done; /bin/true; echo right")
    assert not many.end(out="right\n")


def another_budget():
    tree = Tree(64, MEMBER, 100, 3, 1000)
    while not tree.members():
        time.sleep(0.01)
    time.sleep(0.7)
    for ram in (32, 48):
        subprocess.run([FARPAGE, "set", str(tree.program.pid), "--ram", f"{ram}M"], check=True, timeout=60)
        assert tree.members()["budget_bytes"] == ram << 20
        time.sleep(0.2)
        last = tree.meter.anonymous(tree.program.pid)
        assert last <= ram * 1.1, f"{last:.1f} MiB of {ram}"
    tree.end(out="right\n")


def torture():
    """Members are killed and stopped at any time. Nobody waits for them, and what they claimed is there again."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    loop = f"while [ -e $0 ]; do {MEMBER} 24 1 20; done 2>/dev/null"
    flag = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"farpage-tree-{os.getpid()}")
    open(flag, "w").close()
    try:
        script = "for i in 1 2 3 4 5 6; do sh -c '%s' \"$0\" & done; wait" % loop
        tree = Tree(64, "sh", "-c", script, flag)
        until = time.monotonic() + 10
        stopped = []
        while time.monotonic() < until:
            time.sleep(rng.random() * 0.05)
            members = [pid for pid in processes(tree.program.pid) if name_of(pid) == "member"]
            if not members:
                continue
            victim = rng.choice(members)
            act = rng.random()
            if act < 0.5:
                send(victim, signal.SIGKILL)
            elif act < 0.8:
                send(victim, signal.SIGSTOP)
                stopped.append(victim)
            elif stopped:
                send(stopped.pop(rng.randrange(len(stopped))), signal.SIGCONT)
        os.unlink(flag)
        for pid in stopped:
            send(pid, signal.SIGCONT)
        stdout, stderr = tree.program.communicate(timeout=120)
        tree.sampler.join()
        assert not stdout.replace("right\n", ""), stdout
        peak, most = max(tree.sums), sorted(tree.sums)[len(tree.sums) * 99 // 100]
        # A release on a quiet machine: 62 to 65 for 99 % of the time, 63 to 72 at most; a checked build beside other
        # work is that much later.
        assert most <= 64 * 1.25 or not tree.meter.path, f"99 % of the time up to {most:.1f}"
        assert peak <= 64 * (1.5 if tree.meter.path else 2), f"peak {peak:.1f}"
        print(f"ok: peak {peak:.1f} of 64 MiB, {stdout.count('right')} rounds, {stderr.count('farpage')} messages")
    finally:
        if os.path.exists(flag):
            os.unlink(flag)


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as text:
            return text.read().strip()
    except OSError:
        return ""


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


shapes()
another_budget()
torture()
