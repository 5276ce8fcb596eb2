//! A swap file.
//!
//! The directory is opened when the device is made, the file in it at the first store (unnamed, so that nothing
//! stays behind), and both stay open: a later chroot or setuid of the program does not matter.
//!
//! ```text
//!  slot of an entry:  | file id: 8 | page of the file: 32 |        (page 0 is the header, never a slot)
//! ```
//!
//! # Forks
//! A forked child shares the open file, but has its own copy of the tables. What was in use at the fork is *frozen*:
//! the parent may forget it, but must not overwrite it while the child can need it; the child must not write at all.
//!
//! * Parent: fork number `e` opens *lease* `e`. A slot taken at epoch `s` and freed at epoch `f` is covered by the
//!   leases `s <= e < f` that are still open; while there is one, the slot is *deferred*: not in use, not free.
//! * Child: its parent's file (and the files that was given) become *inherited*: read-only, forgotten with their
//!   last slot. New pages go to a file of its own with the next free id, so old entries stay valid.
//!
//! Callers: `space`, and `zram` for writeback. Locks: `create` (held while the file is made), then `inner` (tables;
//! never held across I/O). I/O uses a counted reference to the file, so it may run while slots come and go.

mod backing;
mod open;
mod table;
#[cfg(test)]
mod tests;

use super::io::inject::Injector;
use super::io::{BATCH_MAX, Batch, Direction, Outcome, Place, Rings};
use super::{
    Caps, DeviceError, Entry, ErrnoText, LoadError, Page, StoreError, SwapDevice, Usage, check_value, check_words, lock,
};
use crate::PAGE_SIZE;
use crate::content::ContentKey;
use crate::sys::cpu;
use backing::{Backing, Fd};
use farpage_swap::cluster::CLUSTER_SLOTS;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use table::{FileSlot, Inner};

/// Bits of the page number in a slot.
const PAGE_BITS: u32 = 32;
/// Space is asked for in steps of this many slots (64 MiB).
const GROW_SLOTS: u64 = 16 << 10;
/// After this many failed transfers in a row the device takes no more pages.
const ERRORS_MAX: u32 = 16;

/// Swap in a file.
pub struct FileDevice {
    index: u8,
    name: String,
    dir: Fd,
    caps: Caps,
    /// Slots of a file at most, header included.
    slots_max: u64,
    use_tmpfile: bool,
    create: Mutex<()>,
    inner: Mutex<Inner>,
    full: AtomicBool,
    failed: AtomicBool,
    warning: Mutex<Option<String>>,
    write_errors: AtomicU64,
    errors_in_row: AtomicU32,
    read_errors: AtomicU64,
    bad_frees: AtomicU64,
    /// How the I/O is done; shared by the devices of a space.
    rings: Arc<Rings>,
    /// With it, what is read is compared with its check value.
    key: OnceLock<ContentKey>,
    injector: Option<Arc<Injector>>,
}

impl FileDevice {
    /// The device for `path`: a directory (an unnamed file in it), or an empty file or swap file of ours.
    /// `index`: the device number in its entries. `size`: most bytes of the file, header page included.
    ///
    /// # Errors
    /// The path does not exist, is something else, or belongs to somebody else; the message says what to do.
    pub fn open(index: u8, path: &Path, size: Option<u64>) -> Result<FileDevice, DeviceError> {
        let opened = open::open(path, size)?;
        Ok(FileDevice {
            index,
            name: opened.name,
            dir: opened.dir,
            caps: Caps { rotational: opened.rotational, ..Caps::default() },
            slots_max: size.map_or(1 << PAGE_BITS, |bytes| (bytes / PAGE_SIZE as u64).min(1 << PAGE_BITS)),
            use_tmpfile: true,
            create: Mutex::new(()),
            inner: Mutex::new(Inner::new(opened.file)),
            full: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            warning: Mutex::new(opened.warning),
            write_errors: AtomicU64::new(0),
            errors_in_row: AtomicU32::new(0),
            read_errors: AtomicU64::new(0),
            bad_frees: AtomicU64::new(0),
            rings: Arc::new(Rings::default()),
            key: OnceLock::new(),
            injector: None,
        })
    }

    /// The same device, doing its I/O through `rings`.
    pub fn with_rings(self, rings: Arc<Rings>) -> FileDevice {
        FileDevice { rings, ..self }
    }

    /// The same device with faults in its I/O, for tests.
    pub fn with_faults(self, injector: Arc<Injector>) -> FileDevice {
        FileDevice { injector: Some(injector), ..self }
    }

    /// The same device with a priority to be shown.
    pub fn with_priority(self, priority: i32) -> FileDevice {
        FileDevice { caps: Caps { priority, ..self.caps }, ..self }
    }

