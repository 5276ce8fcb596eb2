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
use farpage_swap::PAGE_SIZE;
use farpage_swap::workingset::Rank;

impl Pager {
    /// `[start, end)` (bytes) was emptied (`unmapped`: or is gone): swapped-out content is dropped.
    ///
    /// Slots are freed later: the program goes on, perhaps to fill a new mapping at full speed, and the pager must be
    /// there to adopt it. (Freeing the slots of 128 MiB here took 100 ms, in which as much memory grew unseen.)
    pub(crate) fn forget(&mut self, start: usize, end: usize, unmapped: bool) {
        let e = self.e;
        let (first, last) = (Vpn::of(start), Vpn::of(end.next_multiple_of(PAGE_SIZE)));
        let mut freed = std::mem::take(&mut self.pending_frees);
        e.table.for_each(first, last, |_, node| {
            loop {
                let state = e.table.state(node);
                let done = match state {
                    State::None => true,
                    State::Swapped(entry) => {
                        e.table.set(node, State::None);
                        freed.push(entry);
                        true
                    }
                    // The thread that discards pages goes on to do so when its event has been read; until then
                    // they are still there, and moving one out now would keep what must be gone. As `None` it is
                    // out of reach of reclaim. (After MADV_FREE it stays in memory, unmanaged, until it is unmapped.)
                    State::Mapped(entry) => {
                        let _ = lock(&e.lru).unmap(&e.table, node, State::None);
                        freed.extend(entry);
                        true
                    }
                    State::Cached(f) => {
                        let won = lock(&e.lru).uncache(&e.table, node, state, State::None);
                        if won {
                            freed.extend(e.frame_entries.take(f));
                            e.frames.put_spent(f, 1);
                        }
                        won
                    }
                    // The writer notices, and gives frame and slot back.
                    State::Writeback(_) => e.table.change(node, state, State::None),
                };
                if done {
                    break;
                }
            }
        });
        e.free_later(&mut freed);
        self.pending_frees = freed;
        if unmapped {
            e.table.drop_empty_leaves(first, last);
        }
    }

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
        let e = self.e;
        let (first, last) = (Vpn::of(from), Vpn::of(from + len));
        let shift = Vpn::of(to);
        {
            let mut managed = lock(&e.managed);
            let known = managed.overlaps(first, last);
            managed.remove(first, last);
            known.iter().for_each(|(s, t)| managed.insert(shift + (*s - first), shift + (*t - first)));
            if known != [(first, last)] {
                self.add_fresh(to, to + len); // the rest has yet to be looked at
            }
        }
        // Nothing of the old content of `to` may survive there.
        self.forget(to, to + len, true);
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
