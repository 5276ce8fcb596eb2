"""Memory of pagers: handles of the C library, and what an array's memory belongs to."""

from __future__ import annotations

import os
import pathlib
import threading
import weakref
from ctypes import byref
from typing import TYPE_CHECKING, Any, Optional, Tuple, Type, TypeVar

from ._errors import InvalidError
from ._library import Config, library, make

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

_COUNTS = threading.RLock()  # a finalizer may run in the middle of anything


def _after_fork() -> None:
    """Another thread may have held the lock."""
    global _COUNTS
    _COUNTS = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Count:
    """Bytes of a pager's living regions."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, size: int) -> None:
        with _COUNTS:
            self.bytes += size


class Owner:
    """A pager, as far as its memory knows it."""

    _count: Count


class Handle:
    """A pager of the C library. It is given back when neither a ``Pager`` nor a call that runs holds this."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, config: Config) -> None:
        self.value = make(library().fp_pager_new, byref(config))
        weakref.finalize(self, library().fp_pager_free, self.value).atexit = False


class Memory:
    """A region: what an array's memory belongs to. It goes with the last array that looks at it."""

    __slots__ = ("__array_interface__", "__weakref__", "pager", "region", "start")

    def __init__(self, pager: Owner, handle: Handle, size: int) -> None:
        lib = library()
        self.pager = pager
        self.region = make(lib.fp_region_new, handle.value, size)
        self.start = int(lib.fp_region_data(self.region))
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (self.start, False)}
        pager._count.add(size)
        weakref.finalize(self, self._free, self.region, size, pager._count).atexit = False

    @staticmethod
    def _free(region: int, size: int, count: Count) -> None:
        library().fp_region_free(region)
        count.add(-size)


def owner_of(array: Any, kind: Type[T]) -> Optional[T]:
    """What an array's memory belongs to, if it is of this kind."""
    owner = array
    while owner is not None and not isinstance(owner, kind):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


def memory_of(array: Any) -> Optional[Memory]:
    """The region that an array lies in, if a pager's function has made it."""
    return owner_of(array, Memory)


def range_of(array: NDArray[Any]) -> Tuple[Memory, int, int]:
    """The region that an array lies in, and which bytes of it."""
    memory = memory_of(array)
    if memory is None:
        raise InvalidError(
            "this array is not farpage's: it was not made by a pager's functions, or is empty, or is a file itself "
            "(mode='r' and 'r+')"
        )
    if not array.flags.forc:
        raise InvalidError("this part of an array is not contiguous: what lies between its values would be meant, too")
    return memory, int(array.__array_interface__["data"][0]) - memory.start, array.nbytes


def is_used() -> bool:
    """Whether any pager lives: also one that is closed, as long as an array of it does. Each has such a thread."""
    tasks = pathlib.Path("/proc/self/task")
    for name in os.listdir(tasks):
        try:
            if (tasks / name / "comm").read_text() == "farpage-ahead\n":
                return True
        except OSError:
            pass  # the thread has ended
    return False
