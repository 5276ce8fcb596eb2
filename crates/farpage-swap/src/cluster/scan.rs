//! A search in one locked cluster, and the commit of what it found.
//!
//! Callers: `search`. Precondition: the cluster's lock is held. It may be dropped and taken again in between (to
//! reclaim lazily freed slots); everything is checked again after that.

use super::device::{Device, Taken};
use super::hint::{NO_USER, User};
use super::pending::Locked;
use super::ready::Stack;
use super::usage::After;
use super::{CLUSTER_SLOTS, Entry, Env, Fill, Flag, State, Swap};
use crate::lock::sites;
use crate::sync::Ordering;
use crate::table::Table;

/// Blocks that one search tries to reclaim.
const RECLAIM_TRIES: usize = 4;

impl State {
    /// Whether blocks of this order may be taken from the cluster now.
    fn is_usable(&mut self, order: u8) -> bool {
        let flag = matches!(self.flag, Flag::Nonfull | Flag::Frag)
            || (self.flag == Flag::Holes && *self.user(order) != NO_USER);
        flag && (order == 0 || self.order == order)
    }

    /// The user that took the cluster last for blocks of `order`, which may be 0 in a cluster of larger ones.
    pub(super) fn user(&mut self, order: u8) -> &mut User {
        &mut self.users[usize::from(order != self.order)]
    }

    /// No user goes on in it.
    pub(super) fn leave(&mut self) {
        self.users = [NO_USER; 2];
    }
}

/// What an allocation wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub(super) order: u8,
    pub(super) fill: Fill,
    /// The user that will go on where it is found.
    pub(super) user: User,
}

/// Where a user should go on: the hint to store.
pub(super) type Next = Option<Entry>;

impl<E: Env> Swap<E> {
    /// Takes a block of the cluster, looking from place `from` on. The cluster ends up on the right list, unlocked.
    /// `breaks`: order 0 may take a slot of a whole larger block.
    pub(super) fn scan(
        &self,
        device: &Device<E::Meter>,
        taken: Taken<'_, E::Meter>,
        from: usize,
        want: Want,
        breaks: bool,
    ) -> Result<(Entry, Next), ()> {
        let order = want.order;
        let index = taken.index;
        let mut state = self.locked(device, taken);
        let n = 1usize << order;
        let mut tries = 0;
        let mut reclaim_from = 0;
        let spared = loop {
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
                if order == state.order {
                    return table.find(from, usize::from(order));
                }
                // A single slot in a cluster of larger blocks: from a block that is broken already, in whatever
                // cluster.
                let broken = table.find_broken(from, usize::from(state.order));
                broken.or_else(|| table.find(from, 0).filter(|_| breaks))
            });
            if let Some(at) = found {
                return Ok(self.commit(device, index, state, at, want));
            }
            // Whole blocks that are to be spared.
            if room && order < state.order {
                break true;
            }
            // A block that only lazily freed slots are in the way of?
            let block = state.table.as_ref().filter(|_| state.lazy > 0 && tries < RECLAIM_TRIES);
            let block = block.and_then(|table| lazy_block(table, reclaim_from, n)).filter(|_| self.is_half_full());
            let Some(at) = block else { break false };
            drop(state);
            let first = Entry { device: device.index, slot: u64::from(index) * CLUSTER_SLOTS as u64 + at as u64 };
            self.reclaim_range(first, n);
            (tries, reclaim_from) = (tries + 1, at + n);
            state = self.lock(device, index, &sites::CLUSTER_HINT).ok_or(())?;
        };
        // Searched in vain: nothing to find here until something is freed, but whole blocks perhaps.
        *state.user(order) = NO_USER;
        if state.flag != Flag::Holes && !spared {
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
        want: Want,
    ) -> (Entry, Next) {
        let Want { order, fill, user } = want;
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
            state.leave();
            next = None;
            let go_on = self.may_go_on(device.index);
            let mut taken = if go_on && device.is_empty_stack(Stack::Holes(order)) {
                device.relocate_full_and_isolate(index, &mut state, order)
            } else {
                device.relocate(index, &mut state, Flag::Full, &sites::DEVICE_NEXT);
                None
            };
            drop(state);
            if go_on && taken.is_none() {
                taken = self.take_ready(device, Stack::Holes(order));
            }
            if let Some(taken) = taken {
                let slot = (u64::from(taken.index) * CLUSTER_SLOTS as u64).max(1);
                next = Some(Entry { slot, ..entry });
                *self.locked(device, taken).user(order) = user;
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
