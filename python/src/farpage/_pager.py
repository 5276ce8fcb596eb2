"""Pagers: a RAM budget, swap devices, and the arrays that live in them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Sequence, Tuple, Union

import numpy as np

from . import _allocator, _files
from ._errors import InvalidError, RoomError, Size, UnavailableError, to_bytes, to_text
from ._library import STATISTICS, Config, CStats, byref, check, command, library, make
from ._stats import Stats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Shape = Union[int, Sequence[int]]
    Path = Union[str, "os.PathLike[str]"]

ADVICE = ("normal", "sequential", "random", "willneed", "dontneed")
"""What ``fp_advice`` has, in its order."""

POOL_FACTOR = 4
"""Compressed memory is taken to hold so many times the budget, where its device has no ``size``."""


class _Count:
    """Bytes of a pager's living regions."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in the middle of anything
        self.bytes = 0

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes += size


class _Memory:
    """A region: what an array's memory belongs to. It goes with the last array that looks at it."""

    __slots__ = ("__array_interface__", "__weakref__", "pager", "region", "start")

    def __init__(self, pager: Pager, size: int) -> None:
        lib = library()
        self.pager = pager
        self.region = make(lib.fp_region_new, pager._handle, size)
        self.start = int(lib.fp_region_data(self.region))
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (self.start, False)}
        pager._count.add(size)
        weakref.finalize(self, self._free, self.region, size, pager._count).atexit = False

    @staticmethod
    def _free(region: int, size: int, count: _Count) -> None:
        library().fp_region_free(region)
        count.add(-size)


def _range(array: NDArray[Any]) -> Tuple[_Memory, int, int]:
    """The region that an array lies in, and which bytes of it."""
    owner: Any = array
    while not isinstance(owner, _Memory):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is None:
            raise InvalidError("this array is not farpage's: it was not made by a pager")
    bounds: Any = getattr(np, "byte_bounds", None) or getattr(np.lib, "array_utils").byte_bounds
    low, high = bounds(array)
    return owner, low - owner.start, high - low


