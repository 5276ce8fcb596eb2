#!/usr/bin/python3
"""Real programs under farpage: each runs plainly and under a budget; output and memory are compared.

The budget is a quarter of the largest process's peak resident anonymous memory in the plain run (half for runtimes
that collect garbage), at least 16 MiB. A case fails when the output differs, when the exit status is not 0, when any
sample (every 10 ms, each process of the tree) is above twice the budget, when more than one in twenty is above it +
5 %, or when it hangs.

With --attach programs start as they are, and get their budget at a random moment. It holds from when `farpage attach`
has returned, for processes that are started from then on, too.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import cases  # noqa: E402
import measure  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MIB = 1 << 20
TOLERANCE = 1.05
# On a busy machine a process may have filled memory before its engine is given a CPU.
SELDOM, AT_MOST = 1 / 20, 2


def find_counters(value):
    """The counters in whatever shape the JSON has: the first object with `pswpout`."""
    if isinstance(value, dict):
        if "pswpout" in value:
            return value
        value = list(value.values())
    if isinstance(value, list):
        for v in value:
            found = find_counters(v)
            if found:
                return found
    return None


class OtherCounters:
    """Counters of the processes below the main one, asked for now and then while they live."""

    def __init__(self, farpage, period=0.5, main=False):
        self.farpage, self.period, self.main, self.next, self.last = farpage, period, main, 0.0, {}

    def __call__(self, run):
        now = time.monotonic()
        if now < self.next:
            return
        for pid in [p for p in measure.tree() if self.main or p != run.main.pid][:8]:
            try:
                done = subprocess.run(
                    [self.farpage, "stat", str(pid), "--json"], stdin=subprocess.DEVNULL, capture_output=True, timeout=5
                )
                found = find_counters(json.loads(done.stdout)) if done.returncode == 0 else None
            except (subprocess.TimeoutExpired, ValueError, OSError):
                found = None
            if found:
                self.last[found.get("pid", pid)] = found
        self.next = time.monotonic() + self.period


class Attaching:
    """Attaches to the main process at some moment; what that came to."""

    def __init__(self, options, budget, moment, every):
        self.command = [options.farpage, "attach", "--ram", f"{budget // MIB}M"]
        self.command += ["--verify"] * options.verify
        for spec in options.swap:
            self.command += ["--swap", spec]
        if options.readahead:
            self.command += ["--readahead", options.readahead]
        self.budget, self.moment, self.every = budget, moment, every
        self.process, self.began, self.seconds, self.said = None, 0.0, None, ""

    def __call__(self, run):
        now = time.monotonic()
        if self.process is None and now - run.started >= self.moment and run.status is None:
            self.began = now
            null = subprocess.DEVNULL
            command = self.command + [str(run.main.pid)]
            self.process = subprocess.Popen(command, stdin=null, stdout=null, stderr=subprocess.PIPE)
        if self.process and self.seconds is None and self.process.poll() is not None:
            self.seconds, self.said = now - self.began, self.process.stderr.read().decode("utf-8", "replace").strip()
            if self.process.returncode == 0:
                run.limit = self.budget * TOLERANCE
        if self.process and self.seconds is not None:
            self.every(run)

    def fault(self):
        """Why it did not work, if it should have."""
        endings = ("it has ended", "ended meanwhile", "ended, or became", "no such process")
        has_ended = any(text in self.said for text in endings)
        if self.process and self.process.wait() and not has_ended:
            return f"ATTACH {self.said}"
        return ""


def digest(case, run):
    """What the program produced, as one hash: standard output and the files that the case names."""
    h = hashlib.sha256()
    for path in [run.out_path] + [os.path.join(run.cwd, f) for f in case.files]:
        try:
            with open(path, "rb") as f:
                if case.normalize:
                    h.update(case.normalize(f.read()))
                else:
                    while block := f.read(MIB):
                        h.update(block)
        except OSError as e:
            h.update(str(e).encode())
        h.update(b"\0")
    return h.hexdigest()


def execute(case, argv, env, work, guard, limit=None, every=None):
    """Runs once in a directory of its own. Returns the run and what went wrong ('' if nothing)."""
    os.makedirs(work)
    run = measure.Run(argv, work, env, case.stdin, limit)
    driver = case.drive(work) if case.drive else None

    def between_samples(run):
        if every:
            every(run)
        if driver and driver.failed() and run.status is None:
            time.sleep(1)  # it has been asked to end
            run.kill()

    try:
        if not run.wait(guard, between_samples):
            where = "\n    ".join(run.where())
            return run, f"HANG after {guard:.0f} s\n    {where}"
    finally:
        run.kill()
        trouble = driver.finish() if driver else None
    if trouble:
        return run, f"CLIENT {trouble}"
    if run.status:
        what = f"signal {-run.status}" if run.status < 0 else f"status {run.status}"
        return run, f"EXIT {what}"
    if case.finish:
        case.finish(work)
    return run, ""


def tail(path, lines=15):
    try:
        with open(path, "rb") as f:
            return f.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def run_case(case, options, base):
    """Both runs of a case. Returns its row."""
    row = {"case": case.name, "result": "ok"}
    env = {k: v for k, v in os.environ.items() if not k.startswith("FARPAGE_")}
    env.update({"LC_ALL": "C", "TMPDIR": base, "PYTHONDONTWRITEBYTECODE": "1"})
    env.pop("PYTHONPATH", None)
    work = os.path.join(base, case.name)
    os.makedirs(work)
    case.prepare(os.path.join(work, "input"))

    argv = case.command(os.path.join(work, "input"))
    run, trouble = execute(case, argv, env, os.path.join(work, "plain"), options.guard)
    row.update(plain_peak=run.largest(), plain_seconds=run.seconds)
    if trouble:
        row["result"] = "PLAIN " + trouble
        row["stderr"] = tail(run.err_path)
        return row
    expected = digest(case, run)
    if options.plain:
        return row

    budget = max(int(run.largest() * case.share) // MIB, 16) * MIB
    report = os.path.join(work, "stats.json")
    # With --attach the moment may be when all that would meet swapped-out pages is over.
    argv = case.command(os.path.join(work, "input"), swapped=options.attach is None)
    launcher = [options.farpage, "run", "--ram", f"{budget // MIB}M", "--stats-json", report]
    launcher += ["--verify"] * options.verify
    for spec in options.swap:
        launcher += ["--swap", spec]
    if options.readahead:
        launcher += ["--readahead", options.readahead]
    others, limit, attaching = OtherCounters(options.farpage, main=options.attach is not None), budget * TOLERANCE, None
    if options.attach is not None:
        moment = random.Random(f"{options.attach} {case.name}").uniform(0, 0.9) * row["plain_seconds"]
        attaching = Attaching(options, budget, moment, others)
        launcher, limit = [], None
    run, trouble = execute(
        case,
        launcher + ["--"] * bool(launcher) + argv,
        env,
        os.path.join(work, "farpage"),
        options.guard,
        limit,
        attaching or others,
    )
    row.update(budget=budget, peak=run.largest(), seconds=run.seconds)
    try:
        with open(report) as f:
            main = find_counters(json.load(f)) or {}
    except (OSError, ValueError):
        main = {}
    counters = [main] + [c for c in others.last.values() if c.get("pid") != main.get("pid")]
    for name in ("pswpout", "pswpin", "swpout_zero", "swpout_clean", "pgmajfault", "swap_ra", "swap_ra_hit"):
        row[name] = sum(c.get(name, 0) for c in counters)

    faults = [trouble] if trouble else []
    if attaching:
        row.update(moment=attaching.moment, attached=attaching.seconds)
        faults += [attaching.fault()] if attaching.fault() else []
    if not trouble and digest(case, run) != expected:
        faults.append("OUTPUT differs")
    # What was started before is not in the tree of whom it was attached to.
    counts = (lambda p: p.pid == run.main.pid) if attaching else (lambda p: True)
    is_over = lambda p: p.over > p.samples * SELDOM or p.peak > budget * AT_MOST
    over = sorted((p for p in run.processes.values() if p.over and is_over(p) and counts(p)), key=lambda p: -p.peak)
    if over:
        p = over[0]
        faults.append(
            f"BUDGET {p.name} {p.pid}: {p.peak / budget:.2f} x, {p.over} of {p.samples} samples above + 5 %"
            + (f", and {len(over) - 1} more of {len(run.processes)} processes" if len(over) > 1 else "")
        )
    if not trouble and not case.tree and not attaching and row["pswpout"] + row["swpout_zero"] == 0:
        faults.append("IDLE nothing was swapped out")
    if faults:
        row["result"] = "; ".join(faults)
        row["stderr"] = tail(run.err_path) + [l for l in tail(run.out_path, 100) if l.startswith("FAIL")]
        if options.keep:
            kept = os.path.join(options.keep, case.name)
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(work, kept, symlinks=True)
    return row


def wasted(row):
    """Of the pages read ahead, those that were not used, where that is counted."""
    return f"{100 * (1 - row['swap_ra_hit'] / row['swap_ra']):.1f}" if row["swap_ra_hit"] else "-"


COLUMNS = [
    ("case", 18, lambda r: r["case"]),
    ("plain MiB", 10, lambda r: f"{r['plain_peak'] / MIB:.1f}"),
    ("budget", 7, lambda r: f"{r['budget'] // MIB}"),
    ("peak MiB", 9, lambda r: f"{r['peak'] / MIB:.1f}"),
    ("plain s", 8, lambda r: f"{r['plain_seconds']:.2f}"),
    ("farpage s", 10, lambda r: f"{r['seconds']:.2f}"),
    ("ratio", 6, lambda r: f"{r['seconds'] / max(r['plain_seconds'], 0.01):.1f}"),
    ("pswpout", 9, lambda r: f"{r['pswpout']}"),
    ("pswpin", 9, lambda r: f"{r['pswpin']}"),
    ("ahead %", 8, lambda r: f"{100 * r['swap_ra'] / max(r['pswpin'], 1):.1f}"),
    ("wasted %", 9, lambda r: wasted(r)),
    ("result", 0, lambda r: r["result"].splitlines()[0]),
]


def line(row):
    cells = []
    for name, width, text in COLUMNS:
        try:
            cell = name if row is None else text(row)
        except KeyError:
            cell = "-"
        left = name in ("case", "result")
        cells.append(cell.ljust(width) if left else cell.rjust(width))
    return " ".join(cells).rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="names of the cases")
    parser.add_argument("--quick", action="store_true", help="small sizes: plain peaks of 150 to 300 MB")
    parser.add_argument("--full", action="store_true", help="large sizes")
    parser.add_argument("--plain", action="store_true", help="plain runs only: sizes and times")
    parser.add_argument("--verify", action="store_true", help="pass --verify to farpage")
    parser.add_argument("--swap", action="append", default=[], metavar="SPEC", help="pass --swap SPEC to farpage")
    parser.add_argument("--readahead", metavar="SPEC", help="pass --readahead SPEC to farpage")
    attach = "attach, at moments by this seed"
    parser.add_argument("--attach", type=int, nargs="?", const=-1, metavar="SEED", help=attach)
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--keep", metavar="DIR", help="copy the files of failed cases to DIR/CASE")
    parser.add_argument("--guard", type=float, default=300.0, metavar="S", help="a run this long hangs (300)")
    built = os.path.join(ROOT, "target", os.environ.get("PROFILE", "checked"), "farpage")
    parser.add_argument("--farpage", default=built, metavar="PATH")
    options = parser.parse_args()
    options.farpage = os.path.abspath(options.farpage)

    size = "quick" if options.quick else "full" if options.full else "normal"
    known = cases.all_cases(size, HERE, ROOT)
    if options.list:
        print("\n".join(c.name for c in known))
        return 0
    unknown = set(options.case) - {c.name for c in known}
    if unknown:
        parser.error(f"no case is called {', '.join(sorted(unknown))} (see --list)")
    chosen = [c for c in known if not options.case or c.name in options.case]
    if not options.plain and not os.access(options.farpage, os.X_OK):
        parser.error(f"{options.farpage} is not there: make build")

    if options.attach == -1:
        options.attach = random.randrange(1 << 30)
    if options.attach is not None:
        print(f"seed {options.attach}")
    measure.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = []
    print(line(None), flush=True)
    # Long enough paths would not fit a socket's name, and /tmp may be in RAM: /var/tmp is for large files.
    base = tempfile.mkdtemp(prefix="farpage-programs.", dir="/var/tmp")
    try:
        for case in chosen:
            row = run_case(case, options, base)
            rows.append(row)
            print(line(row), flush=True)
            if row["result"] != "ok":
                for text in row["result"].splitlines()[1:] + row.get("stderr", []):
                    print("    " + text.strip(), flush=True)
            shutil.rmtree(os.path.join(base, case.name), ignore_errors=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
        if options.json:
            with open(options.json, "w") as f:
                json.dump(rows, f, indent=2)
                f.write("\n")
    failed = [r["case"] for r in rows if r["result"] != "ok"]
    print(f"{len(rows)} cases, {len(failed)} failed" + (": " + ", ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
