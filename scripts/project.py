#!/usr/bin/env python3
"""What Cargo.toml says of the project, for what makes packages of it. As a program it says which of the addresses are
unset: nothing that is made names one that does not exist."""

import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
TEXT = (TOP / "Cargo.toml").read_text(encoding="utf-8")
ADDRESSES = ("repository", "issues", "contact")


def field(name):
    return re.search(rf'^{name} = "(.*)"', TEXT, re.M)[1]


VERSION = field("version")

if __name__ == "__main__":
    if unset := [name for name in ADDRESSES if not field(name)]:
        print(f"Cargo.toml: {', '.join(unset)}: unset, so packages name none", file=sys.stderr)
