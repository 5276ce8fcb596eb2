//! The swap cache: which frame has a slot's content. Look-up takes no lock.
//!
//! Rules for the owner of the frames: a frame is locked before its slots are bound, unbound or used. What
//! [`Swap::lookup`] returned is a guess until the frame is locked and the look-up repeated: by then the slot may be
//! free, or another page's. A frame of `2^k` pages is bound to an aligned block of as many slots, and every word names
//! it.

use super::device::Device;
use super::{CLUSTER_SLOTS, Entry, Env, State, Swap};
use crate::lock::sites;
use crate::table::{Table, Word};

/// Why a binding was not changed. Nothing was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheError {
    /// A slot is not in use (any more).
    NotInUse,
    /// A slot is bound to this frame.
    Bound(u64),
    /// A slot is not bound to the caller's frame (any more).
    NotBound,
}

impl<E: Env> Swap<E> {
    /// The word of a slot, as it was a moment ago.
    pub fn lookup(&self, entry: Entry) -> Word {
        let cluster = self.device(entry.device).and_then(|device| device.cluster(entry.cluster()));
        cluster.map_or(Word::FREE, |cluster| cluster.lookup(&self.tables, entry.place()))
    }

    /// Unbinds `n` slots of one cluster from `frame` if none of them has a reference: they are free afterwards. What
    /// reclaim does with lazily freed slots. The caller has locked the frame.
    ///
    /// # Errors
    /// A slot is not bound to `frame`, or has a reference (again); nothing was changed.
    pub fn cache_reclaim(&self, first: Entry, n: usize, frame: u64) -> Result<usize, CacheError> {
        self.change(first, n, |device, table, place, lazy| {
            let ours = |word: Word| word.frame() == Some(frame) && word.is_lazily_free();
            if !(place..place + n).all(|at| ours(table.word(at))) {
                return Err(CacheError::NotBound);
            }
            (place..place + n).for_each(|at| table.set(at, Word::FREE));
            device.sub_lazy(lazy, n as u16);
            Ok((n, n))
        })
    }

    /// Runs `f` with the device, the table, the place of `first` and the number of lazily freed slots, under the
    /// cluster's lock. `f` returns its result and how many slots it freed.
    pub(super) fn change<T>(
        &self,
        first: Entry,
        n: usize,
        f: impl FnOnce(&Device<E::Meter>, &mut Table, usize, &mut u16) -> Result<(T, usize), CacheError>,
    ) -> Result<T, CacheError> {
        let device = self.device(first.device).ok_or(CacheError::NotInUse)?;
        let mut state = self.lock(device, first.cluster(), &sites::CLUSTER_CACHE).ok_or(CacheError::NotInUse)?;
        let place = first.place();
        if n > CLUSTER_SLOTS - place {
            return Err(CacheError::NotInUse);
        }
        let State { table, lazy, .. } = &mut *state;
        let table = table.as_mut().ok_or(CacheError::NotInUse)?;
        let (result, freed) = f(device, table, place, lazy)?;
        let then = self.freed(device, first, n, &mut state, freed);
        drop(state);
        self.after_freed(device, then);
        Ok(result)
    }
}
