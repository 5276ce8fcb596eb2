//! Binding slots to frames; the rules are in the header of [`super::super::cache`].

use crate::cluster::{CacheError, Entry, Env, Swap};
use crate::table::{View, Word};

impl<E: Env> Swap<E> {
    /// Binds `n` swapped-out slots of one cluster from `first` on to `frame`, which the caller has locked. Counts and
    /// zero flags stay. Returns the first slot's shadow. Of several callers for one slot exactly one succeeds: it reads
    /// the page.
    ///
    /// # Errors
    /// A slot is free or bound (then: to what); nothing was changed.
    pub fn cache_insert(&self, first: Entry, n: usize, frame: u64) -> Result<u64, CacheError> {
        self.change(first, n, |_, table, place, _| {
            let mut shadow = None;
            for at in place..place + n {
                match table.word(at).view() {
                    View::Swapped { shadow: s } => shadow = shadow.or(Some(s)),
                    View::Cached { frame } => return Err(CacheError::Bound(frame)),
                    View::Free | View::Bad => return Err(CacheError::NotInUse),
                }
            }
            let shadow = shadow.unwrap_or(0);
            for at in place..place + n {
                let word = table.word(at);
                if !word.is_in_use() || !table.replace(at, word, word.to_cached(frame)) {
                    // Its only reference has just been given back.
                    (place..at).for_each(|at| table.set(at, table.word(at).to_swapped(shadow)));
                    return Err(CacheError::NotInUse);
                }
            }
            Ok((shadow, 0))
        })
    }

    /// Unbinds `n` slots of one cluster from `frame`, which the caller has locked, and notes `shadow` (the one from
    /// [`Swap::cache_insert`] to undo it). Slots without a reference are free afterwards: their content exists only in
    /// the frame. Returns how many that are.
    ///
    /// # Errors
    /// A slot is not bound to `frame`; nothing was changed.
    pub fn cache_remove(&self, first: Entry, n: usize, frame: u64, shadow: u64) -> Result<usize, CacheError> {
        self.change(first, n, |device, table, place, lazy| {
            if (place..place + n).any(|at| table.word(at).frame() != Some(frame)) {
                return Err(CacheError::NotBound);
            }
            let mut freed = 0;
            for at in place..place + n {
                let word = table.word(at);
                if word.is_lazily_free() {
                    device.sub_lazy(lazy, 1);
                    freed += 1;
                    table.set(at, Word::FREE);
                } else {
                    table.set(at, word.to_swapped(shadow));
                }
            }
            Ok((freed, freed))
        })
    }

    /// Notes whether the content of `n` slots of one cluster is zeros and was not written to the device.
    ///
    /// # Errors
    /// A slot is not in use; nothing was changed.
    pub fn set_zero(&self, first: Entry, n: usize, zero: bool) -> Result<(), CacheError> {
        self.change(first, n, |_, table, place, _| {
            if !(place..place + n).all(|at| table.word(at).is_in_use()) {
                return Err(CacheError::NotInUse);
            }
            for at in place..place + n {
                let word = table.word(at);
                // If not: freed meanwhile.
                if word.is_in_use() {
                    table.replace(at, word, word.with_zero(zero));
                }
            }
            Ok(((), 0))
        })
    }
}
