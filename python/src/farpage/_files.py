"""Arrays and files, piece by piece: no more than a piece is in ordinary memory, or held for a system call."""

from __future__ import annotations

import ast
import math
import os
import sys
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Tuple, Union

import numpy as np

from ._errors import InvalidError

if TYPE_CHECKING:
    from typing import Literal

    from numpy.typing import NDArray

    Empty = Callable[..., NDArray[Any]]
    Mode = Literal["c", "r", "r+", "w+"]
    Order = Literal["C", "F"]

PIECE = 8 << 20
"""Bytes of a piece."""
MODES = {"c": "rb", "r": "rb", "r+": "r+b", "w+": "w+b"}
"""``numpy.memmap``'s, and how the file is opened."""
HEADER_MAX = 1 << 20
"""Of a .npy file, bytes."""
SIZE_MAX = 1 << 62
"""No file is as large, bytes."""


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


def opened(path: Union[str, os.PathLike[str]], mode: Mode) -> IO[bytes]:
    """A file that is to be used in a mode."""
    if mode not in MODES:
        raise InvalidError(f"there is no mode {mode!r}, but {', '.join(MODES)}")
    return open(path, MODES[mode])


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


def _read(empty: Empty, file: IO[bytes], mode: Mode, progress: Optional[bool]) -> NDArray[Any]:
    try:
        shape, fortran, kind = _header(file)
    except (ValueError, SyntaxError, KeyError, TypeError) as why:
        raise InvalidError(f"{getattr(file, 'name', 'the file')} is no .npy file: {why}") from None
    order: Order = "F" if fortran else "C"
    array = empty(shape if mode == "c" else 0, kind, order)  # refuses objects
    if mode != "c":
        offset, needs = file.tell(), kind.itemsize * math.prod(shape)
        if (there := os.fstat(file.fileno()).st_size - offset) < needs:
            raise InvalidError(f"{file.name} ends after {there} of {needs} bytes")
        return mapped(file, kind, mode, offset, shape, order)
    if array.nbytes:
        read_into(file, array, progress)
    return array


def load(empty: Empty, path: Union[str, os.PathLike[str]], mode: Mode, progress: Optional[bool]) -> Any:
    """A .npy or .npz file, in arrays that ``empty`` makes, or a .npy file where it is."""
    if mode == "w+":
        raise InvalidError("a file that is loaded is no new one: mode 'w+' is not for it")
    with opened(path, mode) as file:
        begin = file.read(4)
        file.seek(0)
        if begin not in (b"PK\x03\x04", b"PK\x05\x06"):
            return _read(empty, file, mode, progress)
        if mode != "c":
            raise InvalidError(f"{os.fspath(path)!s} is an .npz file: its arrays can only be read, by mode 'c'")
        arrays: Dict[str, Any] = {}
        try:
            with zipfile.ZipFile(file) as members:
                for name in members.namelist():
                    with members.open(name) as member:
                        if not name.endswith(".npy"):
                            arrays[name] = member.read()  # as numpy.load does
                        else:
                            arrays[name[:-4]] = _read(empty, member, mode, progress)
        except (zipfile.BadZipFile, zlib.error, EOFError) as why:
            raise InvalidError(f"{os.fspath(path)!s} is no whole .npz file: {why}") from None
        return arrays


def mapped(
    file: IO[bytes], kind: np.dtype[Any], mode: Mode, offset: int, shape: Sequence[int], order: Order
) -> np.memmap[Any, Any]:
    """Values of a file, where they are: a page is read when it is touched. The file is long enough."""
    if kind.itemsize * math.prod(shape):
        return np.memmap(file, kind, mode, offset, tuple(shape), order)
    empty = np.zeros(shape, kind, order).view(np.memmap)  # the kernel maps no file of no bytes
    empty.flags.writeable = mode != "r"
    return empty


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
