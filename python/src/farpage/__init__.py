"""Arrays larger than the RAM that they are allowed, and programs, too.

>>> import farpage, numpy
>>> pager = farpage.Pager("64M")                        # a RAM budget; what does not fit is compressed, then in a file
>>> a = pager.empty((3000, 4000))                       # 92 MiB: a real numpy.ndarray
>>> a[:] = 1
>>> float(a.sum())
12000000.0

``farpage.empty``, ``zeros``, ``full``, ``array``, ``from_file`` and ``load`` use a pager made when it is first needed,
with half of the memory that is available. ``Pager.arrays`` and ``arrays`` let numpy's own arrays live in a pager.
``limit`` puts the whole interpreter under a budget, ``run`` another program.

No privilege is needed for arrays; ``limit`` and ``run`` need what ``farpage run`` needs. Linux 6.8 or newer on x86-64.
"""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Union

import numpy as _np

from ._errors import Error, InvalidError, RoomError, UnavailableError
from ._files import save
from ._pager import Pager, default_pager, set_default_pager
from ._process import CompletedProcess, limit, run
from ._stats import Stats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from ._errors import Size
    from ._pager import Path, Shape

try:
    __version__ = version("farpage")
except PackageNotFoundError:  # from the source tree
    __version__ = "0"


def empty(shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """A new array, as ``numpy.empty``, in the default pager. See :meth:`Pager.empty`."""
    return default_pager().empty(shape, dtype, order)


def zeros(shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """A new array of zeros, as ``numpy.zeros``, in the default pager."""
    return default_pager().zeros(shape, dtype, order)


def full(shape: Shape, fill_value: Any, dtype: Optional[DTypeLike] = None, order: str = "C") -> NDArray[Any]:
    """A new array with one value everywhere, as ``numpy.full``, in the default pager."""
    return default_pager().full(shape, fill_value, dtype, order)


def array(values: ArrayLike, dtype: Optional[DTypeLike] = None, order: str = "K") -> NDArray[Any]:
    """A copy of an array in the default pager. See :meth:`Pager.array`."""
    return default_pager().array(values, dtype, order)


def from_file(
    path: Path,
    dtype: DTypeLike = _np.uint8,
    shape: Optional[Shape] = None,
    offset: int = 0,
    order: str = "C",
    *,
    progress: Optional[bool] = None,
) -> NDArray[Any]:
    """A file of plain values as an array in the default pager. See :meth:`Pager.from_file`."""
    return default_pager().from_file(path, dtype, shape, offset, order, progress=progress)


def load(file: Path, *, progress: Optional[bool] = None) -> Any:
    """A ``.npy`` or ``.npz`` file in the default pager. See :meth:`Pager.load`."""
    return default_pager().load(file, progress=progress)


@contextlib.contextmanager
def arrays(
    ram: Optional[Size] = None, swap: Union[str, Sequence[str], None] = None, *, min_bytes: Size = "1M"
) -> Iterator[Pager]:
    """All arrays of ``min_bytes`` and more that numpy makes meanwhile live in a new pager with this budget.

    >>> import farpage, numpy
    >>> with farpage.arrays("64M") as pager:
    ...     a = numpy.ones(1 << 24)                     # 128 MiB
    ...     b = a + a                                   # and another 128
    >>> float(b.sum()), pager.stats().used_bytes < 70e6
    (33554432.0, True)

    See :meth:`Pager.arrays`.
    """
    with Pager(ram, swap).arrays(min_bytes) as pager:
        yield pager


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext farpage``."""
    from ._ipython import load

    load(ipython)


__all__ = [
    "CompletedProcess",
    "Error",
    "InvalidError",
    "Pager",
    "RoomError",
    "Stats",
    "UnavailableError",
    "array",
    "arrays",
    "default_pager",
    "empty",
    "from_file",
    "full",
    "limit",
    "load",
    "run",
    "save",
    "set_default_pager",
    "zeros",
]
