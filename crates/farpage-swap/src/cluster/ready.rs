//! Full clusters of which slots were freed: how they get new work without the device lock.
//!
//! A cluster that became full stays on the full list for as long as it has a slot in use: *holes* says that it has free
//! ones too. When they are worth a search it is pushed on a stack of its order, from which the next search of that order
//! pops it; when it is full again, nothing has to move. So a device in a steady state does not need its lock. Last in, first
//! out: the clusters at the bottom go on losing slots, until some of them are empty and can serve any order.
//!
//! The stacks are of the kind of Treiber (1986): a head with a number that counts changes, so that a pop whose cluster
//! was popped and pushed by others meanwhile fails. Locks: a cluster is pushed, and told that it was popped, under its own
//! lock; popping takes it without waiting. A cluster that was emptied stays on its stack until it is popped, and is
//! passed over then: `State::ready` says which stack, so it is never on two.
//!
//! Callers: `search` and `scan` take, whoever frees slots ends in [`Device::after_free`].

use super::device::{Device, Taken};
use super::{CLUSTER_SLOTS, Cluster, Flag, NIL, ORDERS, State};
use crate::lock::{Meter, Site, sites};
use crate::sync::{AtomicU64, Ordering};
use crate::table::TablePool;

/// Free slots that are always worth a search.
const WORTH_MAX: u64 = CLUSTER_SLOTS as u64 / 8;
/// Busy clusters that one search passes over.
const BUSY_MAX: usize = 2;

/// The tops of the stacks, by order: changes so far in the high half, cluster + 1 in the low half.
pub(super) struct Ready([AtomicU64; ORDERS]);

impl Ready {
    pub(super) fn new() -> Ready {
        Ready(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Empties all stacks. Nobody uses the device.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|top| top.store(0, Ordering::Relaxed));
    }
}

fn top_after(top: u64, index: u32) -> u64 {
    ((top >> 32) + 1) << 32 | u64::from(index.wrapping_add(1))
}

impl<M: Meter> Device<M> {
    /// Puts a cluster on a stack. Caller has it locked, or popped it and has not told it so.
    fn push_ready(&self, order: u8, index: u32) {
        let Some(cluster) = self.cluster(index) else { return };
        let place = &self.ready.0[usize::from(order)];
        let mut top = place.load(Ordering::Relaxed);
        loop {
            cluster.below.store((top as u32).wrapping_sub(1), Ordering::Relaxed);
            match place.compare_exchange_weak(top, top_after(top, index), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Whether the stack was empty a moment ago.
    pub(super) fn no_ready(&self, order: u8) -> bool {
        self.ready.0[usize::from(order)].load(Ordering::Relaxed) as u32 == 0
    }

    fn pop_ready(&self, order: u8) -> Option<u32> {
        let place = &self.ready.0[usize::from(order)];
        let mut top = place.load(Ordering::Acquire);
        loop {
            let index = (top as u32).checked_sub(1)?;
            let below = self.cluster(index)?.below.load(Ordering::Relaxed);
            match place.compare_exchange_weak(top, top_after(top, below), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
    }

    /// The next cluster with holes that serves `order`, locked, no longer on a stack. Never waits for a lock. `passed` hears of
    /// those that were locked and are something else by now.
    pub(super) fn take_ready(
        &self,
        order: u8,
        site: &'static Site,
        passed: impl Fn(&Cluster<M>, u32),
    ) -> Option<Taken<'_, M>> {
        let mut busy = [NIL; BUSY_MAX];
        let mut found = None;
        for place in &mut busy {
            found = loop {
                let Some(index) = self.pop_ready(order) else { break None };
                let cluster = self.cluster(index)?;
                let Some(mut state) = cluster.state.lock_soon(site) else {
                    *place = index;
                    break None;
                };
                state.ready = None;
                if state.flag == Flag::Holes && state.order == order && !state.current {
                    break Some(Taken { index, cluster, state });
                }
                drop(state);
                passed(cluster, index);
            };
            if found.is_some() || *place == NIL {
                break;
            }
        }
        // Those are still told that they are on this stack.
        busy.into_iter().filter(|&index| index != NIL).for_each(|index| self.push_ready(order, index));
        found
    }

    /// Where a cluster belongs after `n` slots of it from place `at` on were freed.
    pub(super) fn after_free(&self, index: u32, state: &mut State, at: usize, n: usize, pool: &TablePool<M>) {
        if state.count == 0 {
            self.emptied(index, state, pool);
            return;
        }
        let free = CLUSTER_SLOTS - usize::from(state.count);
        if state.flag == Flag::Full {
            state.flag = Flag::Holes;
        }
        // A CPU that is at a cluster makes its free slots fewer. If they become more, the CPU went elsewhere.
        state.current &= !free.is_multiple_of(CLUSTER_SLOTS / 4);
        let on_stack = state.ready == Some(state.order);
        if state.current || on_stack || !matches!(state.flag, Flag::Holes | Flag::Frag) {
            return;
        }
        if state.flag == Flag::Holes && !self.is_worth(free as u64) {
            return;
        }
        // Single slots freed in a cluster of larger blocks: only a whole block is something to search for.
        let order = usize::from(state.order);
        let mut blocks = (at >> order << order..at + n).step_by(1 << order);
        if !state.table.as_ref().is_some_and(|table| blocks.any(|at| table.is_block_free(at, order))) {
            // Where order 0 finds holes before it breaks whole blocks.
            self.relocate(index, state, Flag::Frag, &sites::DEVICE_RELOCATE);
            return;
        }
        // One that is still on another order's stack, from an earlier life, goes to the list.
        if state.flag == Flag::Holes && state.ready.is_none() {
            state.ready = Some(state.order);
            self.push_ready(state.order, index);
        } else {
            self.relocate(index, state, Flag::Nonfull, &sites::DEVICE_RELOCATE);
        }
    }

    /// Whether so many free slots make a full cluster worth a search: as many as the device's clusters have on average, or
    /// [`WORTH_MAX`]. (If all clusters had fewer, the average would be lower; so there is always some cluster with more, or
    /// an empty one.) Any number, where larger blocks are short: holes that are left open cost empty clusters.
    fn is_worth(&self, free: u64) -> bool {
        if free >= WORTH_MAX || self.short_of_blocks.load(Ordering::Relaxed) {
            return true;
        }
        let (in_use, capacity) = (self.usage.in_use(), self.usage.capacity());
        free * capacity >= capacity.saturating_sub(in_use) * CLUSTER_SLOTS as u64
    }

    /// The clusters of a stack from its top; for tests.
    #[cfg(test)]
    pub(super) fn ready_list(&self, order: u8) -> Vec<u32> {
        let top = self.ready.0[usize::from(order)].load(Ordering::Relaxed) as u32;
        let below =
            |&index: &u32| Some(self.cluster(index)?.below.load(Ordering::Relaxed)).filter(|&below| below != NIL);
        std::iter::successors(top.checked_sub(1), below).collect()
    }
}
