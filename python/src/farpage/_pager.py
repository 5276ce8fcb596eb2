"""Pagers: a RAM budget, swap devices, and the arrays that live in them."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import mmap
import os
import pathlib
import re
import stat
import subprocess
import sys
import threading
import weakref
from ctypes import byref, c_char_p, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _allocator
from ._arrays import Arrays, dimensions
from ._errors import InvalidError, RoomError, Size, UnavailableError, to_bytes, to_text
from ._library import STATISTICS, Config, CStats, check, command, library, make
from ._memory import Count, Handle, Memory, memory_of, owner_of, range_of
from ._stats import Stats

if TYPE_CHECKING:
    from typing import Literal

    from numpy.typing import NDArray

    Advice = Literal["normal", "sequential", "random", "willneed", "dontneed"]
    Fault = Literal["signal", "thread"]

ADVICE = ("normal", "sequential", "random", "willneed", "dontneed")
"""What ``fp_advice`` has, in its order."""

FAULTS = ("signal", "thread")
"""``fp_fault_mode``, in its order."""

DEVICES = ("zram", "file:/var/tmp")
"""The C library's, if none are named."""

POOL_FACTOR = 4
"""Compressed memory is taken to hold so many times the budget, where its device has no ``size``."""


def listed(swap: Union[str, Sequence[str], None]) -> List[str]:
    """Swap devices as a list; those that are used if none are named."""
    devices = [swap] if isinstance(swap, str) else list(DEVICES if swap is None else swap)
    if not devices:
        raise InvalidError("swap names no device")
    return devices


