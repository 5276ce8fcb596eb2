//! The swap devices in priority order: what the engine calls.
//!
//! A page goes to the first device that takes it; a failed write, a full device or a page that does not compress
//! means the next one. An incompressible page that no other device takes is stored as it is by the first device that
//! refused it. A page that nobody takes stays in memory ([`StoreError::Full`]).
//!
//! Priorities: a higher `prio` first; devices without one come after those with `prio >= 0`, in the order given;
//! equal ones in the order given.
//!
//! No locks of its own; the list of devices does not change after `build`.

#[cfg(test)]
mod tests;

use super::file::FileDevice;
use super::io::inject::{Faults, Injector};
use super::io::{BATCH_MAX, Batch, Direction, Outcome, Rings};
use super::pool::{Pool, SPAN_BYTES};
use super::ram::Ram;
use super::zram::Zram;
use super::{DeviceError, Entry, LoadError, Page, StoreError, SwapDevice, Usage};
use crate::PAGE_SIZE;
use crate::conf::SwapSpec;
use crate::content::ContentKey;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Pages moved on when a pool is full and a page wants in.
const WRITEBACK_FOR_ROOM: usize = 32;
/// A read is tried this many times.
const READ_TRIES: usize = 3;

/// All swap devices of one engine.
pub struct SwapSpace {
    /// Priority order; the position is the device number.
    devices: Vec<Arc<dyn SwapDevice>>,
    zrams: Vec<Arc<Zram>>,
    rams: Vec<Arc<Ram>>,
    /// Number of the next fork; the same for every device.
    next_lease: AtomicU32,
    /// How many devices come before the first queued one.
    first_queued: usize,
    rings: Arc<Rings>,
    /// Pages that a batch did not bring (in order).
    queued_failures: AtomicU64,
}

/// What is to be read how.
pub(super) struct Plan {
    /// For pages that are read by a queue: under which entry they really are.
    real: [Option<Entry>; BATCH_MAX],
    order: [u8; BATCH_MAX],
    queued: usize,
}

impl Plan {
    pub(super) fn queued(&self) -> &[u8] {
        &self.order[..self.queued]
    }

    pub(super) fn real(&self, i: u8) -> Option<Entry> {
        self.real.get(usize::from(i)).copied().flatten()
    }
}

