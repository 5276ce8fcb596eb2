#!/usr/bin/env python3
"""The table of docs/user/statistics.md, from the descriptions of the counters in crates/farpage-ipc/src/stat.rs.

    counters.py            # writes it anew
    counters.py --check    # fails if it is not as the source says"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/farpage-ipc/src/stat.rs"
PAGE = ROOT / "docs/user/statistics.md"
BEGIN, END = "<!-- counters -->\n", "<!-- end of counters -->\n"
GROUPS = {
    "level": "## Levels\n\nValues at the last update. Names ending in `_bytes` are in bytes, others in pages.\n",
    "counter": "## Counters\n\nTotals since the start of the process.\n",
    "pager_level": "## Levels of pagers of regions only\n",
    "pager_counter": "## Counters of pagers of regions only\n",
}


def table():
    fields = SOURCE.read_text(encoding="utf-8").split("\nfields! {\n")[1].split("\n}\n")[0]
    out = []
    for group, body in re.findall(r"^    (\w+) \{\n(.*?)^    \}", fields, flags=re.S | re.M):
        out.append(f"{GROUPS[group]}\n| name | what |\n| --- | --- |\n")
        for text, name in re.findall(r"((?:^        ///.*\n)+)(?:^        //.*\n)*^        (\w+) =", body, flags=re.M):
            words = " ".join(line.strip()[3:].strip() for line in text.splitlines())
            out.append(f"| `{name}` | {words} |\n")
        out.append("\n")
    return "".join(out)


def main():
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    new = head + BEGIN + "\n" + table() + END + rest.split(END)[1]
    if "--check" in sys.argv:
        if new != page:
            print("docs/user/statistics.md is not as stat.rs says: run scripts/counters.py", file=sys.stderr)
        return new != page
    PAGE.write_text(new, encoding="utf-8")
    return False


sys.exit(main())
