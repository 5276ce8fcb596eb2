"""Pagers: a RAM budget, swap devices, and the arrays that live in them."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import pathlib
import stat
import subprocess
import threading
import weakref
from ctypes import byref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _allocator, _files
from ._errors import InvalidError, RoomError, Size, UnavailableError, to_bytes, to_text
from ._library import STATISTICS, Config, CStats, check, command, library, make
from ._stats import Stats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Shape = Union[int, Sequence[int]]
    Path = Union[str, "os.PathLike[str]"]

ADVICE = ("normal", "sequential", "random", "willneed", "dontneed")
"""What ``fp_advice`` has, in its order."""

DEVICES = ("zram", "file:/var/tmp")
"""The C library's, if none are named."""

POOL_FACTOR = 4
"""Compressed memory is taken to hold so many times the budget, where its device has no ``size``."""


_COUNTS = threading.RLock()  # a finalizer may run in the middle of anything


class _Count:
    """Bytes of a pager's living regions."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, size: int) -> None:
        with _COUNTS:
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


def listed(swap: Union[str, Sequence[str], None]) -> List[str]:
    """Swap devices as a list; those that are used if none are named."""
    devices = [swap] if isinstance(swap, str) else list(DEVICES if swap is None else swap)
    if not devices:
        raise InvalidError("swap names no device")
    return devices


def _range(array: NDArray[Any]) -> Tuple[_Memory, int, int]:
    """The region that an array lies in, and which bytes of it."""
    owner: Any = array
    while not isinstance(owner, _Memory):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is None:
            raise InvalidError("this array is not farpage's: it was not made by a pager's functions, or is empty")
    if not array.flags.forc:
        raise InvalidError("this part of an array is not contiguous: what lies between its values would be meant, too")
    return owner, int(array.__array_interface__["data"][0]) - owner.start, array.nbytes


def _dimensions(shape: Any) -> Tuple[int, ...]:
    """A shape as numpy reads it."""
    try:
        numbers: Tuple[int, ...] = (operator.index(shape),)
    except TypeError:
        if isinstance(shape, (str, bytes)):
            raise
        numbers = tuple(operator.index(n) for n in shape)
    if any(n < 0 for n in numbers):
        raise InvalidError("negative dimensions are not allowed")
    return numbers


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
        devices = listed(swap)
        if not 0 <= readahead < 1 << 20:
            raise InvalidError(f"readahead is a number of pages, not {readahead}")
        if has_engine():
            raise UnavailableError(
                "this process is under farpage run or farpage.limit, whose budget is for its arrays, too: numpy's own "
                "arrays are all that is needed"
            )
        config = Config()
        check(lib.fp_config_init(byref(config)))
        config.budget_bytes = budget
        config.swap = None if swap is None else ";".join(devices).encode()
        config.readahead_pages = readahead
        config.inherit = int(inherit)
        config.verify = int(verify)
        config.system_calls = 1
        self._ram = budget
        self._devices = devices
        self._overcommit = overcommit
        self._count = _Count()
        self._handle = make(lib.fp_pager_new, byref(config))
        weakref.finalize(self, lib.fp_pager_free, self._handle).atexit = False
        _PAGERS.add(self)

    def __reduce__(self) -> Any:
        raise TypeError("a pager cannot be copied or pickled: it is memory, threads and files of this process")

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

        A device's ``size``; a file's without it: what its filesystem has free, but for what it keeps (``free=``).
        Compressed memory without it is taken to hold four times the budget.
        """
        held = self._ram
        filesystems: Dict[int, Tuple[int, int]] = {}
        for device in self._devices:
            kind, *rest = device.split(",")
            options = dict(option.partition("=")[::2] for option in rest)
            size = to_bytes(options["size"]) if "size" in options else 1 << 62
            path = kind[5:]
            if kind == "zram":
                held += min(size, POOL_FACTOR * self._ram)
            elif "://" in kind:
                held += size  # a server: what it has is not known here
            elif os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode):
                with contextlib.suppress(OSError), open(path, "rb") as disk:
                    held += min(size, disk.seek(0, os.SEEK_END))
            elif kind.startswith("file:"):
                folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
                with contextlib.suppress(OSError):
                    number, room = os.stat(folder).st_dev, os.statvfs(folder)
                    kept = min(room.f_blocks * room.f_frsize // 20, 4 << 30)
                    kept = to_bytes(options["free"]) if "free" in options else kept
                    free = max(room.f_bavail * room.f_frsize - kept, 0)
                    # Devices on one filesystem share what it has free.
                    sizes, _ = filesystems.get(number, (0, 0))
                    filesystems[number] = (sizes + size, free)
        own = self.stats().file_bytes
        return held + sum(min(sizes, free + own) for sizes, free in filesystems.values())

    def empty(self, shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
        """A new array, as ``numpy.empty``. (What nobody has written is zero.)

        :raises RoomError: it would not fit into budget and devices, with the arrays that there are
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise InvalidError(f"an array of {kind} holds references to objects, whose memory is the interpreter's")
        dimensions = _dimensions(shape)
        if kind.itemsize == 0 or 0 in dimensions:  # numpy makes one byte of a text without a length
            kind = np.zeros(0, kind).dtype
        size = kind.itemsize * math.prod(dimensions)
        if size == 0:
            return np.zeros(dimensions, kind, order)  # type: ignore[call-overload, no-any-return]
        if size >= 1 << 62:
            raise RoomError(f"an array of {to_text(size)} is larger than any address space")
        there = self._count.bytes
        if not self._overcommit and there + size > self._ram and there + size > (most := self.capacity()):
            raise RoomError(
                f"an array of {to_text(size)} does not fit: there are {to_text(there)} of arrays already, and "
                f"{to_text(self._ram)} of RAM with {', '.join(self._devices)} hold {to_text(most)}; give "
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
        array = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
        np.copyto(array, fill_value, casting="unsafe")
        return array

    def array(self, values: ArrayLike, dtype: Optional[DTypeLike] = None, order: str = "K") -> NDArray[Any]:
        """A copy of an array, or of what ``numpy.asarray`` makes of ``values`` (that is in ordinary memory first)."""
        source = np.asarray(values) if isinstance(values, np.ndarray) else np.asarray(values, dtype)
        if order in "KA":
            order = "F" if source.flags.fnc else "C"
        kind = source.dtype if dtype is None else np.dtype(dtype)
        if kind.itemsize == 0 or kind.str[1:] in ("M8", "m8"):  # numpy looks at the values for what is left open
            source = source.astype(kind)
            kind = source.dtype
        array = self.empty(source.shape, kind, order)
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
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) and shape is None:
                raise InvalidError(f"{path} is no ordinary file: name the shape")
            if kind.itemsize == 0:
                raise InvalidError(f"values of {kind} have no size: name one, as in 'S8'")
            there = max(file.seek(0, os.SEEK_END) - offset, 0)
            if shape is None and there % kind.itemsize:
                raise InvalidError(f"{path} has {there} bytes from {offset} on, no multiple of {kind.itemsize}")
            array = self.empty(there // kind.itemsize if shape is None else shape, kind, order)
            if array.nbytes > there:
                raise InvalidError(f"{path} has {there} bytes from {offset} on, the array needs {array.nbytes}")
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
        ``"willneed"`` brings it in; ``"dontneed"`` drops its whole pages, which read as zeros then.

        :raises InvalidError: it is not contiguous, or no pager's function has made it
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


_PAGERS: weakref.WeakSet[Pager] = weakref.WeakSet()
_DEFAULT: Optional[Pager] = None
_DEFAULT_LOCK = threading.Lock()


engine_refused = False
"""``limit`` loaded the engine's library, and it did not start."""


def has_engine() -> bool:
    """Whether the engine of ``farpage run`` or ``limit`` is in this process, or waits to be needed."""
    return not engine_refused and "/libfarpage_preload" in pathlib.Path("/proc/self/maps").read_text()


def are_there() -> bool:
    """Whether there are any pagers."""
    return len(_PAGERS) > 0


def _after_fork() -> None:
    """Others may have held the locks."""
    global _COUNTS, _DEFAULT_LOCK
    _COUNTS, _DEFAULT_LOCK = threading.RLock(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


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
