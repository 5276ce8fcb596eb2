//! The swap devices in priority order: what the engine calls.
//!
//! A page goes to the first device that takes it; a failed write, a full device or a page that does not compress
//! means the next one. An incompressible page that no other device takes is stored as it is by the first device that
//! refused it. A page that no device takes stays in memory ([`StoreError::Full`]).
//!
//! Priorities: a higher `prio` first; devices without one come after those with `prio >= 0`, in the order given. Queued
//! devices that were given the same one take turns, a batch each, as the kernel's do.
//!
//! No locks of its own; the list of devices does not change after `build`.

pub mod build;
mod load;
mod tend;
#[cfg(test)]
mod tests;

pub(super) use load::Located;

use super::file::{FileDevice, SharedSize};
use super::io::inject::{Faults, Injector};
use super::io::{BATCH_MAX, Batch, Direction, Rings, Transferred};
use super::pool::{Pool, SPAN_BYTES};
use super::ram::Ram;
use super::shared::SharedCopies;
use super::zram::Zram;
use super::{DeviceError, Entry, LoadError, Page, StoreError, SwapDevice, Usage};
use farpage_base::sys::table::Table;
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::SwapSpec;
use farpage_server::areas::SharedAreas;
use farpage_swap::PAGE_SIZE;
use std::borrow::Borrow;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Pages moved on when a pool is full and a page wants in.
const WRITEBACK_FOR_ROOM: usize = 32;

/// All swap devices of one engine.
pub struct SwapSpace {
    /// Priority order; the position is the device number.
    devices: Vec<Arc<dyn SwapDevice>>,
    zrams: Vec<Arc<Zram>>,
    rams: Vec<Arc<Ram>>,
    files: Vec<Arc<FileDevice>>,
    /// What forked processes have together; of a program's space only.
    shared: Option<Arc<SharedCopies>>,
    /// Bytes that compressed pages may take together.
    memory_most: u64,
    /// Number of the next fork; the same for every device.
    next_lease: AtomicU32,
    /// How many devices come before the first queued one.
    first_queued: usize,
    /// Counts batches, for devices that take turns.
    turn: AtomicU32,
    rings: Arc<Rings>,
    /// Pages that a batch did not bring (in order).
    queued_failures: AtomicU64,
    /// Pages taken off failed devices.
    drained: AtomicU64,
    /// Pages lost, by device.
    lost: Vec<AtomicU64>,
}

impl SwapSpace {
    /// Whether what does not compress may wait in the pool, as it is, while that is below its share; it moves on to a
    /// file before what has just been compressed. No, unless this says so. What is wanted again soon is spared two
    /// transfers; but while it waits, it takes as much memory as in the program and costs a fault more. So this is for
    /// pools whose limit follows what they earn.
    pub fn let_raw_wait(&self, wait: bool) {
        self.zrams.iter().for_each(|zram| zram.let_raw_wait(wait));
    }

    /// Whether compressed pages stay where they are: nothing moves on to a file, copies of pages that are in memory as
    /// well are kept, and what finds no room goes to the file. Else they move on by age above 7/8 of the limit.
    pub fn set_pools_steady(&self, steady: bool) {
        self.zrams.iter().for_each(|zram| zram.set_steady(steady));
    }

    /// Holds whether pages are taken back into the pool ([`SwapSpace::promote`]).
    pub fn hold_promotion(&self, promote: bool) {
        self.zrams.iter().for_each(|zram| zram.hold_promotion(promote));
    }

    /// Whether that pays, if there is a pool and something else.
    pub fn promotion_pays(&self) -> Option<bool> {
        self.zrams.first().filter(|_| self.is_tiered()).map(|zram| zram.promotion_pays())
    }

    /// From now on [`SwapSpace::load`] allocates nothing: for loads in a signal handler.
    pub fn warm(&self) {
        self.zrams.iter().for_each(|zram| zram.warm());
    }

    /// From now on all descriptors are ones of this table, which not all callers have.
    pub fn set_fd_table(&self, table: &Arc<Table>) {
        self.rings.belong_to(table);
        self.files.iter().for_each(|file| file.set_fd_table(table));
    }

    /// From now on the sizes of files are for several processes together.
    pub fn share_sizes(&self, with: SharedSize) {
        self.files.iter().for_each(|file| file.share_size(with));
    }

    /// From now on the space on servers is for several processes together.
    pub fn share_areas(&self, with: SharedAreas) {
        self.files.iter().for_each(|file| file.share_areas(with));
    }