    /// Number of this device in its entries.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// The own file, created if need be.
    fn own_file(&self) -> Result<(u8, Arc<Backing>), StoreError> {
        if self.failed.load(Relaxed) {
            return Err(StoreError::Failed);
        }
        let existing = || -> Result<(u8, Option<Arc<Backing>>), StoreError> {
            let inner = lock(&self.inner);
            let own = inner.own.ok_or(StoreError::Full)?;
            let file = inner.files.get(usize::from(own)).and_then(Option::as_ref);
            Ok((own, file.and_then(|f| f.backing.clone())))
        };
        if let (own, Some(backing)) = existing()? {
            return Ok((own, backing));
        }
        let _create = lock(&self.create);
        let (own, backing) = existing()?;
        if let Some(backing) = backing {
            return Ok((own, backing));
        }
        let made = self.dir.borrow().and_then(|dir| Backing::create_in(dir, self.use_tmpfile));
        let backing = Arc::new(made.map_err(|errno| self.fail("cannot create a file there", errno))?);
        if let Some(Some(file)) = lock(&self.inner).files.get_mut(usize::from(own)) {
            file.backing = Some(backing.clone());
        }
        Ok((own, backing))
    }

    /// Takes no more pages from now on, and says so once.
    fn fail(&self, what: &str, errno: Errno) -> StoreError {
        if !self.failed.swap(true, Relaxed) {
            let text = format!("swap device {:?}: {what}: {}; it takes no more pages", self.name, ErrnoText(errno));
            lock(&self.warning).get_or_insert(text);
        }
        StoreError::Failed
    }

    /// Takes up to `max` consecutive slots of the own file: (slot, how many).
    fn take(&self, own: u8, backing: &Backing, max: usize) -> Result<(u64, usize), StoreError> {
        for may_grow in [true, false] {
            let mut inner = lock(&self.inner);
            let epoch = inner.epoch;
            let retry_second = inner.retry_second;
            let Some(Some(file)) = inner.files.get_mut(usize::from(own)) else { return Err(StoreError::Full) };
            let taken = file.slots.alloc_run(cpu::current(), max, FileSlot { epoch, ..FileSlot::default() });
            if let Some(taken) = taken {
                return Ok(taken);
            }
            let end = file.slots.slots();
            drop(inner);
            if !may_grow || end >= self.slots_max || now_second() < retry_second {
                break;
            }
            // Outside of the lock: loads need not wait for the filesystem.
            let granted = open::grant(backing, end, GROW_SLOTS) / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64;
            let granted = granted.min(self.slots_max);
            let mut inner = lock(&self.inner);
            if granted <= end {
                inner.retry_second = now_second() + 1;
                break;
            }
            if let Some(Some(file)) = inner.files.get_mut(usize::from(own)) {
                file.slots.grow(granted);
            }
        }
        self.full.store(true, Relaxed);
        Err(StoreError::Full)
    }

    /// Gives slots back that were not written.
    fn give_back(&self, own: u8, slots: impl Iterator<Item = u64>) {
        let mut inner = lock(&self.inner);
        if let Some(Some(file)) = inner.files.get_mut(usize::from(own)) {
            slots.for_each(|slot| _ = file.slots.free(slot));
        }
    }

