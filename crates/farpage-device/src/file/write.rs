//! Writing pages to the own file: slots, the file's growth, one batch, and what a failure means.
//!
//! Locks: `create` while the file is made or grows; `scratch` for an instant; `inner` only for slots that failed, and
//! on a device that has failed. None across the I/O of pages.

use super::backing::Backing;
use super::device::FileDevice;
use super::table::File;
use crate::io::{BATCH_MAX, Transferred};
use crate::{Entry, StoreError, check_words};
use farpage_base::mem::units::Page;
use farpage_base::sys::cpu;
use farpage_server::OutgoingPage;
use farpage_swap::cluster::CLUSTER_SLOTS;
use rustix::io::Errno;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

/// Space is asked for in steps of this many slots (64 MiB), ...
const GROW_SLOTS: u64 = 16 << 10;
/// ... or of this part of all that there may be, for those that share it.
const GROW_PART: u64 = 16;

const _: () = assert!(GROW_SLOTS.is_multiple_of(CLUSTER_SLOTS as u64));

impl FileDevice {
    /// Stores the pages whose `out` is `None`: as `SwapDevice::store_batch`.
    pub(super) fn write_all(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let (mut at, end) = (0, pages.len().min(out.len()));
        let mut result = Ok(());
        while at < end {
            let (own, backing) = self.own_file()?;
            // The next pages that still need a place, side by side as far as there is room.
            let mut places = [(0, 0); BATCH_MAX];
            let mut wanted = 0;
            while at < end && wanted < BATCH_MAX {
                if out[at].is_none() {
                    places[wanted].0 = at;
                    wanted += 1;
                }
                at += 1;
            }
            let mut taken = 0;
            let mut no_room = None;
            while taken < wanted && no_room.is_none() {
                match self.take(own, backing, wanted - taken) {
                    Ok((first, n)) => {
                        places[taken..taken + n].iter_mut().zip(first..).for_each(|(place, slot)| place.1 = slot);
                        taken += n;
                    }
                    Err(error) => no_room = Some(error),
                }
            }
            if taken > 0 {
                let written = self.write(own, backing, pages, &places[..taken], out);
                result = written.and(result);
            }
            if let Some(error) = no_room {
                return result.and(Err(error));
            }
        }
        result
    }

    /// The own file, created if need be.
    pub(super) fn own_file(&self) -> Result<(&File, &Backing), StoreError> {
        if !self.site.accepts(&self.health) || self.health.has_failed() {
            return Err(StoreError::Failed);
        }
        let own = self.tables.own.get().ok_or_else(|| self.health.no_room())?;
        if let Some(backing) = own.backing.get() {
            return Ok((own, backing));
        }
        // A forked child has no part of a block device of its own, and no file where the program has left the
        // directory: its pages go to the next device.
        if !self.site.makes_files() {
            return Err(self.health.no_room());
        }
        let _create = self.create.lock();
        if own.backing.get().is_none() {
            let made = self.site.make(self.seal.cipher.as_ref(), &self.io.rings, &self.health);
            if self.site.server.is_some() && made.is_err() {
                self.health.look_later();
                return Err(self.health.no_room());
            }
            let backing = made.map_err(|errno| self.health.fail("cannot create a file there", errno))?;
            // No other thread sets it: that takes the lock.
            let _ = own.backing.set(backing);
        }
        own.backing.get().map(|backing| (own, backing)).ok_or(StoreError::Failed)
    }

    /// Takes up to `max` consecutive slots of the own file, without values: (slot, how many).
    pub(super) fn take(&self, own: &File, backing: &Backing, max: usize) -> Result<(u64, usize), StoreError> {
        let end = own.slots.slots();
        let take = || own.slots.take_run(cpu::current(), max);
        take().or_else(|| self.grow(own, backing, end).then(take)?).ok_or_else(|| self.health.no_room())
    }

    /// Makes the own file, which had `end` slots, larger; whether it is.
    fn grow(&self, own: &File, backing: &Backing, end: u64) -> bool {
        if end >= self.slots_max || !self.health.may_look() {
            return false;
        }
        // Not a lock that loads take: they need not wait for the filesystem.
        let _create = self.create.lock();
        if own.slots.slots() > end {
            return true;
        }
        let whole = |slots: u64| slots / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64;
        let step = whole(self.slots_max / GROW_PART).clamp(CLUSTER_SLOTS as u64, GROW_SLOTS);
        let granted = self.site.grant(backing, end, step);
        let granted = whole(granted).min(self.slots_max);
        let granted = match self.sharing.get() {
            Some(shared) if granted > end => whole(shared(self.index, granted, self.slots_max)).max(end),
            _ => granted,
        };
        if granted <= end {
            self.health.look_later();
            return false;
        }
        if let Some(mirror) = backing.mirror() {
            let end = mirror.end.load(Relaxed);
            let step = granted.saturating_sub(end);
            mirror.end.store(self.site.grant(&mirror.file, end, step), Relaxed);
        }
        own.slots.grow(granted);
        true
    }

