"""What the tests of this folder share: programs built once, runs with and without farpage, cgroups, busy CPUs.

A situation is something about a program or its surroundings that once broke it under farpage: a descriptor that it
closes, a limit that it meets, a library that is preloaded beside ours. Each `test_*.py` has one kind of situation;
small C programs lie in `src`. A test compares the run under farpage with the plain one wherever that is possible.

    tests/run.py situations                 # all
    tests/run.py situations/descriptors     # those with "descriptors" in their name

No test measures time. A run that does not end is killed after `HANG` seconds and fails. What comes about by and by, as
what is shown of a process, is waited for (`wait_until`)."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LIBRARIES = TARGET / os.environ.get("PROFILE", "checked")
FARPAGE = LIBRARIES / "farpage"
PRELOAD = LIBRARIES / "libfarpage_preload.so"
BENCH = LIBRARIES / "farpage-bench"
REGIONS = LIBRARIES / "libfarpage.so"
BUILT = TARGET / "tests" / "situations"

# A user without rights.
NOBODY = 65534

# Longer than anything here takes on a busy machine: what is not done by then hangs.
HANG = 300


def build(name, *flags, output=None):
    """The program of `src/NAME`, built if it is older than its source; the path of it."""
    source, out = HERE / "src" / name, BUILT / (output or Path(name).stem)
    newest = max(path.stat().st_mtime for path in (source, *source.parent.glob("*.h")))
    if not out.exists() or out.stat().st_mtime < newest:
        BUILT.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        # Another process of tests may want it at the same time.
        new = out.with_name(f"{out.name}.{os.getpid()}")
        subprocess.run([compiler, "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o", new, source, *flags], check=True)
        new.replace(out)
    return out


def find_redis_server():
    """Debian's redis-tools has the server, too: it is what it is called."""
    binary = shutil.which("redis-check-rdb")
    if shutil.which("redis-server") or not binary:
        return
    BUILT.mkdir(parents=True, exist_ok=True)
    new = BUILT / f"redis-server.{os.getpid()}"
    new.symlink_to(binary)
    new.replace(BUILT / "redis-server")
    os.environ["PATH"] += f":{BUILT}"


find_redis_server()


def build_with_regions(name):
    """The same, linked against the C library as it is now."""
    BUILT.mkdir(parents=True, exist_ok=True)
    link = BUILT / "libfarpage.so.0"
    if not link.exists():
        new = link.with_name(f"{link.name}.{os.getpid()}")
        new.symlink_to(REGIONS)
        new.replace(link)
    return build(name, f"-I{ROOT / 'crates' / 'farpage-c' / 'include'}", str(REGIONS), f"-Wl,-rpath,{BUILT}")


def unless_root(test):
    return unittest.skipUnless(os.geteuid() == 0, "needs root")(test)


def unless_there(*commands):
    """Skips a test where one of the commands is not installed."""
    missing = [c for c in commands if shutil.which(c) is None]
    return unittest.skipIf(missing, f"not installed: {' '.join(missing)}")


def without_waiting(messages):
    """Messages but for the one of a program that waited for most of its time: on a busy machine any program may."""
    return re.sub(r"^farpage: for \d+% of the .* at least one thread waited for memory.*\n", "", messages, flags=re.M)


class Situation(unittest.TestCase):
    """A test with runs, a directory of its own (`self.dir`), and nothing left behind."""

    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="farpage-situation-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def run_plain(self, *argv, timeout=HANG, **options):
        """Runs a program to its end; its whole process group is killed if it hangs. The result is that of
        `subprocess.run`."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True,
                   "process_group": 0} | options
        argv = [str(a) for a in argv]
        with subprocess.Popen(argv, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                out, err = process.communicate()
                self.fail(f"{' '.join(argv)}: not done after {timeout} s\n{out}{err}")
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def run_farpage(self, *argv, ram="32M", options=(), waited=False, **rest):
        """The same under `farpage run --ram RAM OPTIONS --`. Without `waited`, what it says of a program that waited
        for most of its time is left out."""
        done = self.run_plain(FARPAGE, "run", "--ram", ram, *options, "--", *argv, **rest)
        if isinstance(done.stderr, str) and not waited:
            done.stderr = without_waiting(done.stderr)
        return done

    def assert_same(self, *argv, ram="32M", options=(), **rest):
        """Status, output and messages under farpage are those of the plain run; the farpage run's result."""
        plain = self.run_plain(*argv, **rest)
        ours = self.run_farpage(*argv, ram=ram, options=options, **rest)
        self.assertEqual((ours.returncode, ours.stdout, ours.stderr), (plain.returncode, plain.stdout, plain.stderr))
        return ours

    def cgroup(self, controller, **limits):
        """A cgroup (v1) with these limits, dots of their names as underscores; gone at the end. Its path."""
        top = Path("/sys/fs/cgroup") / controller
        if not os.access(top / "tasks", os.W_OK):
            self.skipTest(f"no cgroup v1 {controller} that may be written")
        group = Path(tempfile.mkdtemp(prefix="farpage-test-", dir=top))
        self.addCleanup(self._remove_cgroup, group)
        for name, value in limits.items():
            (group / name.replace("_", ".", 1)).write_text(str(value))
        return group

    @staticmethod
    def _remove_cgroup(group):
        for _ in range(200):
            if not group.exists():
                return
            for pid in (group / "tasks").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                group.rmdir()
                return
            subprocess.run(["sleep", "0.05"], check=False)

    @staticmethod
    def enter(group):
        """For `preexec_fn`: the child is in this cgroup from its start on."""
        return lambda: (group / "tasks").write_text(str(os.getpid()))

    def stress_program(self, name="stress"):
        """The path of a program of `tests/stress`."""
        path = TARGET / "tests" / name
        if not path.exists():
            self.skipTest(f"{name} is not built: make test-programs")
        return path

    def wait_until(self, what, true):
        """Waits until it is so; fails if that hangs."""
        end = time.monotonic() + HANG
        while not true():
            self.assertLess(time.monotonic(), end, f"not so: {what}")
            time.sleep(0.05)

    @contextlib.contextmanager
    def busy(self, loops=2):
        """Keeps CPUs busy meanwhile."""
        running = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
        try:
            yield
        finally:
            for process in running:
                process.kill()
                process.wait()