impl SwapSpace {
    /// Makes the devices. `pool_base..+pool_len` is the memory of the compressed pages (several zram devices share
    /// it, and `pool_limit_bytes`, equally); nothing of it is touched before pages are stored.
    /// No file is created before the first page is stored in it.
    ///
    /// # Errors
    /// The first device that cannot be used, and what to do about it.
    ///
    /// # Safety
    /// The region is private anonymous memory, page-aligned, readable, writable, that nothing else uses for as long
    /// as the space exists. It may be null if there is no zram device.
    pub unsafe fn build(
        specs: &[SwapSpec],
        pool_base: *mut u8,
        pool_len: usize,
        pool_limit_bytes: u64,
    ) -> Result<SwapSpace, DeviceError> {
        let error = |name: String, reason: &str, remedy: &str| DeviceError {
            name,
            reason: String::from(reason),
            remedy: String::from(remedy),
        };
        if specs.len() > 200 {
            return Err(error(specs[200].to_string(), "there are more than 200 devices", "name fewer"));
        }
        // A negative default as the kernel's: in the order given, after every device with a priority of its own.
        let prio = |i: usize| match &specs[i] {
            SwapSpec::Zram { prio, .. } | SwapSpec::Ram { prio, .. } | SwapSpec::File { prio, .. } => {
                prio.unwrap_or(-1)
            }
        };
        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(prio(i)));
        let rings = Arc::new(Rings::default());
        let mut files = Vec::new();
        for (index, &i) in (0u8..).zip(&order) {
            if let SwapSpec::File { path, size, fault, .. } = &specs[i] {
                let mut file = FileDevice::open(index, path, *size)?.with_rings(rings.clone()).with_priority(prio(i));
                if let Some(seed) = *fault {
                    file = file.with_faults(Arc::new(Injector::new(Faults::curable(seed))));
                }
                files.push(Arc::new(file));
            }
        }
        let memories = (specs.len() - files.len()).max(1);
        let (share, limit) = (pool_len / memories / SPAN_BYTES * SPAN_BYTES, pool_limit_bytes / memories as u64);
        let mut parts = 0..memories;
        let mut space = SwapSpace {
            devices: Vec::new(),
            zrams: Vec::new(),
            rams: Vec::new(),
            next_lease: AtomicU32::new(0),
            first_queued: 0,
            rings,
            queued_failures: AtomicU64::new(0),
        };
        let mut next_file = files.iter();
        let mut part = |i: usize| -> Result<NonNull<u8>, DeviceError> {
            let no_memory = || error(specs[i].to_string(), "it was given no memory", "report this as a bug");
            let base = NonNull::new(pool_base).ok_or_else(no_memory)?;
            let at = parts.next().ok_or_else(no_memory)? * share;
            // SAFETY: the part lies in the caller's region of `pool_len` bytes.
            Ok(unsafe { base.add(at) })
        };
        for (index, &i) in (0u8..).zip(&order) {
            match &specs[i] {
                SwapSpec::File { .. } => {
                    space.devices.extend(next_file.next().map(|file| file.clone() as Arc<dyn SwapDevice>));
                }
                SwapSpec::Zram { alg, size, .. } => {
                    let base = part(i)?;
                    // SAFETY: the part is one of `memories` that lie side by side in the caller's region; nothing else uses
                    // it (contract of this function).
                    let pool = unsafe { Pool::new(base, share, limit) };
                    let pages_max = size.map_or(u64::from(u32::MAX), |bytes| bytes / PAGE_SIZE as u64);
                    let zram = Arc::new(Zram::new(index, *alg, pages_max, pool, files.clone()));
                    space.zrams.push(zram.clone());
                    space.devices.push(zram);
                }
                SwapSpec::Ram { size, .. } => {
                    let len = size.unwrap_or(limit).min(share as u64) as usize;
                    let base = part(i)?;
                    // SAFETY: as above.
                    let ram = Arc::new(unsafe { Ram::new(index, prio(i), base, len) });
                    space.rams.push(ram.clone());
                    space.devices.push(ram);
                }
            }
        }
        space.first_queued = space.devices.iter().take_while(|device| device.caps().synchronous).count();
        Ok(space)
    }

    /// From now on [`SwapSpace::load`] allocates nothing: for loads in a signal handler.
    pub fn warm(&self) {
        self.zrams.iter().for_each(|zram| zram.warm());
    }

    /// Stores a page; `check` is what [`SwapSpace::check`] returns until the entry is freed.
    ///
    /// # Errors
    /// No device took it: [`StoreError::Full`], or the last write error. The page must stay in memory.
    pub fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        let mut out = [None];
        let result = self.store_batch(&[(page, check)], &mut out);
        out[0].ok_or_else(|| result.err().unwrap_or(StoreError::Full))
    }

    /// Stores the pages whose place in `out` is `None` and puts their entries there; pages that no device took keep
    /// `None` and must stay in memory. A file takes all it gets in one batch. `out` is as long as `pages`.
    ///
    /// # Errors
    /// Some page was not stored; the reason that is worth reporting most (a write error, else full).
    pub fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        self.store_from(0, pages, out)
    }

    /// Stores a page if that can be done at the speed of memory: by the synchronous devices that come before the first
    /// queued one. `Ok(None)`: it is for a queued device; collect some and call [`SwapSpace::store_queued`].
    ///
    /// A pool that is full makes room by moving its oldest pages on, rather than letting the youngest go first.
    ///
    /// # Errors
    /// As [`SwapSpace::store`].
    pub fn store_now(&self, page: &Page, check: u128) -> Result<Option<Entry>, StoreError> {
        let mut incompressible = false;
        for device in &self.devices[..self.first_queued] {
            let mut result = device.store(page, check);
            if result == Err(StoreError::Full) && self.pool_over_share() && self.writeback(WRITEBACK_FOR_ROOM) > 0 {
                result = device.store(page, check);
            }
            match result {
                Ok(entry) => return Ok(Some(entry)),
                Err(error) => incompressible |= error == StoreError::Incompressible,
            }
        }
        if self.first_queued < self.devices.len() {
            return Ok(None);
        }
        // Nobody takes what does not compress: as it is, then.
        let raw = self.devices.iter().filter(|_| incompressible).find_map(|device| device.store_raw(page, check).ok());
        raw.map(Some).ok_or(StoreError::Full)
    }

    /// Stores pages for which [`SwapSpace::store_now`] said `Ok(None)`; otherwise as [`SwapSpace::store_batch`].
    ///
    /// # Errors
    /// As [`SwapSpace::store_batch`].
    pub fn store_queued(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        self.store_from(self.first_queued, pages, out)
    }

    fn store_from(&self, first: usize, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let mut result = StoreError::Full;
        for device in &self.devices[first..] {
            match device.store_batch(pages, out) {
                Err(error @ StoreError::Io(_)) => result = error,
                Ok(()) | Err(StoreError::Incompressible | StoreError::Full | StoreError::Failed) => {}
            }
            if out.iter().take(pages.len()).all(Option::is_some) {
                return Ok(());
            }
        }
        // Nobody takes what does not compress: as it is, then.
        for (&(page, check), out) in pages.iter().zip(out).filter(|(_, out)| out.is_none()) {
            let mut synchronous = self.devices.iter().filter(|device| device.caps().synchronous);
            match synchronous.find_map(|device| device.store_raw(page, check).ok()) {
                Some(entry) => *out = Some(entry),
                None => return Err(result),
            }
        }
        Ok(())
    }

    /// Reads a page back; a failed read is tried again.
    ///
    /// # Errors
    /// See [`LoadError`]; the content of `into` is then unspecified.
    pub fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        let device = self.device(entry)?;
        retry(|| device.load(entry, into))
    }

    /// Loads several pages. Those on queued devices are read all at once, adjacent ones merged, wherever they lie, and
    /// the others meanwhile, so that the whole costs about one read. Returns how many were loaded,
    /// from the first on, and why it stopped if not all were; the content of the others is unspecified.
    pub fn load_many(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        let mut done = 0;
        for (entries, into) in entries.chunks(BATCH_MAX).zip(into.chunks_mut(BATCH_MAX)) {
            let (n, error) = self.load_batch(entries, into);
            done += n;
            if error.is_some() {
                return (done, error);
            }
        }
        (done, None)
    }

    fn load_batch(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        let n = entries.len().min(into.len());
        let plan = self.plan(&entries[..n]);
        if plan.queued().is_empty() {
            return self.load_in_place(entries, into, 0..n);
        }
        let mut batch = Batch::new(Direction::Read);
        let mut numbers = [None; BATCH_MAX];
        for &i in plan.queued() {
            let page: *mut Page = &mut *into[usize::from(i)];
            // SAFETY: the page is borrowed mutably for this whole function; below, only pages that are not in the batch
            // are touched before it has been run.
            numbers[usize::from(i)] = unsafe { self.push(&mut batch, plan.real(i), page) };
        }
        let mut in_place: [Option<LoadError>; BATCH_MAX] = [None; BATCH_MAX];
        self.rings.run(&mut batch, &mut || {
            for i in (0..n).filter(|&i| numbers[i].is_none()) {
                in_place[i] = self.load(entries[i], into[i]).err();
            }
        });
        for i in 0..n {
            let error = match numbers[i] {
                None => in_place[i],
                Some(number) => self.finish(entries[i], plan.real(i as u8), batch.outcome(number), into[i]).err(),
            };
            if error.is_some() {
                return (i, error);
            }
        }
        (n, None)
    }

    /// Loads the pages of `range` one by one.
    fn load_in_place(
        &self,
        entries: &[Entry],
        into: &mut [&mut Page],
        range: std::ops::Range<usize>,
    ) -> (usize, Option<LoadError>) {
        for i in range.clone() {
            if let Err(error) = self.load(entries[i], into[i]) {
                return (i - range.start, Some(error));
            }
        }
        (range.len(), None)
    }

    /// Which of the entries are read by a queue, in the order of their places.
    pub(super) fn plan(&self, entries: &[Entry]) -> Plan {
        let mut plan = Plan { real: [None; BATCH_MAX], order: [0; BATCH_MAX], queued: 0 };
        for (i, &entry) in (0u8..).zip(entries.iter().take(BATCH_MAX)) {
            let real = self.resolve(entry);
            if self.device(real).is_ok_and(|device| !device.caps().synchronous) {
                plan.real[usize::from(i)] = Some(real);
                plan.order[plan.queued] = i;
                plan.queued += 1;
            }
        }
        let real = &plan.real;
        plan.order[..plan.queued].sort_unstable_by_key(|&i| real[usize::from(i)]);
        plan
    }

    /// Adds the read of an entry to a batch; `None`: it is to be loaded in place (an unaligned page, or an error that
    /// will show then).
    ///
    /// # Safety
    /// As for [`Batch::push`].
    pub(super) unsafe fn push(&self, batch: &mut Batch, real: Option<Entry>, page: *mut Page) -> Option<usize> {
        let real = real?;
        let place = self.device(real).ok()?.place(real)?;
        if place.direct && !page.addr().is_multiple_of(PAGE_SIZE) {
            return None;
        }
        // SAFETY: caller's promise.
        unsafe { batch.push(&place, page) }
    }

    /// Books a page that a batch has read: looks at it, and reads it again, alone, if it is not right.
    pub(super) fn finish(
        &self,
        entry: Entry,
        real: Option<Entry>,
        outcome: Outcome,
        page: &mut Page,
    ) -> Result<(), LoadError> {
        let right = |real: Entry| self.device(real).is_ok_and(|device| device.is_right(real, page));
        if outcome == Outcome::Done && real.is_some_and(right) {
            return Ok(());
        }
        self.queued_failures.fetch_add(1, Relaxed);
        self.load(entry, page)
    }

    /// The rings of the queued devices.
    pub(super) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// Does all I/O with `preadv` and `pwritev` from now on: to measure what io_uring brings.
    pub fn refuse_io_uring(&self) {
        self.rings.refuse();
    }

    /// Files behave like a disk whose head takes this long to move, from now on: for measurements.
    pub fn simulate_seeks(&self, us: u32) {
        self.rings.simulate_seeks(us);
    }

    /// From now on, check values are hashes with `key`, and a page that is read from a file is compared with its own.
    pub fn check_contents(&self, key: ContentKey) {
        self.devices.iter().for_each(|device| device.check_contents(key));
    }

    /// The entry under which a page really is.
    fn resolve(&self, entry: Entry) -> Entry {
        self.device(entry).map_or(entry, |device| device.resolve(entry))
    }

    /// Whether the page of this entry has been passed on to another device: neighbours may lie far apart there.
    pub fn is_moved(&self, entry: Entry) -> bool {
        self.resolve(entry) != entry
    }

    /// Whether loading this entry finishes at the speed of memory (do it in place).
    pub fn is_synchronous(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| device.is_synchronous(entry))
    }

    /// Whether the entry's device has heads to move (read ahead in slot order).
    pub fn is_rotational(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| {
            let caps = device.caps();
            caps.rotational || !caps.synchronous && self.rings.has_seeks()
        })
    }

    /// The check value given at store; `None`: not in use.
    pub fn check(&self, entry: Entry) -> Option<u128> {
        self.device(entry).ok()?.check(entry)
    }

    /// Frees an entry; `false`: it was not in use, a bug of the caller (counted).
    pub fn free(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| device.free(entry))
    }

    /// `page`, the content of `entry`, is about to leave memory unchanged: it may be taken from a file back into a
    /// compressed pool, if such pages use to be wanted again soon. Costs a compression; for a background thread.
    pub fn promote(&self, entry: Entry, page: &Page) {
        if let Ok(device) = self.device(entry) {
            device.promote(entry, page);
        }
    }

    /// The page of `entry` is in memory again: whether the entry can be kept without taking memory of a scarce pool. If
    /// not, it is to be freed.
    pub fn keep(&self, entry: Entry) -> bool {
        !self.pool_is_tight() || self.device(entry).is_ok_and(|device| device.give_up(entry))
    }

    /// Memory of the compressed pools (and of plain memory devices) now, bytes (touched spans: an upper bound).
    pub fn pool_bytes(&self) -> u64 {
        let plain: u64 = self.rams.iter().map(|ram| ram.resident_bytes()).sum();
        plain + self.zrams.iter().map(|zram| zram.pool_bytes()).sum::<u64>()
    }

    /// Whether a compressed pool is above 7/8 of its limit: call [`SwapSpace::writeback`].
    pub fn pool_over_share(&self) -> bool {
        self.zrams.iter().any(|zram| zram.over_share() > 0)
    }

    /// Whether there are both compressed pools and files.
    pub fn is_tiered(&self) -> bool {
        !self.zrams.is_empty() && self.devices.iter().any(|device| !device.caps().synchronous)
    }

    fn pool_is_tight(&self) -> bool {
        self.zrams.iter().any(|zram| zram.is_tight())
    }

    /// Fills holes of the compressed pools if they have many (more than a sixteenth), looking at `pages` pages at most;
    /// bytes of memory given back. About 0.2 us a page; for a background thread.
    pub fn compact(&self, pages: usize) -> u64 {
        self.zrams.iter().map(|zram| zram.compact(pages)).sum()
    }

    /// Moves up to `pages` of the oldest compressed pages to a file, as long as their pool is above its share; how
    /// many were moved. Fills some holes of the pool first. Decompresses and writes, so it is for a background thread.
    pub fn writeback(&self, pages: usize) -> usize {
        let mut moved = 0;
        for zram in &self.zrams {
            if zram.over_share() > 0 {
                zram.compact(pages.saturating_mul(32));
            }
            while moved < pages && zram.over_share() > 0 {
                match zram.writeback((pages - moved).min(64)) {
                    0 => break,
                    n => moved += n,
                }
            }
        }
        moved
    }

    /// Changes the most memory the compressed pools may hold, bytes, all together.
    pub fn set_pool_limit(&self, bytes: u64) {
        for zram in &self.zrams {
            zram.set_pool_limit(bytes / (self.zrams.len() + self.rams.len()) as u64);
        }
    }

    /// Sums over all devices.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        self.devices.iter().for_each(|device| device.add_usage(&mut usage));
        usage.read_errors += self.queued_failures.load(Relaxed);
        usage
    }

    /// Something the user should know (a device that failed), once; one line.
    pub fn take_warning(&self) -> Option<String> {
        self.devices.iter().find_map(|device| device.take_warning())
    }

    /// In the parent, after a fork, engine still quiet: the pages stored now stay readable for the child until
    /// [`SwapSpace::end_lease`] is called with the number returned.
    pub fn fork_parent(&self) -> u32 {
        self.devices.iter().for_each(|device| device.fork_parent());
        self.next_lease.fetch_add(1, Relaxed)
    }

    /// The child of this fork and all its descendants are gone (or have given up what they inherited).
    pub fn end_lease(&self, lease: u32) {
        self.devices.iter().for_each(|device| device.end_lease(lease));
    }

    /// In the child, after a fork, before anything else is asked of the space: every entry stays valid, new pages go
    /// to files of the child. `fds` maps each descriptor that [`SwapSpace::fds`] listed in the parent to the
    /// child's copy; one that is missing is lost (its pages cannot be read). The identity is fine where the child's
    /// descriptor table is a copy.
    pub fn fork_child(&self, fds: &[(RawFd, RawFd)]) {
        self.rings.fork_child();
        self.devices.iter().for_each(|device| device.fork_child(fds));
        self.next_lease.store(0, Relaxed);
    }

    /// The descriptors in use: directories, own and inherited files.
    pub fn fds(&self) -> Vec<RawFd> {
        let mut fds = Vec::new();
        self.devices.iter().for_each(|device| device.fds(&mut fds));
        fds
    }

    /// Uses other descriptor numbers from now on; those not named stay. Closes nothing. Engine quiet.
    pub fn replace_fds(&self, fds: &[(RawFd, RawFd)]) {
        self.devices.iter().for_each(|device| device.replace_fds(fds));
    }

    fn device(&self, entry: Entry) -> Result<&dyn SwapDevice, LoadError> {
        let missing = LoadError::NotInUse { device: entry.device(), slot: entry.slot() };
        self.devices.get(usize::from(entry.device())).map(Arc::as_ref).ok_or(missing)
    }
}

/// Tries a read again when the device failed or brought something else; what is missing stays so.
fn retry(mut read: impl FnMut() -> Result<(), LoadError>) -> Result<(), LoadError> {
    let mut result = read();
    for _ in 1..READ_TRIES {
        match result {
            Err(LoadError::Io { .. } | LoadError::ShortRead { .. } | LoadError::Corrupt { .. }) => result = read(),
            _ => break,
        }
    }
    result
}