class Pager(Arrays):
    """A RAM budget with swap devices, and arrays that may be larger than it together.

    >>> import farpage
    >>> pager = farpage.Pager("64M")
    >>> a = pager.zeros((4000, 4000))
    >>> a += 1
    >>> float(a.sum())
    16000000.0

    At the end of a ``with`` block it is closed: see :meth:`close`.

    :param ram: the budget, bytes or a text such as ``"2G"``; at least 4 MiB. It covers what the arrays have in RAM,
        compressed memory and tables, not the rest of the interpreter. Default: half of what this machine has available
        and the memory cgroup allows.
    :param swap: devices in order, as for ``farpage run --swap``: ``["zram", "file:/scratch,size=40G"]``. Default:
        compressed memory, then a file in ``/var/tmp``.
    :param readahead: pages of 4096 bytes that are read ahead at most; 1: none. Default: 128.
    :param verify: compare checksums of all pages that come back; a difference ends the process with a message.
    :param fault: what brings missing pages in: ``"signal"``: the thread that touches them; no privilege is needed.
        ``"thread"``: threads of the pager, without signals; needs full userfaultfd, as :func:`farpage.limit` does.
    :param inherit: whether children of ``fork`` (``multiprocessing``, ``os.fork``) have a copy of the arrays, as of all
        other memory. Their budget is one of their own. Default: yes; with ``fault="thread"`` that cannot be: a child
        that touches an array is ended by SIGSEGV.
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
        fault: Fault = "signal",
        inherit: Optional[bool] = None,
        overcommit: bool = False,
    ) -> None:
        budget = default_ram() if ram is None else to_bytes(ram)
        devices = listed(swap)
        if not 0 <= readahead < 1 << 20:
            raise InvalidError(f"readahead is a number of pages, not {readahead}")
        if fault not in FAULTS:
            raise InvalidError(f"faults are not served by {fault!r}, but by {' or '.join(FAULTS)}")
        if has_engine():
            raise UnavailableError(
                "this process is under farpage run or farpage.limit, whose budget is for its arrays, too: numpy's own "
                "arrays are all that is needed"
            )
        config = Config()
        check(library().fp_config_init(byref(config)))
        config.budget_bytes = budget
        config.swap = None if swap is None else ";".join(devices).encode()
        config.readahead_pages = readahead
        config.fault_mode = FAULTS.index(fault)
        config.inherit = int(fault == "signal" if inherit is None else inherit)
        config.verify = int(verify)
        config.system_calls = 1
        self._ram = budget
        self._devices = devices
        self._overcommit = overcommit
        self._count = Count()
        self._number = next(_NUMBERS)
        self._handle: Optional[Handle] = Handle(config)
        _PAGERS[self._number] = self

    def __reduce__(self) -> Any:
        raise TypeError("a pager cannot be copied or pickled: it is memory, threads and files of this process")

    def __repr__(self) -> str:
        if self.closed:
            return "<farpage.Pager: closed>"
        return f"<farpage.Pager: {to_text(self.stats().used_bytes)} of {to_text(self._ram)}>"

    def __enter__(self) -> Pager:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the pager: it makes no arrays any more. Those that it has made stay as they are, within the budget;
        memory, threads and files of the pager go with the last of them. Closing twice does nothing.
        """
        self._handle = None

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._handle is None

    def _open(self) -> Handle:
        """To be held as long as the C library uses it: another thread may close the pager meanwhile."""
        handle = self._handle
        if handle is None:
            raise InvalidError("this pager is closed")
        return handle

    @property
    def ram(self) -> int:
        """The budget, bytes. Can be set (also to a text); a smaller one is reached by and by."""
        return self._ram

    @ram.setter
    def ram(self, size: Size) -> None:
        budget = to_bytes(size)
        handle = self._open()
        check(library().fp_pager_resize_budget(handle.value, budget))
        self._ram = budget

    def stats(self) -> Stats:
        """Numbers, now."""
        numbers, handle = CStats(), self._open()
        check(library().fp_pager_stats(handle.value, byref(numbers), len(STATISTICS) * 8))
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

    def _new(self, shape: Any, dtype: Any, order: str) -> NDArray[Any]:
        handle = self._open()
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise InvalidError(f"an array of {kind} holds references to objects, whose memory is the interpreter's")
        sizes = dimensions(shape)
        if kind.itemsize == 0 or 0 in sizes:  # numpy makes one byte of a text without a length
            kind = np.zeros(0, kind).dtype
        size = kind.itemsize * math.prod(sizes)
        if size == 0:
            return np.zeros(sizes, kind, order)  # type: ignore[call-overload, no-any-return]
        if size >= 1 << 62:
            raise RoomError(f"an array of {to_text(size)} is larger than any address space")
        there = self._count.bytes
        if not self._overcommit and there + size > self._ram and there + size > (most := self.capacity()):
            raise RoomError(
                f"an array of {to_text(size)} does not fit: there are {to_text(there)} of arrays already, and "
                f"{to_text(self._ram)} of RAM with {', '.join(self._devices)} hold {to_text(most)}; give "
                "more swap (swap=[..., 'file:/DIR']), or overcommit=True if not all of it will be used"
            )
        memory = np.asarray(Memory(self, handle, size))
        return np.ndarray(sizes, kind, memory, order=order)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def arrays(self, min_bytes: Size = "1M") -> Iterator[Pager]:
        """All arrays that numpy makes meanwhile, in this thread and in those started by it, and that have at least so
        many bytes, live in this pager: also those that its functions return. They stay when the block is left.
        """
        with _allocator.handler(self._open(), to_bytes(min_bytes)):
            yield self

    def advise(self, array: NDArray[Any], advice: Advice) -> None:
        """Says how an array (or a part of one) will be used: ``"sequential"``, ``"random"``, ``"normal"``;
        ``"willneed"`` brings it in; ``"dontneed"`` drops its whole pages, which read as zeros then. For a file
        itself, a ``numpy.memmap``, the kernel is told, of all of the file; not ``"dontneed"``.

        :raises InvalidError: it is not contiguous, or no pager's function has made it
        """
        if advice not in ADVICE:
            raise InvalidError(f"there is no advice {advice!r}, but {', '.join(ADVICE)}")
        file = owner_of(array, mmap.mmap) if isinstance(array, np.memmap) else None
        if file is not None and advice != "dontneed":
            file.madvise(getattr(mmap, f"MADV_{advice.upper()}"))
            return
        memory, offset, size = range_of(array)
        check(library().fp_region_advise(memory.region, offset, size, ADVICE.index(advice)))

    def prefetch(self, array: NDArray[Any]) -> None:
        """Brings an array (or a part of one) in, as far as the budget allows, before it returns."""
        memory, offset, size = range_of(array)
        check(library().fp_region_prefetch(memory.region, offset, size))

    @contextlib.contextmanager
    def pin(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Keeps an array (or a part of one) in RAM: for devices that read or write it by themselves (asynchronous
        ``O_DIRECT``, io_uring). Three quarters of the budget can be pinned.
        """
        memory, offset, size = range_of(array)
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


_NUMBERS = itertools.count(1)
_PAGERS: weakref.WeakValueDictionary[int, Pager] = weakref.WeakValueDictionary()
_DEFAULT: Optional[Pager] = None
_DEFAULT_LOCK = threading.Lock()


class _Place(ctypes.Structure):
    """``Dl_info``: what an address belongs to."""

    _fields_ = [("file", c_char_p), ("start", c_void_p), ("symbol", c_char_p), ("symbol_start", c_void_p)]


def has_engine() -> bool:
    """Whether the engine of ``farpage run`` or ``limit`` is in this process, or waits to be needed. Its library says
    so, which stays when the engine has ended. A file in memory has no path: the loader knows it by another name.
    """
    maps = pathlib.Path("/proc/self/maps").read_bytes()
    for start in re.findall(rb"(?m)^(\w+)-\S+ \S+ 0+ .*[/:]libfarpage_preload[^/\n]*$", maps):
        place = _Place()
        if ctypes.CDLL(None).dladdr(c_void_p(int(start, 16)), byref(place)):
            there = ctypes.CDLL(os.fsdecode(place.file), os.RTLD_NOLOAD)
            if not hasattr(there, "farpage_has_engine") or there.farpage_has_engine():
                return True
    return False


def living() -> List[Pager]:
    """The pagers that are not closed: the default one first, then by age."""
    pagers = [ref() for ref in _PAGERS.valuerefs()]  # at once: another thread may make one meanwhile
    return sorted((p for p in pagers if p and not p.closed), key=lambda p: (p is not _DEFAULT, p._number))


def holders() -> List[str]:
    """Names in the program's or the notebook's own text, and numbered results, that hold pagers or arrays of them."""
    main = vars(sys.modules["__main__"])
    results = main.get("Out")
    named = [(name, value) for name, value in main.items() if not name.startswith("_")]
    if isinstance(results, dict):
        named += [(f"Out[{number}]", value) for number, value in results.items()]

    def holds(value: Any) -> bool:
        if isinstance(value, Pager):
            return not value.closed
        return isinstance(value, (np.ndarray, memoryview)) and memory_of(value) is not None

    return [name for name, value in named if holds(value)]


def _after_fork() -> None:
    """Another thread may have held the lock."""
    global _DEFAULT_LOCK
    _DEFAULT_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def default_pager() -> Pager:
    """The pager of ``farpage.empty`` and the others. Made when it is first needed."""
    global _DEFAULT
    with _DEFAULT_LOCK:
        if _DEFAULT is None or _DEFAULT.closed:
            _DEFAULT = Pager()
        return _DEFAULT


def set_default_pager(pager: Pager) -> None:
    """Makes a pager that of ``farpage.empty`` and the others. Arrays that there are stay where they are."""
    global _DEFAULT
    with _DEFAULT_LOCK:
        _DEFAULT = pager
