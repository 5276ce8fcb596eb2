#!/usr/bin/python3
"""The pictures of README.md and docs, in docs/pictures: made by real programs under farpage. `make pictures` calls it;
some minutes, and best on a machine that does nothing else.

    pictures.py                 # all
    pictures.py size            # memory (and report), size, or top
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "scripts"), str(ROOT / "tests" / "programs")]
import demo  # noqa: E402
import measure  # noqa: E402
import svg  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FARPAGE = str(TARGET / "release" / "farpage")
PICTURES = ROOT / "docs" / "pictures"
SUITE = ROOT / "crates" / "farpage-bench" / "suite"
MIB = 1 << 20
NEEDED = {"tmux": "tmux", "chromium": "chromium", "sqlite3": "sqlite3"}
# A picture of pixels is not larger, bytes.
LARGEST = 200_000


def write(name, text):
    (PICTURES / name).write_text(text, encoding="utf-8")
    print(f"docs/pictures/{name}  {len(text) / 1000:.0f} kB", flush=True)


def size(count):
    return f"{count / 1024:.3g} GiB" if count >= 1024 else f"{count:.0f} MiB"


def seconds(count):
    return f"{count:g} s"


# A program's memory, plain and under farpage; the report.


def plainly(argv, **options):
    """(seconds, MiB of anonymous memory) again and again while a program runs."""
    process, begin, samples = subprocess.Popen(argv, **options), time.monotonic(), [(0, 0)]
    while process.poll() is None:
        seen = measure.rss_anon(process.pid)
        samples.append((time.monotonic() - begin, seen[0] / MIB if seen else samples[-1][1]))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(f"pictures: {' '.join(argv)} failed")
    return samples


def reported(page, budget, argv, **options):
    """Runs a program with a budget and `--report`; what is in the page."""
    subprocess.run([FARPAGE, "run", "--ram", f"{budget}M", "--report", page, "--", *argv], check=True, **options)
    text = Path(page).read_text(encoding="utf-8")
    (run,) = json.loads(re.search(r'<script id="runs" type="application/json">(.*?)</script>', text, re.S)[1])
    return run


def memory(work):
    demo.WANTED = 500 * demo.MB
    text = work / "big.txt"
    demo.gather(text)
    argv = ["sort", "-S", "4G", "--parallel=2", "big.txt", "-o", "sorted.txt"]
    options = {"cwd": work, "env": dict(os.environ, LC_ALL="C", TMPDIR=str(work))}
    plain = plainly(argv, **options)
    peak = max(mib for _, mib in plain)
    budgets = [int(peak * share) // 16 * 16 for share in (0.4, 0.7)]
    tight, ample = (reported(work / f"{budget}.html", budget, argv, **options) for budget in budgets)
    samples = tight["samples"]
    # Of the last sample, taken when the program was gone, nothing is left.
    resident = [(t, b / MIB) for t, b in zip(samples["t_s"], samples["rss_anon_bytes"])]
    both = [(t, b / MIB + r) for (t, r), b in zip(resident, samples["swapped_bytes"])]
    ends = [plain[-1][0], samples["t_s"][-1]]
    most, last = max(peak, *(mib for _, mib in both)) * 1.08, max(ends) * 1.02
    marks = [512 * i for i in range(1 + int(most / 512))]
    chart = svg.Chart(f"sort needs {size(peak)}, and gets {size(budgets[0])}",
                      ("time", last, svg.steps(last), seconds), ("memory", most, marks, size))
    floor = [(0, 0), (ends[1], 0)]
    chart.area("in RAM", floor, resident, svg.BLUE)
    chart.area("swapped out", resident, both, svg.VIOLET)
    chart.line(f"budget, farpage run --ram {budgets[0]}M", [(0, budgets[0]), (last, budgets[0])], svg.RED, "7 4")
    chart.line("without farpage", [*plain, (ends[0], 0)], svg.TEXT)
    write("memory.svg", chart.svg())
    report([work / f"{budget}.html" for budget in budgets], work)


def report(pages, work):
    """The page of two runs in a browser, light and dark."""
    page = work / "both.html"
    subprocess.run([FARPAGE, "report", *pages, "--output", page], check=True)
    for theme, number in (("light", 1), ("dark", 0)):
        picture = work / f"report-{theme}.png"
        argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={work}/profile", f"--blink-settings=preferredColorScheme={number}",
                "--force-device-scale-factor=1.4", "--window-size=1200,900", "--virtual-time-budget=5000",
                f"--screenshot={picture}", page.as_uri()]
        subprocess.run(argv, check=True, capture_output=True, timeout=300)
        shrink(picture, PICTURES / picture.name)


def shrink(picture, to):
    """64 colours are enough for charts."""
    from PIL import Image

    image = Image.open(picture).convert("RGB").quantize(64, method=Image.Quantize.MAXCOVERAGE, dither=0)
    image.save(to, optimize=True)
    print(f"docs/pictures/{to.name}  {to.stat().st_size / 1000:.0f} kB", flush=True)
    if to.stat().st_size > LARGEST:
        sys.exit(f"pictures: {to} is larger than {LARGEST} bytes")


# Time over RAM.


def curve(work):
    """What `farpage size` finds out."""
    argv = ["sqlite3", "-batch", ":memory:", f".read {SUITE}/items.sql"]
    found = work / "size.json"
    subprocess.run([FARPAGE, "size", "--json", found, "--", *argv], check=True, cwd=work, stdout=subprocess.DEVNULL)
    found = json.loads(found.read_text())
    plain, peak = found["plain_seconds"], found["peak_bytes"] / MIB
    rows = [(row["ram_bytes"] / MIB, row["seconds"]) for row in found["rows"]]
    runs = [run for run in found["runs"] if not run["stopped"]]
    measured = [(run["ram_bytes"] / MIB, run["measured_seconds"]) for run in runs]
    most = max(s for _, s in rows + measured) * 1.1
    right = peak * 1.05
    marks = svg.steps(right)
    chart = svg.Chart(f"How long sqlite3 takes with less than its {size(peak)}",
                      ("RAM, MiB", right, marks, lambda mib: f"{mib:g}"), ("", most, svg.steps(most), seconds))
    chart.line("predicted by farpage size", sorted(rows), svg.BLUE)
    chart.dots("measured", [*measured, (peak, plain)], svg.VIOLET)
    (knee,) = (one["ram_bytes"] / MIB for one in found["knees"] if one["times"] == 1.5)
    chart.upright(f"{size(knee)}: 1.5 times as long", knee, svg.RED)
    write("size.svg", chart.svg())


# A terminal.

# Reads what is swapped out, here and there, for ever.
READER = """
import os, time
kept = [bytearray(os.urandom(1024) + bytes(3072)) for _ in range({pages})]
at = 0
while True:
    for _ in range(64):
        at = (at + 4999) % len(kept)
        kept[at][0] ^= 1
    time.sleep({pause})
