"""Passes over a large array, in order: read, and once written."""

import zlib

import numpy as np

WORDS, PIECE = 25 << 20, 1 << 17  # 200 MiB

values = np.empty(WORDS, dtype=np.uint64)
for at in range(0, WORDS, PIECE):
    i = np.arange(at, at + PIECE, dtype=np.uint64)
    # Every second page compresses well.
    noise = (i * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    values[at : at + PIECE] = np.where((i >> np.uint64(9)) & np.uint64(1), noise, i)
for turn in range(8):
    total = crc = 0
    for at in range(0, WORDS, PIECE):
        piece = values[at : at + PIECE]
        total += int(piece.sum(dtype=np.uint64))
        crc = zlib.crc32(piece[:: 64 + turn].tobytes(), crc)
        if turn == 3:
            piece += np.uint64(1)
    print(turn, total & (1 << 64) - 1, f"{crc:08x}")
