#!/usr/bin/env python3
"""Makes Debian packages of what `make install` has put below a directory: `make deb` calls it.

    deb.py ROOT OUT

ROOT was installed with PREFIX=/usr. The command goes into `farpage`, the shared library into `libfarpage0`, what C
programs are built with into `libfarpage-dev`. Packages are made by dpkg-deb, which every Debian has; cargo-deb would
have to be built first, and would need the list of files once more."""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path

from notices import third_party
from project import TOP, VERSION, field

PACKAGING = TOP / "packaging"
MAINTAINER = os.environ.get("MAINTAINER") or "The farpage authors" + (field("contact") and f" <{field('contact')}>")

COMMAND = """more memory than the RAM you are allowed
 farpage run gives a program, and everything that it starts, one RAM budget.
 What is cold is compressed, and what does not fit goes to a file: swap, rebuilt
 in user space, without swapon, without a kernel module and without a change of
 the program. It needs Linux 6.8 or newer.
 .
 The members of the group userfaultfd may use it; root always may. The group is
 made by this package, and empty."""
LIBRARY = """memory larger than its RAM budget: shared library
 Programs that are linked with farpage's regions need it."""
DEVELOPMENT = """memory larger than its RAM budget, for C programs
 The header, the static library, the pkg-config file, and an example of
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


def document(package, name, notices):
    """Licence and changes, where Debian looks for them."""
    place = package / "usr/share/doc" / name
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGING / "deb/copyright", place / "copyright")
    date = formatdate((TOP / "CHANGELOG.md").stat().st_mtime)
    entry = [f"farpage ({VERSION}) unstable; urgency=medium",
             "  * CHANGELOG.md of the package farpage says what is new.", f" -- {MAINTAINER}  {date}"]
    (place / "changelog").write_text("\n\n".join(entry) + "\n")
    (place / "third-party.txt").write_text(notices, encoding="utf-8")
    compress(place / "changelog")
    compress(place / "third-party.txt")


def build(package, name, section, description, out, depends="", scripts=(), **files):
    control = package / "DEBIAN"
    paths = sorted(path for path in package.rglob("*") if not path.is_dir())
    kib = sum((path.lstat().st_size + 1023) // 1024 for path in paths)
    plain = [path for path in paths if not path.is_symlink()]
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(package)}\n" for path in plain]
    for path in [package, *package.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100 and ".so" not in path.name
            path.chmod(0o755 if runs else 0o644)
    fields = {"Package": name, "Version": VERSION, "Architecture": "amd64", "Section": section, "Priority": "optional",
              "Maintainer": MAINTAINER, "Installed-Size": kib, "Depends": depends or shared_libraries(package),
              "Homepage": field("repository"), "Description": description}
    control.mkdir(mode=0o755)
    (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items() if value))
    (control / "md5sums").write_text("".join(sums))
    for script in scripts:
        shutil.copy(PACKAGING / "deb" / script, control / script)
    for file, text in files.items():
        (control / file).write_text(text)
    deb = out / f"{name}_{VERSION}_amd64.deb"
    # What is only tested need not be small: compressing it took a minute of CPU time.
    level = "-z1" if os.environ.get("PROFILE") == "checked" else "-z6"
    output("dpkg-deb", "--root-owner-group", "-Zxz", level, "--build", package, deb)
    print(deb)


def main():
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    library, development = out / "libfarpage0", out / "libfarpage-dev"
    move(root, library, "usr/lib/x86_64-linux-gnu/libfarpage.so.*")
    move(root, development, "usr/include/*", "usr/lib/x86_64-linux-gnu/*")
    for empty in ("usr/include", "usr/lib/x86_64-linux-gnu"):
        (root / empty).rmdir()
    documents = root / "usr/share/doc/farpage"
    for twice in ("LICENSE-APACHE", "LICENSE-MIT"):
        (documents / twice).unlink()
    move_to = {"60-userfaultfd.rules": "usr/lib/udev/rules.d/60-userfaultfd.rules",
               "sysusers.conf": "usr/lib/sysusers.d/farpage.conf",
               "farpage-guard.service": "usr/lib/systemd/system/farpage-guard.service"}
    for name in ("service.conf", "compose.yaml", "kubernetes.yaml", "Containerfile"):
        move_to[name] = f"usr/share/doc/farpage/examples/{name}"
    moved = {"LICENSE-APACHE": "copyright", "LICENSE-MIT": "copyright"}
    moved |= {name: os.path.relpath(root / to, documents) for name, to in move_to.items()}
    for page in documents.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, to in moved.items():
            text = re.sub(rf"\]\(((\.\./)*){re.escape(name)}\)", rf"](\g<1>{to})", text)
        # It is in another package, which need not be there.
        text = re.sub(r"\[([^]]*)\]\((\.\./)*table\.c\)", r"\1 (libfarpage-dev)", text)
        page.write_text(text, encoding="utf-8")
    for name, to in move_to.items():
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        (documents / name).rename(root / to)
    for page in (root / "usr/share/man/man1").iterdir():
        compress(page)
    example = development / "usr/share/doc/libfarpage-dev/examples/table.c"
    example.parent.mkdir(parents=True)
    (documents / "table.c").rename(example)
    notices = third_party()
    document(root, "farpage", notices)
    document(library, "libfarpage0", notices)
    document(development, "libfarpage-dev", notices)
    build(root, "farpage", "admin", COMMAND, out, scripts=("prerm", "postinst", "postrm"))
    build(library, "libfarpage0", "libs", LIBRARY, out, triggers="activate-noawait ldconfig\n",
          shlibs=f"libfarpage 0 libfarpage0 (>= {VERSION})\n")
    build(development, "libfarpage-dev", "libdevel", DEVELOPMENT, out, depends=f"libfarpage0 (= {VERSION})")


main()
