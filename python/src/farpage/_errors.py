"""What can go wrong, and how sizes are written."""

from __future__ import annotations

import re
from typing import Union

Size = Union[int, str]
"""Bytes as a number, or a text as on the command line: "512M", "1.5G", "2GiB" (steps of 1024), "2GB" (of 1000)."""


class Error(Exception):
    """Something that farpage could not do. Each kind is also the built-in exception that it is most like."""


class InvalidError(Error, ValueError):
    """An argument that cannot be: a budget that is too small, a swap device that is not understood, a range outside."""


class RoomError(Error, MemoryError):
    """More memory than the pager's budget and swap devices hold."""


class UnavailableError(Error, OSError):
    """What the kernel or a sandbox does not give here. ``farpage doctor`` says what is missing."""


_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])(i?b)?|b)?\s*", re.IGNORECASE)


def to_bytes(size: Size) -> int:
    """A size in bytes.

    :raises InvalidError: it is no size, or not above zero
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            raise InvalidError(f"size {size!r} cannot be read; write for example '512M' or '1.5G'")
        number, unit, kind = match.groups()
        step = 1000 if (kind or "").lower() == "b" else 1024
        count = round(float(number) * step ** (" kmgt".index(unit.lower()) if unit else 0))
    else:
        count = int(size)
    if not 0 < count < 1 << 63:
        raise InvalidError(f"a size of {count} bytes is not above zero, or absurdly large")
    return int(count)


def to_text(size: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
