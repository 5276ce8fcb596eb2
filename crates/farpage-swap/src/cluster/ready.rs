//! Clusters of which slots were freed: how they get new work without the device lock.
//!
//! *Full clusters with holes.* A cluster that became full stays on the full list for as long as it has a slot in use:
//! *holes* says that it has free ones too. When they are worth a search it is pushed on a stack of its order, from
//! which the next search of that order pops it; when it is full again, nothing has to move. So a device in a steady
//! state does not need its lock. Last in, first out: the clusters at the bottom go on losing slots, until some of them
//! are empty and can serve any order.
//!
//! *Broken blocks.* A cluster of larger blocks of which single slots were freed is pushed on one more stack, whichever
//! list it is on, unless the block is whole again. Order 0 looks there before it takes an empty cluster or breaks
//! another block: what is free in pieces is used up before what is free in one piece. A cluster can be on this stack
//! and on that of its order.
//!
//! The stacks are of the kind of Treiber (1986): a head with a number that counts changes, so that a pop whose cluster
//! was popped and pushed by others meanwhile fails. Locks: a cluster is pushed, and told that it was popped, under its
//! own lock; popping takes it without waiting. A cluster that was emptied stays on its stack until it is popped, and is
//! passed over then: `State::ready` and `State::broken` say on which it is, so it is never on one twice.
//!
//! A user that *goes on in a cluster* need not be sent there by a stack, and no other should be. So a free asks whether
//! the hint of the cluster's last taker still points to it. A taker that met its lock has a hint elsewhere by then:
//! nothing is forgotten.
//!
//! Callers: `search` and `scan` take; every free of slots ends in [`Device::after_free`].

use super::device::{Device, Taken};
use super::hint::{Hints, User};
use super::{CLUSTER_SLOTS, Cluster, Flag, NIL, ORDERS, State};
use crate::lock::{Meter, Site, sites};
use crate::sync::{AtomicU64, Ordering};
use crate::table::TablePool;

/// Free slots that are always worth a search.
const WORTH_MAX: u64 = CLUSTER_SLOTS as u64 / 8;
/// Busy clusters that one search passes over: they are on top again then, and their holders may sleep.
const BUSY_MAX: usize = 8;

/// Which stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stack {
    /// Full clusters with holes that serve this order.
    Holes(u8),
    /// Clusters of any order above 0 with broken blocks.
    Broken,
}

impl Stack {
    /// Which of a cluster's links it uses.
    fn link(self) -> usize {
        usize::from(self == Stack::Broken)
    }
}

/// The tops of the stacks, those of holes by order, then that of broken blocks: changes so far in the high half,
/// cluster + 1 in the low half.
pub(super) struct Ready([AtomicU64; ORDERS + 1]);

impl Ready {
    pub(super) fn new() -> Ready {
        Ready(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Empties all stacks. The device is not in use.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|top| top.store(0, Ordering::Relaxed));
    }

    fn top(&self, stack: Stack) -> &AtomicU64 {
        match stack {
            Stack::Holes(order) => &self.0[usize::from(order)],
            Stack::Broken => &self.0[ORDERS],
        }
    }
}

fn top_after(top: u64, index: u32) -> u64 {
    ((top >> 32) + 1) << 32 | u64::from(index.wrapping_add(1))
}

impl State {
    /// The cluster is no longer on a stack; whether it still has what the stack stands for, and no user goes on in it.
    fn was_popped(&mut self, stack: Stack, is_at: impl Fn(User, u8) -> bool) -> bool {
        match stack {
            Stack::Holes(order) => {
                self.ready = None;
                self.flag == Flag::Holes && self.order == order && !is_at(self.users[0], order)
            }
            Stack::Broken => {
                self.broken = false;
                self.order > 0
                    && matches!(self.flag, Flag::Holes | Flag::Nonfull | Flag::Frag)
                    && !is_at(self.users[1], 0)
            }
        }
    }
}

