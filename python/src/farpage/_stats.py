"""Numbers of a pager."""

from __future__ import annotations

import html
from dataclasses import dataclass, fields
from typing import List, Tuple

from ._errors import to_text


@dataclass(frozen=True)
class Stats:
    """Numbers of a pager: bytes where the name says so, else pages or counts since it was made."""

    budget_bytes: int
    """The budget."""
    used_bytes: int
    """What counts against it: pages of arrays, frames, compressed pool, tables."""
    resident_bytes: int
    """Pages of arrays that are in RAM."""
    cached_bytes: int
    """Pages in the swap cache: read ahead and not touched yet."""
    pool_bytes: int
    """Compressed pool."""
    pool_orig_bytes: int
    """Uncompressed bytes that the pool stands for."""
    file_bytes: int
    """Pages in swap files."""
    pinned_bytes: int
    """Pinned."""
    pgfault: int
    """Faults served."""
    pgmajfault: int
    """Faults that read a device."""
    pswpin: int
    """Pages read from devices, readahead included."""
    pswpout: int
    """Pages written to devices."""
    swpout_clean: int
    """Pages dropped without a write, because their copy was still the same."""
    swpout_zero: int
    """Pages found all zero when they went out."""
    swpin_zero: int
    """Zero pages served."""
    swap_ra: int
    """Pages read ahead."""
    workingset_refault_cached: int
    """Faults served from the swap cache."""
    wp_fault: int
    """Faults by writing to a page that was write-protected to see that."""
    allocstall: int
    """Faults that waited for memory."""
    over_budget: int
    """Pages taken above the budget because nothing could be swapped out."""
    swap_ra_hit: int
    """Of ``swap_ra``, pages that were touched. 0 under ``limit``: that is not seen there."""
    fault_wait_ns: int
    """Nanoseconds for which threads waited in faults, together."""

    def _rows(self) -> List[Tuple[str, str]]:
        pool = f"{to_text(self.pool_orig_bytes)} in {to_text(self.pool_bytes)}"
        used = f", {100 * self.swap_ra_hit / self.swap_ra:.0f} % used" if self.swap_ra_hit else ""
        ahead = f"{self.swap_ra} pages{used}" if self.swap_ra else "none"
        return [
            ("memory", f"{to_text(self.used_bytes)} of {to_text(self.budget_bytes)}"),
            ("in RAM", to_text(self.resident_bytes + self.cached_bytes)),
            ("compressed", pool),
            ("in swap files", to_text(self.file_bytes)),
            ("faults", f"{self.pgfault}, of these {self.pgmajfault} from a device"),
            ("pages read, written", f"{self.pswpin}, {self.pswpout}"),
            ("read ahead", ahead),
            ("waited in faults", f"{self.fault_wait_ns / 1e9:.2f} s"),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<20} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        share = 100 * min(1.0, self.used_bytes / self.budget_bytes)
        bar = (
            '<div style="width:16em;height:.6em;border:1px solid currentColor;display:inline-block">'
            f'<div style="width:{share:.0f}%;height:100%;background:currentColor;opacity:.6"></div></div>'
        )
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th><td style="text-align:left">{html.escape(value)}'
            f"{' ' + bar if name == 'memory' else ''}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table>{rows}</table>"


class Each(Tuple[Stats, ...]):
    """Numbers of several pagers, one table below the other."""

    def __repr__(self) -> str:
        return "\n\n".join(f"pager {number}\n{stats}" for number, stats in enumerate(self, 1))

    def _repr_html_(self) -> str:
        return "".join(f"<p>pager {number}</p>{stats._repr_html_()}" for number, stats in enumerate(self, 1))


NAMES = tuple(field.name for field in fields(Stats))
