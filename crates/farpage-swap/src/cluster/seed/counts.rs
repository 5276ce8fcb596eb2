//! References beyond the first; [`super::super::refs`] gives them back.

use crate::cluster::device::Device;
use crate::cluster::refs::less;
use crate::cluster::{CLUSTER_SLOTS, CountError, Entry, Env, State, Swap};
use crate::lock::{Meter, sites};
use crate::table::{COUNT_MANY, COUNT_MAX, Word};

impl<E: Env> Swap<E> {
    /// One more reference to each of `n` slots from `first` on. A slot gets its first reference only while it is cached
    /// (in a frame that the caller has locked): without reference and frame it is free.
    ///
    /// # Errors
    /// Some slot is not in use; no count was changed.
    pub fn dup(&self, first: Entry, n: usize) -> Result<(), CountError> {
        self.each_cluster(first, n, |device, at, n, undo| {
            let mut state = self.lock(device, at.cluster(), &sites::CLUSTER_COUNT).ok_or(CountError::NotInUse)?;
            let State { table, lazy, .. } = &mut *state;
            let table = table.as_mut().ok_or(CountError::NotInUse)?;
            let range = at.place()..at.place() + n;
            if !undo {
                // A slot in use without a reference has a frame: otherwise it would be free.
                if range.clone().any(|place| !table.word(place).is_in_use()) {
                    return Err(CountError::NotInUse);
                }
            }
            let mut change = |place: usize, undo: bool| {
                let before = table.word(place);
                let slot = at.slot - at.place() as u64 + place as u64;
                if !before.is_in_use() {
                    return false;
                }
                let word = if undo { less(device, slot, before) } else { more(device, slot, before) };
                if !table.replace(place, before, word) {
                    return false;
                }
                if word.is_lazily_free() {
                    device.add_lazy(lazy, 1);
                } else if before.is_lazily_free() {
                    device.sub_lazy(lazy, 1);
                }
                true
            };
            for place in range.clone() {
                if !change(place, undo) {
                    // Its only reference has just been given back.
                    (range.start..place).for_each(|place| _ = change(place, true));
                    return Err(CountError::NotInUse);
                }
            }
            Ok(())
        })
    }

    /// [`Swap::put`] for many slots in any order; neighbours that follow each other share a lock. Returns how many
    /// slots are free now, and how many had no reference (a bug of the caller; the others are not affected).
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
        let Some(state) = self.lock(device, entry.cluster(), &sites::CLUSTER_COUNT) else { return 0 };
        let word = state.table.as_ref().map_or(Word::FREE, |table| table.word(entry.place()));
        match word.count() {
            _ if !word.is_in_use() => 0,
            COUNT_MANY => device.many.lock(&sites::MANY).get(&entry.slot).copied().unwrap_or(0),
            count => count,
        }
    }

    /// Calls `f` for the part of the range in each cluster; if it fails, calls it with `true` for the parts done
    /// before.
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
