"""numpy's own memory in regions: a handler as of NEP 49, in C (``fp_malloc`` and the others)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from typing import Any, Iterator, List, Set, Tuple

from ._library import library, make
from ._memory import Handle

_SET_HANDLER = 304
"""The place of ``PyDataMem_SetHandler`` in numpy's table of functions."""
_GET_HANDLER = 305
"""That of ``PyDataMem_GetHandler``."""
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


_HANDLERS: List[Tuple[_Handler, Any]] = []
"""They and their capsules are never freed: an array names its handler when it goes."""
_OURS: Set[int] = set()
"""The capsules, by identity."""


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
    arguments = [ctypes.py_object] if index == _SET_HANDLER else []
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(address)


def _capsule(allocator: int) -> Any:
    lib = library()
    functions = [ctypes.cast(f, ctypes.c_void_p) for f in (lib.fp_malloc, lib.fp_calloc, lib.fp_realloc, lib.fp_free)]
    handler = _Handler(b"farpage", 1, allocator, *functions)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(ctypes.addressof(handler), _CAPSULE, None)
    _HANDLERS.append((handler, capsule))
    _OURS.add(id(capsule))
    return capsule


class _Threads:
    """While handlers are set, a new thread has that of the thread that starts it. (numpy keeps the handler in a context
    variable, and a new thread's context is empty. Python 3.14 can be told to copy it.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._start: Any = None
        self._ours: Any = None
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if threading.Thread.start is self._ours:
                return
            start = self._start = threading.Thread.start

            @functools.wraps(start)
            def with_handler(thread: threading.Thread) -> None:
                handler = _numpy_function(_GET_HANDLER)() if self._users else None
                if handler is not None and id(handler) in _OURS:
                    run = thread.run

                    def run_with_it() -> None:
                        thread.__dict__.pop("run", None)  # else the thread would refer to itself
                        _numpy_function(_SET_HANDLER)(handler)
                        run()

                    thread.run = run_with_it  # type: ignore[method-assign]
                start(thread)

            threading.Thread.start = with_handler  # type: ignore[assignment,method-assign]
            self._ours = with_handler

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            # Somebody else may have put his own over ours, which then only passes calls on.
            if not self._users and threading.Thread.start is self._ours:
                threading.Thread.start = self._start  # type: ignore[method-assign]


_THREADS = _Threads()


@contextlib.contextmanager
def handler(pager: Handle, min_bytes: int) -> Iterator[None]:
    """Blocks of at least so many bytes that numpy allocates meanwhile are regions of the pager."""
    set_handler = _numpy_function(_SET_HANDLER)
    allocator = make(library().fp_allocator_new, pager.value, min_bytes)
    before = _numpy_function(_GET_HANDLER)()
    try:
        with _THREADS:
            set_handler(_capsule(allocator))
            yield
    finally:
        set_handler(before)
        library().fp_allocator_free(allocator)
