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

use super::{
    Caps, DeviceError, Entry, ErrnoText, LoadError, Page, StoreError, SwapDevice, Usage, check_value, check_words, lock,
};
use crate::PAGE_SIZE;
use crate::sys::cpu;
use backing::{Backing, Fd, RUN_MAX};
use farpage_swap::cluster::CLUSTER_SLOTS;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use table::{FileSlot, Inner};

/// Bits of the page number in a slot.
const PAGE_BITS: u32 = 32;
/// Space is asked for in steps of this many slots (64 MiB).
const GROW_SLOTS: u64 = 16 << 10;
/// After this many failed writes in a row the device takes no more pages.
const WRITE_ERRORS_MAX: u32 = 16;

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
    write_errors_in_row: AtomicU32,
    read_errors: AtomicU64,
    bad_frees: AtomicU64,
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
            caps: Caps { synchronous: false, rotational: opened.rotational },
            slots_max: size.map_or(1 << PAGE_BITS, |bytes| (bytes / PAGE_SIZE as u64).min(1 << PAGE_BITS)),
            use_tmpfile: true,
            create: Mutex::new(()),
            inner: Mutex::new(Inner::new(opened.file)),
            full: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            warning: Mutex::new(opened.warning),
            write_errors: AtomicU64::new(0),
            write_errors_in_row: AtomicU32::new(0),
            read_errors: AtomicU64::new(0),
            bad_frees: AtomicU64::new(0),
        })
    }

    /// Number of this device in its entries.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Whether a store has a chance.
    pub fn accepts(&self) -> bool {
        !self.failed.load(Relaxed) && (!self.full.load(Relaxed) || lock(&self.inner).retry_second <= now_second())
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

    /// Books the end of a write of `n` slots from `first`.
    fn written(
        &self,
        own: u8,
        first: u64,
        pages: &[(&Page, u128)],
        result: Result<(), Errno>,
    ) -> Result<(), StoreError> {
        let mut inner = lock(&self.inner);
        let Some(Some(file)) = inner.files.get_mut(usize::from(own)) else { return Err(StoreError::Failed) };
        for (slot, &(_, check)) in (first..).zip(pages) {
            match result {
                Ok(()) => file.slots.get_mut(slot).into_iter().for_each(|s| s.check = check_words(check)),
                Err(_) => {
                    file.slots.free(slot);
                }
            }
        }
        drop(inner);
        match result {
            Ok(()) => {
                self.write_errors_in_row.store(0, Relaxed);
                Ok(())
            }
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                lock(&self.inner).retry_second = now_second() + 1;
                self.full.store(true, Relaxed);
                Err(StoreError::Full)
            }
            Err(errno) => {
                self.write_errors.fetch_add(1, Relaxed);
                if self.write_errors_in_row.fetch_add(1, Relaxed) + 1 >= WRITE_ERRORS_MAX {
                    self.fail("writes keep failing", errno);
                }
                Err(StoreError::Io(errno))
            }
        }
    }

    /// Stores `pages` (64 at most) in one run if there is one; how many were stored.
    fn store_run(&self, pages: &[(&Page, u128)]) -> Result<(Entry, usize), StoreError> {
        let (own, backing) = self.own_file()?;
        let (first, n) = self.take(own, &backing, pages.len().min(RUN_MAX))?;
        let result = backing.write_run(first, &pages[..n]);
        self.written(own, first, &pages[..n], result)?;
        let entry = Entry::new(self.index, u64::from(own) << PAGE_BITS | first).ok_or(StoreError::Full)?;
        Ok((entry, n))
    }

    /// The file and the page in it of an entry whose `n` slots are all in use.
    fn find(&self, entry: Entry, n: usize) -> Option<(Arc<Backing>, u64)> {
        let (id, page) = split(entry)?;
        let inner = lock(&self.inner);
        let file = inner.files.get(id)?.as_ref()?;
        let used = (page..page + n as u64).all(|p| file.slots.get(p).is_some_and(|s| !s.deferred));
        used.then(|| file.backing.clone()).flatten().map(|backing| (backing, page))
    }
}

impl SwapDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        self.store_run(&[(page, check)]).map(|(entry, _)| entry)
    }

    fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let Some(&any) = pages.first() else { return Ok(()) };
        let mut at = 0;
        loop {
            // The next pages that still need a place, side by side.
            let mut wanted = [any; RUN_MAX];
            let mut places = [0; RUN_MAX];
            let mut n = 0;
            while at < pages.len().min(out.len()) && n < RUN_MAX {
                if out[at].is_none() {
                    (wanted[n], places[n]) = (pages[at], at);
                    n += 1;
                }
                at += 1;
            }
            if n == 0 {
                return Ok(());
            }
            let mut done = 0;
            while done < n {
                let (first, stored) = self.store_run(&wanted[done..n])?;
                for (i, &place) in places[done..done + stored].iter().enumerate() {
                    out[place] = first.offset(i);
                }
                done += stored;
            }
        }
    }

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        self.load_run(entry, &mut [into])
    }

    fn load_run(&self, first: Entry, into: &mut [&mut Page]) -> Result<(), LoadError> {
        let (device, slot) = (self.index, first.slot());
        let found = self.find(first, into.len());
        let (backing, page) = found.ok_or(LoadError::NotInUse { device, slot })?;
        let result = match backing.read_run(page, into) {
            Ok(n) if n == into.len() => return Ok(()),
            Ok(n) => LoadError::ShortRead { device, slot: slot + n as u64 },
            Err(errno) => LoadError::Io { errno, device, slot },
        };
        self.read_errors.fetch_add(1, Relaxed);
        Err(result)
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        let (id, page) = split(entry)?;
        let inner = lock(&self.inner);
        let slot = inner.files.get(id)?.as_ref()?.slots.get(page)?;
        (!slot.deferred).then(|| check_value(slot.check))
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
        let slots = files.clone().map(|f| f.slots.in_use()).sum::<u64>() - inner.deferred.len() as u64;
        usage.slots_in_use += slots;
        usage.file_bytes += slots * PAGE_SIZE as u64;
        usage.deferred_slots += inner.deferred.len() as u64;
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
        self.dir.replace(fds, true);
        let mut inner = lock(&self.inner);
        for backing in inner.files.iter().flatten().filter_map(|f| f.backing.as_ref()) {
            backing.fd.replace(fds, true);
        }
        inner.become_child();
        self.full.store(false, Relaxed);
        self.failed.store(false, Relaxed);
        self.write_errors_in_row.store(0, Relaxed);
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
