"""Whole processes under a budget: this one, or one that is started."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _pager
from ._errors import InvalidError, Size, UnavailableError, to_bytes, to_text
from ._library import STATISTICS, command, preload_library
from ._memory import is_used
from ._stats import Stats

_LOCK = threading.Lock()
_NO_LIMIT = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_LEAST = 16 << 20


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _start(ram: int, swap: Sequence[str]) -> None:
    """Starts the engine in this process."""
    conf = ";".join([f"ram:{ram}", *(f"swap:{device}" for device in swap)])
    start = ctypes.CDLL(preload_library()).farpage_start
    start.restype, start.argtypes = ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    why = start(conf.encode(), -1, 1)
    if why is not None:
        raise UnavailableError(f"this process cannot be put under a budget: {why.decode(errors='replace')}")


def _set(ram: int) -> None:
    """Gives the engine that runs another budget."""
    done = subprocess.run(
        [command(), "set", "--ram", str(ram), str(os.getpid())], capture_output=True, text=True, check=False
    )
    # It may be set, and be passed by memory that is locked.
    if done.returncode and _budget() != ram:
        raise UnavailableError(done.stderr.strip() or f"farpage set ended with {done.returncode}")


def _budget() -> Optional[int]:
    """The budget of this process; None: it has none."""
    stats = process_stats()
    return None if stats is None else stats.budget_bytes


# How devices on servers begin.
SERVERS = ("redis://", "redis+unix://", "nbd://", "nbd+unix://")


def _devices(swap: Union[str, Sequence[str], None]) -> List[str]:
    """A list of devices, looked at: what the engine cannot use it says when it is too late to start another one."""
    devices = _pager.listed(swap)
    for device in devices:
        kind = device.split(",")[0]
        path = Path(kind[5:])
        if kind not in ("zram", "ram") and not kind.startswith(("file:", *SERVERS)):
            raise InvalidError(f"swap device {device!r} is neither 'zram', 'file:PATH' nor a server, as 'redis://HOST'")
        if kind.startswith("file:") and not (path.exists() or path.parent.is_dir()):
            raise InvalidError(f"swap device {device!r}: there is no {path}")
    return devices


def _why_not() -> str:
    """Why there can be no budget beside pagers, and what holds them."""
    why = "there are pagers in this process, or arrays of them: the two cannot be together"
    names = _pager.holders()
    results = [name for name in names if name.startswith("Out[")]
    if names:
        why += f". These hold them: {', '.join(names)}. close() ends a pager, del lets an array go"
    if results:  # what %reset out forgets, IPython still holds elsewhere
        why += f"; %xdel _{results[0][4:-1]} lets {results[0]} go"
    return why


class limit:
    """Puts this whole process, all its memory, and what it starts from now on, under a RAM budget.

    >>> import farpage
    >>> farpage.limit("2G")                              # doctest: +SKIP
    <farpage.limit: 2.0 GiB>
    >>> with farpage.limit("512M"):                      # doctest: +SKIP
    ...     pass                                         # and afterwards as before

    Nothing has to be changed: lists, dictionaries, arrays that there are already, those of other libraries. As for
    ``farpage run`` the kernel must give full userfaultfd (``farpage doctor``). Once started the engine stays; after a
    ``with`` that started it, it has no limit, and another call sets another one. Under ``farpage run`` it changes the
    budget of that run.

    :param ram: bytes or a text such as ``"2G"``; at least 16 MiB
    :param swap: devices in order, as for ``farpage run --swap``. Only the first call can name them
    :raises InvalidError: less than 16 MiB; a device that is none; devices, and the engine runs already
    :raises UnavailableError: it cannot be, or there are pagers in this process; nothing has changed
    """

    def __init__(self, ram: Size, swap: Union[str, Sequence[str], None] = None) -> None:
        self._ram = to_bytes(ram)
        if self._ram < _LEAST:
            raise InvalidError(f"a budget of {self._ram} bytes is below the least, 16 MiB")
        devices = _devices(swap)
        with _LOCK:
            before = _budget()
            if before is None:
                if is_used():
                    raise UnavailableError(_why_not())
                _start(self._ram, devices)
            elif swap is not None:
                raise InvalidError("this process is under a budget already: its devices cannot be changed")
            else:
                _set(self._ram)
            self._before = _NO_LIMIT if before is None else before

    def __enter__(self) -> limit:
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _set(self._before)

    def __repr__(self) -> str:
        return f"<farpage.limit: {to_text(self._ram)}>"


def process_stats() -> Optional[Stats]:
    """Numbers of this process's engine, now; None if it is under no budget."""
    done = subprocess.run(
        [command(), "stat", "--json", str(os.getpid())], capture_output=True, text=True, check=False
    )
    try:
        found: Dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    if not found.get("budget_bytes"):
        return None
    found["used_bytes"] = found["rss_anon_bytes"]
    return Stats(**{name: int(found.get(name) or 0) for name in STATISTICS})


