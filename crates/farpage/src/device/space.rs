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
use super::pool::{Pool, SPAN_BYTES};
use super::zram::Zram;
use super::{DeviceError, Entry, LoadError, Page, StoreError, SwapDevice, Usage};
use crate::PAGE_SIZE;
use crate::conf::SwapSpec;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most pages read at once.
const RUN_MAX: usize = 32;
/// A read is tried this many times.
const READ_TRIES: usize = 3;

/// All swap devices of one engine.
pub struct SwapSpace {
    /// Priority order; the position is the device number.
    devices: Vec<Arc<dyn SwapDevice>>,
    zrams: Vec<Arc<Zram>>,
    /// Number of the next fork; the same for every device.
    next_lease: AtomicU32,
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
            SwapSpec::Zram { prio, .. } | SwapSpec::File { prio, .. } => i64::from(prio.unwrap_or(-1)),
        };
        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(prio(i)));
        let mut files = Vec::new();
        for (index, &i) in (0u8..).zip(&order) {
            if let SwapSpec::File { path, size, .. } = &specs[i] {
                files.push(Arc::new(FileDevice::open(index, path, *size)?));
            }
        }
        let zram_count = (specs.len() - files.len()).max(1);
        let share = pool_len / zram_count / SPAN_BYTES * SPAN_BYTES;
        let mut space = SwapSpace { devices: Vec::new(), zrams: Vec::new(), next_lease: AtomicU32::new(0) };
        let mut next_file = files.iter();
        for (index, &i) in (0u8..).zip(&order) {
            match &specs[i] {
                SwapSpec::File { .. } => {
                    space.devices.extend(next_file.next().map(|file| file.clone() as Arc<dyn SwapDevice>));
                }
                SwapSpec::Zram { alg, size, .. } => {
                    let no_pool = || error(specs[i].to_string(), "it was given no memory", "report this as a bug");
                    let base = NonNull::new(pool_base).ok_or_else(no_pool)?;
                    // SAFETY: zram_count * share <= pool_len, so this share lies in the caller's region; each zram
                    // device gets a different one, and nothing else uses the region (contract of this function).
                    let pool = unsafe {
                        let base = base.add(space.zrams.len() * share);
                        Pool::new(base, share, pool_limit_bytes / zram_count as u64)
                    };
                    let pages_max = size.map_or(u64::from(u32::MAX), |bytes| bytes / PAGE_SIZE as u64);
                    let zram = Arc::new(Zram::new(index, *alg, pages_max, pool, files.clone()));
                    space.zrams.push(zram.clone());
                    space.devices.push(zram);
                }
            }
        }
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
    /// `None` and must stay in memory. A file takes runs of pages in one write. `out` is as long as `pages`.
    ///
    /// # Errors
    /// Some page was not stored; the reason that is worth reporting most (a write error, else full).
    pub fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let mut refused_by: Option<&Arc<dyn SwapDevice>> = None;
        let mut result = StoreError::Full;
        for device in &self.devices {
            match device.store_batch(pages, out) {
                Ok(()) => {}
                Err(StoreError::Incompressible) => {
                    refused_by.get_or_insert(device);
                }
                Err(error @ StoreError::Io(_)) => result = error,
                Err(StoreError::Full | StoreError::Failed) => {}
            }
            if out.iter().take(pages.len()).all(Option::is_some) {
                return Ok(());
            }
        }
        // Nobody takes what does not compress: as it is, then.
        let Some(device) = refused_by else { return Err(result) };
        for (&(page, check), out) in pages.iter().zip(out).filter(|(_, out)| out.is_none()) {
            match device.store_raw(page, check) {
                Ok(entry) => *out = Some(entry),
                Err(StoreError::Io(errno)) => return Err(StoreError::Io(errno)),
                Err(_) => return Err(result),
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

    /// Reads the pages of `first` and the entries after it ([`Entry::offset`]); from a file in one read.
    ///
    /// # Errors
    /// See [`LoadError`]; the content of `into` is then unspecified.
    pub fn load_run(&self, first: Entry, into: &mut [&mut Page]) -> Result<(), LoadError> {
        let device = self.device(first)?;
        retry(|| device.load_run(first, into))
    }

    /// Loads several pages, those that lie side by side in a file with one read. Returns how many were loaded, from
    /// the first on, and why it stopped if not all were.
    pub fn load_many(&self, entries: &[Entry], into: &mut [&mut Page]) -> (usize, Option<LoadError>) {
        let n = entries.len().min(into.len());
        let mut at = 0;
        while at < n {
            let Ok(device) = self.device(entries[at]) else {
                return (at, Some(LoadError::NotInUse { device: entries[at].device(), slot: entries[at].slot() }));
            };
            let first = device.resolve(entries[at]);
            let side_by_side = |i: usize| {
                let real = self.device(entries[at + i]).ok().map(|d| d.resolve(entries[at + i]));
                real.is_some() && real == first.offset(i)
            };
            let mut len = 1;
            while !self.is_synchronous(first) && at + len < n && len < RUN_MAX && side_by_side(len) {
                len += 1;
            }
            let run = &mut into[at..at + len];
            let result = match run {
                [page] => self.load(first, page),
                run => self.load_run(first, run),
            };
            if let Err(error) = result {
                return (at, Some(error));
            }
            at += len;
        }
        (n, None)
    }

    /// Whether loading this entry finishes at the speed of memory (do it in place).
    pub fn is_synchronous(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| device.is_synchronous(entry))
    }

    /// Whether the entry's device has heads to move (read ahead in slot order).
    pub fn is_rotational(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| device.caps().rotational)
    }

    /// The check value given at store; `None`: not in use.
    pub fn check(&self, entry: Entry) -> Option<u128> {
        self.device(entry).ok()?.check(entry)
    }

    /// Frees an entry; `false`: it was not in use, a bug of the caller (counted).
    pub fn free(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| device.free(entry))
    }

    /// Memory of the compressed pools now, bytes (touched spans: an upper bound).
    pub fn pool_bytes(&self) -> u64 {
        self.zrams.iter().map(|zram| zram.pool_bytes()).sum()
    }

    /// Whether a compressed pool is above 7/8 of its limit: call [`SwapSpace::writeback`], and do not keep pages there
    /// that are also in memory.
    pub fn pool_over_share(&self) -> bool {
        self.zrams.iter().any(|zram| zram.over_share() > 0)
    }

    /// Fills holes of the compressed pools if they have many (more than a quarter), looking at `pages` pages at most;
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
            zram.set_pool_limit(bytes / self.zrams.len() as u64);
        }
    }

    /// Sums over all devices.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        self.devices.iter().for_each(|device| device.add_usage(&mut usage));
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

/// Tries a read again when the device failed; what is missing or corrupt stays so.
fn retry(mut read: impl FnMut() -> Result<(), LoadError>) -> Result<(), LoadError> {
    let mut result = read();
    for _ in 1..READ_TRIES {
        match result {
            Err(LoadError::Io { .. } | LoadError::ShortRead { .. }) => result = read(),
            _ => break,
        }
    }
    result
}