class Pager:
    """A RAM budget with swap devices, and arrays that may be larger than it together.

    >>> import farpage
    >>> pager = farpage.Pager("64M")
    >>> a = pager.zeros((4000, 4000))
    >>> a += 1
    >>> float(a.sum())
    16000000.0

    :param ram: the budget, bytes or a text such as ``"2G"``; at least 4 MiB. It covers what the arrays have in RAM,
        compressed memory and tables, not the rest of the interpreter. Default: half of what this machine has available
        and the memory cgroup allows.
    :param swap: devices in order, as for ``farpage run --swap``: ``["zram", "file:/scratch,size=40G"]``. Default:
        compressed memory, then a file in ``/var/tmp``.
    :param readahead: pages of 4096 bytes that are read ahead at most; 1: none. Default: 128.
    :param verify: compare checksums of all pages that come back; a difference ends the process with a message.
    :param inherit: whether children of ``fork`` (``multiprocessing``, ``os.fork``) have a copy of the arrays, as of all
        other memory. Their budget is one of their own.
    :param overcommit: whether arrays may be made that budget and devices cannot hold if all of it is used. The budget
        gives way where they cannot.
    :raises InvalidError: the budget is too small, or a device is not understood
    :raises UnavailableError: the kernel or a sandbox does not give what is needed (``farpage doctor`` says what)
    """

    def __init__(
        self,
        ram: Optional[Size] = None,
        swap: Union[str, Sequence[str], None] = None,
        *,
        readahead: int = 0,
        verify: bool = False,
        inherit: bool = True,
        overcommit: bool = False,
    ) -> None:
        lib = library()
        budget = default_ram() if ram is None else to_bytes(ram)
        devices = [swap] if isinstance(swap, str) else list(swap or ())
        config = Config()
        check(lib.fp_config_init(byref(config)))
        config.budget_bytes = budget
        config.swap = ";".join(devices).encode() if devices else None
        config.readahead_pages = readahead
        config.inherit = int(inherit)
        config.verify = int(verify)
        config.system_calls = 1
        self._ram = budget
        self._devices = devices or ["zram", "file:/var/tmp"]
        self._overcommit = overcommit
        self._count = _Count()
        self._handle = make(lib.fp_pager_new, byref(config))
        weakref.finalize(self, lib.fp_pager_free, self._handle).atexit = False

    def __repr__(self) -> str:
        return f"<farpage.Pager: {to_text(self.stats().used_bytes)} of {to_text(self._ram)}>"

    @property
    def ram(self) -> int:
        """The budget, bytes. Can be set (also to a text); a smaller one is reached by and by."""
        return self._ram

    @ram.setter
    def ram(self, size: Size) -> None:
        budget = to_bytes(size)
        check(library().fp_pager_resize_budget(self._handle, budget))
        self._ram = budget

    def stats(self) -> Stats:
        """Numbers, now."""
        numbers = CStats()
        check(library().fp_pager_stats(self._handle, byref(numbers), len(STATISTICS) * 8))
        return Stats(**{name: getattr(numbers, name) for name in STATISTICS})

    def capacity(self) -> int:
        """Bytes of arrays that budget and devices hold at most.

        A device's ``size``; a file's without it: what its filesystem has free. Compressed memory without it is taken
        to hold four times the budget.
        """
        return self._ram + sum(self._holds(device) for device in self._devices)

    def _holds(self, device: str) -> int:
        kind, *options = device.split(",")
        size = next((to_bytes(option[5:]) for option in options if option.startswith("size=")), None)
        if not kind.startswith("file:"):
            return size or POOL_FACTOR * self._ram
        try:
            room = os.statvfs(kind[5:])
        except OSError:
            return size or 0
        free = room.f_bavail * room.f_frsize
        return free if size is None else min(free, size)

    def empty(self, shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
        """A new array, as ``numpy.empty``. (What nobody has written is zero.)

        :raises RoomError: it would not fit into budget and devices, with the arrays that there are
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise InvalidError(f"an array of {kind} holds references to objects, whose memory is the interpreter's")
        dimensions = tuple(int(n) for n in shape) if isinstance(shape, Sequence) else (int(shape),)
        if any(n < 0 for n in dimensions):
            raise InvalidError("negative dimensions are not allowed")
        size = kind.itemsize
        for n in dimensions:
            size *= n
        if size == 0:
            return np.empty(dimensions, kind, order)  # type: ignore[call-overload, no-any-return]
        there = self._count.bytes
        if not self._overcommit and there + size > self.capacity():
            raise RoomError(
                f"an array of {to_text(size)} does not fit: there are {to_text(there)} of arrays already, and "
                f"{to_text(self._ram)} of RAM with {', '.join(self._devices)} hold {to_text(self.capacity())}; give "
                "more swap (swap=[..., 'file:/DIR']), or overcommit=True if not all of it will be used"
            )
        memory = np.asarray(_Memory(self, size))
        return np.ndarray(dimensions, kind, memory, order=order)  # type: ignore[arg-type]

    zeros = empty
    """A new array of zeros, as ``numpy.zeros``."""

    def full(
        self, shape: Shape, fill_value: Any, dtype: Optional[DTypeLike] = None, order: str = "C"
    ) -> NDArray[Any]:
        """A new array with one value everywhere, as ``numpy.full``."""
        value = np.asarray(fill_value)
        array = self.empty(shape, value.dtype if dtype is None else dtype, order)
        np.copyto(array, value, casting="unsafe")
        return array

    def array(self, values: ArrayLike, dtype: Optional[DTypeLike] = None, order: str = "K") -> NDArray[Any]:
        """A copy of an array, or of what ``numpy.asarray`` makes of ``values`` (that is in ordinary memory first)."""
        source = np.asarray(values)
        if order in "KA":
            order = "F" if source.flags.fnc else "C"
        array = self.empty(source.shape, source.dtype if dtype is None else dtype, order)
        np.copyto(array, source, casting="unsafe")
        return array

    def from_file(
        self,
        path: Path,
        dtype: DTypeLike = np.uint8,
        shape: Optional[Shape] = None,
        offset: int = 0,
        order: str = "C",
        *,
        progress: Optional[bool] = None,
    ) -> NDArray[Any]:
        """A file of plain values, as ``numpy.memmap`` takes it, read into a new array. The file stays as it is.

        :param shape: default: one dimension, to the file's end
        :param offset: bytes of the file before the first value
        :param progress: a bar, by ``tqdm`` if it is installed. Default: in terminals and notebooks, after two seconds
        :raises InvalidError: the file is too short
        """
        with open(path, "rb") as file:
            kind = np.dtype(dtype)
            there = os.fstat(file.fileno()).st_size - offset
            array = self.empty(max(there, 0) // kind.itemsize if shape is None else shape, kind, order)
            if array.nbytes > there:
                raise InvalidError(f"{path} has {max(there, 0)} bytes from {offset} on, the array needs {array.nbytes}")
            file.seek(offset)
            _files.read_into(file, array, progress)
        return array

    def load(self, file: Path, *, progress: Optional[bool] = None) -> Any:
        """A ``.npy`` file as a new array, or the arrays of an ``.npz`` file as a dictionary.

        :raises InvalidError: it is neither, or holds objects
        """
        return _files.load(self, file, progress)

    @contextlib.contextmanager
    def arrays(self, min_bytes: Size = "1M") -> Iterator[Pager]:
        """All arrays that numpy makes meanwhile, in this thread and in those started by it, and that have at least so
        many bytes, live in this pager: also those that its functions return. They stay when the block is left.
        """
        with _allocator.handler(self._handle, to_bytes(min_bytes)):
            yield self

    def advise(self, array: NDArray[Any], advice: str) -> None:
        """Says how an array (or a part of one) will be used: ``"sequential"``, ``"random"``, ``"normal"``;
        ``"willneed"`` brings it in; ``"dontneed"`` drops what it has: it reads as zeros then.
        """
        if advice not in ADVICE:
            raise InvalidError(f"there is no advice {advice!r}, but {', '.join(ADVICE)}")
        memory, offset, size = _range(array)
        check(library().fp_region_advise(memory.region, offset, size, ADVICE.index(advice)))

    def prefetch(self, array: NDArray[Any]) -> None:
        """Brings an array (or a part of one) in, as far as the budget allows, before it returns."""
        memory, offset, size = _range(array)
        check(library().fp_region_prefetch(memory.region, offset, size))

    @contextlib.contextmanager
    def pin(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Keeps an array (or a part of one) in RAM: for devices that read or write it by themselves (asynchronous
        ``O_DIRECT``, io_uring). Three quarters of the budget can be pinned.
        """
        memory, offset, size = _range(array)
        pin = make(library().fp_region_pin, memory.region, offset, size)
        try:
            yield array
        finally:
            library().fp_unpin(pin)


def default_ram() -> int:
    """Half of what this machine has available, or of what the memory cgroup allows if that is less. Bytes."""
    done = subprocess.run([command(), "doctor", "--json"], capture_output=True, text=True, check=False)
    try:
        found: Dict[str, Any] = json.loads(done.stdout)
        room: int = min(found["available_bytes"], found["cgroup_limit_bytes"] or 1 << 62)
        return max(room // 2, 4 << 20)
    except (ValueError, KeyError):
        raise UnavailableError(f"farpage doctor does not say what RAM there is: {done.stderr.strip()}") from None


_DEFAULT: Optional[Pager] = None
_DEFAULT_LOCK = threading.Lock()


def default_pager() -> Pager:
    """The pager of ``farpage.empty`` and the others. Made when it is first needed."""
    global _DEFAULT
    with _DEFAULT_LOCK:
        if _DEFAULT is None:
            _DEFAULT = Pager()
        return _DEFAULT


def set_default_pager(pager: Pager) -> None:
    """Makes a pager that of ``farpage.empty`` and the others. Arrays that there are stay where they are."""
    global _DEFAULT
    with _DEFAULT_LOCK:
        _DEFAULT = pager
