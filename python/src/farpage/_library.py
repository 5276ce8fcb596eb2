"""The C library and the command: found, loaded, declared.

``farpage.h`` says what the functions do. They are called without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from ._errors import Error, InvalidError, RoomError, UnavailableError
from ._stats import NAMES


class Config(ctypes.Structure):
    """``fp_config``."""

    _fields_ = [
        ("size", c_size_t),
        ("budget_bytes", c_uint64),
        ("swap", c_char_p),
        ("fault_mode", c_uint32),
        ("readahead_pages", c_uint32),
        ("reclaim_threads", c_uint32),
        ("inherit", c_uint32),
        ("verify", c_uint32),
        ("system_calls", c_uint32),
    ]


STATISTICS = list(NAMES)
"""The members of ``fp_stats``, in its order."""


class CStats(ctypes.Structure):
    """``fp_stats``."""

    _fields_ = [(name, c_uint64) for name in STATISTICS]


_FUNCTIONS = {
    "fp_last_error": (c_char_p, []),
    "fp_strerror": (c_char_p, [c_int]),
    "fp_config_init": (c_int, [POINTER(Config)]),
    "fp_pager_new": (c_int, [POINTER(Config), POINTER(c_void_p)]),
    "fp_pager_free": (None, [c_void_p]),
    "fp_pager_resize_budget": (c_int, [c_void_p, c_uint64]),
    "fp_pager_stats": (c_int, [c_void_p, POINTER(CStats), c_size_t]),
    "fp_region_new": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "fp_region_free": (None, [c_void_p]),
    "fp_region_data": (c_void_p, [c_void_p]),
    "fp_region_advise": (c_int, [c_void_p, c_size_t, c_size_t, c_int]),
    "fp_region_prefetch": (c_int, [c_void_p, c_size_t, c_size_t]),
    "fp_region_pin": (c_int, [c_void_p, c_size_t, c_size_t, POINTER(c_void_p)]),
    "fp_unpin": (None, [c_void_p]),
    "fp_allocator_new": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "fp_allocator_free": (None, [c_void_p]),
}

_INVALID = (2, 3, 4, 6, 7, 8, 12)
_ROOM = (5,)
_UNAVAILABLE = (10, 11, 13, 15, 16)


def _file(name: str) -> Optional[Path]:
    """A file of the installed wheel, wherever it was put."""
    try:
        files = importlib.metadata.distribution("farpage").files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    places = (Path(str(file.locate())) for file in files if file.name == name)
    return next((place.resolve() for place in places if place.exists()), None)


@lru_cache(maxsize=None)
def command() -> str:
    """The path of the ``farpage`` command: that of this package, else the first one in ``PATH``.

    :raises UnavailableError: there is none
    """
    found = _file("farpage")
    path = str(found) if found else shutil.which("farpage")
    if path is None:
        raise UnavailableError("the command farpage is not where this package was installed, nor in PATH")
    return path


@lru_cache(maxsize=None)
def preload_library() -> str:
    """The path of the library that ``farpage run`` preloads.

    :raises UnavailableError: it is not where it should be
    """
    name = "libfarpage_preload.so"
    beside = [Path(command()).parent / name, Path(command()).parent.parent / "lib" / "farpage" / name]
    for path in [_file(name), *beside]:
        if path is not None and path.exists():
            return str(path)
    raise UnavailableError(f"{name} is not beside {command()}")


@lru_cache(maxsize=None)
def library() -> Any:
    """The C library. ``FARPAGE_LIBRARY`` names another one than the package's.

    :raises UnavailableError: it cannot be loaded
    """
    path = os.environ.get("FARPAGE_LIBRARY") or str(Path(__file__).with_name("libfarpage.so"))
    try:
        loaded = ctypes.CDLL(path)
    except OSError as why:
        raise UnavailableError(f"farpage's library cannot be loaded: {why}") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def check(status: int) -> None:
    """Turns a status that is not ``FP_OK`` into an exception."""
    if status == 0:
        return
    message = (library().fp_last_error() or library().fp_strerror(status)).decode(errors="replace")
    for kind, statuses in ((InvalidError, _INVALID), (RoomError, _ROOM), (UnavailableError, _UNAVAILABLE)):
        if status in statuses:
            raise kind(message)
    raise Error(message)


def make(function: Any, *arguments: Any) -> int:
    """Calls a function whose last argument is where the handle of something new goes."""
    handle = c_void_p()
    check(function(*arguments, byref(handle)))
    assert handle.value is not None
    return handle.value
