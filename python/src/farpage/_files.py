"""Arrays and files, piece by piece: no more than a piece is in ordinary memory, or held for a system call."""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import os
import sys
import weakref
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Optional, Set, Tuple, Union

import numpy as np

from ._errors import InvalidError, UnavailableError
from ._memory import Backing, Memory, Owner, memory_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Empty = Callable[..., NDArray[Any]]

PIECE = 8 << 20
"""Bytes of a piece."""
COMPARED = 1 << 20
"""Bytes of a file that are written, or left as they are, together."""
HEADER_MAX = 1 << 20
"""Of a .npy file, bytes."""


class _Silent:
    """A bar that is not shown."""

    def update(self, _size: int) -> None:
        pass

    def close(self) -> None:
        pass


def _bar(size: int, name: str, wanted: Optional[bool]) -> Any:
    """A bar of ``size`` bytes. Without ``wanted``: in terminals and notebooks, after two seconds, if there is tqdm."""
    ipython = sys.modules.get("IPython")
    notebook = ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
    if wanted is False or (wanted is None and not notebook and not sys.stderr.isatty()):
        return _Silent()
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        if wanted:
            raise
        return _Silent()
    return tqdm(total=size, desc=name, unit="B", unit_scale=True, unit_divisor=1024, delay=0 if wanted else 2)


def read_into(file: IO[bytes], array: NDArray[Any], progress: Optional[bool] = None) -> None:
    """Fills a new array with the next bytes of a file."""
    flat = memoryview(array.reshape(-1, order="A").view(np.uint8).data)  # in the order of memory: no copy
    bar = _bar(len(flat), f"reading {os.path.basename(str(getattr(file, 'name', '')))}", progress)
    try:
        done = 0
        while done < len(flat):
            piece = flat[done : done + PIECE]
            count: int = file.readinto(piece)  # type: ignore[attr-defined]
            if not count:
                raise InvalidError(f"{getattr(file, 'name', 'the file')} ends after {done} of {len(flat)} bytes")
            done += count
            bar.update(count)
    finally:
        bar.close()