    /// For a pager, whose threads and the program's have connections of their own.
    ///
    /// # Errors
    /// A server that allows one only.
    pub fn check_connections(&self) -> Result<(), DeviceError> {
        self.files.iter().try_for_each(|file| file.check_connections())
    }

    /// Whether a page can be read without waiting for a server that is out of reach. Tries to reach it.
    pub fn in_reach(&self, entry: Entry) -> bool {
        self.device(self.resolve(entry)).is_ok_and(|device| device.in_reach())
    }

    /// Creates the files that pages will go to now, as far as possible, so that the caller's descriptor table has them.
    pub fn create_files(&self) {
        self.files.iter().for_each(|file| file.create());
    }

    /// Makes the files that this process will write to, while their directories are there; these, by descriptor.
    pub fn directories(&self) -> Vec<RawFd> {
        self.files.iter().flat_map(|file| file.directories()).collect()
    }

    /// The program cannot reach directory `number` any more.
    pub fn leave_directory(&self, number: RawFd) {
        self.files.iter().for_each(|file| file.leave_directory(number));
    }

    /// Whether a device has no file because the program has left its directory.
    pub fn without_directory(&self) -> bool {
        self.files.iter().any(|file| file.without_directory())
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
    /// `None` and must stay in memory. A full pool makes room first, as for [`SwapSpace::store_now`]; a file takes all
    /// it gets in one batch. `out` is as long as `pages`.
    ///
    /// # Errors
    /// Some page was not stored; the reason that is worth reporting most (a write error, else full).
    pub fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let mut result = Ok(());
        let mut queued = false;
        for (&(page, check), out) in pages.iter().zip(out.iter_mut()).filter(|(_, out)| out.is_none()) {
            match self.store_now(page, check) {
                Ok(Some(entry)) => *out = Some(entry),
                Ok(None) => queued = true,
                Err(error) => result = Err(error),
            }
        }
        if queued { self.store_queued(pages, out) } else { result }
    }

    /// Stores a page if that can be done at the speed of memory: by the synchronous devices that come before the first
    /// queued one. `Ok(None)`: it is for a queued device; collect some and call [`SwapSpace::store_queued`].
    ///
    /// A pool that is full makes room by moving its oldest pages on, rather than letting the youngest go first.
    ///
    /// # Errors
    /// As [`SwapSpace::store`].
    pub fn store_now(&self, page: &Page, check: u128) -> Result<Option<Entry>, StoreError> {
        self.store_in_memory(page, check, false)
    }

    /// As [`SwapSpace::store_now`], but a page that does not compress may wait in the pool
    /// ([`SwapSpace::let_raw_wait`]). That sets no memory free.
    ///
    /// # Errors
    /// As [`SwapSpace::store`].
    pub fn store_or_let_wait(&self, page: &Page, check: u128) -> Result<Option<Entry>, StoreError> {
        self.store_in_memory(page, check, true)
    }

    fn store_in_memory(&self, page: &Page, check: u128, wait: bool) -> Result<Option<Entry>, StoreError> {
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
        if self.has_queued() {
            // All that is asked here is memory, so zrams are among it if a page did not compress.
            let mut zrams = self.zrams.iter().filter(|_| wait && incompressible);
            return Ok(zrams.find_map(|zram| zram.store_waiting(page, check).ok()));
        }
        // No device takes what does not compress: as it is, then.
        let raw = self.devices.iter().filter(|_| incompressible).find_map(|device| device.store_raw(page, check).ok());
        raw.map(Some).ok_or(StoreError::Full)
    }

    /// The devices from the first queued one on, in the order in which they are asked this time.
    fn queued(&self) -> impl Iterator<Item = &Arc<dyn SwapDevice>> {
        let end = self.devices.len() - usize::from(self.shared.is_some());
        let devices = &self.devices[self.first_queued.min(end)..end];
        let turn = self.turn.fetch_add(1, Relaxed) as usize;
        (0..devices.len()).map(move |i| {
            let prio = devices[i].caps().priority;
            let like = |device: &&Arc<dyn SwapDevice>| device.caps().priority == prio;
            let before = devices[..i].iter().rev().take_while(like).count();
            let equal = before + devices[i..].iter().take_while(like).count();
            // Without a priority of their own they are not equal: they have an order.
            let turn = if prio < 0 { 0 } else { turn };
            &devices[i - before + (before + turn) % equal]
        })
    }

