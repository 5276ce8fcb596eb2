"""Arrays larger than the RAM that they are allowed, and programs, too.

>>> import farpage, numpy
>>> pager = farpage.Pager("64M")                        # a RAM budget; what does not fit is compressed, then in a file
>>> a = pager.empty((3000, 4000))                       # 92 MiB: a real numpy.ndarray
>>> a[:] = 1
>>> float(a.sum())
12000000.0

``farpage.empty``, ``zeros``, ``ones``, ``full``, ``empty_like`` and the like, ``array``, ``asarray``, ``arange``,
``from_file`` and ``load`` use a pager made when it is first needed, with half of the memory that is available.
``Pager.arrays`` and ``arrays`` let numpy's own arrays live in a pager.
``limit`` puts the whole interpreter under a budget, ``run`` another program.

No privilege is needed for arrays; ``limit`` and ``run`` need what ``farpage run`` needs. Linux 6.8 or newer on x86-64.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence, Union

from ._errors import Error, InvalidError, RoomError, UnavailableError
from ._files import save
from ._pager import Pager, default_pager, set_default_pager
from ._process import CompletedProcess, limit, run
from ._stats import Stats

if TYPE_CHECKING:
    from ._errors import Size

try:
    __version__ = version("farpage")
except PackageNotFoundError:  # from the source tree
    __version__ = "0"


def _of_default(name: str) -> Callable[..., Any]:
    """The pager's function of this name, in the default pager."""
    method = getattr(Pager, name)

    @functools.wraps(method)
    def function(*args: Any, **options: Any) -> Any:
        return getattr(default_pager(), name)(*args, **options)

    signature = inspect.signature(method)
    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(signature.parameters.values())[1:]
    )
    return function


if TYPE_CHECKING:
    _default: Pager
    empty, zeros, ones, full = _default.empty, _default.zeros, _default.ones, _default.full
    empty_like, zeros_like, full_like = _default.empty_like, _default.zeros_like, _default.full_like
    array, asarray, arange = _default.array, _default.asarray, _default.arange
    from_file, load = _default.from_file, _default.load
else:
    empty, zeros, ones, full = map(_of_default, ["empty", "zeros", "ones", "full"])
    empty_like, zeros_like, full_like = map(_of_default, ["empty_like", "zeros_like", "full_like"])
    array, asarray, arange = map(_of_default, ["array", "asarray", "arange"])
    from_file, load = map(_of_default, ["from_file", "load"])


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
    "arange",
    "array",
    "arrays",
    "asarray",
    "default_pager",
    "empty",
    "empty_like",
    "from_file",
    "full",
    "full_like",
    "limit",
    "load",
    "ones",
    "run",
    "save",
    "set_default_pager",
    "zeros",
    "zeros_like",
]
