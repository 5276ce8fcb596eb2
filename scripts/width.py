#!/usr/bin/env python3
"""Lines of at most 120 columns, in sources and pages.

    width.py             # every tracked file
    width.py --staged    # only lines that the next commit adds

Tables in docs/measurements, which are records, and lines that are one word (an address) may be longer."""

import subprocess
import sys

COLUMNS = 120
KINDS = ("*.rs", "*.c", "*.h", "*.py", "*.sh", "*.md", "Makefile")


def git(*args):
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout


def is_wide(name, line):
    table = name.startswith("docs/measurements/") and line.startswith("|")
    return len(line) > COLUMNS and not table and " " in line.strip()


def added():
    """(file, line number, text) of each line that is staged."""
    name, number = None, 0
    for line in git("diff", "--cached", "--unified=0", "--no-color", "--", *KINDS).splitlines():
        if line.startswith("+++ "):
            name = line[6:]
        elif line.startswith("@@"):
            number = int(line.split("+")[1].split(" ")[0].split(",")[0])
        elif line.startswith("+"):
            yield name, number, line[1:]
            number += 1


def tracked():
    for name in git("ls-files", "--", *KINDS).splitlines():
        with open(name, encoding="utf-8") as text:
            for number, line in enumerate(text, 1):
                yield name, number, line.rstrip("\n")


def main():
    lines = added() if "--staged" in sys.argv else tracked()
    wide = [f"{n}:{i}: {len(t)} columns" for n, i, t in lines if is_wide(n, t)]
    print("\n".join(wide), file=sys.stderr) if wide else None
    return bool(wide)


sys.exit(main())
