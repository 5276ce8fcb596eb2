"""multiprocessing: forked workers read the parent's array, and send arrays of their own back."""

import multiprocessing
import zlib

import numpy as np

from common import check, crc, make, size_words, words

PARTS = 16
n = size_words()


def work(part):
    start, end = part * n // PARTS, (part + 1) * n // PARTS
    check(a[start:end], start=start, what=f"worker, part {part}")
    mine = words(0, (end - start) // 2, salt=part)
    return part, f"{zlib.crc32(a[start:end].tobytes()):08x}", mine


if __name__ == "__main__":
    a = make(n)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for part, text, mine in pool.imap(work, range(PARTS)):
            assert np.array_equal(mine, words(0, len(mine), salt=part)), part
            print(part, text, int(mine.sum(dtype=np.uint64)))
    check(a, what="parent")
    print("kept", crc(a))
