#!/usr/bin/env python3
"""What others wrote and we link: their names, licences and notices, for packages; and whether all of it may be linked.

    notices.py           # prints what lies beside the programs as third-party.txt
    notices.py --check   # that deny.toml allows licences and origins; `make lint` calls it

The check is the part of `cargo deny check` that needs no network; cargo-deny itself takes minutes to build."""

import json
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
# What is linked into what is packaged.
CRATES = ("farpage-cli", "farpage-preload", "farpage-c")
LICENCE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def metadata():
    argv = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, cwd=TOP).stdout)


def others(told, roots, kinds):
    """Packages that are not ours, and that those of these names come to by dependencies of these kinds."""
    packages = {package["id"]: package for package in told["packages"]}
    nodes = {node["id"]: node for node in told["resolve"]["nodes"]}
    left = [id for id, package in packages.items() if package["name"] in roots]
    found = set()
    while left:
        id = left.pop()
        runs_in_the_compiler = any("proc-macro" in target["kind"] for target in packages[id]["targets"])
        if id in found or runs_in_the_compiler and "build" not in kinds:
            continue
        found.add(id)
        left += [dependency["pkg"] for dependency in nodes[id]["deps"]
                 if any(kind["kind"] in kinds for kind in dependency["dep_kinds"])]
    return sorted((packages[id] for id in found if packages[id]["source"]), key=lambda p: (p["name"], p["version"]))


def third_party():
    """Names, licences and notices of what is linked in. Texts that several have stand there once."""
    lines = ["What farpage's programs contain besides farpage and Rust's standard library (MIT or Apache-2.0).", ""]
    texts = {}
    for package in others(metadata(), CRATES, {None}):
        lines.append(f"{package['name']} {package['version']}: {package['license']}")
        directory = Path(package["manifest_path"]).parent
        for path in sorted(directory.rglob("*")):
            if LICENCE.match(path.name) and path.is_file() and len(path.relative_to(directory).parts) <= 3:
                text = path.read_text(encoding="utf-8", errors="replace").strip()
                number = texts.setdefault(text, len(texts) + 1)
                lines.append(f"    {path.relative_to(directory)}: text {number}")
    # It draws the pages of farpage run --report, and is in them.
    licence = TOP / "crates/farpage-cli/src/report/page/uPlot.LICENSE"
    text = licence.read_text(encoding="utf-8").strip()
    lines += ["uPlot: MIT", f"    {licence.name}: text {texts.setdefault(text, len(texts) + 1)}"]
    for text, number in texts.items():
        lines += ["", f"----- text {number}", "", text]
    return "\n".join(lines) + "\n"


def is_allowed(licence, allowed):
    """Of an SPDX expression; crates of old have `/` for OR."""
    words = re.split(r"(\(|\)|\bAND\b|\bOR\b)", (licence or "none").replace("/", " OR "))
    known = {"(", ")", "AND", "OR"}
    values = [word.lower() if word in known else str(word.strip() in allowed) for word in words if word.strip()]
    return bool(eval(" ".join(values)))  # Of True, False, and, or and parentheses.


def refused():
    import tomllib  # Not in the Python of each system that packages are made on.

    allowed = tomllib.loads((TOP / "deny.toml").read_text(encoding="utf-8"))["licenses"]["allow"]
    told = metadata()
    ours = {package["name"] for package in told["packages"] if not package["source"]}
    for package in others(told, ours, {None, "build"}):
        if package["source"] != CRATES_IO:
            yield f"{package['name']} is from {package['source']}"
        if not is_allowed(package["license"], allowed):
            yield f"{package['name']}: deny.toml does not allow {package['license']}"
    for package in told["packages"]:
        for dependency in package["dependencies"]:
            if package["name"] in ours and dependency["req"] == "*" and not dependency.get("path"):
                yield f"{package['name']}: any version of {dependency['name']} will do"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit("\n".join(refused()) or None)
    print(third_party(), end="")
