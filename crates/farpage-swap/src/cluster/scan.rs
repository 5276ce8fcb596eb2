//! A search in one locked cluster, and the commit of what it found.
//!
//! Callers: `search`. Precondition: the cluster's lock is held. It may be dropped and taken again in between (to reclaim
//! lazily freed slots); everything is checked again after that.

use super::device::{Device, Taken};
use super::pending::Locked;
use super::usage::After;
use super::{CLUSTER_SLOTS, Entry, Env, Fill, Flag, State, Swap};
use crate::lock::sites;
use crate::sync::Ordering;
use crate::table::Table;

/// Blocks that one search tries to reclaim.
const RECLAIM_TRIES: usize = 4;

impl State {
    /// Whether blocks of this order may be taken from the cluster now.
    fn is_usable(&self, order: u8) -> bool {
        let flag = matches!(self.flag, Flag::Nonfull | Flag::Frag) || (self.flag == Flag::Holes && self.current);
        flag && (order == 0 || self.order == order)
    }
}

/// Where a CPU should go on: the hint to store.
pub(super) type Next = Option<Entry>;

impl<E: Env> Swap<E> {
    /// Takes a block of the cluster, looking from place `from` on. The cluster ends up on the right list, unlocked.
    pub(super) fn scan(
        &self,
        device: &Device<E::Meter>,
        taken: Taken<'_, E::Meter>,
        from: usize,
        order: u8,
        fill: Fill,
    ) -> Result<(Entry, Next), ()> {
        let index = taken.index;
        let mut state = self.locked(device, taken);
        let n = 1usize << order;
        let mut tries = 0;
        let mut reclaim_from = 0;
        loop {
            if !state.is_usable(order) {
                return Err(());
            }
            if !device.writable.load(Ordering::Relaxed) {
                // The device is being switched off. A cluster just taken from free goes back.
                if state.count == 0 {
                    device.emptied(index, &mut state, &self.tables);
                }
                return Err(());
            }
            let room = CLUSTER_SLOTS - usize::from(state.count) >= n;
            let found = state.table.as_ref().filter(|_| room).and_then(|table| {
                // A single slot in a cluster of larger blocks: rather from a block that is broken already.
                let broken = (order < state.order).then(|| table.find_broken(from, usize::from(state.order))).flatten();
                broken.or_else(|| table.find(from, usize::from(order)))
            });
            if let Some(at) = found {
                return Ok(self.commit(device, index, state, at, order, fill));
            }
            // A block that only lazily freed slots are in the way of?
            let block = state.table.as_ref().filter(|_| state.lazy > 0 && tries < RECLAIM_TRIES);
            let block = block.and_then(|table| lazy_block(table, reclaim_from, n)).filter(|_| self.is_half_full());
            let Some(at) = block else { break };
            drop(state);
            let first = Entry { device: device.index, slot: u64::from(index) * CLUSTER_SLOTS as u64 + at as u64 };
            self.reclaim_range(first, n);
            (tries, reclaim_from) = (tries + 1, at + n);
            state = self.lock(device, index, &sites::CLUSTER_HINT).ok_or(())?;
        }
        // Searched in vain: nothing to find here until something is freed.
        state.current = false;
        if state.flag != Flag::Holes {
            device.relocate(index, &mut state, Flag::Frag, &sites::DEVICE_RELOCATE);
        }
        Err(())
    }

    /// Marks the block, counts it, puts the cluster on its list and says where to go on.
    #[inline]
    fn commit(
        &self,
        device: &Device<E::Meter>,
        index: u32,
        mut state: Locked<'_, E>,
        at: usize,
        order: u8,
        fill: Fill,
    ) -> (Entry, Next) {
        let n = 1usize << order;
        let word = fill.word();
        if let Some(table) = &mut state.table {
            (at..at + n).for_each(|at| table.set(at, word));
        }
        state.count += n as u16;
        if word.is_lazily_free() {
            device.add_lazy(&mut state.lazy, n as u16);
        }
        let base = u64::from(index) * CLUSTER_SLOTS as u64;
        let entry = Entry { device: device.index, slot: base + at as u64 };
        let after = device.usage.add(n as u64);
        let mut next = Some(Entry { slot: (base + ((at + n) % CLUSTER_SLOTS) as u64).max(1), ..entry });
        if usize::from(state.count) == CLUSTER_SLOTS {
            state.current = false;
            next = None;
            let go_on = self.may_go_on(device.index);
            let mut taken = if go_on && device.no_ready(order) {
                device.relocate_full_and_isolate(index, &mut state, order)
            } else {
                device.relocate(index, &mut state, Flag::Full, &sites::DEVICE_NEXT);
                None
            };
            drop(state);
            if go_on && taken.is_none() {
                taken = self.take_ready(device, order);
            }
            if let Some(taken) = taken {
                let slot = (u64::from(taken.index) * CLUSTER_SLOTS as u64).max(1);
                next = Some(Entry { slot, ..entry });
                self.locked(device, taken).current = true;
            }
        } else {
            drop(state);
        }
        if after == After::Full {
            self.became_full(device);
        }
        (entry, next)
    }
}

/// The first aligned block of `n` slots from `from` on that has only free and lazily freed slots.
fn lazy_block(table: &Table, from: usize, n: usize) -> Option<usize> {
    let usable = |at: usize| {
        let word = table.word(at);
        word == crate::table::Word::FREE || word.is_lazily_free()
    };
    (from..CLUSTER_SLOTS).step_by(n).find(|&at| (at..at + n).all(usable))
}
