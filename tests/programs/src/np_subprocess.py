"""Starts other programs in many ways from a process with much memory, and pipes that memory through them."""

import subprocess
import sys
import zlib

from common import check, crc, make, size_words

n = size_words()
a = make(n)
for turn in range(6):
    part = a[turn * n // 6 : (turn + 1) * n // 6]
    # Through a pipe into another program and back again into ours.
    done = subprocess.run(["cat"], input=memoryview(part).cast("B"), stdout=subprocess.PIPE, check=True)
    assert zlib.crc32(done.stdout) == zlib.crc32(part.tobytes()), turn
    print(turn, len(done.stdout), f"{zlib.crc32(done.stdout):08x}")
    del done
for turn in range(10):
    print(subprocess.run(["/bin/sh", "-c", f"echo shell {turn}; exit {turn}"], stdout=subprocess.PIPE, check=False))
# preexec_fn forces a real fork before the exec.
print(subprocess.run(["/bin/echo", "after fork"], stdout=subprocess.PIPE, preexec_fn=lambda: None, check=True).stdout)
# A child that has a large memory of its own.
code = "import numpy as np; a = np.arange(4 << 20); print(int(a.sum()), int(a[::-1][::512].sum()))"
several = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
check(a)
for p in several:
    print(p.communicate()[0], p.returncode)
print("kept", crc(a))
