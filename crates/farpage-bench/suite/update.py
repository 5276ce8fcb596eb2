"""A large array that is updated in place: at random, by strides, and as a whole."""

import zlib

import numpy as np

WORDS, PIECE = 25 << 20, 1 << 17  # 200 MiB

values = np.zeros(WORDS, dtype=np.uint64)
for at in range(0, WORDS, PIECE):
    i = np.arange(at, at + PIECE, dtype=np.uint64)
    noise = (i * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(16)
    values[at : at + PIECE] = np.where((i >> np.uint64(9)) & np.uint64(1), noise, i)
rng = np.random.default_rng(6)
for turn in range(3):
    for _ in range(8):
        pages = np.unique(rng.integers(0, WORDS // 512, 5000))
        values[pages * 512 + 100] += np.uint64(turn + 1)
    values[turn::4096] ^= np.uint64(1 << 40)
    values += np.uint64(turn + 1)
crc = 0
for at in range(0, WORDS, PIECE):
    crc = zlib.crc32(values[at : at + PIECE], crc)
print(f"{crc:08x}")
