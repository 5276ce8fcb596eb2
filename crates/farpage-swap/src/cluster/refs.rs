//! References to slots, and freeing: a slot is free when its count is 0 and no frame is bound to it.
//!
//! Callers: whoever owns references (a page table entry, a device's record). Locks: the cluster's; inside it the device
//! lock when the cluster changes lists, and `many` for counts that do not fit the word.

use super::device::Device;
use super::usage::After;
use super::worker::DISCARD;
use super::{CLUSTER_SLOTS, Entry, Env, Flag, State, Swap};
use crate::lock::{Guard, Meter, Site, sites};
use crate::table::{COUNT_MANY, COUNT_MAX, Word};

/// Why counts were not changed. Nothing was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountError {
    /// A slot is not in use, or has no such reference: a bug of the caller.
    NotInUse,
    /// A first reference to a slot whose frame is not the caller's: it was reclaimed meanwhile.
    NotCached,
}

/// A locked cluster in which slots from `first` on, `n` of them at most, are being freed.
pub(super) struct Freeing<'a, M: Meter> {
    pub(super) first: Entry,
    pub(super) n: usize,
    pub(super) state: Guard<'a, State, M>,
}

impl<E: Env> Swap<E> {
    /// One more reference to each of `n` slots from `first` on. A slot gets its first reference only while it is cached
    /// (in a frame that the caller has locked).
    ///
    /// # Errors
    /// Some slot is not in use, or has no reference and is not cached; no count was changed.
    pub fn dup(&self, first: Entry, n: usize) -> Result<(), CountError> {
        self.each_cluster(first, n, |device, at, n, undo| {
            let mut state = lock(device, at, &sites::CLUSTER_COUNT).ok_or(CountError::NotInUse)?;
            let State { table, lazy, .. } = &mut *state;
            let table = table.as_mut().ok_or(CountError::NotInUse)?;
            let range = at.place()..at.place() + n;
            if !undo {
                for place in range.clone() {
                    let word = table.word(place);
                    if !word.is_in_use() {
                        return Err(CountError::NotInUse);
                    }
                    if word.count() == 0 && word.frame().is_none() {
                        return Err(CountError::NotCached);
                    }
                }
            }
            for place in range {
                let word = table.word(place);
                let slot = at.slot - at.place() as u64 + place as u64;
                let word = if undo { less(device, slot, word) } else { more(device, slot, word) };
                if word.is_lazily_free() {
                    device.add_lazy(lazy, 1);
                } else if !undo && word.frame().is_some() && word.count() == 1 {
                    device.sub_lazy(lazy, 1);
                }
                table.set(place, word);
            }
            Ok(())
        })
    }

    /// One reference less to each of `n` slots of one cluster from `first` on; those that have no other and are not
    /// cached are free afterwards. Returns how many that are. For slots of several clusters see [`Swap::put_all`].
    ///
    /// # Errors
    /// Some slot has no reference (or the slots are not in one cluster); no count was changed.
    pub fn put(&self, first: Entry, n: usize) -> Result<usize, CountError> {
        let device = self.device(first.device).ok_or(CountError::NotInUse)?;
        let mut state = lock(device, first, &sites::CLUSTER_FREE).ok_or(CountError::NotInUse)?;
        let place = first.place();
        let table = state.table.as_mut().filter(|_| place + n <= CLUSTER_SLOTS).ok_or(CountError::NotInUse)?;
        if n == 1 && table.word(place).is_last_reference() {
            table.set(place, Word::FREE);
            self.freed(device, Freeing { first, n, state }, 1);
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
        self.freed(device, Freeing { first, n, state }, freed);
        Ok(freed)
    }

    /// [`Swap::put`] for many slots in any order; neighbours that follow each other share a lock. Returns how many slots
    /// are free now, and how many had no reference (a bug of the caller; the others are not affected).
    pub fn put_all(&self, entries: &[Entry]) -> (usize, usize) {
        let (mut freed, mut wrong, mut at) = (0, 0, 0);
        while let Some(&first) = entries.get(at) {
            let room = CLUSTER_SLOTS - first.place();
            let run = entries[at..].iter().take(room).enumerate().take_while(|&(i, &e)| e == first.offset(i as u64));
            let n = run.count();
            match self.put(first, n) {
                Ok(n) => freed += n,
                Err(_) => {
                    for &entry in &entries[at..at + n] {
                        self.put(entry, 1).map_or_else(|_| wrong += 1, |n| freed += n);
                    }
                }
            }
            at += n;
        }
        (freed, wrong)
    }

    /// References to a slot; 0 also for one that is not in use.
    pub fn count(&self, entry: Entry) -> u64 {
        let Some(device) = self.device(entry.device) else { return 0 };
        let Some(state) = lock(device, entry, &sites::CLUSTER_COUNT) else { return 0 };
        let word = state.table.as_ref().map_or(Word::FREE, |table| table.word(entry.place()));
        match word.count() {
            _ if !word.is_in_use() => 0,
            COUNT_MANY => device.many.lock(&sites::MANY).get(&entry.slot).copied().unwrap_or(0),
            count => count,
        }
    }

    /// Ends a change in which `n` slots became free: their words say so already. Counts them, puts the cluster where it
    /// belongs and unlocks it.
    pub(super) fn freed(&self, device: &Device<E::Meter>, freeing: Freeing<'_, E::Meter>, n: usize) {
        if n == 0 {
            return;
        }
        let Freeing { first, n: range, mut state } = freeing;
        state.count -= n as u16;
        device.after_free(first.cluster(), &mut state, first.place(), range, &self.tables);
        let after = device.usage.sub(n as u64);
        let discard = state.flag == Flag::Discard;
        drop(state);
        if discard {
            self.want(DISCARD);
        }
        if after == After::HasRoom {
            self.has_room(device);
        }
    }

    /// Calls `f` for the part of the range in each cluster; if it fails, calls it with `true` for the parts done before.
    fn each_cluster(
        &self,
        first: Entry,
        n: usize,
        f: impl Fn(&Device<E::Meter>, Entry, usize, bool) -> Result<(), CountError>,
    ) -> Result<(), CountError> {
        let device = self.device(first.device).ok_or(CountError::NotInUse)?;
        let mut done = 0;
        while done < n {
            let at = first.offset(done as u64);
            let part = (CLUSTER_SLOTS - at.place()).min(n - done);
            if let Err(error) = f(device, at, part, false) {
                let mut back = 0;
                while back < done {
                    let at = first.offset(back as u64);
                    let part = (CLUSTER_SLOTS - at.place()).min(done - back);
                    f(device, at, part, true)?;
                    back += part;
                }
                return Err(error);
            }
            done += part;
        }
        Ok(())
    }
}

#[inline]
pub(super) fn lock<'a, M: Meter>(device: &'a Device<M>, at: Entry, site: &'static Site) -> Option<Guard<'a, State, M>> {
    Some(device.cluster(at.cluster())?.state.lock(site))
}

/// The word with one reference more. Caller holds the cluster's lock.
fn more<M: Meter>(device: &Device<M>, slot: u64, word: Word) -> Word {
    let count = match word.count() {
        COUNT_MANY => {
            device.many.lock(&sites::MANY).entry(slot).and_modify(|count| *count += 1);
            COUNT_MANY
        }
        COUNT_MAX => {
            device.many.lock(&sites::MANY).insert(slot, COUNT_MAX + 1);
            COUNT_MANY
        }
        count => count + 1,
    };
    word.with_count(count)
}

/// The word with one reference less; it has one. Caller holds the cluster's lock.
fn less<M: Meter>(device: &Device<M>, slot: u64, word: Word) -> Word {
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
