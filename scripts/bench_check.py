#!/usr/bin/env python3
"""Whether this tree is slower than the last one that was recorded: builds both, and runs both in turns.

Run it before a change of the engine is called done, on a machine that has nothing else to do; about a quarter of an
hour after the builds. The last line of docs/measurements/record.md names the commit to compare with. With --record,
and if nothing is slower, a line for the present commit is added, with its ratios to the kernel's swap (root; some
minutes more)."""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/measurements/record.md"
KEPT = ROOT / "target/bench-check"
MODES = ("region", "run")
WORKLOADS = ("fill", "seq-read", "rand-read", "zipf-read", "rand-rmw")
# What the kernel's side has: its limit, and its pool.
RAM = "285M"
PROGRAMS = ("perl", "sort", "workers")
BINARIES = ("farpage", "farpage-bench", "libfarpage_preload.so")


def output(*argv, **options):
    return subprocess.run([str(a) for a in argv], check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def recorded():
    """The commit of the last line, if there is one."""
    found = re.fullmatch(r"\| [-0-9]+ \|[^|]*\| ([0-9a-f]{8}) \|.*", RECORD.read_text().rstrip().splitlines()[-1])
    return found and found[1]


def build(source, name):
    """The programs of a tree, in a directory of their own. The parts that trees have in common are built once."""
    programs = KEPT / name
    target = KEPT / "build"
    packages = [word for name in ("farpage-cli", "farpage-preload", "seed-bench") for word in ("-p", name)]
    command = ["cargo", "build", "--release", "--quiet", *packages]
    subprocess.run(command, cwd=source, env=os.environ | {"CARGO_TARGET_DIR": str(target)}, check=True)
    programs.mkdir(parents=True, exist_ok=True)
    for binary in BINARIES:
        shutil.copy2(target / "release" / binary, programs / binary)
    return programs


def build_commit(commit):
    if all((KEPT / commit / binary).exists() for binary in BINARIES):
        return KEPT / commit
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, check=False).returncode:
        sys.exit(f"bench_check: commit {commit} is not in this clone; git fetch --unshallow brings it")
    source = KEPT / "source"
    subprocess.run(["git", "worktree", "remove", "--force", source], cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
    try:
        output("git", "worktree", "add", "--force", "--detach", source, commit, cwd=ROOT)
        return build(source, commit)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", source], cwd=ROOT, check=False)


def compare(programs, mode, *options, workloads=WORKLOADS):
    text = output(programs / "farpage-bench", "compare", "--mode", mode, "--workload", ",".join(workloads),
                  "--json", "-", *options, stderr=subprocess.DEVNULL)
    return json.loads(text)["rows"]


def program(programs, name, *options):
    text = output(programs / "farpage", "bench", "program", "--suite", "--only", name, "--rounds", 1,
                  "--json", "-", *options, stderr=subprocess.DEVNULL)
    return json.loads(text)["programs"][0]


def measure(programs, wanted):
    """Each wanted figure of one round: microseconds a page, seconds of a program."""
    figures = {}
    for mode in MODES:
        workloads = [name for name in WORKLOADS if f"{mode} {name}" in wanted]
        options = ("--no-kernel", "--rounds", "1", "--ram", RAM)
        for row in compare(programs, mode, *options, workloads=workloads) if workloads else ():
            figures[f"{mode} {row['workload']}"] = row["farpage"]["us_per_page"]
    for name in [name for name in PROGRAMS if name in wanted]:
        rows = program(programs, name, "--no-kernel", "--ram", "50%").get("rows", [])
        figures |= {name: row["seconds_median"] for row in rows if row["side"] == "farpage"}
    return figures


def in_turns(old_programs, new_programs, rounds, wanted):
    """Runs both builds in turns, and prints what each figure was and is; those that are worse beyond the ranges."""
    old, new = [], []
    for round in range(rounds):
        sides = [(old_programs, old), (new_programs, new)]
        for programs, figures in sides if round % 2 == 0 else reversed(sides):
            figures.append(measure(programs, wanted))
    print(f"{'':<18} {'recorded':>24} {'now':>24}  now / recorded")
    worse = []
    for name in wanted:
        before, after = ([figures[name] for figures in side if name in figures] for side in (old, new))
        if not before or not after:
            continue
        is_worse = min(after) > max(before)
        worse += [name] * is_worse
        ratio = statistics.median(after) / statistics.median(before)
        sides = (f"{statistics.median(s):.3g} ({min(s):.3g} to {max(s):.3g})" for s in (before, after))
        print("{:<18} {:>24} {:>24}  {:.2f}{}".format(name, *sides, ratio, "  WORSE" * is_worse))
    return worse


def kernel_ratios(programs):
    """The kernel's time divided by farpage's, medians, as the columns of the record."""
    columns = []
    for mode in MODES:
        rows = {row["workload"]: row["ratio_median"] for row in compare(programs, mode)}
        columns.append(", ".join(f"{rows[name]:.2f}" for name in WORKLOADS))
    ratios = (program(programs, name)["ratio_median"] for name in PROGRAMS)
    return [*columns, ", ".join(f"{ratio:.2f}" for ratio in ratios)]


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} x {model}, Linux {'.'.join(platform.release().split('.')[:2])}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="how often each build runs [default: 4]")
    parser.add_argument("--against", metavar="COMMIT", default=recorded(), help="instead of the recorded commit")
    parser.add_argument("--record", action="store_true", help="add a line if nothing is worse (root)")
    options = parser.parse_args()
    # Of two builds that are alike, one is slower in all rounds by chance: with two rounds in one figure of six, with
    # four in one of 70.
    if options.rounds < 3:
        parser.error("--rounds: at least 3, or chance decides")
    if options.record and output("git", "status", "--porcelain", cwd=ROOT):
        sys.exit("bench_check: --record: this tree has changes that are in no commit; commit them first")
    if not options.against and not options.record:
        sys.exit("bench_check: no commit is recorded; --record begins with this one, --against COMMIT names another")
    old_programs = options.against and build_commit(options.against)
    new_programs = build(ROOT, "now")
    if old_programs:
        print(f"{machine()}; recorded: {options.against}; {options.rounds} rounds in turns")
        print("us a page, seconds: median (range)")
        worse = [f"{mode} {name}" for mode in MODES for name in WORKLOADS] + list(PROGRAMS)
        # One figure in 70 is worse by chance, and more are while a neighbour is busy: it has to be worse twice.
        for _ in range(2):
            worse = worse and in_turns(old_programs, new_programs, options.rounds, worse)
        if worse:
            sys.exit(f"bench_check: slower beyond the ranges: {', '.join(worse)}")
    if options.record:
        commit = output("git", "rev-parse", "--short=8", "HEAD", cwd=ROOT).strip()
        line = [str(datetime.date.today()), machine(), commit, *kernel_ratios(new_programs)]
        with RECORD.open("a") as record:
            record.write(f"| {' | '.join(line)} |\n")


if __name__ == "__main__":
    main()
