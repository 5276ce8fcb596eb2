//! Writing pages to the own file: slots, the file's growth, one batch, and what a failure means.
//!
//! Locks: `create` while the file is made or grows; `scratch` for an instant; `inner` only for slots that failed, and
//! on a device that has failed. None across the I/O of pages.

use super::table::FileSlot;
use super::*;

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
        if !self.server_accepts() || self.failed.load(Relaxed) {
            return Err(StoreError::Failed);
        }
        let own = self.own.get().ok_or_else(|| self.no_room())?;
        if let Some(backing) = own.backing.get() {
            return Ok((own, backing));
        }
        // A forked child has no part of a block device of its own, and no file where the program has left the
        // directory: its pages go to the next device.
        if !self.makes_files() {
            return Err(self.no_room());
        }
        let _create = self.create.lock();
        if own.backing.get().is_none() {
            let made = self.new_file();
            if self.server.is_some() && made.is_err() {
                self.retry_second.store(now_second() + 1, Relaxed);
                return Err(self.no_room());
            }
            let backing = made.map_err(|errno| self.fail("cannot create a file there", errno))?;
            // Nobody else sets it: that takes the lock.
            let _ = own.backing.set(backing);
        }
        own.backing.get().map(|backing| (own, backing)).ok_or(StoreError::Failed)
    }

    /// Takes up to `max` consecutive slots of the own file, without values: (slot, how many).
    pub(super) fn take(&self, own: &File, backing: &Backing, max: usize) -> Result<(u64, usize), StoreError> {
        let end = own.slots.slots();
        let take = || own.slots.take_run(cpu::current(), max);
        take().or_else(|| self.grow(own, backing, end).then(take)?).ok_or_else(|| self.no_room())
    }

    /// Makes the own file, which had `end` slots, larger; whether it is.
    fn grow(&self, own: &File, backing: &Backing, end: u64) -> bool {
        if end >= self.slots_max || now_second() < self.retry_second.load(Relaxed) {
            return false;
        }
        // Not a lock that loads take: they need not wait for the filesystem.
        let _create = self.create.lock();
        if own.slots.slots() > end {
            return true;
        }
        let whole = |slots: u64| slots / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64;
        let step = whole(self.slots_max / GROW_PART).clamp(CLUSTER_SLOTS as u64, GROW_SLOTS);
        let granted = open::grant(backing, end, step, self.keep_free);
        let granted = whole(granted).min(self.slots_max);
        let granted = match self.sharing.get() {
            Some(shared) if granted > end => whole(shared(self.index, granted, self.slots_max)).max(end),
            _ => granted,
        };
        if granted <= end {
            self.retry_second.store(now_second() + 1, Relaxed);
            return false;
        }
        if let Some(mirror) = backing.mirror() {
            let end = mirror.end.load(Relaxed);
            let step = granted.saturating_sub(end);
            mirror.end.store(open::grant(&mirror.file, end, step, self.keep_free), Relaxed);
        }
        own.slots.grow(granted);
        true
    }

    fn no_room(&self) -> StoreError {
        self.full.store(true, Relaxed);
        StoreError::Full
    }

    /// There was no room; whether there may be by now without anything having been freed.
    pub(super) fn may_have_grown(&self) -> bool {
        // Room for more slots, or slots that the disk had no space for.
        let has_room = self.own.get().is_some_and(|file| {
            let slots = file.slots.slots();
            (slots < self.slots_max || file.slots.in_use() + 1 < slots)
                && (file.backing.get().is_some() || self.makes_files())
        });
        has_room && self.retry_second.load(Relaxed) <= now_second()
    }

    /// Books a failed write: the slot is never used again, or, if only the disk is full, given back.
    fn write_failed(&self, own: &File, slot: u64, errno: Errno) -> StoreError {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
            own.slots.give_back(slot);
            self.retry_second.store(now_second() + 1, Relaxed);
            return self.no_room();
        }
        self.inner.lock().bad.push(slot);
        self.write_errors.fetch_add(1, Relaxed);
        StoreError::Io(errno)
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
        if let Some(store) = backing.store() {
            return self.write_remote(own, backing, store.as_ref(), pages, places, out);
        }
        let first = self.cipher.as_ref().map(|_| own.written.fetch_add(places.len() as u64, Relaxed));
        let sealed = first.and_then(|first| self.seal(backing, first, pages, places));
        let content = |at: usize| match &sealed {
            Some(sealed) => &sealed[at].0,
            None => pages[places[at].0].0,
        };
        let outcomes = self.write_pages(backing, places, &content);
        let result = self.book_writes(own, pages, places, &outcomes, first, out);
        self.scratch.lock().extend(sealed);
        result
    }

    /// Writes pages to their places in one batch; one that fails is tried once more by itself.
    fn write_pages<'a>(
        &self,
        backing: &Backing,
        places: &[(usize, u64)],
        content: &dyn Fn(usize) -> &'a Page,
    ) -> [Transferred; BATCH_MAX] {
        let mut batch = Batch::new(Direction::Write);
        let mut numbers = [None; BATCH_MAX];
        for (at, (&(_, slot), number)) in places.iter().zip(&mut numbers).enumerate() {
            let (page, place) = (content(at), self.place_in(backing, slot, 0));
            if !place.is_direct() || aligned(page) {
                // SAFETY: the page is borrowed until after `run`, and a write does not change it.
                *number = unsafe { batch.push(&place, std::ptr::from_ref(page).cast_mut()) };
            }
        }
        self.rings.run(&mut batch, &mut || {});
        let mut outcomes = [Transferred::Failed(Errno::INVAL); BATCH_MAX];
        for (at, (&(_, slot), number)) in places.iter().zip(numbers).enumerate() {
            outcomes[at] = number.map_or(outcomes[at], |n| batch.outcome(n));
            if outcomes[at] != Transferred::Done {
                let page = &mut Bounce(*content(at)).0;
                outcomes[at] = self.transfer_one(backing, (slot, 0), Direction::Write, page, false);
            }
        }
        outcomes
    }

    /// Writes the second copy of pages that a server has confirmed, if the device keeps one. What cannot be written has
    /// none: what is in its place has another hash.
    pub(super) fn write_mirror<'a>(
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
        let copied = self.write_pages(&mirror.file, &kept[..n], &|at| content(which[at]));
        let no_room = (0..places.len()).filter(confirmed).count() > n;
        let failed = copied[..n].iter().find_map(|copied| match copied {
            Transferred::Failed(errno) => Some(*errno),
            _ => None,
        });
        if let Some(errno) = failed.or(no_room.then_some(Errno::NOSPC)) {
            self.no_copies("the mirror cannot be written", errno);
        }
    }

    /// Some pages are on the server only, which is said once.
    pub(super) fn no_copies(&self, what: &'static str, errno: Errno) {
        if !self.mirror_failed.swap(true, Relaxed) {
            self.warning.lock().get_or_insert(Warning::NoCopy(what, errno));
        }
    }

    /// Books a batch of which each page's outcome is known. `first`: the number of the first of them.
    pub(super) fn book_writes(
        &self,
        own: &File,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
        outcomes: &[Transferred],
        first: Option<u64>,
        out: &mut [Option<Entry>],
    ) -> Result<(), StoreError> {
        let (mut result, mut written) = (Ok(()), 0);
        for (at, (&(i, slot), outcome)) in places.iter().zip(outcomes).enumerate() {
            match *outcome {
                Transferred::Done => {
                    written += 1;
                    let count = first.map_or(0, |first| first + at as u64);
                    let (check, epoch) = (check_words(pages[i].1), self.epoch.load(Relaxed));
                    own.slots.insert(slot, FileSlot { check, epoch, count, ..FileSlot::default() });
                    out[i] = Entry::new(self.index, u64::from(own.id) << PAGE_BITS | slot);
                }
                Transferred::EndOfFile | Transferred::Gone => {
                    result = Err(self.write_failed(own, slot, Errno::IO));
                }
                Transferred::OutOfReach => result = Err(self.write_failed(own, slot, Errno::TIMEDOUT)),
                Transferred::Failed(errno) => result = Err(self.write_failed(own, slot, errno)),
            }
        }
        self.transfers.written.fetch_add(written, Relaxed);
        // Who looked at the slots of this batch before passed over them. With the fence in `next_to_drain`: either that
        // one saw them booked, or this one sees that the device has failed.
        fence(SeqCst);
        if self.failed.load(Relaxed) {
            let mut inner = self.inner.lock();
            inner.late = true;
            self.drained.store(false, Relaxed);
        }
        // A batch is one failure: it may be over before the next.
        if written > 0 {
            self.writes_failed.store(0, Relaxed);
        } else if let Err(StoreError::Io(errno)) = result
            && errno != Errno::TIMEDOUT
            && self.writes_failed.fetch_add(1, Relaxed) + 1 >= WRITE_ERRORS_MAX
        {
            self.fail("writes keep failing", errno);
        }
        result
    }

    /// Encrypts the pages of a batch, numbered from `first` on, into memory of the device's own; `None`: this device does
    /// not encrypt.
    pub(super) fn seal(
        &self,
        backing: &Backing,
        first: u64,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
    ) -> Option<Box<[Bounce]>> {
        let cipher = self.cipher.as_ref()?;
        let spare = self.scratch.lock().pop();
        let mut copies = spare.unwrap_or_else(|| (0..BATCH_MAX).map(|_| Bounce([0; PAGE_SIZE])).collect());
        for (count, (&(i, _), copy)) in (first..).zip(places.iter().zip(copies.iter_mut())) {
            copy.0 = *pages[i].0;
            cipher.apply(backing.salt(), count, &mut copy.0);
        }
        Some(copies)
    }
}
