//! Following the program's changes of its mappings: what was discarded or unmapped is forgotten, what was moved is
//! moved.
//!
//! Runs on the pager thread, while the program thread that made the change waits for its event to be read (a discard
//! has not happened yet then; an unmap or a move has). The races around this: `docs/dev/events.md`.

use crate::pager::state::Pager;
use crate::shared::page_table::{State, leaf_start};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::message::fatal;
use farpage_swap::workingset::Rank;

impl Pager {
    /// Takes `[first, last)` out of the pending scans and returns the parts taken out. A scan must not take discarded
    /// pages, which may be there for another moment, for present ones.
    pub(crate) fn cut_scans(&mut self, first: Vpn, last: Vpn) -> Vec<(Vpn, Vpn)> {
        let (mut cut, mut kept) = (Vec::new(), Vec::new());
        for &(s, t) in &self.scans {
            if s < last && first < t {
                cut.push((s.max(first), t.min(last)));
                kept.extend([(s, first), (last, t)].iter().filter(|(s, t)| s < t));
            } else {
                kept.push((s, t));
            }
        }
        self.scans = kept;
        cut
    }

    /// mremap moved `len` bytes: the words follow.
    pub(crate) fn follow_remap(&mut self, from: usize, to: usize, len: usize) {
        let e = self.cx.e;
        let (first, last) = (Vpn::of(from), Vpn::of(from + len));
        let shift = Vpn::of(to);
        {
            let mut managed = lock(&e.managed);
            let known = managed.overlaps(first, last);
            managed.remove(first, last);
            known.iter().for_each(|(s, t)| managed.insert(shift + (*s - first), shift + (*t - first)));
            if known != [(first, last)] {
                self.cx.changes.add_fresh(to, to + len); // the rest has yet to be looked at
            }
        }
        // Nothing of the old content of `to` may survive there.
        self.cx.forget(to, to + len, true);
        let moved = self.cut_scans(first, last);
        self.scans.extend(moved.iter().map(|(s, t)| (shift + (*s - first), shift + (*t - first))));
        e.table.for_each(first, last, |vpn, old| {
            // What the leaf before had is elsewhere: it is the next one that is taken.
            if vpn == leaf_start(vpn) && vpn > first {
                e.table.drop_empty_leaves(vpn - 1, vpn);
            }
            let mut lru = lock(&e.lru);
            let mut state = e.table.state(old);
            // A page that is being written keeps its node until the writer is done (microseconds; a file: a write).
            while let State::Writeback(_) = state {
                drop(lru);
                rustix::thread::sched_yield();
                lru = lock(&e.lru);
                state = e.table.state(old);
            }
            let mut rank = Rank::NEW;
            match state {
                State::None => return,
                State::Mapped(_) => rank = lru.unmap(&e.table, old, State::None),
                State::Cached(_) => {
                    lru.uncache(&e.table, old, state, State::None);
                }
                _ => e.table.set(old, State::None),
            }
            let Some(new) = e.table.node_or_create(shift + (vpn - first)) else {
                fatal("the page table is full: the program uses more than 4 TiB of memory");
            };
            match state {
                State::Mapped(_) => lru.map(&e.table, new, state, rank),
                State::Cached(_) => {
                    e.table.set(new, state);
                    lru.recache(&e.table, new, false);
                }
                _ => {
                    e.table.set_shadow(new, e.table.shadow(old));
                    e.table.set(new, state);
                }
            }
        });
        e.table.drop_empty_leaves(first, last);
    }
}
