#!/usr/bin/env python3
"""What `make test` runs, as jobs side by side: each prints a line when it ends, and all that it said if it failed.

    tests/run.py                        # everything
    tests/run.py stress situations      # groups; stress/tree or situations/forks: what of a group has that in its name
    tests/run.py --list                 # the names of all jobs
    PROFILE=release tests/run.py situations     # with a release, and not with the checked build

Where it may (root), a job that runs programs under farpage has a pid namespace of its own: it sees no processes but its
own, and what it leaves behind ends with it."""

import argparse
import ast
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# The build that is tested: checked, or release. What the jobs run reads it, too.
PROFILE = os.environ.setdefault("PROFILE", "checked")
BUILT = f"build/{PROFILE}"
SITUATIONS = ROOT / "tests" / "situations"
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
# Real programs, each compared with its plain run: those that pass within CI's time.
PROGRAMS = "syscalls storm_mmap storm_malloc python_update python_file python_subprocess cc node java stress_ng"
ATTACHED = "storm_malloc python_subprocess node java"


@dataclasses.dataclass
class Job:
    """A command with the jobs that come before it."""
    name: str
    command: list
    after: tuple = ()
    options: dict = dataclasses.field(default_factory=dict)
    # The longest begin first, so that none is the last that all wait for.
    seconds: float = 10
    # Beside no other job: it measures what hangs on how soon a thread is given a CPU.
    alone: bool = False
    # Names of tests in it that can be chosen by `-k`.
    tests: list = dataclasses.field(default_factory=list)

    def chosen_by(self, words):
        """The job, or what of it these words ask for, or None."""
        group, _, rest = self.name.partition("/")
        parts = [word.partition("/")[2].lower() for word in words if word.split("/")[0] == group]
        if any(part in rest.lower() for part in parts):
            return self
        tests = [test for test in self.tests if any(part in test.lower() for part in parts)]
        options = [option for test in tests for option in ("-k", test)]
        return dataclasses.replace(self, command=self.command + options) if tests else None


def build_jobs():
    """What the others run. Two that build into one folder of cargo's wait for each other."""
    jobs = {"build/checked": ("build-checked", ()), "build/lint": ("lint", ("build/checked",)), BUILT: ("build", ()),
            "build/programs": ("test-programs", ())}
    for name, (target, after) in jobs.items():
        yield Job(name, ["make", "--no-print-directory", target], after, seconds=1000)