    /// There was no room; whether there may be by now without anything having been freed.
    pub(super) fn may_have_grown(&self) -> bool {
        // Room for more slots, or slots that the disk had no space for.
        let has_room = self.tables.own.get().is_some_and(|file| {
            let slots = file.slots.slots();
            (slots < self.slots_max || file.slots.in_use() + 1 < slots)
                && (file.backing.get().is_some() || self.site.makes_files())
        });
        has_room && self.health.may_look()
    }

    /// Books a failed write: the slot is never used again, or, if only the disk is full, given back.
    fn write_failed(&self, own: &File, slot: u64, errno: Errno) -> StoreError {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
            own.slots.give_back(slot);
            self.health.look_later();
            return self.health.no_room();
        }
        self.tables.inner.lock().bad.push(slot);
        self.health.write_failed(errno)
    }

    /// Writes pages (page number in `pages`, slot) in one batch and books each; one that fails is tried once more by
    /// itself. The last error, if there was one.
    pub(super) fn write(
        &self,
        own: &File,
        backing: &Backing,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
        out: &mut [Option<Entry>],
    ) -> Result<(), StoreError> {
        let counts = backing.store().is_some() || self.seal.cipher.is_some();
        let first = if counts { own.written.fetch_add(places.len() as u64, Relaxed) } else { 0 };
        let clear = |at: usize| pages[places[at].0].0;
        let seals = !backing.packs() || backing.mirror().is_some();
        let sealed = seals.then(|| self.seal.seal(backing, first, (0..places.len()).map(clear))).flatten();
        let content = |at: usize| sealed.as_ref().map_or_else(|| clear(at), |sealed| &sealed[at].0);
        let mut outcomes = [Transferred::Failed(Errno::IO); BATCH_MAX];
        match backing.store() {
            None => outcomes = self.io.write(backing, places, &content),
            Some(store) => {
                let page = |at| if store.packs() { clear(at) } else { content(at) };
                let leaving = (0..).zip(places).map(|(at, &(_, slot))| OutgoingPage {
                    slot,
                    count: first + at as u64,
                    page: page(at),
                });
                store.store(&leaving.collect::<Vec<_>>(), &mut outcomes[..places.len()]);
            }
        }
        self.write_mirror(backing, places, &outcomes, &content);
        let result = self.book_writes(own, pages, places, &outcomes, first, out);
        self.seal.recycle(sealed);
        result
    }

    /// Writes the second copy of pages that a server has confirmed, if the device keeps one. What cannot be written has
    /// none: what is in its place has another hash.
    fn write_mirror<'a>(
        &self,
        backing: &Backing,
        places: &[(usize, u64)],
        outcomes: &[Transferred],
        content: &dyn Fn(usize) -> &'a Page,
    ) {
        let Some(mirror) = backing.mirror() else { return };
        let end = mirror.end.load(Relaxed);
        let confirmed = |at: &usize| outcomes[*at] == Transferred::Done;
        let has_room = |at: &usize| places[*at].1 < end;
        let (mut which, mut kept, mut n) = ([0; BATCH_MAX], [(0, 0); BATCH_MAX], 0);
        for at in (0..places.len()).filter(confirmed).filter(has_room) {
            (which[n], kept[n]) = (at, places[at]);
            n += 1;
        }
        let copied = self.io.write(&mirror.file, &kept[..n], &|at| content(which[at]));
        let no_room = (0..places.len()).filter(confirmed).count() > n;
        let failed = copied[..n].iter().find_map(|copied| match copied {
            Transferred::Failed(errno) => Some(*errno),
            _ => None,
        });
        if let Some(errno) = failed.or(no_room.then_some(Errno::NOSPC)) {
            self.health.no_copies("the mirror cannot be written", errno);
        }
    }

    /// Books a batch of which each page's outcome is known. `first`: the number of the first of them.
    fn book_writes(
        &self,
        own: &File,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
        outcomes: &[Transferred],
        first: u64,
        out: &mut [Option<Entry>],
    ) -> Result<(), StoreError> {
        let (mut result, mut written) = (Ok(()), 0);
        for (at, (&(i, slot), outcome)) in places.iter().zip(outcomes).enumerate() {
            match *outcome {
                Transferred::Done => {
                    written += 1;
                    let value = self.tables.value(check_words(pages[i].1), first + at as u64);
                    own.slots.insert(slot, value);
                    out[i] = self.entry(own.id, slot);
                }
                Transferred::EndOfFile | Transferred::Gone => {
                    result = Err(self.write_failed(own, slot, Errno::IO));
                }
                Transferred::OutOfReach => result = Err(self.write_failed(own, slot, Errno::TIMEDOUT)),
                Transferred::Failed(errno) => result = Err(self.write_failed(own, slot, errno)),
            }
        }
        self.health.wrote(written, result);
        // A look at the slots of this batch before passed over them. With the fence in `next_to_drain`: either that one
        // saw them booked, or this one sees that the device has failed.
        fence(SeqCst);
        if self.health.has_failed() {
            let mut inner = self.tables.inner.lock();
            inner.late = true;
            self.tables.drain.drained.store(false, Relaxed);
        }
        result
    }
}
