#!/usr/bin/env python3
"""Makes Debian packages of what `make install` has put below a directory: `make deb` calls it.

    deb.py ROOT OUT

ROOT was installed with PREFIX=/usr. The command goes into `farpage`, what C programs are built with into
`libfarpage-dev`. Packages are made by dpkg-deb, which every Debian has; cargo-deb would have to be built first, and
would need the list of files once more."""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PACKAGING = TOP / "packaging"
VERSION = re.search(r'^version = "(.*)"', (TOP / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
MAINTAINER = os.environ.get("MAINTAINER", "The farpage authors")
# What is linked into what is packaged.
CRATES = ("farpage-cli", "farpage-preload", "farpage-c")
LICENCE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)

COMMAND = """more memory than the RAM you are allowed
 farpage run gives a program, and everything that it starts, one RAM budget.
 What is cold is compressed, and what does not fit goes to a file: swap, rebuilt
 in user space, without swapon, without a kernel module and without a change of
 the program. It needs Linux 6.8 or newer.
 .
 The members of the group userfaultfd may use it; root always may. The group is
 made by this package, and empty."""
LIBRARY = """memory larger than its RAM budget, for C programs
 The header, the shared and the static library, and the pkg-config file of
 farpage's regions."""


def output(*argv, **options):
    return subprocess.run([str(a) for a in argv], check=True, capture_output=True, text=True, **options).stdout


def shared_libraries(package):
    """`Depends` of the ELF files below it: the C library that is new enough, and the compiler's unwinder."""
    needed, oldest = set(), (2, 0)
    for path in package.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            text = output("readelf", "-dVW", path)
            needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
            versions = re.findall(r"GLIBC_(\d+)\.(\d+)", text)
            oldest = max([oldest, *((int(major), int(minor)) for major, minor in versions)])
    of_libc = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
    depends = ["libc6 (>= {}.{})".format(*oldest)] if needed & of_libc else []
    if "libgcc_s.so.1" in needed:
        depends.append("libgcc-s1")
    if unknown := needed - of_libc - {"libgcc_s.so.1"}:
        sys.exit(f"deb: no package is known for {', '.join(sorted(unknown))}")
    return ", ".join(depends)


def linked():
    """The packages of others that are linked in, as cargo describes them."""
    argv = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"]
    told = json.loads(output(*argv, cwd=TOP))
    packages = {package["id"]: package for package in told["packages"]}
    nodes = {node["id"]: node for node in told["resolve"]["nodes"]}
    left = [id for id, package in packages.items() if package["name"] in CRATES]
    found = set()
    while left:
        id = left.pop()
        runs_in_the_compiler = any("proc-macro" in target["kind"] for target in packages[id]["targets"])
        if id in found or runs_in_the_compiler:
            continue
        found.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                left.append(dependency["pkg"])
    others = [packages[id] for id in found if packages[id]["source"]]
    return sorted(others, key=lambda package: package["name"])


def third_party():
    """Names, licences and notices of what is linked in. Texts that several have stand there once."""
    lines = ["What farpage's programs contain besides farpage and Rust's standard library (MIT or Apache-2.0).", ""]
    texts = {}
    for package in linked():
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


def compress(path):
    """As Debian has its documents: the same content is always the same file."""
    with open(f"{path}.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(path.read_bytes())
    path.unlink()


def move(root, package, *names):
    for name in names:
        for path in sorted(root.glob(name)):
            to = package / path.relative_to(root)
            to.parent.mkdir(parents=True, exist_ok=True)
            path.rename(to)


def document(package, name):
    """Licence and changes, where Debian looks for them."""
    place = package / "usr/share/doc" / name
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGING / "deb/copyright", place / "copyright")
    shutil.copy(TOP / "CHANGELOG.md", place / "changelog")
    (place / "third-party.txt").write_text(third_party(), encoding="utf-8")
    compress(place / "changelog")
    compress(place / "third-party.txt")


def build(package, name, section, description, out, scripts=(), triggers=""):
    control = package / "DEBIAN"
    files = sorted(path for path in package.rglob("*") if not path.is_dir())
    kib = sum((path.lstat().st_size + 1023) // 1024 for path in files)
    plain = [path for path in files if not path.is_symlink()]
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(package)}\n" for path in plain]
    for path in [package, *package.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    fields = {"Package": name, "Version": VERSION, "Architecture": "amd64", "Section": section, "Priority": "optional",
              "Maintainer": MAINTAINER, "Installed-Size": kib, "Depends": shared_libraries(package),
              "Description": description}
    control.mkdir(mode=0o755)
    (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    (control / "md5sums").write_text("".join(sums))
    for script in scripts:
        shutil.copy(PACKAGING / "deb" / script, control / script)
    if triggers:
        (control / "triggers").write_text(triggers)
    deb = out / f"{name}_{VERSION}_amd64.deb"
    output("dpkg-deb", "--root-owner-group", "-Zxz", "--build", package, deb)
    print(deb)


def main():
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    library = out / "libfarpage-dev"
    shutil.rmtree(library, ignore_errors=True)
    move(root, library, "usr/include/*", "usr/lib/x86_64-linux-gnu/*")
    for empty in ("usr/include", "usr/lib/x86_64-linux-gnu"):
        (root / empty).rmdir()
    documents = root / "usr/share/doc/farpage"
    for twice in ("LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"):
        (documents / twice).unlink()
    move_to = {"60-userfaultfd.rules": "usr/lib/udev/rules.d/60-userfaultfd.rules",
               "sysusers.conf": "usr/lib/sysusers.d/farpage.conf",
               "farpage-guard.service": "usr/lib/systemd/system/farpage-guard.service"}
    for name in ("service.conf", "compose.yaml", "Containerfile"):
        move_to[name] = f"usr/share/doc/farpage/examples/{name}"
    moved = {"LICENSE-APACHE": "copyright", "LICENSE-MIT": "copyright", "CHANGELOG.md": "changelog.gz"}
    moved |= {name: os.path.relpath(root / to, documents) for name, to in move_to.items()}
    for page in documents.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, to in moved.items():
            text = re.sub(rf"\]\(((\.\./)*){re.escape(name)}\)", rf"](\g<1>{to})", text)
        page.write_text(text, encoding="utf-8")
    for name, to in move_to.items():
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        (documents / name).rename(root / to)
    for page in (root / "usr/share/man/man1").iterdir():
        compress(page)
    document(root, "farpage")
    document(library, "libfarpage-dev")
    build(root, "farpage", "admin", COMMAND, out, scripts=("prerm", "postinst", "postrm"))
    build(library, "libfarpage-dev", "libdevel", LIBRARY, out, triggers="activate-noawait ldconfig\n")


main()