    /// Books a failed write: the slot is never used again, or, if only the disk is full, given back.
    fn write_failed(&self, own: u8, slot: u64, errno: Errno) -> StoreError {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
            self.give_back(own, std::iter::once(slot));
            lock(&self.inner).retry_second = now_second() + 1;
            self.full.store(true, Relaxed);
            return StoreError::Full;
        }
        let mut inner = lock(&self.inner);
        if let Some(Some(file)) = inner.files.get_mut(usize::from(own)) {
            file.slots.set(slot, FileSlot { bad: true, ..FileSlot::default() });
            inner.bad += 1;
        }
        drop(inner);
        self.write_errors.fetch_add(1, Relaxed);
        if self.errors_in_row.fetch_add(1, Relaxed) + 1 >= ERRORS_MAX {
            self.fail("writes keep failing", errno);
        }
        StoreError::Io(errno)
    }

    /// Writes pages (page number in `pages`, slot) in one batch and books each; one that fails is tried once more by
    /// itself. The last error, if there was one.
    fn write(
        &self,
        own: u8,
        backing: &Backing,
        pages: &[(&Page, u128)],
        places: &[(usize, u64)],
        out: &mut [Option<Entry>],
    ) -> Result<(), StoreError> {
        let mut batch = Batch::new(Direction::Write);
        let place = |slot| self.place_in(backing, slot);
        let mut numbers = [None; BATCH_MAX];
        for (&(i, slot), number) in places.iter().zip(&mut numbers) {
            let (page, place) = (pages[i].0, place(slot));
            if !place.direct || aligned(page) {
                // SAFETY: the page is borrowed until after `run`, and a write does not change it.
                *number = unsafe { batch.push(&place, std::ptr::from_ref(page).cast_mut()) };
            }
        }
        self.rings.run(&mut batch, &mut || {});
        let mut result = Ok(());
        let mut written = [false; BATCH_MAX];
        for ((&(i, slot), number), written) in places.iter().zip(numbers).zip(&mut written) {
            let mut outcome = number.map_or(Outcome::Failed(Errno::INVAL), |n| batch.outcome(n));
            if outcome != Outcome::Done {
                outcome = self.transfer_one(backing, slot, Direction::Write, &mut Bounce(*pages[i].0).0);
            }
            match outcome {
                Outcome::Done => *written = true,
                Outcome::EndOfFile => result = Err(self.write_failed(own, slot, Errno::IO)),
                Outcome::Failed(errno) => result = Err(self.write_failed(own, slot, errno)),
            }
        }
        let mut inner = lock(&self.inner);
        let Some(Some(file)) = inner.files.get_mut(usize::from(own)) else { return Err(StoreError::Failed) };
        for (&(i, slot), _) in places.iter().zip(written).filter(|(_, written)| *written) {
            if let Some(record) = file.slots.get_mut(slot) {
                record.check = check_words(pages[i].1);
            }
            out[i] = Entry::new(self.index, u64::from(own) << PAGE_BITS | slot);
        }
        drop(inner);
        if written.contains(&true) {
            self.errors_in_row.store(0, Relaxed);
        }
        result
    }

    /// Transfers one page, aligned; switches O_DIRECT off if that is what the kernel minds.
    fn transfer_one(&self, backing: &Backing, slot: u64, direction: Direction, page: &mut Page) -> Outcome {
        for last in [false, true] {
            let mut batch = Batch::new(direction);
            let place = self.place_in(backing, slot);
            // SAFETY: the page is borrowed mutably until after `run`.
            unsafe { batch.push(&place, page) };
            self.rings.run(&mut batch, &mut || {});
            match batch.outcome(0) {
                Outcome::Failed(Errno::INVAL) if !last && backing.give_up_direct().is_ok() => {}
                outcome => return outcome,
            }
        }
        Outcome::Failed(Errno::INVAL)
    }

    fn place_in(&self, backing: &Backing, slot: u64) -> Place {
        Place {
            fd: backing.fd.raw().unwrap_or(-1),
            at: slot * PAGE_SIZE as u64,
            direct: backing.is_direct(),
            injector: self.injector.clone(),
        }
    }

    /// The file and the page in it of an entry in use.
    fn find(&self, entry: Entry) -> Option<(Arc<Backing>, u64)> {
        let (id, page) = split(entry)?;
        let inner = lock(&self.inner);
        let file = inner.files.get(id)?.as_ref()?;
        file.slots.get(page).filter(FileSlot::is_used)?;
        file.backing.clone().map(|backing| (backing, page))
    }

    /// Counts what keeps failing.
    fn read_failed(&self, error: LoadError) -> LoadError {
        self.read_errors.fetch_add(1, Relaxed);
        if self.errors_in_row.fetch_add(1, Relaxed) + 1 >= ERRORS_MAX {
            self.fail("reads keep failing", if let LoadError::Io { errno, .. } = error { errno } else { Errno::IO });
        }
        error
    }
}

/// A page to go through when the caller's is not aligned.
#[repr(align(4096))]
struct Bounce(Page);

fn aligned(page: &Page) -> bool {
    page.as_ptr().addr().is_multiple_of(PAGE_SIZE)
}