impl<M: Meter> Device<M> {
    /// Puts a cluster on a stack. Caller has it locked, or popped it and has not told it so.
    fn push_ready(&self, stack: Stack, index: u32) {
        let Some(cluster) = self.cluster(index) else { return };
        let place = self.ready.top(stack);
        let mut top = place.load(Ordering::Relaxed);
        loop {
            cluster.below[stack.link()].store((top as u32).wrapping_sub(1), Ordering::Relaxed);
            match place.compare_exchange_weak(top, top_after(top, index), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Whether the stack was empty a moment ago.
    pub(super) fn is_empty_stack(&self, stack: Stack) -> bool {
        self.ready.top(stack).load(Ordering::Relaxed) as u32 == 0
    }

    fn pop_ready(&self, stack: Stack) -> Option<u32> {
        let place = self.ready.top(stack);
        let mut top = place.load(Ordering::Acquire);
        loop {
            let index = (top as u32).checked_sub(1)?;
            let below = self.cluster(index)?.below[stack.link()].load(Ordering::Relaxed);
            match place.compare_exchange_weak(top, top_after(top, below), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
    }

    /// The next cluster of a stack that is what the stack says, locked, no longer on it. Never waits for a lock.
    /// `passed` hears of those that were locked and are something else by now.
    pub(super) fn take_ready(
        &self,
        stack: Stack,
        hints: &Hints,
        site: &'static Site,
        passed: impl Fn(&Cluster<M>, u32),
    ) -> Option<Taken<'_, M>> {
        let mut busy = [NIL; BUSY_MAX];
        let mut found = None;
        for place in &mut busy {
            found = loop {
                let Some(index) = self.pop_ready(stack) else { break None };
                let cluster = self.cluster(index)?;
                let Some(mut state) = cluster.state.try_lock(site) else {
                    *place = index;
                    break None;
                };
                if state.was_popped(stack, |user, order| hints.is_at(user, order, self.index, index)) {
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
        busy.into_iter().filter(|&index| index != NIL).for_each(|index| self.push_ready(stack, index));
        found
    }

    /// Where a cluster belongs after `n` slots of it from place `at` on were freed.
    pub(super) fn after_free(
        &self,
        index: u32,
        state: &mut State,
        at: usize,
        n: usize,
        pool: &TablePool<M>,
        hints: &Hints,
    ) {
        if state.count == 0 {
            self.emptied(index, state, pool);
            return;
        }
        let free = CLUSTER_SLOTS - usize::from(state.count);
        if state.flag == Flag::Full {
            state.flag = Flag::Holes;
        }
        // A user that goes on in a cluster makes its free slots fewer. If they become more, it went elsewhere.
        if free.is_multiple_of(CLUSTER_SLOTS / 4) {
            state.leave();
        }
        // Of larger blocks only a whole one is something to search for; what is free in pieces is for order 0.
        let order = usize::from(state.order);
        let whole = |at: usize| state.table.as_ref().is_some_and(|table| table.is_block_free(at, order));
        let mut blocks = (at >> order << order..at + n).step_by(1 << order);
        let is_at = |user: User, order: u8| hints.is_at(user, order, self.index, index);
        if order > 0 && !state.broken && !is_at(state.users[1], 0) && blocks.clone().any(|at| !whole(at)) {
            state.broken = true;
            self.push_ready(Stack::Broken, index);
        }
        let on_stack = state.ready == Some(state.order);
        let listed = !matches!(state.flag, Flag::Holes | Flag::Frag);
        if on_stack || listed || is_at(state.users[0], state.order) || !blocks.any(whole) {
            return;
        }
        if state.flag == Flag::Holes && !self.is_worth(free as u64) {
            return;
        }
        // One that is still on another order's stack, from an earlier life, goes to the list.
        if state.flag == Flag::Holes && state.ready.is_none() {
            state.ready = Some(state.order);
            self.push_ready(Stack::Holes(state.order), index);
        } else {
            self.relocate(index, state, Flag::Nonfull, &sites::DEVICE_RELOCATE);
        }
    }

    /// Whether so many free slots make a full cluster worth a search: as many as the device's clusters have on average,
    /// or [`WORTH_MAX`]. (If all clusters had fewer, the average would be lower; so there is always some cluster with
    /// more, or an empty one.) Any number, where larger blocks are short: holes that are left open cost empty clusters.
    fn is_worth(&self, free: u64) -> bool {
        if free >= WORTH_MAX || self.short_of_blocks.load(Ordering::Relaxed) {
            return true;
        }
        let (in_use, capacity) = (self.usage.in_use(), self.usage.capacity());
        free * capacity >= capacity.saturating_sub(in_use) * CLUSTER_SLOTS as u64
    }

    /// The clusters of a stack from its top; for tests.
    #[cfg(test)]
    pub(super) fn ready_list(&self, stack: Stack) -> Vec<u32> {
        let top = self.ready.top(stack).load(Ordering::Relaxed) as u32;
        let link = |index: u32| Some(self.cluster(index)?.below[stack.link()].load(Ordering::Relaxed));
        let below = |&index: &u32| link(index).filter(|&below| below != NIL);
        std::iter::successors(top.checked_sub(1), below).collect()
    }
}
