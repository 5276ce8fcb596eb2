//! What becomes of a run of pages that was to be taken out.
//!
//! Callers: `move_out`, `transit`, `relocated`, on the pager's thread. Locks: `lru`.

use crate::pager::cx::Cx;
use crate::shared::page_table::{LEAF_PAGES, Node, State, leaf_end, leaf_start};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::sys::pagemap::PageKind;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::UffdError;
use farpage_ipc::stat::Stat;
use std::sync::atomic::Ordering::SeqCst;

impl Cx {
    /// The first page of the run was not moved. As `MoveOut::move_out`.
    pub(crate) fn refused(&mut self, vpn: Vpn, run: &[Node], result: Result<(), UffdError>) -> Option<(usize, usize)> {
        let e = self.e;
        let node = run[0];
        match result {
            Ok(()) | Err(UffdError::Retry | UffdError::Other(Errno::NOMEM)) => None,
            // No page, or a mark.
            Err(why @ (UffdError::Absent | UffdError::Other(Errno::FAULT))) => {
                self.resync(vpn);
                if self.is_mapped(node) {
                    // It has come back meanwhile, or is a lost one; leave it for a later round.
                    lock(&e.lru).rotate(&e.table, node);
                    Stat::add(&e.stat.move_skipped, u64::from(why != UffdError::Absent));
                }
                Some((0, run.len().min(self.still_gone(run))))
            }
            Err(UffdError::Busy | UffdError::Incompatible | UffdError::Present | UffdError::Other(_)) => {
                lock(&e.lru).rotate(&e.table, node);
                Stat::add(&e.stat.move_skipped, 1);
                Some((0, 1))
            }
        }
    }

    /// How many pages of the run, from its start, are not `Mapped` any more; at least one, so that the caller advances.
    fn still_gone(&self, run: &[Node]) -> usize {
        let gone = run.iter().take_while(|n| !matches!(self.e.table.state(**n), State::Mapped(_))).count();
        gone.max(1)
    }

    /// The pages of the run are in frames from `first` on now. `shared`: other processes had the first one, too.
    pub(crate) fn now_cached(&self, run: &[Node], first: FrameNo, shared: bool) {
        let e = self.e;
        let mut lru = lock(&e.lru);
        for (node, f) in run.iter().zip(first.run(run.len())) {
            let entry = match e.table.state(*node) {
                State::Mapped(entry) => entry,
                _ => None,
            };
            match shared && f == first {
                true => e.slots.frame_entries.set_shared(f, entry),
                false => e.slots.frame_entries.set(f, entry),
            }
            lru.cache(&e.table, *node, State::Cached(f));
        }
    }

    pub(crate) fn is_mapped(&self, node: Node) -> bool {
        matches!(self.e.table.state(node), State::Mapped(_))
    }

    /// A page was found gone: brings the words around it up to date in one go.
    pub(crate) fn resync(&mut self, vpn: Vpn) {
        let e = self.e;
        let (first, last) = (leaf_start(vpn), leaf_end(vpn));
        let mut present = [false; LEAF_PAGES];
        let result = self.mm.runs_by_kind(first.addr(), last.addr(), &mut |start, end, kind| {
            match kind {
                PageKind::Guard => e.memory.marked.store(true, SeqCst),
                _ => present[Vpn::of(start) - first..Vpn::of(end) - first].fill(true),
            }
            true
        });
        if result.is_err() {
            return;
        }
        e.table.for_each(first, last, |vpn, node| {
            if let State::Mapped(entry) = e.table.state(node)
                && !present[vpn - first]
            {
                lock(&e.lru).unmap(&e.table, node, State::None);
                e.free_entry(entry);
            }
        });
    }
}