    /// Stores pages for which [`SwapSpace::store_now`] said `Ok(None)`; otherwise as [`SwapSpace::store_batch`].
    ///
    /// # Errors
    /// As [`SwapSpace::store_batch`].
    pub fn store_queued(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let mut result = StoreError::Full;
        for device in self.queued() {
            match device.store_batch(pages, out) {
                Err(error @ StoreError::Io(_)) => result = error,
                Ok(()) | Err(StoreError::Incompressible | StoreError::Full | StoreError::Failed) => {}
            }
            if out.iter().take(pages.len()).all(Option::is_some) {
                return Ok(());
            }
        }
        // No device takes what does not compress: as it is, then.
        for (&(page, check), out) in pages.iter().zip(out).filter(|(_, out)| out.is_none()) {
            let mut synchronous = self.devices.iter().filter(|device| device.caps().synchronous);
            match synchronous.find_map(|device| device.store_raw(page, check).ok()) {
                Some(entry) => *out = Some(entry),
                None => return Err(result),
            }
        }
        Ok(())
    }

    /// The rings of the queued devices.
    pub fn rings(&self) -> &Rings {
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
        let mut at = entry;
        // From zram to a file, from a failed device to another: as many steps as there are devices at most.
        for _ in 0..self.devices.len() {
            match self.device(at).map_or(at, |device| device.resolve(at)) {
                next if next == at => break,
                next => at = next,
            }
        }
        at
    }

    /// Whether the page of this entry has been passed on to another device: neighbours may lie far apart there.
    pub fn is_moved(&self, entry: Entry) -> bool {
        self.resolve(entry) != entry
    }

    /// Whether loading this entry finishes at the speed of memory (do it in place).
    pub fn is_synchronous(&self, entry: Entry) -> bool {
        let real = self.resolve(entry);
        self.device(real).is_ok_and(|device| device.is_synchronous(real))
    }

    /// Whether its read can be in flight while its thread does something else, as far as is known.
    pub fn may_be_in_flight(&self, entry: Entry) -> bool {
        let real = self.resolve(entry);
        let waits = |device: &dyn SwapDevice| device.is_remote() || !self.rings.refused();
        self.device(real).is_ok_and(|device| !device.is_synchronous(real) && waits(device))
    }

    /// Whether the entry's device has heads to move (read ahead in slot order).
    pub fn is_rotational(&self, entry: Entry) -> bool {
        self.device(entry).is_ok_and(|device| self.has_heads(device))
    }

    /// Whether any device has.
    pub fn any_rotational(&self) -> bool {
        self.devices.iter().any(|device| self.has_heads(device.as_ref()))
    }

    fn has_heads(&self, device: &dyn SwapDevice) -> bool {
        let caps = device.caps();
        caps.rotational || !caps.synchronous && self.rings.has_seeks()
    }

    /// The check value given at store; `None`: not in use.
    pub fn check(&self, entry: Entry) -> Option<u128> {
        self.device(entry).ok()?.check(entry)
    }

    /// Frees an entry; `false`: it was not in use, a bug of the caller (counted).
    pub fn free(&self, entry: Entry) -> bool {
        let freed = self.device(entry).is_ok_and(|device| device.free(entry));
        self.free_orphans();
        freed
    }

    /// Frees the places that moved pages had, after their entries were freed.
    fn free_orphans(&self) {
        for file in &self.files {
            while let Some(place) = file.take_orphan() {
                self.free(place);
            }
        }
    }

    /// The page of `entry` is about to leave memory unchanged: it may be taken from a file back into a compressed pool,
    /// if such pages use to be wanted again soon. Then `content` gives it. Costs a compression; for a background
    /// thread.
    pub fn promote<P: Borrow<Page>>(&self, entry: Entry, content: impl FnOnce() -> Option<P>) {
        if let Ok(device) = self.device(entry)
            && device.wants_back(entry)
            && let Some(page) = content()
        {
            device.promote(entry, page.borrow());
        }
    }

    /// The page of `entry` is in memory again: whether the entry can be kept without taking memory of the pool, or, if
    /// it `may_cost` some, of a scarce pool. If not, it is to be freed.
    pub fn keep(&self, entry: Entry, may_cost: bool) -> bool {
        may_cost && !self.pool_is_tight() || self.device(entry).is_ok_and(|device| device.give_up(entry))
    }

    /// Memory of the compressed pools (and of plain memory devices) now, bytes (touched spans: an upper bound).
    pub fn pool_bytes(&self) -> u64 {
        let plain: u64 = self.rams.iter().map(|ram| ram.resident_bytes()).sum();
        plain + self.zrams.iter().map(|zram| zram.pool_bytes()).sum::<u64>()
    }

