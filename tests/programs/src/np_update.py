"""In-place updates of a large array: whole passes, strided, and at random places."""

import numpy as np

from common import CHUNK, crc, make, size_words, words

n = size_words()
a = make(n)
added = np.zeros(n // 512, dtype=np.uint32)  # additions to word 100 of each page
rng = np.random.default_rng(6)
for turn in range(3):
    a += np.uint64(turn + 1)
    pages = np.unique(rng.integers(0, n // 512, 8000))
    a[pages * 512 + 100] += np.uint64(1)
    added[pages] += 1
    a[turn::4096] ^= np.uint64(1 << 40)
print("updated", crc(a))
for at in range(0, n, CHUNK):
    part = a[at : at + CHUNK]
    want = words(at, len(part)) + np.uint64(0)
    for turn in range(3):
        want += np.uint64(turn + 1)
        want[turn::4096] ^= np.uint64(1 << 40)
    want[100::512] += added[at // 512 : at // 512 + len(want[100::512])].astype(np.uint64)
    wrong = np.flatnonzero(part != want)
    assert len(wrong) == 0, (at, wrong[:5], part[wrong[:5]], want[wrong[:5]])
print("additions", int(added.sum()))
