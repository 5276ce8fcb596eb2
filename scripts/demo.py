#!/usr/bin/python3
"""The main job: sort text that needs twice the RAM it is allowed, and show what that costs.

The input is real: the text files of this machine's own packages (headers, scripts, documentation), up to 200 MB.
"""

import os
import shutil
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "programs"))
sys.dont_write_bytecode = True
import measure  # noqa: E402

MB, MIB = 1_000_000, 1 << 20
WANTED = int(os.environ.get("DEMO_MB", "200")) * MB
SUFFIXES = (".h", ".py", ".pm", ".pl", ".c", ".txt", ".html", ".list", ".md5sums", ".js", ".ts", ".md", ".json", ".sh")
PLACES = ("/usr/include", "/usr/share", "/var/lib/dpkg/info", "/usr/lib", "/usr/src")


def gather(path):
    """Copies text files into one, in a fixed order."""
    files = size = 0
    with open(path, "wb") as out:
        for place in PLACES:
            for directory, below, names in os.walk(place):
                below.sort()
                for name in sorted(n for n in names if n.endswith(SUFFIXES)):
                    try:
                        with open(os.path.join(directory, name), "rb") as f:
                            text = f.read(4 * MB)
                    except OSError:
                        continue
                    out.write(text + b"\n")
                    files, size = files + 1, size + len(text) + 1
                    if size >= WANTED:
                        return files, size
    return files, size


def run(argv, work, env):
    os.makedirs(work)
    r = measure.Run(argv, work, env)
    try:
        if not r.wait(600):
            sys.exit(f"demo: {' '.join(argv)} hangs\n" + "\n".join(r.where()))
    finally:
        r.kill()
    with open(r.err_path) as f:
        errors = f.read()
    if r.status:
        sys.exit(f"demo: {' '.join(argv)} ended with status {r.status}\n{errors}")
    return r, errors


def same(a, b):
    with open(a, "rb") as x, open(b, "rb") as y:
        while True:
            p, q = x.read(MIB), y.read(MIB)
            if p != q:
                return False
            if not p:
                return True


def main():
    farpage = os.path.join(ROOT, "target", "release", "farpage")
    base = tempfile.mkdtemp(prefix="farpage-demo.", dir="/var/tmp")
    try:
        text = os.path.join(base, "text")
        files, size = gather(text)
        print(f"input    {size / MB:.0f} MB of text from {files} files of this machine", flush=True)
        env = dict(os.environ, LC_ALL="C", TMPDIR=base)
        sort = ["sort", "-S", "8G", "--parallel=2", text]

        measure.adopt_orphans()
        plain, _ = run(sort, os.path.join(base, "plain"), env)
        print(f"plain    {plain.seconds:.2f} s, peak {plain.largest() / MIB:.1f} MiB of anonymous memory", flush=True)

        budget = max(plain.largest() // 2 // MIB, 16)
        command = ["farpage", "run", "--ram", f"{budget}M", "--stats", "--", *sort[:-1], "text"]
        print("         " + " ".join(command), flush=True)
        swapped, table = run([farpage, *command[1:5], "--", *sort], os.path.join(base, "farpage"), env)
        print(table, end="")
        peak = swapped.largest() / MIB
        held = peak <= budget * 1.05
        equal = same(plain.out_path, swapped.out_path)
        verdict = "budget held" if held else "BUDGET EXCEEDED"
        print(f"farpage  {swapped.seconds:.2f} s, peak {peak:.1f} of {budget} MiB sampled every 10 ms: {verdict}")
        print("output   " + ("identical to the plain run's" if equal else "DIFFERS from the plain run's"))
        return 0 if held and equal else 1
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
