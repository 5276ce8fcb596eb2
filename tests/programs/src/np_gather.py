"""Random gathers from a large array, between sequential passes over it."""

import numpy as np

from common import check, crc, make, size_words, words

n = size_words()
a = make(n)
print("sequential", crc(a))
rng = np.random.default_rng(5)
total = 0
for turn in range(30):
    index = rng.integers(0, n, 10_000)
    got = a[index]
    total = (total + int(got.sum(dtype=np.uint64))) & (2**64 - 1)
    if turn % 10 == 0:
        for k in range(0, 10_000, 37):
            want = int(words(int(index[k]), 1)[0])
            assert int(got[k]) == want, (int(index[k]), int(got[k]), want)
print("gathered", total)
check(a)
print("backwards", int(a[::-1][::64].sum(dtype=np.uint64)))
