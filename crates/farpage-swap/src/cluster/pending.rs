//! Frees that meet a cluster's lock do not wait for it.
//!
//! The thread that holds a cluster's lock may be preempted, and would then be waited for as long as the scheduler
//! likes. So a free of slots that are swapped out with one reference writes into their words that this reference is
//! *pending*, notes in the cluster which part of the table that is, and tries the lock once more. Either it gets the
//! lock now, or the holder sees the note: it looks for one after each unlock (the drop of [`Locked`], which is the only
//! way for a cluster to be unlocked where another thread can have slots of it).
//!
//! To every thread a pending slot is free: look-ups, counts, a second free. But it is not given out, and counts as
//! used, until the free is carried out.
//!
//! ```text
//!   the freeing thread                       the holder of the lock
//!   word: swapped, 1 -> pending              ...
//!   note it                                  unlock
//!   fence                                    fence (after_unlock)
//!   try the lock                             any note? try the lock, carry out, unlock, look again
//! ```
//!
//! The fences make sure that not both the trial fails for this hold and the holder sees no note; a later holder looks
//! too.
//!
//! What still waits for a lock, because it must know what is true now: references to slots that have more of them or
//! are cached, `dup`, binding and unbinding, `count`; and swapoff, which waits for all pending frees before its end.
//!
//! Callers: `refs`, and every unlock of a cluster.

use super::device::{Device, Taken};
use super::{CLUSTER_SLOTS, Cluster, Entry, Env, State, Swap};
use crate::lock::{Guard, Site, sites};
use crate::sync::{Ordering, after_unlock, fence};
use crate::table::Word;
use std::ops::{Deref, DerefMut};

/// Words of the part that one bit of the note stands for: a cache line of them.
const PART: usize = 8;

/// A locked cluster. When it is dropped the cluster is unlocked, and what was left there meanwhile is carried out.
pub(super) struct Locked<'a, E: Env> {
    // In this order: the note is looked for after the unlock.
    state: Guard<'a, State, E::Meter>,
    _after: AfterUnlock<'a, E>,
}

struct AfterUnlock<'a, E: Env> {
    swap: &'a Swap<E>,
    device: &'a Device<E::Meter>,
    cluster: &'a Cluster<E::Meter>,
    index: u32,
}

impl<E: Env> Drop for AfterUnlock<'_, E> {
    #[inline]
    fn drop(&mut self) {
        self.swap.carry_out_pending(self.device, self.cluster, self.index);
    }
}

impl<E: Env> Deref for Locked<'_, E> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl<E: Env> DerefMut for Locked<'_, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl<E: Env> Swap<E> {
    /// Waits for a cluster's lock.
    #[inline]
    pub(super) fn lock<'a>(
        &'a self,
        device: &'a Device<E::Meter>,
        index: u32,
        site: &'static Site,
    ) -> Option<Locked<'a, E>> {
        let cluster = device.cluster(index)?;
        Some(self.locked(device, Taken { index, cluster, state: cluster.state.lock(site) }))
    }

    #[inline]
    pub(super) fn locked<'a>(&'a self, device: &'a Device<E::Meter>, taken: Taken<'a, E::Meter>) -> Locked<'a, E> {
        let Taken { index, cluster, state } = taken;
        Locked { state, _after: AfterUnlock { swap: self, device, cluster, index } }
    }

    /// Makes the only references of `n` slots of one cluster pending; returns how many of them, from the first on. 0 if
    /// one of them has another reference, is cached or is not in use.
    ///
    /// The caller's references keep the cluster its table until the last of them is pending. After that nothing here
    /// may be looked at again to find out whether it was done: another thread may have carried it out already (for
    /// another free's note of the same part), and the slot, the cluster and the table may be in use for something else.
    #[cold]
    pub(super) fn leave(
        &self,
        device: &Device<E::Meter>,
        cluster: &Cluster<E::Meter>,
        first: Entry,
        n: usize,
    ) -> usize {
        let seen = cluster.table.load(Ordering::Acquire);
        let words = (seen as u32).checked_sub(1).and_then(|id| self.tables.words(id));
        let Some(words) = words else { return 0 };
        let place = first.place();
        if !(place..place + n).all(|at| words.get(at).is_last_reference()) {
            return 0;
        }
        let mut left = 0;
        for at in place..place + n {
            let word = words.get(at);
            if !word.is_last_reference() || !words.replace(at, word, word.to_pending()) {
                break;
            }
            left += 1;
        }
        if left > 0 {
            let parts = (place / PART..(place + left).div_ceil(PART)).fold(0, |parts, part| parts | 1 << part);
            cluster.pending.fetch_or(parts, Ordering::AcqRel);
            device.left.fetch_add(1, Ordering::Release);
            fence(Ordering::SeqCst);
            self.carry_out_noted(device, cluster, first.cluster());
        }
        left
    }

    /// Carries out what was left while a cluster was locked. Called after each unlock, with no lock held.
    #[inline]
    pub(super) fn carry_out_pending(&self, device: &Device<E::Meter>, cluster: &Cluster<E::Meter>, index: u32) {
        after_unlock();
        if cluster.pending.load(Ordering::Relaxed) != 0 {
            self.carry_out_noted(device, cluster, index);
        }
    }

    #[cold]
    fn carry_out_noted(&self, device: &Device<E::Meter>, cluster: &Cluster<E::Meter>, index: u32) {
        while cluster.pending.load(Ordering::Relaxed) != 0 {
            // Busy: its holder looks after this one does.
            let Some(state) = cluster.state.try_lock(&sites::CLUSTER_PENDING) else { return };
            self.carry_out(device, Taken { index, cluster, state });
            after_unlock();
        }
    }

    fn carry_out(&self, device: &Device<E::Meter>, taken: Taken<'_, E::Meter>) {
        let Taken { index, cluster, mut state } = taken;
        let parts = cluster.pending.swap(0, Ordering::AcqRel);
        let Some(table) = &mut state.table else { return };
        let (mut from, mut end, mut n) = (CLUSTER_SLOTS, 0, 0);
        for at in (0..CLUSTER_SLOTS).filter(|at| parts >> (at / PART) & 1 == 1) {
            if table.word(at).is_pending() {
                table.set(at, Word::FREE);
                (from, end, n) = (from.min(at), at + 1, n + 1);
            }
        }
        if n > 0 {
            let slot = u64::from(index) * CLUSTER_SLOTS as u64 + from as u64;
            let first = Entry { device: device.index, slot };
            let freed = self.freed(device, first, end - from, &mut state, n);
            drop(state);
            self.after_freed(device, freed);
        }
    }

    /// Waits until all frees of a device that ended before are carried out; `false`: they were.
    pub(super) fn carry_out_all(&self, device: &Device<E::Meter>) -> bool {
        let left = device.left.load(Ordering::Acquire);
        if left == device.carried_out.load(Ordering::Acquire) {
            return false;
        }
        let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh;
        // Also where there is no note (any more): another thread may be carrying it out.
        (0..fresh).for_each(|index| drop(self.lock(device, index, &sites::CLUSTER_PENDING)));
        device.carried_out.fetch_max(left, Ordering::Release);
        true
    }
}
