#!/usr/bin/env python3
"""Relative links, pictures and anchors of every page must lead somewhere; every page below docs must be in the list of
its folder; every picture must be on a page, and in words, too."""

import os
import re
import sys
from pathlib import Path

from book import LISTS, listed

ROOT = Path(__file__).resolve().parent.parent
TARGET = re.compile(r"\]\(<?([^)\s>]+)|^\[[^\]]+\]:\s+<?(\S+?)>?$", re.M)
# In HTML; and those that are not in words.
PICTURE = re.compile(r"(?:src|srcset)=\"([^\"]+)")
WORDLESS = re.compile(r"!\[\s*\]|<img(?![^>]*alt=\"[^\"])")


def prose(text):
    """Without code, in which brackets mean something else."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "code", re.sub(r"^ {4}.*$", "", text, flags=re.M))


def anchors(page):
    """What the headings are called in addresses: the same on GitHub and in mdBook."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = {}
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if i == 0 else f"{slug}-{i}" for slug, last in found.items() for i in range(last + 1)}


def wrong(page):
    text = prose(page.read_text(encoding="utf-8"))
    if WORDLESS.search(text):
        yield f"{page.relative_to(ROOT)}: a picture without words"
    for target in [inline or named for inline, named in TARGET.findall(text)] + PICTURE.findall(text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = Path(os.path.normpath(page.parent / path)) if path else page
        if not place.exists():
            yield f"{page.relative_to(ROOT)}: no such file: {target}"
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            yield f"{page.relative_to(ROOT)}: no such heading: {target}"


def main():
    pages = sorted(page for page in ROOT.rglob("*.md") if page.relative_to(ROOT).parts[0] not in (".git", "target"))
    bad = [line for page in pages for line in wrong(page)]
    docs = ROOT / "docs"
    for folder, page in LISTS.items():
        missing = {f"{folder}/{one.name}" for one in pages if one.parent == docs / folder} - {page, *listed(folder)}
        bad += [f"docs/{page}: {name} is missing" for name in sorted(missing)]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    pictures = [path.relative_to(ROOT) for path in sorted((docs / "pictures").iterdir())]
    bad += [f"{picture}: on no page" for picture in pictures if f"pictures/{picture.name}" not in text]
    print("\n".join(bad), file=sys.stderr) if bad else None
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
