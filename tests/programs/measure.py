"""Runs a program and samples, from outside, the resident anonymous memory of each process of its tree."""

import ctypes
import os
import signal
import subprocess
import time

SAMPLE_SECONDS = 0.01
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Makes orphans of the programs this process's children, so that they stay in the tree that is sampled."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def read(path):
    try:
        with open(path, "rb", buffering=0) as f:
            return f.read(8192).decode("ascii", "replace")
    except OSError:
        return ""


def children_of(pid):
    found = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        found += [int(c) for c in read(f"/proc/{pid}/task/{task}/children").split()]
    return found


def tree():
    """All living descendants of this process."""
    todo, found = children_of(os.getpid()), []
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children_of(pid)
    return found


def rss_anon(pid):
    """Resident anonymous bytes and the command's name; None when the process is gone or ending."""
    text = read(f"/proc/{pid}/status")
    at = text.find("\nRssAnon:")
    if at < 0:
        return None
    return int(text[at + 9 : text.find("kB", at)]) * 1024, text[6 : text.find("\n")]


class Process:
    """What was seen of one process."""

    def __init__(self, pid, name):
        self.pid, self.name, self.peak, self.over, self.samples = pid, name, 0, 0, 0


class Run:
    """A program that runs: `start`, then `sample` until it has ended."""

    def __init__(self, argv, cwd, env, stdin=None, limit=None):
        self.limit = limit  # bytes above which a sample is a violation
        self.processes = {}
        self.status = None
        self.out_path = os.path.join(cwd, "stdout")
        self.err_path = os.path.join(cwd, "stderr")
        self.cwd = cwd
        self.started = time.monotonic()
        self.seconds = 0.0
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            source = open(stdin, "rb") if stdin else open("/dev/null", "rb")
            with source:
                self.main = subprocess.Popen(
                    argv, cwd=cwd, env=env, stdin=source, stdout=out, stderr=err, process_group=0
                )

    def sample(self):
        for pid in tree():
            seen = rss_anon(pid)
            if not seen:
                continue
            size, name = seen
            p = self.processes.get(pid)
            if p is None:
                p = self.processes[pid] = Process(pid, name)
            p.name = name
            p.samples += 1
            p.peak = max(p.peak, size)
            if self.limit and size > self.limit:
                p.over += 1

    def wait(self, guard_seconds, every=None):
        """Samples until the program and all that it started have ended. False: the hang guard was reached."""
        next_sample = time.monotonic()
        while True:
            self.sample()
            if every:
                every(self)
            if self.status is None and self.main.poll() is not None:
                self.status = self.main.returncode
                self.seconds = time.monotonic() - self.started
            if self.status is not None:
                reap()
                if not tree():
                    return True
            now = time.monotonic()
            if now - self.started > guard_seconds:
                return False
            next_sample = max(next_sample + SAMPLE_SECONDS, now)
            time.sleep(next_sample - now)

    def where(self):
        """For the report of a hang: what each thread of the tree is doing."""
        lines = []
        for pid in tree():
            try:
                tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
            except OSError:
                continue
            for t in tasks:
                base = f"/proc/{pid}/task/{t}"
                stat = read(f"{base}/stat").rpartition(")")[2].split()
                lines.append(
                    f"pid {pid} thread {t} {read(base + '/comm').strip()} state {stat[0] if stat else '?'} "
                    f"in {read(base + '/wchan') or '-'} syscall {read(base + '/syscall').strip()}"
                )
        return lines

    def kill(self):
        """Ends everything that the program started (and nothing else)."""
        for _ in range(50):
            pids = tree()
            if not pids:
                break
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if self.main.poll() is not None:
                reap()
            time.sleep(0.05)
        if self.status is None:
            self.status = self.main.poll()
            self.seconds = time.monotonic() - self.started

    def largest(self):
        return max((p.peak for p in self.processes.values()), default=0)

    def worst(self):
        return max(self.processes.values(), key=lambda p: p.peak, default=None)


def reap():
    """Collects adopted orphans. Only when the main program has been collected: this takes any child."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
