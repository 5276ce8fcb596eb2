"""numpy's own memory in regions: a handler as of NEP 49, in C (``fp_malloc`` and the others)."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import sys
import threading
from typing import Any, Iterator, List

from ._library import library, make

_SET_HANDLER = 304
"""The place of ``PyDataMem_SetHandler`` in numpy's table of functions."""
_CAPSULE = b"mem_handler"


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler``, version 1."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    ]


_HANDLERS: List[_Handler] = []
"""They are never freed: an array names its handler when it goes."""


def _numpy_function(index: int) -> Any:
    try:
        from numpy._core import _multiarray_umath as numpy  # type: ignore[attr-defined]
    except ImportError:
        from numpy.core import _multiarray_umath as numpy
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(numpy._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[index]
    assert address is not None
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)


def _capsule(allocator: int) -> Any:
    lib = library()
    functions = [ctypes.cast(f, ctypes.c_void_p) for f in (lib.fp_malloc, lib.fp_calloc, lib.fp_realloc, lib.fp_free)]
    handler = _Handler(b"farpage", 1, allocator, *functions)
    _HANDLERS.append(handler)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(handler), _CAPSULE, None)


class _Threads:
    """While handlers are set, new threads start with the context of the thread that starts them. (numpy keeps the
    handler in a context variable, and a new thread's context is empty. Python 3.14 can do it by itself.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._start = threading.Thread.start

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1 or getattr(sys.flags, "thread_inherit_context", False):
                return
            start = self._start = threading.Thread.start

            @functools.wraps(start)
            def with_context(thread: threading.Thread) -> None:
                context = contextvars.copy_context()
                run = thread.run
                thread.run = lambda: context.run(run)  # type: ignore[method-assign]
                start(thread)

            threading.Thread.start = with_context  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                threading.Thread.start = self._start  # type: ignore[method-assign]


_THREADS = _Threads()


@contextlib.contextmanager
def handler(pager: int, min_bytes: int) -> Iterator[None]:
    """Blocks of at least so many bytes that numpy allocates meanwhile are regions of the pager with this handle."""
    set_handler = _numpy_function(_SET_HANDLER)
    allocator = make(library().fp_allocator_new, pager, min_bytes)
    before = set_handler(_capsule(allocator))
    try:
        with _THREADS:
            yield
    finally:
        set_handler(before)
        library().fp_allocator_free(allocator)
