"""``%load_ext farpage``: the magic ``%farpage``."""

from __future__ import annotations

from typing import Any

from . import _pager
from ._process import limit, process_stats


def farpage(line: str) -> Any:
    """A RAM budget for this notebook.

    %farpage 2G      all memory of this process, and what it starts, has at most 2 GiB of RAM
    %farpage stat    what it has, and what that costs; without a budget, that of the default pager
    """
    word = line.strip()
    if word and word != "stat":
        return limit(word)
    if not word:
        print(farpage.__doc__)
        return None
    stats = process_stats()
    if stats is None and _pager._DEFAULT is not None:
        stats = _pager._DEFAULT.stats()
    if stats is None:
        print("There is no budget yet: %farpage 2G sets one.")
    return stats


def load(ipython: Any) -> None:
    """Makes the magic known."""
    ipython.register_magic_function(farpage, "line", "farpage")