def _header(file: IO[bytes]) -> Tuple[Tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the header of a .npy file: shape, whether in Fortran's order, dtype."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    if version == (3, 0):  # as 2.0, but in UTF-8; numpy has no public function for it
        size = int.from_bytes(file.read(4), "little")
        header = ast.literal_eval(file.read(min(size, HEADER_MAX)).decode())
        kind: np.dtype[Any] = np.lib.format.descr_to_dtype(header["descr"])
        return header["shape"], header["fortran_order"], kind
    raise InvalidError(f"version {version} of the .npy format is not known")


def _read(empty: Empty, file: IO[bytes], progress: Optional[bool]) -> NDArray[Any]:
    try:
        shape, fortran, kind = _header(file)
    except (ValueError, SyntaxError, KeyError, TypeError) as why:
        raise InvalidError(f"{getattr(file, 'name', 'the file')} is no .npy file: {why}") from None
    array = empty(shape, kind, "F" if fortran else "C")
    if array.nbytes:
        read_into(file, array, progress)
    return array


def load(empty: Empty, path: Union[str, os.PathLike[str]], progress: Optional[bool]) -> Any:
    """A .npy or .npz file, in arrays that ``empty`` makes."""
    with open(path, "rb") as file:
        begin = file.read(4)
        file.seek(0)
        if begin not in (b"PK\x03\x04", b"PK\x05\x06"):
            return _read(empty, file, progress)
        arrays: Dict[str, Any] = {}
        try:
            with zipfile.ZipFile(file) as members:
                for name in members.namelist():
                    with members.open(name) as member:
                        if not name.endswith(".npy"):
                            arrays[name] = member.read()  # as numpy.load does
                        else:
                            arrays[name[:-4]] = _read(empty, member, progress)
        except (zipfile.BadZipFile, zlib.error, EOFError) as why:
            raise InvalidError(f"{os.fspath(path)!s} is no whole .npz file: {why}") from None
        return arrays


class FileArray(np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """What ``from_file(mode="r+")`` gives: an array whose changes come into its file."""

    def flush(self) -> None:
        """Writes all changes of the file's array to the file, and the file to its disk.

        :raises InvalidError: this is a copy, not the file's array or a part of it
        :raises OSError: the file cannot be written
        """
        memory = memory_of(self)
        if self.size and (memory is None or not memory.files):
            raise InvalidError("this array is a copy: it is no part of one that from_file(mode='r+') gave")
        for file in memory.files if memory is not None else ():
            file.flush()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Results are ordinary arrays, as with ``numpy.memmap``."""
        if array is self:
            return array
        return np.asarray(array)[()] if return_scalar or np.ndim(array) == 0 else np.asarray(array)


class WriteBack(Backing):
    """A file that is written from memory: from its start on, ``size`` bytes to ``offset``."""

    def __init__(self, file: int, offset: int, memory: Memory, size: int) -> None:
        self.fd = os.dup(file)
        self._identity = self._look()
        self._memory = weakref.ref(memory)
        self._offset, self._start, self._size = offset, memory.start, size
        self._pid = os.getpid()

    def _look(self) -> Tuple[int, int]:
        try:
            there = os.fstat(self.fd)
        except OSError:
            return 0, 0
        return there.st_dev, there.st_ino

    def is_here(self) -> bool:
        """Whether the array is the one in this process, not a forked child's copy."""
        return self._pid == os.getpid()

    def write(self) -> None:
        """Writes what is not in the file already. The memory stays meanwhile: the caller holds it."""
        if not self.is_here():
            raise UnavailableError("a forked child has a copy of the array: only its parent writes the file")
        if self._look() != self._identity:
            raise UnavailableError("the array's file cannot be written: this program has closed its descriptor")
        values = np.ctypeslib.as_array((ctypes.c_uint8 * self._size).from_address(self._start))
        for at in range(0, self._size, COMPARED):
            piece = values[at : at + COMPARED]
            if np.array_equal(np.frombuffer(os.pread(self.fd, len(piece), self._offset + at), np.uint8), piece):
                continue
            done = 0
            while done < len(piece):
                done += os.pwrite(self.fd, piece[done:].data, self._offset + at + done)

    def flush(self) -> None:
        """Writes it, and the file to its disk."""
        self.write()
        os.fsync(self.fd)

    def write_back(self, pager: Optional[Owner]) -> None:
        """Writes it if it is the pager's, or any. Memory that goes writes its file itself."""
        memory = self._memory()
        if memory is not None and pager in (None, memory.pager) and self.is_here():
            self.write()

    def close(self) -> None:
        """Before the memory goes."""
        _WRITTEN.discard(self)
        try:
            if self.is_here():
                self.write()
        finally:
            if self._look() == self._identity:
                os.close(self.fd)


_WRITTEN: Set[WriteBack] = set()
"""Those whose memory is there. Not a ``WeakSet``: another thread may change it while it is gone through."""


def keep(array: NDArray[Any], file: IO[bytes], offset: int) -> FileArray:
    """An array that has been read from a file, as one whose changes come into it."""
    memory = memory_of(array)
    if memory is not None:
        back = WriteBack(file.fileno(), offset, memory, array.nbytes)
        memory.files.append(back)
        _WRITTEN.add(back)
    return array.view(FileArray)


def write_back(pager: Optional[Owner] = None) -> None:
    """Writes all of the pager's, or of all pagers; then the first failure is raised."""
    with contextlib.ExitStack() as stack:
        for file in list(_WRITTEN):
            stack.callback(file.write_back, pager)


atexit.register(write_back)


class _Counted:
    """A file that moves a bar. numpy writes to it in pieces of 16 MiB, after the header."""

    def __init__(self, file: IO[bytes], bar: Any) -> None:
        self._file, self._bar = file, bar
        self._header = True

    def write(self, data: bytes) -> int:
        self._bar.update(0 if self._header else len(data))
        self._header = False
        return self._file.write(data)


def save(path: Union[str, os.PathLike[str]], array: NDArray[Any], progress: Optional[bool] = None) -> None:
    """Writes a .npy file, as ``numpy.save`` does; ``.npy`` is added to a name without it.

    :param progress: a bar, by ``tqdm`` if it is installed. Default: in terminals and notebooks, after two seconds
    """
    name = os.fspath(path)
    name = name if name.endswith(".npy") else name + ".npy"
    bar = _bar(array.nbytes, f"writing {os.path.basename(name)}", progress)
    if isinstance(bar, _Silent):
        np.save(name, array, allow_pickle=False)
        return
    try:
        with open(name, "wb") as file:
            np.save(_Counted(file, bar), array, allow_pickle=False)
    finally:
        bar.close()