class CompletedProcess(subprocess.CompletedProcess):  # type: ignore[type-arg]
    """``subprocess.CompletedProcess``, and what farpage counted."""

    farpage: Optional[Dict[str, Any]] = None
    """The statistics of ``farpage run --stats-json``; None if it wrote none, since the program did not start."""


def _completed(args: List[Any], whole: List[Any], others: Dict[str, Any]) -> CompletedProcess:
    """What ``subprocess.run`` does. If that is interrupted, or out of time, the program is killed, and its parent."""
    timeout, text = others.pop("timeout", None), others.pop("input", None)
    if others.pop("capture_output", False):
        others.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if text is not None:
        others["stdin"] = subprocess.PIPE
    with subprocess.Popen(whole, **others) as process:
        try:
            out, err = process.communicate(text, timeout=timeout)
        except BaseException as why:
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            if isinstance(why, subprocess.TimeoutExpired):
                # As subprocess.run: what there is by then.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    why.stdout, why.stderr = process.communicate(timeout=5)
            process.kill()
            raise
    return CompletedProcess(args, process.returncode, out, err)


def run(
    args: Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]],
    *,
    ram: Optional[Size] = None,
    swap: Union[str, Sequence[str], None] = None,
    options: Sequence[str] = (),
    **others: Any,
) -> CompletedProcess:
    """Runs a program, and what it starts, under a RAM budget: ``subprocess.run`` with ``farpage run`` before it.

    >>> import farpage, sys
    >>> done = farpage.run([sys.executable, "-c", "print(sum(range(10)))"], ram="64M", capture_output=True, text=True)
    >>> done.stdout
    '45\\n'
    >>> done.farpage["budget_bytes"]
    67108864

    :param ram: the budget. Default: 90 % of the memory cgroup's limit, else half of the available memory
    :param swap: devices in order, as for ``farpage run --swap``
    :param options: other options of ``farpage run``
    :param others: those of ``subprocess.run``, but for ``shell`` and ``executable``
    :raises InvalidError: ``shell`` or ``executable`` is given
    """
    for name in ("shell", "executable"):
        if others.get(name):
            raise InvalidError(f"farpage.run has no {name}: name the program in args, as in ['sh', '-c', '...']")
    devices = _pager.listed(swap) if swap else []
    whole: List[Any] = [command(), "run"]
    words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    whole += ["--ram", str(to_bytes(ram))] if ram is not None else []
    whole += [word for device in devices for word in ("--swap", device)]
    check = others.pop("check", False)
    with tempfile.TemporaryDirectory(prefix="farpage-") as directory:
        path = os.path.join(directory, "stats.json")
        whole += ["--stats-json", path, *options, "--", *words]
        result = _completed(words, whole, others)
        if os.path.exists(path):
            with open(path) as file:
                result.farpage = json.load(file)
    if check:
        result.check_returncode()
    return result