impl SwapDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn accepts(&self) -> bool {
        !self.failed.load(Relaxed) && (!self.full.load(Relaxed) || lock(&self.inner).retry_second <= now_second())
    }

    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        let mut out = [None];
        let result = self.store_batch(&[(page, check)], &mut out);
        out[0].ok_or_else(|| result.err().unwrap_or(StoreError::Full))
    }

    fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
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

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let (backing, page) = self.find(entry).ok_or(LoadError::NotInUse { device, slot })?;
        let outcome = if aligned(into) || !backing.is_direct() {
            self.transfer_one(&backing, page, Direction::Read, into)
        } else {
            let mut bounce = Bounce([0; PAGE_SIZE]);
            let outcome = self.transfer_one(&backing, page, Direction::Read, &mut bounce.0);
            into.copy_from_slice(&bounce.0);
            outcome
        };
        match outcome {
            Outcome::Done if self.is_right(entry, into) => {
                if self.errors_in_row.load(Relaxed) != 0 {
                    self.errors_in_row.store(0, Relaxed);
                }
                Ok(())
            }
            Outcome::Done => Err(self.read_failed(LoadError::Corrupt { device, slot })),
            Outcome::EndOfFile => Err(self.read_failed(LoadError::ShortRead { device, slot })),
            Outcome::Failed(errno) => Err(self.read_failed(LoadError::Io { errno, device, slot })),
        }
    }

    fn place(&self, entry: Entry) -> Option<Place> {
        let (backing, page) = self.find(entry)?;
        Some(self.place_in(&backing, page))
    }

    fn is_right(&self, entry: Entry, page: &Page) -> bool {
        self.key.get().is_none_or(|key| self.check(entry) == Some(key.hash(page)))
    }

    fn check_contents(&self, key: ContentKey) {
        let _ = self.key.set(key);
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        let (id, page) = split(entry)?;
        let inner = lock(&self.inner);
        let slot = inner.files.get(id)?.as_ref()?.slots.get(page)?;
        slot.is_used().then(|| check_value(slot.check))
    }

    fn free(&self, entry: Entry) -> bool {
        let mut inner = lock(&self.inner);
        let freed = split(entry).is_some_and(|(id, page)| inner.free(id, page));
        drop(inner);
        if freed {
            self.full.store(false, Relaxed);
        } else {
            self.bad_frees.fetch_add(1, Relaxed);
        }
        freed
    }

    fn add_usage(&self, usage: &mut Usage) {
        let inner = lock(&self.inner);
        let files = inner.files.iter().flatten();
        let kept = inner.deferred.len() as u64 + inner.bad;
        let slots = files.clone().map(|f| f.slots.in_use()).sum::<u64>() - kept;
        usage.slots_in_use += slots;
        usage.file_bytes += slots * PAGE_SIZE as u64;
        usage.deferred_slots += inner.deferred.len() as u64;
        usage.bad_slots += inner.bad;
        usage.meta_bytes += files.map(|f| f.slots.meta_bytes() as u64).sum::<u64>();
        usage.meta_bytes += (inner.deferred.capacity() * size_of::<(u64, u32)>()) as u64;
        drop(inner);
        usage.devices_full += u32::from(self.full.load(Relaxed));
        usage.devices_failed += u32::from(self.failed.load(Relaxed));
        usage.write_errors += self.write_errors.load(Relaxed);
        usage.read_errors += self.read_errors.load(Relaxed);
        usage.bad_frees += self.bad_frees.load(Relaxed);
    }

    fn fork_parent(&self) {
        let mut inner = lock(&self.inner);
        let epoch = inner.epoch;
        inner.leases.push(epoch);
        inner.epoch += 1;
    }

    fn end_lease(&self, lease: u32) {
        lock(&self.inner).end_lease(lease);
        self.full.store(false, Relaxed);
    }

    fn fork_child(&self, fds: &[(RawFd, RawFd)]) {
        self.rings.fork_child();
        self.dir.replace(fds, true);
        let mut inner = lock(&self.inner);
        for backing in inner.files.iter().flatten().filter_map(|f| f.backing.as_ref()) {
            backing.fd.replace(fds, true);
        }
        inner.become_child();
        self.full.store(false, Relaxed);
        self.failed.store(false, Relaxed);
        self.errors_in_row.store(0, Relaxed);
    }

    fn fds(&self, out: &mut Vec<RawFd>) {
        out.extend(self.dir.raw());
        let inner = lock(&self.inner);
        out.extend(inner.files.iter().flatten().filter_map(|f| f.backing.as_ref()?.fd.raw()));
    }

    fn replace_fds(&self, fds: &[(RawFd, RawFd)]) {
        self.dir.replace(fds, false);
        let inner = lock(&self.inner);
        for backing in inner.files.iter().flatten().filter_map(|f| f.backing.as_ref()) {
            backing.fd.replace(fds, false);
        }
    }

    fn take_warning(&self) -> Option<String> {
        lock(&self.warning).take()
    }
}

/// (file id, page of the file) of an entry of this device.
fn split(entry: Entry) -> Option<(usize, u64)> {
    let slot = entry.slot();
    Some(((slot >> PAGE_BITS) as usize, slot & ((1 << PAGE_BITS) - 1))).filter(|&(_, page)| page != 0)
}

/// Seconds of the monotonic clock.
fn now_second() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec
}

const _: () = assert!(GROW_SLOTS.is_multiple_of(CLUSTER_SLOTS as u64));
