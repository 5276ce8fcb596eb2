//! Pages of the swap cache that are wanted back.
//!
//! Callers: `fault`, `bring_in`, on the pager's thread. Locks: `lru`.

use crate::pager::cx::{Cx, Outcome};
use crate::pager::readahead::{bounds, run_around};
use crate::shared::page_table::{Node, State};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::sys::uffd::UffdError;
use farpage_device::Entry;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;

impl Cx {
    /// A page of the swap cache is wanted back. `None`: a writer has just taken it.
    pub(crate) fn refault(&mut self, vpn: Vpn, node: Node, f: FrameNo, mapping: (Vpn, Vpn)) -> Option<Outcome> {
        let e = self.e;
        let mut lru = lock(&e.lru);
        // Under the lock: until the page is claimed, a writer may take it and change its slot.
        let entry = e.slots.frame_entries.get(f);
        let ahead = e.table.is_ahead(node);
        if !lru.uncache(&e.table, node, State::Cached(f), State::Mapped(entry)) {
            return None;
        }
        drop(lru);
        e.slots.frame_entries.set(f, None);
        let page = vpn.addr();
        let mut result = if self.room() > 0 { Err(UffdError::Incompatible) } else { Err(UffdError::Busy) };
        for _ in 0..2 {
            if result != Err(UffdError::Busy) {
                break;
            }
            // SAFETY: page is a registered page of the program; f is owned since its state left Cached.
            result = unsafe { self.mm.move_pages(page, e.frames.addr(f), PAGE_SIZE, false) }.1;
            if result == Err(UffdError::Busy) {
                // SAFETY: the frame is owned here and has a page.
                unsafe { e.frames.unshare(f) };
            }
        }
        match result {
            Ok(()) => e.frames.put_empty(f, 1),
            Err(UffdError::Incompatible) => {
                if let Some(stop) = self.copy_in(vpn, e.frames.addr(f), 1).stop {
                    return Some(self.recache(vpn, node, f, (entry, ahead), stop));
                }
                e.frames.put_spent(f, 1);
            }
            Err(stop) => return Some(self.recache(vpn, node, f, (entry, ahead), stop)),
        }
        if ahead || self.readahead.wants_all_touches() {
            self.readahead.on_hit(vpn, mapping.0, ahead);
            // Where only some wait, the share of those that were used would be taken for that of all.
            if self.readahead.is_exact() {
                e.stat.note_touched(mapping.0, ahead.into());
            }
        }
        Stat::add(&e.stat.workingset_refault_cached, 1);
        Some(Outcome::Served)
    }

    /// A page of the swap cache was wanted back. If the program goes on in order there, its neighbours will be, too:
    /// they are mapped with it, which spares their faults.
    pub(crate) fn refault_around(&mut self, vpn: Vpn, mapping: (Vpn, Vpn)) {
        let e = self.e;
        let Some(window) = self.readahead.on_refault(vpn, |vpn| e.table.is_there(vpn)) else { return };
        let (low, high) = bounds(&window);
        let (low, high) = (low.max(mapping.0), high.min(mapping.1));
        let is_cached = |v: Vpn| e.table.node(v).is_some_and(|n| e.table.is_cached(n));
        let (start, end) = run_around(vpn, low, high, is_cached);
        let mut room = self.room_for(end - start - 1);
        let (mut first, mut behind) = (vpn, vpn + 1);
        while behind < end && room > 0 && self.map_cached(behind) {
            (behind, room) = (behind + 1, room - 1);
        }
        while first > start && room > 0 && self.map_cached(first - 1) {
            (first, room) = (first - 1, room - 1);
        }
        self.readahead.on_served(first, (behind - first) as u32);
    }

    /// Maps a page of the swap cache that no thread waits for; whether that was done.
    fn map_cached(&mut self, vpn: Vpn) -> bool {
        let e = self.e;
        let Some((node, State::Cached(f))) = e.table.node(vpn).map(|node| (node, e.table.state(node))) else {
            return false;
        };
        let mut lru = lock(&e.lru);
        // Under the lock, as in `refault`.
        let entry = e.slots.frame_entries.get(f);
        if !lru.map_untouched(&e.table, node, State::Cached(f), State::Mapped(entry)) {
            return false;
        }
        drop(lru);
        let done = self.copy_in(vpn, e.frames.addr(f), 1).done > 0;
        if done {
            e.slots.frame_entries.set(f, None);
            e.frames.put_spent(f, 1);
        } else {
            lock(&e.lru).cache(&e.table, node, State::Cached(f));
        }
        done
    }

    /// Undoes the claim of [`Cx::refault`]: the page stays in the swap cache.
    fn recache(
        &mut self,
        vpn: Vpn,
        node: Node,
        f: FrameNo,
        (entry, ahead): (Option<Entry>, bool),
        stop: UffdError,
    ) -> Outcome {
        let e = self.e;
        e.slots.frame_entries.set(f, entry);
        let mut lru = lock(&e.lru);
        if ahead {
            lru.unmap(&e.table, node, State::None);
            lru.cache_ahead(&e.table, node, f);
        } else {
            lru.cache(&e.table, node, State::Cached(f));
        }
        drop(lru);
        self.resolve_refusal(vpn, Some(stop))
    }
}
