"""A program that uses numpy.memmap, and the same with one line changed."""

import os
import tempfile

import numpy as np

import farpage

pager = farpage.Pager("16M")


def normalise(matrix):
    """In place, with what numpy has."""
    matrix -= matrix.mean(axis=0)
    matrix /= matrix.std(axis=0)
    return matrix.sum()


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "data.f32")
    rng = np.random.default_rng(1)
    rng.random((1 << 15, 512), dtype=np.float32).tofile(path)   # 64 MiB

    matrix = np.memmap(path, np.float32, mode="c", shape=(1 << 15, 512))
    with_memmap = normalise(matrix)

    matrix = pager.from_file(path, np.float32, shape=(1 << 15, 512))
    with_farpage = normalise(matrix)

assert with_memmap == with_farpage
print(f"{matrix.nbytes >> 20} MiB in {pager.ram >> 20} MiB, the same sum: {with_farpage}")
print(pager.stats())
