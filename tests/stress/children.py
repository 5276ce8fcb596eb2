#!/usr/bin/env python3
"""Programs that a program of another user starts have a budget of their own, whatever was closed before.

    children.py FARPAGE

Under `farpage run --user` the right to manage memory is an inherited descriptor; Python's subprocess, daemons and
others close all descriptors before they exec. As root, with Python as the program. Copies what it runs to where that
user can read it."""

import os
import shutil
import subprocess
import sys
import tempfile

# Not the one that runs this: it may lie where only root comes.
PYTHON = "/usr/bin/python3"

CHILD = """
import os
data = [os.urandom(1 << 16) * 16 for _ in range(96)]
anon = [int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('RssAnon')][0]
device = os.readlink('/proc/self/fd/' + os.environ['FARPAGE_UFFD_FD'])
print(device, 'in its budget' if anon < 34 << 10 else f'{anon} KiB', all(d[:9] == d[1 << 16 : (1 << 16) + 9] for d in data))
"""

START = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
child = [sys.executable, '-c', sys.argv[1]]
"""

WAYS = [
    "subprocess.run(child, check=True)",
    "subprocess.run(child, check=True, preexec_fn=lambda: os.closerange(3, 1 << 20))",
    "os.fork() or (os.closerange(3, 1 << 20), os.execv(child[0], child)); os.wait()",
    "libc.closefrom(3); os.execv(child[0], child)",
    "libc.syscall(436, 3, -1, 0); os.execv(child[0], child)  # close_range",
    "[libc.close(fd) for fd in range(3, 1024)]; os.execv(child[0], child)",
]

# The number is the program's if it puts something else there.
OTHERS = """
fd = int(os.environ['FARPAGE_UFFD_FD'])
read, write = os.pipe()
os.dup2(write, fd)
os.close(write)
os.close(fd)
print('end' if os.read(read, 1) == b'' else 'still open')
"""


def main():
    if os.geteuid() != 0 or not os.path.exists("/dev/userfaultfd"):
        print("children: skipped, needs root and /dev/userfaultfd")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="farpage-test-") as public:
        os.chmod(public, 0o755)
        here = os.path.dirname(sys.argv[1])
        for name in ("farpage", "libfarpage_preload.so"):
            shutil.copy(os.path.join(here, name), public)
        farpage = os.path.join(public, "farpage")

        def check(way, want):
            nonlocal failed
            argv = [farpage, "run", "--ram", "32M", "--user", "nobody", PYTHON, "-c", START + way, CHILD]
            out = subprocess.run(argv, capture_output=True, text=True, cwd="/")
            if (out.returncode, out.stdout, out.stderr) != (0, want + "\n", ""):
                failed += 1
                print(f"children: {way}: status {out.returncode}, not {want}:\n{out.stdout}{out.stderr}")

        for way in WAYS:
            check(way, "/dev/userfaultfd in its budget True")
        check(OTHERS, "end")
    print(f"children: {len(WAYS) + 1} ways, {failed} failed")
    return failed > 0


sys.exit(main())
