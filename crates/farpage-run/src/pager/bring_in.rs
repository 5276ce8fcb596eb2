//! Pages come in that no thread waits for, and lose their words: memory that is let go, pages with held mutexes.
//!
//! Callers: `let_go`, `robust`, on the pager's thread. Locks: `lru`, those of the devices.

use crate::pager::cx::{Cx, Outcome, SCRATCH_PAGES};
use crate::shared::page_table::{Node, State};
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{Page, Vpn};
use farpage_device::Entry;
use farpage_ipc::stat::Stat;
use farpage_swap::workingset::Rank;

/// What became of one page.
pub(crate) enum Step {
    /// So many pages, from this one on, have been brought in; if none, there was nothing to bring in.
    Here(usize),
    /// To be tried again.
    Later,
}

/// The page at `vpn` is there, with the content that it is to have, whatever its word says: what else there is of
/// it is given up. While no writer runs.
pub(crate) fn found_present(e: &Engine, vpn: Vpn) {
    let Some(node) = e.table.node_or_create(vpn) else { return };
    let mut lru = lock(&e.lru);
    match e.table.state(node) {
        State::Mapped(_) | State::Writeback(_) => {}
        State::None => lru.map(&e.table, node, State::Mapped(None), Rank::NEW),
        State::Swapped(entry) => {
            lru.map_refaulted(&e.table, node, State::Mapped(None));
            drop(lru);
            e.free_entry(Some(entry));
        }
        State::Cached(f) => {
            lru.uncache(&e.table, node, State::Cached(f), State::Mapped(None));
            drop(lru);
            e.release_frame_entry(f);
            e.frames.put_spent(f, 1);
        }
    }
}

impl Cx {
    /// Brings the page at `vpn` in, if it is out, perhaps with what is behind it, up to `end`.
    pub(crate) fn bring_in_some(&mut self, vpn: Vpn, end: Vpn, node: Node) -> Step {
        let e = self.e;
        match e.table.state(node) {
            State::None => Step::Here(0),
            State::Mapped(_) => {
                self.forget_words((vpn, vpn + 1));
                Step::Here(0)
            }
            // Its frame is a writer's.
            State::Writeback(_) => Step::Later,
            State::Cached(f) => match self.refault(vpn, node, f, (vpn, end)) {
                Some(Outcome::Served) => {
                    self.forget_words((vpn, vpn + 1));
                    Step::Here(1)
                }
                // There already, or nothing of ours is mapped there any more.
                Some(Outcome::Dropped) => {
                    self.forget(vpn.addr(), (vpn + 1).addr(), false);
                    Step::Here(1)
                }
                Some(Outcome::Later | Outcome::InLot) | None => Step::Later,
            },
            State::Swapped(_) => self.load_some(vpn, end),
        }
    }

    /// Loads the swapped pages from `vpn` on, some at most, and places them.
    fn load_some(&mut self, vpn: Vpn, end: Vpn) -> Step {
        let e = self.e;
        let base = self.scratch.0.as_mut_ptr() as usize;
        let mut entries = [None; SCRATCH_PAGES];
        let swapped = vpn.up_to(end).map_while(|vpn| e.table.swapped(vpn));
        entries.iter_mut().zip(swapped).for_each(|(to, entry)| *to = Some(entry));
        let entries: Vec<Entry> = entries.iter().map_while(|entry| *entry).collect();
        let mut pages: Vec<&mut Page> = self.scratch.0[..entries.len()].iter_mut().collect();
        let (loaded, error) = e.space.load_many(&entries, &mut pages);
        drop(pages);
        let mut stop = None;
        let mut done = 0;
        if loaded > 0 {
            // SAFETY: just loaded, into memory that is this thread's.
            unsafe { e.verify_run(vpn, &entries[..loaded], base) };
            let placed = self.copy_in(vpn, base, loaded);
            (done, stop) = (placed.done, placed.stop);
        } else if let Some(error) = error {
            // Perhaps it is not the first page that cannot be read.
            match e.space.load(entries[0], &mut self.scratch.0[0]) {
                Ok(()) => {
                    // SAFETY: as above.
                    unsafe { e.verify_run(vpn, &entries[..1], base) };
                    let placed = self.copy_in(vpn, base, 1);
                    (done, stop) = (placed.done, placed.stop);
                }
                Err(_) => stop = self.poison(vpn, entries[0], &error),
            }
        }
        Stat::add(&e.stat.pswpin, done as u64);
        if done == 0 {
            match self.resolve_refusal(vpn, stop) {
                // There already, or lost, or nothing of ours is mapped there any more.
                Outcome::Dropped => done = 1,
                _ => return Step::Later,
            }
        }
        for (i, entry) in entries[..done].iter().enumerate() {
            if let Some(node) = e.table.node(vpn + i)
                && e.table.state(node) == State::Swapped(*entry)
            {
                e.table.set(node, State::None);
                e.free_entry(Some(*entry));
            }
        }
        Step::Here(done)
    }

    /// Pages that are there lose their words. False: some are not.
    pub(crate) fn forget_words(&mut self, (first, last): (Vpn, Vpn)) -> bool {
        let e = self.e;
        let mut all_here = true;
        let mut freed = std::mem::take(&mut self.pending_frees);
        e.table.for_each(first, last, |_, node| match e.table.state(node) {
            State::None => {}
            State::Mapped(entry) => {
                lock(&e.lru).unmap(&e.table, node, State::None);
                freed.extend(entry);
            }
            _ => all_here = false,
        });
        e.free_later(&mut freed);
        self.pending_frees = freed;
        all_here
    }
}
