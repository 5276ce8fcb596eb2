#!/usr/bin/env python3
"""The Python package as users have it: the wheel in fresh environments, the tests and examples as an ordinary user.

Usage: test_wheel.py WHEEL

With PROFILE=checked, as in make test, Debian's Python has the tests, and the examples that need nothing but numpy. Else it
has what large packages are for, too, and the oldest and the newest Python that there are besides run the tests that hang
on Python and numpy. Pythons are looked for in PATH and among pyenv's.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What hangs is ended.
HANG = 600
NOBODY = 65534
EXTRAS = ["mypy", "tqdm", "auditwheel"]
# What more is for: the notebook's magic, the examples with tables and with a model.
LARGE = ["ipython", "pandas", "scikit-learn"]
OF_LARGE = ["join.py", "pca.py"]
BRIEF = os.environ.get("PROFILE") == "checked"


def pythons():
    """Paths of Pythons from 3.9 on by version: Debian's first, then the oldest and the newest of the others."""
    places = ["/usr/bin", *os.environ["PATH"].split(":"), *glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin"))]
    found = {}
    for path in (path for place in places for path in glob.glob(os.path.join(place, "python3*"))):
        if not re.fullmatch(r"python3(\.\d+)?t?", os.path.basename(path)):
            continue
        code = "import sys, ensurepip, venv; print(sys.version_info[:2], getattr(sys.flags, 'gil', 1))"
        said = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, cwd="/")
        version = re.match(r"\((\d+), (\d+)\) (\d)", said.stdout)
        if version and (key := tuple(map(int, version.groups()))) >= (3, 9):
            found.setdefault(key, path)
    first = next(iter(found))
    others = sorted(version for version in found if version != first)
    return [found[first], *(found[version] for version in dict.fromkeys(others[:1] + others[-1:]))]


def run(command, **others):
    """Runs a command, which must succeed."""
    print("+", " ".join(command), flush=True)
    if subprocess.run(command, timeout=HANG, check=False, **others).returncode:
        sys.exit(f"failed: {' '.join(command)}")


def as_user(command, folder):
    """The same as an ordinary user, where this is root and the interpreter is not in root's own directory."""
    reachable = "/root/" not in os.path.realpath(command[0])
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    environment = {**os.environ, "HOME": folder, "IPYTHONDIR": folder, "LC_ALL": "C.UTF-8"}
    prefix = drop if os.geteuid() == 0 and reachable else []
    run([*prefix, *command], cwd=folder, env=environment)


def fits(auditwheel, wheel):
    """The name of the wheel says which glibc it needs; what is in it may need none that is newer."""
    said = subprocess.run([auditwheel, "show", wheel], capture_output=True, text=True, check=True).stdout
    needs = re.search(r'manylinux_2_(\d+)_x86_64', said)
    says = re.search(r"manylinux_2_(\d+)_x86_64", os.path.basename(wheel))
    if not needs or int(needs[1]) > int(says[1]):
        sys.exit(f"{os.path.basename(wheel)} needs more than it says:\n{said}")


def main():
    wheel = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="farpage-python-") as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(os.path.join(ROOT, "python"), os.path.join(folder, "python"), symlinks=True)
        header = "crates/farpage-c/include"
        shutil.copytree(os.path.join(ROOT, header), os.path.join(folder, header))
        home = os.path.join(folder, "home")
        os.mkdir(home)
        os.chmod(home, 0o1777)
        extras = EXTRAS if BRIEF else EXTRAS + LARGE
        for i, python in enumerate(pythons()[: 1 if BRIEF else None]):
            venv = os.path.join(folder, f"venv{i}")
            run([python, "-m", "venv", venv])
            here = os.path.join(venv, "bin", "python")
            pip = [here, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
            run([*pip, "--only-binary=:all:", wheel, *(extras if i == 0 else [])])
            tests = os.path.join(folder, "python", "tests")
            if i == 0:
                fits(os.path.join(venv, "bin", "auditwheel"), wheel)
                as_user([here, "-B", "-m", "unittest", "discover", "-s", tests], home)
                for example in sorted(glob.glob(os.path.join(folder, "python", "examples", "*.py"))):
                    if BRIEF and os.path.basename(example) in OF_LARGE:
                        continue
                    as_user([here, "-B", example], home)
                if os.geteuid() == 0:  # limit and run, which not everybody may
                    run([here, "-B", "-m", "unittest", "discover", "-s", tests, "-p", "test_process.py"], cwd=home)
            else:
                some = [word for name in ("Arrays", "Making", "SystemCalls") for word in ("-k", name)]
                as_user([here, "-B", "-m", "unittest", "discover", "-s", tests, "-p", "test_a*.py", *some], home)


if __name__ == "__main__":
    main()
