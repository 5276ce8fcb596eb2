#!/usr/bin/env python3
"""For mdBook, which calls it by docs/book.toml: what a page links to outside of docs is no page of the site, so the
link becomes the file's name; and a README.md is an index there. The book comes on standard input, and goes to standard
output."""

import json
import os
import re
import sys


def leave(text, page):
    def name(link):
        path = os.path.normpath(os.path.join("docs", os.path.dirname(page), link[2].partition("#")[0]))
        inside = re.match(r"[a-z]+:|#", link[2]) or path.startswith("docs" + os.sep)
        words = link[1] if os.path.basename(path) in link[1] else f"{link[1]} (`{path}`)"
        return re.sub(r"README\.md(?=[#)])", "index.md", link[0]) if inside else words

    return re.sub(r"\[([^\[\]]*)\]\(([^)\s]+)\)", name, text)


def chapters(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            yield chapter
            yield from chapters(chapter["sub_items"])


if sys.argv[1:2] == ["supports"]:
    sys.exit(sys.argv[2:] != ["html"])
_, book = json.load(sys.stdin)
for chapter in chapters(book.get("items") or book.get("sections")):
    if chapter.get("source_path"):
        chapter["content"] = leave(chapter["content"], chapter["source_path"])
json.dump(book, sys.stdout)
