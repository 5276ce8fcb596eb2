//! What a background thread does with a file: taking the pages off a device that has failed, and giving unused space
//! back.
//!
//! A page that was moved keeps its entry: the slot stays in use, and says that the page is elsewhere
//! (`FileSlot::moved`). When the entry is freed, the other place becomes an *orphan*, which `space` frees.
//!
//! Locks: `inner` for the drain's look-ups and for what it moved; no lock across I/O.

use super::device::FileDevice;
use super::table::{PAGE_BITS, PAGE_MASK, split};
use crate::{Entry, check_value};
use farpage_swap::cluster::CLUSTER_SLOTS;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

/// Slots a search passes in one hold of the lock.
const HAND_STEPS: usize = 64;

impl FileDevice {
    /// The device has failed, and pages on it have not been looked at yet.
    pub fn wants_drain(&self) -> bool {
        self.site.accepts(&self.health);
        // What is not expected back is taken from the mirror.
        let is_there = || self.site.is_there() || (self.site.mirror.is_some() && self.site.is_lost());
        self.health.has_failed() && !self.tables.drain.drained.load(Relaxed) && is_there()
    }

    /// The next page that is still here, marked, so that [`FileDevice::moved_to`] knows whether it is the same one
    /// later. `None`: all have been looked at.
    pub fn next_to_drain(&self) -> Option<(Entry, u128)> {
        let mut hand = self.tables.drain.hand.lock();
        loop {
            let (id, from) = ((*hand >> PAGE_BITS) as usize, *hand & PAGE_MASK);
            let mut inner = self.tables.inner.lock();
            if *hand == 0 {
                inner.late = false;
            }
            let late = inner.late;
            // Between the look at `failed`, which brought us here, and those at the slots; see the end of `write`.
            fence(SeqCst);
            let Some(file) = inner.files.get(id) else {
                *hand = 0;
                if late {
                    continue;
                }
                // Under the lock: a write that ends later says so after this.
                self.tables.drain.drained.store(true, Relaxed);
                return None;
            };
            let found = file.as_ref().and_then(|file| match file.slots.next_in_use(from.max(1), HAND_STEPS) {
                Ok(page) => Some((Some((file, page)), page + 1)),
                Err(next) => (next != 0).then_some((None, next)),
            });
            *hand = found.map_or((id as u64 + 1) << PAGE_BITS, |(_, next)| (id as u64) << PAGE_BITS | next);
            let Some((file, page)) = found.and_then(|(page, _)| page) else { continue };
            let check = file.slots.update(page, |slot| {
                slot.marked = true;
                (!slot.moved).then_some(slot.check)
            });
            if let Some(check) = check {
                return Some((self.entry(file.id, page)?, check_value(check)));
            }
        }
    }

    /// Comes back to a page for which there was no room elsewhere.
    pub fn drain_again_from(&self, entry: Entry) {
        let mut hand = self.tables.drain.hand.lock();
        *hand = entry.slot();
        // Another thread may have come to the end meanwhile.
        self.tables.drain.drained.store(false, Relaxed);
    }

    /// The page that [`FileDevice::next_to_drain`] named is at `to` now. `false`: it has been freed meanwhile.
    pub fn moved_to(&self, entry: Entry, to: Entry) -> bool {
        let Some((id, page)) = split(entry) else { return false };
        let mut inner = self.tables.inner.lock();
        let file = inner.files.get(id).and_then(Option::as_ref);
        let same = file.and_then(|file| {
            file.slots.update(page, |slot| {
                let same = slot.marked;
                (slot.marked, slot.moved) = (false, true);
                same.then_some(())
            })
        });
        if same.is_none() {
            return false;
        }
        inner.moved.insert(entry.slot(), to);
        self.tables.drain.any_moved.store(true, Relaxed);
        true
    }

    /// A place elsewhere whose page was freed here.
    pub fn take_orphan(&self) -> Option<Entry> {
        if !self.tables.drain.any_moved.load(Relaxed) {
            return None;
        }
        self.tables.inner.lock().orphans.pop()
    }

    /// Gives the space of one empty cluster of the own file back to what is below; whether there was one.
    pub fn discard_one(&self) -> bool {
        // Of inherited files only what this process had is free: the parent may have the rest.
        let Some(own) = self.tables.own.get() else { return false };
        let Some(backing) = own.backing.get() else { return false };
        if !self.site.is_there() {
            return false;
        }
        let Some(first) = own.slots.begin_discard() else { return false };
        let done = backing.discard(first, CLUSTER_SLOTS as u64);
        if done == Some(true) {
            self.health.discarded(CLUSTER_SLOTS as u64);
        }
        if done.is_some() {
            own.slots.end_discard(first);
        }
        true
    }
}
