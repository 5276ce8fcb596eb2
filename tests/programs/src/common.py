"""What the numpy programs share: deterministic arrays, and sums of them that are printed."""

import sys
import zlib

import numpy as np

MIB = 1 << 20
CHUNK = 1 << 17  # words


def size_words():
    """The program's argument, MiB, as 8-byte words."""
    return int(sys.argv[1]) * MIB // 8


def words(start, n, salt=0):
    """Words start..start+n of an endless sequence: half of the pages compress well, a quarter hardly, a quarter are
    same-filled."""
    i = np.arange(start, start + n, dtype=np.uint64)
    out = i * np.uint64(3) + np.uint64(salt)
    kind = (i >> np.uint64(9)) & np.uint64(3)
    some = kind == 2
    mixed = (i[some] + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    out[some] = mixed * np.uint64(0xBF58476D1CE4E5B9)
    some = kind == 3
    out[some] = (i[some] >> np.uint64(9)) + np.uint64(salt)
    return out


def make(n, salt=0):
    a = np.empty(n, dtype=np.uint64)
    for at in range(0, n, CHUNK):
        a[at : at + CHUNK] = words(at, min(CHUNK, n - at), salt)
    return a


def check(a, start=0, salt=0, what="array"):
    """Compares each word."""
    for at in range(0, len(a), CHUNK):
        part = a[at : at + CHUNK]
        wrong = np.flatnonzero(part != words(start + at, len(part), salt))
        if len(wrong):
            k = int(wrong[0])
            want = int(words(start + at + k, 1, salt)[0])
            print(f"{what}: word {start + at + k} is {int(part[k]):#x}, must be {want:#x}; {len(wrong)} wrong",
                  file=sys.stderr)  # fmt: skip
            sys.exit(1)


def crc(a):
    total = 0
    for at in range(0, len(a), CHUNK):
        total = zlib.crc32(a[at : at + CHUNK], total)
    return f"{total:08x}"
