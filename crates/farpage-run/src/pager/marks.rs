//! Marks in the program's page tables where there is no page: a *guard* (`MADV_GUARD_INSTALL`, Linux 6.13), and a page
//! that was lost ([`crate::pager::poison`]). A thread that touches one gets a signal, and the pager hears nothing of
//! it.
//!
//! `UFFDIO_COPY` copies over a mark, where a page is put that no thread has faulted for. So from the first mark on that
//! is known of, each copy looks at its place before ([`Cx::unmarked`]), and ends before a mark. (Nothing can be moved
//! over one, and a discard lets guards be.)
//!
//! No event tells of a guard, and the page that it takes away may be out. So the interposed `madvise` makes the call
//! three times over: it installs the guard; discards the range, which is an event, at which the pager forgets what it
//! had; and installs again what the pager has copied over until it read the event
//! ([`Engine::guarded`](crate::shared::state::Engine::guarded)). A guard that is made without libc is found where it is
//! in the way: by a scan, by a copy, by a move.
//!
//! Callers: the preload library, on program threads; `fill`, `reclaim`, `register`, on the pager's.

use crate::pager::cx::Cx;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::pagemap::PageKind;
use farpage_base::sys::uffd::UffdError;
use std::sync::atomic::Ordering::SeqCst;

impl Cx {
    /// How many of the `n` pages from `vpn` on may be put there.
    ///
    /// # Errors
    /// None, and why.
    pub(crate) fn unmarked(&mut self, vpn: Vpn, n: usize) -> Result<usize, UffdError> {
        if !self.e.memory.marked.load(SeqCst) {
            return Ok(n);
        }
        let n = match self.e.memory.guarding.load(SeqCst) {
            0 => n,
            _ if self.serving.is_some_and(|fault| Vpn::of(fault.addr) == vpn) => 1,
            _ => return Err(UffdError::Retry),
        };
        let mut end = vpn + n;
        let guards = &mut self.guards;
        let result = self.mm.runs_by_kind(vpn.addr(), end.addr(), &mut |from, to, kind| {
            end = end.min(Vpn::of(from));
            if kind == PageKind::Guard {
                guards.push((from, to));
            }
            kind == PageKind::Guard
        });
        match end - vpn {
            0 => Err(UffdError::Present),
            _ if result.is_err() => Err(UffdError::Retry),
            free => Ok(free),
        }
    }

    /// What was where guards were found is of no worth any more, if they still are there. Not at once: the caller that
    /// found them may be about to place it.
    pub(crate) fn forget_guarded(&mut self) {
        if self.guards.is_empty() {
            return;
        }
        let mut there = Vec::new();
        for (start, end) in std::mem::take(&mut self.guards) {
            let _ = self.mm.runs_by_kind(start, end, &mut |from, to, kind| {
                there.extend((kind == PageKind::Guard).then_some((from, to)));
                true
            });
        }
        // A guard may be in what has come to the place of something that was moved, which has yet to be read. It is
        // found again.
        if self.changing() || !self.changes.order.is_settled() {
            return;
        }
        there.into_iter().for_each(|(start, end)| self.forget(start, end, false));
    }
}