def unit_jobs():
    """A job for each program of unit tests, and one for the examples in comments; asks cargo, which builds them."""
    cargo = ["cargo", "test", "--workspace", "--profile", "checked"]
    asked = subprocess.run([*cargo, "--no-run", "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=True)
    libraries = subprocess.run(["rustc", "--print", "target-libdir"], stdout=subprocess.PIPE, text=True, check=True)
    # As cargo sets it: programs of macros want the compiler's libraries.
    environment = os.environ | {"FARPAGE_BUILT": "yes", "LD_LIBRARY_PATH": libraries.stdout.strip()}
    for line in asked.stdout.splitlines():
        built = json.loads(line)
        if built.get("executable") and built["profile"]["test"]:
            place = Path(built["manifest_path"]).parent
            options = {"cwd": place, "env": environment | {"CARGO_MANIFEST_DIR": str(place)}}
            name = f"unit/{place.name}/{built['target']['name']}"
            yield Job(name, [built["executable"], "--quiet"], options=options, seconds=60)
    yield Job("unit/doc", [*cargo, "--quiet", "--doc"], options={"cwd": ROOT}, seconds=60)


def model_jobs():
    yield Job("models/loom", ["make", "--no-print-directory", "test-loom"], seconds=200)


def package_jobs():
    """Each kind of package: they stage files in folders of their own."""
    place = ROOT / "tests" / "packages"
    for name, _ in test_classes(place / "test_packages.py"):
        command = [sys.executable, "-B", "-m", "unittest", "-q", f"test_packages.{name}"]
        yield Job(f"packages/{name}", command, (BUILT,), {"cwd": place}, 100 if name == "Cargo" else 10)
    for name in ("install", "python"):
        yield Job(f"packages/{name}", ["make", "--no-print-directory", f"test-{name}"], (BUILT,), seconds=90)


def stress_jobs():
    """The lines of `tests/stress/cases.txt`."""
    checked = TARGET / "checked"
    environment = os.environ | {"FARPAGE": str(TARGET / PROFILE / "farpage"), "CHECKED": str(checked / "farpage"),
                                "CHECKED_PRELOAD": str(checked / "libfarpage_preload.so"), "T": str(TARGET / "tests")}
    for line in (ROOT / "tests" / "stress" / "cases.txt").read_text().splitlines():
        name, _, command = line.partition(": ")
        name, _, needs = name.partition(" ")
        if not command or line.startswith("#") or needs == "(root)" and os.geteuid() != 0:
            continue
        script = f'OUT=$(mktemp -d) && trap "rm -rf $OUT" EXIT && {{ {command}; }}'
        after = (BUILT, "build/checked", "build/programs")
        yield Job(f"stress/{name}", namespace(["sh", "-ec", script]), after, {"cwd": ROOT, "env": environment}, 20)


def situation_jobs():
    """A job for each class of tests."""
    for file in sorted(SITUATIONS.glob("test_*.py")):
        for name, tests in test_classes(file):
            command = [sys.executable, "-B", "-m", "unittest", "-q", f"{file.stem}.{name}"]
            kind = file.stem.removeprefix("test_")
            options = {"cwd": SITUATIONS}
            after = (BUILT, "build/programs")
            yield Job(f"situations/{kind}/{name}", namespace(command), after, options, 3 * len(tests), tests=tests)


def program_jobs():
    run = [ROOT / "tests" / "programs" / "run.py", "--quick"]
    after = (BUILT, "build/programs")
    for name in os.environ.get("PROGRAMS", PROGRAMS).split():
        # They fill memory as fast as they can, and are looked at every 10 ms.
        storm = name.startswith("storm")
        yield Job(f"programs/{name}", namespace([*run, "--case", name]), after, {"cwd": ROOT}, 20, alone=storm)
    for name in os.environ.get("ATTACHED", ATTACHED).split():
        yield Job(f"programs/attached/{name}", namespace([*run, "--attach", "--case", name]), after, {"cwd": ROOT}, 20)


# Each with the jobs that must be done before its own are known.
GROUPS = {"build": (build_jobs, ()), "models": (model_jobs, ()), "packages": (package_jobs, ()),
          "stress": (stress_jobs, ()), "situations": (situation_jobs, ()), "programs": (program_jobs, ()),
          "unit": (unit_jobs, ("build/checked",))}


def test_classes(file):
    """The classes of a file that have tests, with the names of these."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            tests = [f.name for f in node.body if isinstance(f, ast.FunctionDef) and f.name.startswith("test")]
            if tests:
                yield node.name, tests


def namespace(command):
    """The command in a pid namespace of its own, where that may be made."""
    if namespace.possible is None:
        namespace.possible = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    return [*NAMESPACE, sys.executable, __file__, "--init", *command] if namespace.possible else command


namespace.possible = None


def init(command):
    """The first process of a pid namespace: orphans become its children, and none may stay a zombie."""
    child = subprocess.Popen(command)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


class Lanes:
    """Jobs that wait, run and have ended; `lanes` of them run at the same time."""

    def __init__(self, chosen, lanes):
        self.chosen, self.count = chosen, lanes
        self.changed = threading.Condition()
        self.waiting, self.running, self.done, self.failed, self.times = [], {}, set(), [], []
        self.groups = []
        # A job runs that has to be alone.
        self.alone = False
        for group, (jobs, before) in GROUPS.items():
            if any(word.split("/")[0] == group for word in chosen):
                self.groups.append((group, jobs, self.still_to_do(before)))

    def still_to_do(self, names):
        """Of these jobs, those that were asked for: another one was done before."""
        return {name for name in names if Job(name, []).chosen_by(self.chosen)}

    def jobs_of(self, jobs):
        return [chosen for job in jobs() if (chosen := job.chosen_by(self.chosen))]

    def look_for_jobs(self):
        """Adds the jobs of the groups whose jobs can be known now."""
        for group in [group for group in self.groups if group[2] <= self.done]:
            # First: if its jobs cannot be found, the group has not run, and is among those that are left.
            self.waiting += self.jobs_of(group[1])
            self.groups.remove(group)
        self.waiting.sort(key=lambda job: (job.alone, -job.seconds))

    def next(self):
        """The next job that may begin, or None when there will be no more."""
        with self.changed:
            while True:
                self.look_for_jobs()
                for job in self.waiting:
                    if self.still_to_do(job.after) <= self.done and not self.alone and not (job.alone and self.running):
                        self.waiting.remove(job)
                        self.running[job.name] = None
                        self.alone = job.alone
                        return job
                if not self.running:
                    return None
                self.changed.wait()

    def work(self):
        """A lane."""
        while job := self.next():
            began = time.monotonic()
            with tempfile.TemporaryFile("w+", errors="replace") as said:
                process = subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                           process_group=0, **job.options)
                self.running[job.name] = process
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                said.seek(0)
                text = said.read()
            self.end(job, process.returncode, text, time.monotonic() - began, used.ru_utime + used.ru_stime)

    def end(self, job, code, text, seconds, cpu):
        with self.changed:
            del self.running[job.name]
            self.alone = False
            self.times.append((seconds, cpu, job.name))
            if code == 0:
                self.done.add(job.name)
            else:
                self.failed.append(job.name)
                print(f"---- {job.name}\n{text.rstrip()}\n----", flush=True)
            skipped = text.count("skipped=") and "  " + text.strip().splitlines()[-1]
            result = "ok" if code == 0 else f"FAILED ({code})"
            print(f"{result}  {job.name}  {seconds:.1f} s, {cpu:.1f} s of CPU{skipped or ''}", flush=True)
            self.changed.notify_all()

    def stop(self, *_):
        """Ends what runs."""
        for process in filter(None, list(self.running.values())):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os._exit(130)

    def run(self):
        """Runs all; whether none has failed."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)
        began = time.monotonic()
        lanes = [threading.Thread(target=self.work) for _ in range(self.count)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        if not self.times and not self.failed:
            sys.exit(f"nothing is called so: {' '.join(self.chosen)}")
        self.report(time.monotonic() - began)
        return not self.failed and not self.waiting and not self.groups

    def report(self, seconds):
        for group in GROUPS:
            mine = [times for times in self.times if times[2].startswith(group + "/")]
            if mine:
                print(f"{group:11} {len(mine):4} jobs, {sum(t[0] for t in mine):6.0f} s of a lane, "
                      f"{sum(t[1] for t in mine):6.0f} s of CPU; longest "
                      + ", ".join(f"{t[2].partition('/')[2]} {t[0]:.0f} s" for t in sorted(mine)[:-4:-1]))
        print(f"{len(self.times)} jobs in {seconds:.0f} s, {len(self.failed)} failed")
        for name in self.failed:
            print(f"failed: {name}")
        for job in self.waiting:
            print(f"not run, because of these: {job.name}")
        for group in self.groups:
            print(f"not run, because of these: {group[0]}")


def main():
    if sys.argv[1:2] == ["--init"]:
        init(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="GROUP[/PART]", help=f"of {', '.join(GROUPS)}; all without any")
    lanes = (os.cpu_count() or 1) + 1
    parser.add_argument("--lanes", type=int, default=lanes, metavar="N", help=f"jobs at the same time ({lanes})")
    parser.add_argument("--list", action="store_true", help="names only")
    options = parser.parse_args()
    chosen = options.jobs or list(GROUPS)
    if unknown := [word for word in chosen if word.split("/")[0] not in GROUPS]:
        parser.error(f"no group is called {unknown[0]}")
    work = Lanes(chosen, options.lanes)
    if options.list:
        for _, jobs, _ in work.groups:
            print("\n".join(job.name for job in work.jobs_of(jobs)))
        return
    sys.exit(not work.run())


if __name__ == "__main__":
    main()
