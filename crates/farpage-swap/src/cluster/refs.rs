//! References to slots, and freeing: a slot is free when its count is 0 and no frame is bound to it. A free that meets
//! the cluster's lock does not wait for it: module `pending`.
//!
//! Callers: owners of references (a page table entry, a device's record). Locks: the cluster's; inside it the device
//! lock when the cluster changes lists, and `many` for counts that do not fit the word.

use super::device::{Device, Taken};
use super::usage::After;
use super::worker::DISCARD;
use super::{CLUSTER_SLOTS, Entry, Env, Flag, State, Swap};
use crate::lock::{Meter, sites};
use crate::table::{COUNT_MANY, COUNT_MAX, Word};

/// Why counts were not changed. Nothing was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountError {
    /// A slot is not in use, or has no such reference: a bug of the caller, or its frame was reclaimed meanwhile.
    NotInUse,
}

/// What is left to do when slots were freed and their cluster is unlocked.
#[must_use]
pub(super) struct Freed {
    after: After,
    discard: bool,
}

impl<E: Env> Swap<E> {
    /// One reference less to each of `n` slots of one cluster from `first` on; those that have no other and are not
    /// cached are free afterwards: for every look-up at once, for allocations when the thread that has the cluster
    /// locked now is done. Returns how many that are. For slots of several clusters see `put_all`.
    ///
    /// # Errors
    /// Some slot has no reference (or the slots are not in one cluster); no count was changed, unless another thread
    /// gave back references to some of the same slots at the same time.
    pub fn put(&self, first: Entry, n: usize) -> Result<usize, CountError> {
        let device = self.device(first.device).ok_or(CountError::NotInUse)?;
        let (index, place) = (first.cluster(), first.place());
        let cluster = device.cluster(index).filter(|_| place + n <= CLUSTER_SLOTS).ok_or(CountError::NotInUse)?;
        let state = match cluster.state.try_lock(&sites::CLUSTER_FREE) {
            Some(state) => state,
            None => match self.leave(device, cluster, first, n) {
                0 => cluster.state.lock(&sites::CLUSTER_FREE),
                left if left == n => return Ok(n),
                // Another thread bound one of the others meanwhile.
                left => return Ok(left + self.put(first.offset(left as u64), n - left)?),
            },
        };
        let mut state = self.locked(device, Taken { index, cluster, state });
        let table = state.table.as_mut().ok_or(CountError::NotInUse)?;
        if n == 1 && table.word(place).is_last_reference() {
            table.free_last(place);
            let freed = self.freed(device, first, n, &mut state, 1);
            drop(state);
            self.after_freed(device, freed);
            return Ok(1);
        }
        if (place..place + n).any(|at| !table.word(at).is_in_use() || table.word(at).count() == 0) {
            return Err(CountError::NotInUse);
        }
        let (mut freed, mut lazy) = (0, 0);
        for at in place..place + n {
            let mut word = less(device, first.slot + (at - place) as u64, table.word(at));
            if word.count() == 0 {
                if word.frame().is_some() {
                    lazy += 1;
                } else {
                    word = Word::FREE;
                    freed += 1;
                }
            }
            table.set(at, word);
        }
        if lazy > 0 {
            device.add_lazy(&mut state.lazy, lazy);
        }
        let then = self.freed(device, first, n, &mut state, freed);
        drop(state);
        self.after_freed(device, then);
        Ok(freed)
    }

    /// `n` of the slots from `first` on, `range` of them at most, became free, and their words say so already: counts
    /// them and puts the cluster where it belongs. To be followed by an unlock and [`Swap::after_freed`].
    #[inline]
    pub(super) fn freed(
        &self,
        device: &Device<E::Meter>,
        first: Entry,
        range: usize,
        state: &mut State,
        n: usize,
    ) -> Freed {
        if n == 0 {
            return Freed { after: After::Nothing, discard: false };
        }
        state.count -= n as u16;
        device.after_free(first.cluster(), state, first.place(), range, &self.tables, &self.hints);
        let after = device.usage.sub(n as u64);
        Freed { after, discard: state.flag == Flag::Discard }
    }

    /// Tells the threads that wait for it; no cluster is locked.
    #[inline]
    pub(super) fn after_freed(&self, device: &Device<E::Meter>, freed: Freed) {
        if freed.discard {
            self.want(DISCARD);
        }
        if freed.after == After::HasRoom {
            self.has_room(device);
        }
    }
}

/// The word with one reference less; it has one. Caller holds the cluster's lock.
pub(super) fn less<M: Meter>(device: &Device<M>, slot: u64, word: Word) -> Word {
    let count = match word.count() {
        COUNT_MANY => {
            let mut many = device.many.lock(&sites::MANY);
            let count = many.get(&slot).map_or(COUNT_MAX, |count| count - 1);
            if count > COUNT_MAX {
                many.insert(slot, count);
                COUNT_MANY
            } else {
                many.remove(&slot);
                count
            }
        }
        count => count - 1,
    };
    word.with_count(count)
}
