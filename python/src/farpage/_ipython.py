"""``%load_ext farpage``: the magic ``%farpage``."""

from __future__ import annotations

from typing import Any

from . import _pager
from ._process import limit, process_stats
from ._stats import Each


def farpage(line: str) -> Any:
    """A RAM budget for this notebook.

    %farpage 2G      all memory of this process, and what it starts, has at most 2 GiB of RAM
    %farpage stat    what it has, and what that costs; without a budget, the same of each pager
    """
    word = line.strip()
    if word and word != "stat":
        return limit(word)
    if not word:
        print(farpage.__doc__)
        return None
    stats = process_stats()
    if stats is not None:
        return stats
    pagers = Each(pager.stats() for pager in _pager.living())
    if not pagers:
        print("There is no budget yet: %farpage 2G sets one.")
        return None
    return pagers if len(pagers) > 1 else pagers[0]


def load(ipython: Any) -> None:
    """Makes the magic known."""
    ipython.register_magic_function(farpage, "line", "farpage")
