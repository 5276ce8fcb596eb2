#!/usr/bin/env python3
"""Arrays larger than their RAM: farpage against what people use for them today, with the same RAM. As root.

Usage: arrays.py [--mib 256] [--share 0.25] [--rounds 3] [--repeat 1] [--only farpage,memmap]
                 [--rows pass,sort] [--json FILE]

Each kind of array runs in a process of its own, in a memory cgroup (v1) whose limit is the budget and what the
interpreter takes by itself (anonymous memory once everything is imported, and 24 MiB); the page cache counts, too.
Rounds alternate. Results must be equal. Needs farpage, numpy, blosc2 and zarr. The kernel's side has a swap of zram for
as many pages as the budget has, which these numbers compress to half of it, and a file after that; its cgroup has the
other half.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

COLUMNS = 1024
MIB = 1 << 20
ROWS = ["pass", "random rows", "random elements", "update", "matmul", "sort", "save and load"]
# Modules of kinds, besides numpy.
MODULES = {"farpage": "farpage", "files": "farpage", "arrays": "farpage", "blosc2": "blosc2", "zarr": "zarr"}
SLACK = 24 * MIB


def block(n, seed):
    """Some rows of numbers that compress to a third or so."""
    return np.random.default_rng(seed).integers(0, 1000, (n, COLUMNS)).astype(np.float64)


class Kind:
    """An array of `rows` rows of 8 KiB each, filled. Others override what they do differently."""

    def __init__(self, rows, budget, folder):
        self.folder = folder
        self.a = self.make(rows, budget)
        for at in range(0, rows, 128):
            self.a[at : at + 128] = block(128, at)

    def make(self, rows, budget):
        return np.empty((rows, COLUMNS))

    def sort(self):
        self.a.reshape(-1).sort()
        return float(self.a[0, 0] + self.a[len(self.a) // 2, 0] + self.a[-1, -1])

    def save_and_load(self):
        path = os.path.join(self.folder, "saved.npy")
        np.save(path, self.a)
        return self.load(path)

    def load(self, path):
        return np.load(path)


class Farpage(Kind):
    def make(self, rows, budget):
        import farpage

        self.pager = farpage.Pager(budget)
        return self.pager.empty((rows, COLUMNS))

    def load(self, path):
        return self.pager.load(path)


class Files(Farpage):
    """Files that stay where they are."""

    def make(self, rows, budget):
        import farpage

        self.pager = farpage.Pager(budget)
        return self.pager.from_file(os.path.join(self.folder, "array"), np.float64, (rows, COLUMNS), mode="w+")

    def load(self, path):
        return self.pager.load(path, mode="r")


class Arrays(Kind):
    """Numpy's own arrays, and what operations make besides, in regions."""

    def make(self, rows, budget):
        import farpage

        self.context = farpage.arrays(budget)
        self.context.__enter__()
        return np.empty((rows, COLUMNS))


class Memmap(Kind):
    advice = None

    def make(self, rows, budget):
        a = np.memmap(os.path.join(self.folder, "array"), np.float64, "w+", shape=(rows, COLUMNS))
        if self.advice is not None:
            a._mmap.madvise(self.advice)
        return a

    def load(self, path):
        return np.load(path, mmap_mode="r")


class MemmapRandom(Memmap):
    advice = 1  # MADV_RANDOM


class Blosc2(Kind):
    def make(self, rows, budget):
        import blosc2

        return blosc2.empty((rows, COLUMNS), np.float64, urlpath=os.path.join(self.folder, "array.b2nd"))

    sort = None

    def save_and_load(self):
        import blosc2

        path = os.path.join(self.folder, "saved.b2nd")
        self.a.save(path)
        return blosc2.open(path)


class Zarr(Kind):
    def make(self, rows, budget):
        import zarr

        return zarr.create_array(os.path.join(self.folder, "array.zarr"), shape=(rows, COLUMNS), dtype="f8",
                                 chunks=(128, COLUMNS))

    sort = None

    def save_and_load(self):
        import zarr

        path = os.path.join(self.folder, "saved.zarr")
        saved = zarr.create_array(path, shape=self.a.shape, dtype="f8", chunks=(128, COLUMNS))
        for at in range(0, self.a.shape[0], 128):
            saved[at : at + 128] = self.a[at : at + 128]
        return zarr.open_array(path)


KINDS = {"plain": Kind, "farpage": Farpage, "files": Files, "arrays": Arrays, "memmap": Memmap,
         "memmap random": MemmapRandom, "blosc2": Blosc2, "zarr": Zarr, "kernel": Kind}


