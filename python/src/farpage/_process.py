"""Whole processes under a budget: this one, or one that is started."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
import threading
from typing import Any, Dict, List, Optional, Sequence, Union

from ._errors import InvalidError, Size, UnavailableError, to_bytes, to_text
from ._library import STATISTICS, command, preload_library
from ._stats import Stats

_LOCK = threading.Lock()
_NO_LIMIT = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_started = False


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
    if done.returncode:
        raise UnavailableError(done.stderr.strip() or f"farpage set ended with {done.returncode}")


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
    :raises InvalidError: devices are named, and the engine runs already
    :raises UnavailableError: it cannot be; nothing has changed
    """

    _now = _NO_LIMIT

    def __init__(self, ram: Size, swap: Union[str, Sequence[str], None] = None) -> None:
        global _started
        self._ram = to_bytes(ram)
        self._before = limit._now
        with _LOCK:
            # The preload library says in its environment that it is there.
            if not _started and "FARPAGE_CONF" not in os.environ:
                devices = [swap] if isinstance(swap, str) else list(swap or ("zram", "file:/var/tmp"))
                _start(self._ram, devices)
                _started = True
            elif swap is not None:
                raise InvalidError("this process is under a budget already: its devices cannot be changed")
            else:
                _set(self._ram)
            limit._now = self._ram

    def __enter__(self) -> limit:
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _set(self._before)
            limit._now = self._before

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


def run(
    args: Sequence[Union[str, "os.PathLike[str]"]],
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
    devices = [swap] if isinstance(swap, str) else list(swap or ())
    whole: List[Any] = [command(), "run"]
    whole += ["--ram", str(to_bytes(ram))] if ram is not None else []
    whole += [word for device in devices for word in ("--swap", device)]
    check = others.pop("check", False)
    with tempfile.TemporaryDirectory(prefix="farpage-") as directory:
        path = os.path.join(directory, "stats.json")
        whole += ["--stats-json", path, *options, "--", *args]
        done = subprocess.run(whole, **others, check=False)
        result = CompletedProcess(list(args), done.returncode, done.stdout, done.stderr)
        if os.path.exists(path):
            with open(path) as file:
                result.farpage = json.load(file)
    if check:
        result.check_returncode()
    return result