"""


class Terminal:
    """tmux, with `farpage top` in it."""

    def __init__(self, work, columns, lines):
        self.socket = str(work / "tmux")
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), "env", "-u", "NO_COLOR", "LC_ALL=C.UTF-8",
                  FARPAGE, "top")

    def tmux(self, *words, check=True):
        argv = ["tmux", "-u", "-f", "/dev/null", "-S", self.socket, *words]
        return subprocess.run(argv, check=check, capture_output=True, text=True).stdout

    def keys(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)
            time.sleep(0.3)
        time.sleep(1.5)

    def screen(self):
        return self.tmux("capture-pane", "-ep")


def top(work):
    programs = []

    def start(budget, *argv, user=None):
        who = ["--user", user] if user and os.geteuid() == 0 else []
        argv = [FARPAGE, "run", "--ram", budget, *who, "--", *argv]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        programs.append(subprocess.Popen(argv, start_new_session=True, **quiet))
        return programs[-1].pid

    terminal = None
    try:
        parked = start("256M", "/usr/bin/python3", "-c", READER.format(pages=30_000, pause=1e6), user="nobody")
        shown = start("96M", "/usr/bin/python3", "-c", READER.format(pages=40_000, pause=0.05), user="www-data")
        loop = "while :; do sqlite3 -batch :memory: '.read " + str(SUITE / "items.sql") + "'; done"
        start("160M", "/bin/sh", "-c", loop)
        start("64M", "/bin/sh", "-c", f'"$0" -c "$1" & "$0" -c "$1"', "/usr/bin/python3",
              READER.format(pages=12_000, pause=0.1))
        time.sleep(20)
        subprocess.run([FARPAGE, "park", str(parked)], check=True)
        terminal = Terminal(work, 80, 24)
        # Charts are of two minutes.
        time.sleep(60)
        subprocess.run([FARPAGE, "set", str(shown), "--ram", "72M"], check=False)
        time.sleep(65)
        rows = re.sub(r"\x1b\[[0-9;]*m", "", terminal.screen()).split("\n")
        terminal.keys(*["Down"] * (next(at for at, row in enumerate(rows) if f" {shown} " in row) - 3))
        # Without the empty lines below.
        head, keys = re.split(r"\n(?:\s*\n){2,}", terminal.screen().rstrip("\n"))
        write("top.svg", svg.terminal(f"{head}\n\n{keys}", 80, "farpage top"))
        terminal.keys("Enter")
        write("top-details.svg", svg.terminal(terminal.screen(), 80, "farpage top: one program"))
    finally:
        if terminal:
            terminal.tmux("kill-server", check=False)
        for process in programs:
            os.killpg(process.pid, 9)
            process.wait()


def main():
    kinds = {"memory": memory, "size": curve, "top": top}
    missing = [package for command, package in NEEDED.items() if shutil.which(command) is None]
    try:
        import PIL  # noqa: F401
    except ImportError:
        missing.append("python3-pil")
    if missing:
        sys.exit(f"pictures: install what is missing: apt-get install --no-install-recommends {' '.join(missing)}")
    unknown = [name for name in sys.argv[1:] if name not in kinds]
    if unknown:
        sys.exit(__doc__)
    PICTURES.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="farpage-pictures-", dir="/var/tmp"))
    try:
        for name in sys.argv[1:] or kinds:
            kinds[name](work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
