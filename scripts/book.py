#!/usr/bin/env python3
"""For mdBook, which calls it by docs/book.toml: what a page links to outside of docs is no page of the site, so the
link becomes the file's name; and a README.md is an index there. The book comes on standard input, and goes to standard
output. `book.py summary` prints the book's list of pages, by the pages that list those of a folder."""

import json
import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
# The page that lists those of a folder.
LISTS = {"user": "README.md", "dev": "dev/architecture.md", "decisions": "decisions/README.md",
         "measurements": "measurements/README.md"}


def listed(folder):
    """The pages of a folder, in the order of their list."""
    page = DOCS / LISTS[folder]
    links = re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text(encoding="utf-8"))
    paths = [os.path.relpath(page.parent / link, DOCS) for link in links]
    return [path for path in dict.fromkeys(paths) if path.startswith(f"{folder}/")]


def summary():
    def entry(path):
        return f"- [{(DOCS / path).read_text(encoding='utf-8').partition(chr(10))[0].lstrip('# ')}]({path})"

    print("# Summary\n\n" + entry("README.md")[2:])
    for folder, page in LISTS.items():
        print(f"\n# {folder.capitalize()}\n")
        print("\n".join(([entry(page)] if page != "README.md" else []) + [entry(path) for path in listed(folder)]))


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


def main():
    if sys.argv[1:2] == ["supports"]:
        sys.exit(sys.argv[2:] != ["html"])
    if sys.argv[1:] == ["summary"]:
        return summary()
    _, book = json.load(sys.stdin)
    for chapter in chapters(book.get("items") or book.get("sections")):
        if chapter.get("source_path"):
            chapter["content"] = leave(chapter["content"], chapter["source_path"])
    return json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
