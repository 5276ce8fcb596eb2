//! Writing pages to the own file: slots, the file's growth, one batch, and what a failure means.
//!
//! Locks: `create` while the file is made; `inner` for tables, never across I/O; `scratch` for an instant.

use super::table::FileSlot;
use super::*;

/// Space is asked for in steps of this many slots (64 MiB).
const GROW_SLOTS: u64 = 16 << 10;

const _: () = assert!(GROW_SLOTS.is_multiple_of(CLUSTER_SLOTS as u64));

/// Encrypted copies of the pages of one batch, and the count of the first.
struct Sealed {
    pages: Box<[Bounce]>,
    first: u64,
}

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
                match self.take(own, &backing, wanted - taken) {
                    Ok((first, n)) => {
                        places[taken..taken + n].iter_mut().zip(first..).for_each(|(place, slot)| place.1 = slot);
                        taken += n;
                    }
                    Err(error) => no_room = Some(error),
                }
            }
            if taken > 0 {
                let written = self.write(own, &backing, pages, &places[..taken], out);
                result = written.and(result);
            }
            if let Some(error) = no_room {
                return result.and(Err(error));
            }
        }
        result
    }

    /// The own file, created if need be.
    pub(super) fn own_file(&self) -> Result<(u8, Arc<Backing>), StoreError> {
        if self.failed.load(Relaxed) {
            return Err(StoreError::Failed);
        }
        let existing = || -> Result<(u8, Option<Arc<Backing>>), StoreError> {
            let inner = self.inner.lock();
            let own = inner.own.ok_or_else(|| self.no_room())?;
            let file = inner.files.get(usize::from(own)).and_then(Option::as_ref);
            Ok((own, file.and_then(|f| f.backing.clone())))
        };
        if let (own, Some(backing)) = existing()? {
            return Ok((own, backing));
        }
        // A forked child has no part of a block device of its own: its pages go to the next device.
        let dir = self.dir.as_ref().ok_or_else(|| self.no_room())?;
        let _create = self.create.lock();
        let (own, backing) = existing()?;
        if let Some(backing) = backing {
            return Ok((own, backing));
        }
        let made = dir.borrow().and_then(|dir| Backing::create_in(dir, self.use_tmpfile));
        let backing = Arc::new(made.map_err(|errno| self.fail("cannot create a file there", errno))?);
        if let Some(Some(file)) = self.inner.lock().files.get_mut(usize::from(own)) {
            file.backing = Some(backing.clone());
        }
        Ok((own, backing))
    }

    /// Takes up to `max` consecutive slots of the own file: (slot, how many).
    pub(super) fn take(&self, own: u8, backing: &Backing, max: usize) -> Result<(u64, usize), StoreError> {
        for may_grow in [true, false] {
            let mut inner = self.inner.lock();
            let epoch = inner.epoch;
            let retry_second = inner.retry_second;
            let Some(Some(file)) = inner.files.get_mut(usize::from(own)) else { return Err(StoreError::Full) };
            // Drain may look at it before it is written.
            let taken =
                file.slots.alloc_run(cpu::current(), max, FileSlot { epoch, pending: true, ..FileSlot::default() });
            if let Some(taken) = taken {
                return Ok(taken);
            }
            let end = file.slots.slots();
            drop(inner);
            if !may_grow || end >= self.slots_max || now_second() < retry_second {
                break;
            }
            // Outside of the lock: loads need not wait for the filesystem.
            let granted = open::grant(backing, end, GROW_SLOTS, self.keep_free);
            let granted = (granted / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64).min(self.slots_max);
            let mut inner = self.inner.lock();
            if granted <= end {
                inner.retry_second = now_second() + 1;
                break;
            }
            if let Some(Some(file)) = inner.files.get_mut(usize::from(own)) {
                file.slots.grow(granted);
            }
        }
        Err(self.no_room())
    }

    fn no_room(&self) -> StoreError {
        self.full.store(true, Relaxed);
        StoreError::Full
    }

    /// There was no room; whether there may be by now without anything having been freed.
    pub(super) fn may_have_grown(&self) -> bool {
        let inner = self.inner.lock();
        let own = inner.own.and_then(|own| inner.files.get(usize::from(own))?.as_ref());
        // Room for more slots, or slots that the disk had no space for.
        let has_room = own.is_some_and(|file| {
            let slots = file.slots.slots();
            (slots < self.slots_max || file.slots.in_use() + 1 < slots)
                && (file.backing.is_some() || self.dir.is_some())
        });
        has_room && inner.retry_second <= now_second()
    }

    /// Gives slots back that were not written.
    fn give_back(&self, own: u8, slots: impl Iterator<Item = u64>) {
        let mut inner = self.inner.lock();
        if let Some(Some(file)) = inner.files.get_mut(usize::from(own)) {
            slots.for_each(|slot| _ = file.slots.free(slot));
        }
    }

    /// Books a failed write: the slot is never used again, or, if only the disk is full, given back.
    fn write_failed(&self, own: u8, slot: u64, errno: Errno) -> StoreError {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
            self.give_back(own, std::iter::once(slot));
            self.inner.lock().retry_second = now_second() + 1;
            return self.no_room();
        }
        let mut inner = self.inner.lock();
        if let Some(Some(file)) = inner.files.get_mut(usize::from(own)) {
            file.slots.set(slot, FileSlot { bad: true, ..FileSlot::default() });
            inner.bad += 1;
        }
        drop(inner);
        self.write_errors.fetch_add(1, Relaxed);
        StoreError::Io(errno)
    }

    /// Writes pages (page number in `pages`, slot) in one batch and books each; one that fails is tried once more by
    /// itself. The last error, if there was one.
    pub(super) fn write(
        &self,
        own: u8,
        backing: &Backing,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
        out: &mut [Option<Entry>],
    ) -> Result<(), StoreError> {
        let sealed = self.seal(backing, pages, places);
        let content = |at: usize| match &sealed {
            Some(sealed) => &sealed.pages[at].0,
            None => pages[places[at].0].0,
        };
        let mut batch = Batch::new(Direction::Write);
        let mut numbers = [None; BATCH_MAX];
        for (at, (&(_, slot), number)) in places.iter().zip(&mut numbers).enumerate() {
            let (page, place) = (content(at), self.place_in(backing, slot));
            if !place.direct || aligned(page) {
                // SAFETY: the page is borrowed until after `run`, and a write does not change it.
                *number = unsafe { batch.push(&place, std::ptr::from_ref(page).cast_mut()) };
            }
        }
        self.rings.run(&mut batch, &mut || {});
        let mut result = Ok(());
        let mut written = [false; BATCH_MAX];
        for (at, ((&(_, slot), number), written)) in places.iter().zip(numbers).zip(&mut written).enumerate() {
            let mut outcome = number.map_or(Outcome::Failed(Errno::INVAL), |n| batch.outcome(n));
            if outcome != Outcome::Done {
                outcome = self.transfer_one(backing, slot, Direction::Write, &mut Bounce(*content(at)).0);
            }
            match outcome {
                Outcome::Done => *written = true,
                Outcome::EndOfFile => result = Err(self.write_failed(own, slot, Errno::IO)),
                Outcome::Failed(errno) => result = Err(self.write_failed(own, slot, errno)),
            }
        }
        let mut inner = self.inner.lock();
        let Some(Some(file)) = inner.files.get_mut(usize::from(own)) else { return Err(StoreError::Failed) };
        for (at, (&(i, slot), _)) in places.iter().zip(written).enumerate().filter(|(_, (_, written))| *written) {
            if let Some(record) = file.slots.get_mut(slot) {
                record.pending = false;
                record.check = check_words(pages[i].1);
                record.set_count(sealed.as_ref().map_or(0, |sealed| sealed.first + at as u64));
            }
            out[i] = Entry::new(self.index, u64::from(own) << PAGE_BITS | slot);
        }
        // Who looked at the slots of this batch before passed over them. Under the lock, as the look at them is: either that
        // one saw them booked, or this one sees that the device has failed.
        if self.failed.load(Relaxed) {
            inner.late = true;
            self.drained.store(false, Relaxed);
        }
        drop(inner);
        if let Some(sealed) = sealed {
            self.scratch.lock().push(sealed.pages);
        }
        // A batch is one failure: it may be over before the next.
        if written.contains(&true) {
            self.writes_failed.store(0, Relaxed);
        } else if let Err(StoreError::Io(errno)) = result
            && self.writes_failed.fetch_add(1, Relaxed) + 1 >= WRITE_ERRORS_MAX
        {
            self.fail("writes keep failing", errno);
        }
        result
    }

    /// Encrypts the pages of a batch into memory of the device's own; `None`: this device does not encrypt.
    fn seal(&self, backing: &Backing, pages: &[(&Page, u128)], places: &[(usize, u64)]) -> Option<Sealed> {
        let cipher = self.cipher.as_ref()?;
        let spare = self.scratch.lock().pop();
        let mut copies = spare.unwrap_or_else(|| (0..BATCH_MAX).map(|_| Bounce([0; PAGE_SIZE])).collect());
        let mut inner = self.inner.lock();
        let first = inner.written;
        inner.written += places.len() as u64;
        drop(inner);
        for (count, (&(i, _), copy)) in (first..).zip(places.iter().zip(copies.iter_mut())) {
            copy.0 = *pages[i].0;
            cipher.apply(backing.salt(), count, &mut copy.0);
        }
        Some(Sealed { pages: copies, first })
    }
}
