"""Rows of a large array, gathered by permutations."""

import numpy as np

ROWS, WIDTH = 200_000, 128  # 1 KiB a row: four rows a page

rng = np.random.default_rng(1)
rows = np.empty((ROWS, WIDTH), dtype=np.int64)
for at in range(0, ROWS, 1000):
    rows[at : at + 1000] = rng.integers(0, 1 << 20, (1000, WIDTH))
total = 0
for turn in range(4):
    order = rng.permutation(ROWS)
    for at in range(0, ROWS, 500):
        total = total * 31 + int(rows[order[at : at + 500]].sum()) & (1 << 64) - 1
print(total)