def work(kind, rows, budget, folder, repeat, only):
    """Seconds of each row, the median of so many times, and what came out. In the process of its own."""
    it = KINDS[kind](rows, budget, folder)
    a, rng = it.a, np.random.default_rng(7)
    some = rng.integers(0, rows, 3000)
    columns = rng.integers(0, COLUMNS, len(some))
    weights = rng.random((COLUMNS, 8))

    def passes():
        return sum(float(a[at : at + 128].sum()) for at in range(0, rows, 128))

    def random_rows():
        return sum(float(a[row].sum()) for row in some)

    def random_elements():
        return sum(float(a[row, column]) for row, column in zip(some, columns))

    def update():
        for at in range(0, rows, 128):
            a[at : at + 128] = a[at : at + 128] + 1

    def matmul():
        return sum(float((a[at : at + 128] @ weights).sum()) for at in range(0, rows, 128))

    def save_and_load():
        again = it.save_and_load()
        return sum(float(again[at : at + 128].sum()) for at in range(0, rows, 128))

    # What has no sort is sorted last, that is not at all; so that the others see the same numbers.
    steps = dict(zip(ROWS, [passes, random_rows, random_elements, update, matmul, it.sort, save_and_load]))
    found = {}
    for row in [row for row in ROWS if row != "sort"] + ["sort"]:
        if steps[row] is not None and row in only:
            times = []
            for _ in range(1 if row == "sort" else repeat):
                begin = time.perf_counter()
                value = steps[row]()
                times.append(time.perf_counter() - begin)
            found[row] = (statistics.median(times), value)
    print(json.dumps(found))


def write(path, text):
    with open(path, "w") as file:
        file.write(str(text))


@contextlib.contextmanager
def cgroup(limit):
    """A memory cgroup, as a function to be called in the child."""
    path = f"/sys/fs/cgroup/memory/farpage-arrays-{os.getpid()}"
    os.mkdir(path)
    try:
        write(f"{path}/memory.limit_in_bytes", limit)
        yield lambda: write(f"{path}/cgroup.procs", os.getpid())
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(path)
                break
            time.sleep(0.1)


@contextlib.contextmanager
def kernel_swap(folder, compressed, size):
    """Swap on zram for so many bytes before compression, and on a file after that. (With a `mem_limit` instead, zram
    refuses pages at the limit, the kernel tries it again with the same ones, and hardly anything goes to the file.)"""
    number = open("/sys/class/zram-control/hot_add").read().strip()
    device, system, file = f"/dev/zram{number}", f"/sys/block/zram{number}", os.path.join(folder, "swap")
    on = []
    try:
        write(f"{system}/comp_algorithm", "lz4")
        write(f"{system}/disksize", compressed)
        with open(file, "wb") as made:
            os.fchmod(made.fileno(), 0o600)
            os.posix_fallocate(made.fileno(), 0, size)
        for path, priority in ((device, 100), (file, 10)):
            subprocess.run(["mkswap", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            subprocess.run(["swapon", "-p", str(priority), path], check=True)
            on.append(path)
        yield
    finally:
        for path in on:
            subprocess.run(["swapoff", path], check=False)
        write("/sys/class/zram-control/hot_remove", number)


def own_memory(module):
    """Anonymous memory of an interpreter that has imported a module and numpy's random numbers, bytes."""
    code = f"import numpy.random, {module}; print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def measured(kind, rows, budget, repeat, only):
    """One process of a kind: what `work` found."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="farpage-arrays-", dir="/var/tmp"))
        arguments = [sys.executable, __file__, "--work", kind, str(rows), str(budget), folder, str(repeat), only]
        own = own_memory(MODULES.get(kind, "numpy")) + SLACK
        enter = None
        if kind == "kernel":
            stack.enter_context(kernel_swap(folder, budget, rows * COLUMNS * 8 * 2))
            enter = stack.enter_context(cgroup(own + budget - budget // 2))
        elif kind != "plain":
            enter = stack.enter_context(cgroup(own + budget))
        done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, preexec_fn=enter, check=False)
        if done.returncode:
            return {"failed": done.returncode}
        return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the array")
    parser.add_argument("--share", type=float, default=0.25, help="of it, the budget")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1, help="each row so many times, of which the median counts")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--rows", default=",".join(ROWS), help="of the table")
    parser.add_argument("--json", help="where the results go")
    options = parser.parse_args()
    # What is made system-wide goes in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    rows, budget = options.mib * MIB // (COLUMNS * 8), int(options.mib * MIB * options.share)
    kinds = options.only.split(",")
    found = {kind: [] for kind in kinds}
    for round_ in range(options.rounds):
        for kind in kinds[round_ % len(kinds) :] + kinds[: round_ % len(kinds)]:
            found[kind].append(measured(kind, rows, budget, options.repeat, options.rows))
            print(f"round {round_ + 1} {kind}: {found[kind][-1]}", file=sys.stderr, flush=True)
    if options.json:
        write(options.json, json.dumps({"mib": options.mib, "budget": budget, "found": found}, indent=1))
    print(f"array {options.mib} MiB, budget {budget / MIB:g} MiB; seconds, median of {options.rounds} (range)\n")
    print("| |", " | ".join(kinds), "|\n|", " | ".join(["---"] * (len(kinds) + 1)), "|")
    for row in ROWS:
        values = {kind: [run[row][1] for run in found[kind] if row in run] for kind in kinds}
        all_values = [value for of in values.values() for value in of if value is not None]
        if all_values and not np.allclose(all_values, all_values[0], rtol=1e-9):
            sys.exit(f"{row}: results differ: {values}")
        cells = []
        for kind in kinds:
            times = sorted(run[row][0] for run in found[kind] if row in run)
            cells.append(f"{statistics.median(times):.3g} ({times[0]:.3g}-{times[-1]:.3g})" if times else "-")
        print("|", row, "|", " | ".join(cells), "|")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]), sys.argv[7].split(","))
    else:
        main()
