"""Sorts an array of four times its RAM, in place, and saves it."""

import os
import tempfile

import numpy as np

import farpage

pager = farpage.Pager("16M")
values = pager.empty(64 << 17)                          # 64 MiB of float64
rng = np.random.default_rng(1)
for part in np.split(values, 64):                       # piece by piece: the random numbers are ordinary memory
    part[:] = rng.random(len(part))
total = values.sum()

values.sort()

assert np.all(values[:-1] <= values[1:]) and np.isclose(values.sum(), total)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "sorted.npy")
    farpage.save(path, values)
    again = pager.load(path)
    assert np.array_equal(values, again)
print(f"sorted {values.nbytes >> 20} MiB in {pager.ram >> 20} MiB")
print(pager.stats())