    /// The process is about to be forked, and nothing changes until [`SwapSpace::fork_parent`]: from now on pages that
    /// it has together with the child can have one copy for all, which stays until the lease of the fork ends.
    pub fn share_with_child(&self) {
        self.shared.iter().for_each(|shared| shared.lease());
    }

    /// Whether a page with this number that other processes have, too, is better taken out than kept
    /// ([`SharedCopies::is_for`]).
    pub fn shares(&self, vpn: u64) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_for(vpn))
    }

    /// The copy, for all, of a page that other processes have, too. `None`: there is none, and this one stores its own.
    /// `vpn`: its number.
    pub fn share(&self, page: &Page, check: u128, vpn: u64) -> Option<Entry> {
        let shared = self.shared.as_ref()?;
        // Without a file, both are memory that nothing can take the place of.
        let is_full = || self.pool_bytes() + shared.resident_bytes() > self.memory_most;
        if !self.is_tiered() && is_full() { None } else { shared.share(page, check, vpn) }
    }

    /// Memory of what processes have together that this one has to count, bytes ([`SharedCopies::resident_bytes`]).
    pub fn shared_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.resident_bytes())
    }

    /// This process takes its own pages out for others, so that its children find what they have together.
    pub fn gives(&self) {
        self.shared.iter().for_each(|shared| shared.gives());
    }

    /// A child looks whether the process that writes what they have together is gone.
    pub fn look_for_writer(&self, is_gone: impl Fn() -> bool) {
        self.shared.iter().for_each(|shared| shared.look_for_writer(&is_gone));
    }

    /// Whether a compressed pool is above 7/8 of its limit (steady: above it): call [`SwapSpace::writeback`].
    pub fn pool_over_share(&self) -> bool {
        self.zrams.iter().any(|zram| zram.over_share() > 0)
    }

    /// Whether there is a device that reads by a queue.
    pub fn has_queued(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether there are both compressed pools and files.
    pub fn is_tiered(&self) -> bool {
        !self.zrams.is_empty() && self.devices.iter().any(|device| !device.caps().synchronous)
    }

    fn pool_is_tight(&self) -> bool {
        self.zrams.iter().any(|zram| zram.is_tight())
    }

    /// Fills holes of the compressed pools if they have many (more than a sixteenth), looking at `pages` pages at most;
    /// bytes of memory given back. AskedFor 0.2 us a page; for a background thread.
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
        usage.drained_pages = self.drained.load(Relaxed);
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

    /// Whether children read what their parent has stored, so that it must know when they are gone.
    pub fn is_shared_with_children(&self) -> bool {
        !self.files.is_empty()
    }

    /// The descriptors in use: directories, own and inherited files.
    pub fn fds(&self) -> Vec<RawFd> {
        let mut fds = Vec::new();
        self.devices.iter().for_each(|device| device.fds(&mut fds));
        fds
    }

    /// Of these, the files that this process writes to.
    pub fn own_files(&self) -> Vec<RawFd> {
        self.files.iter().flat_map(|file| file.own_files()).collect()
    }

    /// Uses other descriptor numbers from now on; those not named stay. Closes nothing. Engine quiet.
    pub fn replace_fds(&self, fds: &[(RawFd, RawFd)]) {
        self.devices.iter().for_each(|device| device.replace_fds(fds));
    }

    /// The device of an entry as the user wrote it, for messages.
    pub fn name_of(&self, device: u8) -> &str {
        self.devices.get(usize::from(device)).map_or("?", |device| device.name())
    }

    /// Counts a page that `device` cannot read back. `Some`, with how many those were: worth a message, as is the
    /// first, and then one in ever longer intervals: a disk that fails loses thousands.
    pub fn count_lost(&self, device: u8) -> Option<u64> {
        let so_far = self.lost.get(usize::from(device))?.fetch_add(1, Relaxed) + 1;
        (so_far == 10u64.pow(so_far.ilog10())).then_some(so_far)
    }

    fn device(&self, entry: Entry) -> Result<&dyn SwapDevice, LoadError> {
        let missing = LoadError::NotInUse { device: entry.device(), slot: entry.slot() };
        self.devices.get(usize::from(entry.device())).map(Arc::as_ref).ok_or(missing)
    }
}

impl Drop for SwapSpace {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| file.remove_from_server());
    }
}
