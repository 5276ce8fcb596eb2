"""An array is written to a file straight from memory and read back straight into memory."""

import os
import tempfile

import numpy as np

from common import check, crc, make, size_words

n = size_words()
a = make(n)
b = make(n, salt=99)  # pushes `a` out, and is then overwritten by read()
with tempfile.TemporaryDirectory() as d:
    path = os.path.join(d, "array")
    a.tofile(path)
    print("written", os.path.getsize(path))
    with open(path, "rb", buffering=0) as f:
        view, at = memoryview(b).cast("B"), 0
        while got := f.readinto(view[at : at + 3_000_001]):
            at += got
    check(b, what="read back")
    np.save(path + ".npy", b)
    del b, view
    c = np.load(path + ".npy")
    check(c, what="loaded")
    os.unlink(path + ".npy")
    with open(path, "r+b", buffering=0) as f:
        # pread and preadv in odd sizes into the array that is out by now
        buffers = [memoryview(a).cast("B")[at : at + 1_234_567] for at in range(0, 8 * n, 1_234_567)]
        a[:] = np.uint64(0)
        at = 0
        for k in range(0, len(buffers), 5):
            want = sum(len(x) for x in buffers[k : k + 5])
            assert os.preadv(f.fileno(), buffers[k : k + 5], at) == want
            at += want
check(a, what="preadv")
print("read", crc(a), crc(c))
