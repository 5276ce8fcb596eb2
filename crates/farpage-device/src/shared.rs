//! Compressed pages that a process and those forked from it have together.
//!
//! A page that is shared copy-on-write is free only once each process that has it has taken it out. One stored copy
//! serves them all. The process that the others were forked from stores it in a memfd, under its hash. When the same
//! page leaves one of them, it finds the copy by that, and stores none of its own.
//!
//! * One process writes. The others may have fewer rights; they have the memfd for reading, at the same addresses.
//! * What is in it does not change while a process may read it: a record is complete before its bucket names it, and
//!   what is not needed any more stays until no descendant is left ([`SharedCopies::lease`],
//!   [`SwapDevice::end_lease`]). So readers need no lock and count nothing, and one that is killed leaves nothing
//!   behind.
//! * A descendant shares nothing of its own with its children, but they read what it reads.
//!
//! The slot of an [`Entry`] is the number of a record and 1, in all processes.
//!
//! Callers: `space`, `zram`. Locks: `writer`, and in it that of the map; none while a page is compressed or memory is
//! given back.

mod map;
mod writer;

use crate::pool::COMPRESSED_MAX;
use crate::{Caps, Entry, LoadError, Page, StoreError, SwapDevice, Usage};
use farpage_base::sys::clock::now_us;
use farpage_base::sys::mutex::Mutex;
use farpage_codec::codec::{Codec, same_filled};
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::Alg;
use map::{CopyMap, Layout};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use writer::Writer;

/// After so long, microseconds, a child has become another program or stays.
const SETTLED_US: u64 = 20_000;

/// A process that gives does so in steps: so long after one there may be another.
const GIVES_US: u64 = 500_000;

/// See the module header.
pub struct SharedCopies {
    index: u8,
    /// Address of its first byte.
    base: usize,
    layout: Layout,
    map: OnceLock<CopyMap>,
    /// `None`: there was no fork yet, or this is a descendant.
    writer: Mutex<Option<Writer>>,
    codec: Codec,
    /// With which a page that another process has stored is compared.
    key: OnceLock<ContentKey>,
    /// Children that may still be there, or their descendants.
    leases: AtomicU32,
    /// When the first of them was made.
    since_us: AtomicU64,
    /// Pages of this process that need a copy.
    uses: AtomicU64,
    /// A descendant, and the process that writes is gone.
    orphaned: AtomicBool,
}

impl SharedCopies {
    /// Device number `index` of a process with a budget of so many bytes; pages are compressed by `alg`. It takes no
    /// memory before the first fork.
    ///
    /// # Safety
    /// From the address `base` on, [`SharedCopies::bytes`] addresses are the device's, and nothing is mapped there, as
    /// long as the process lives.
    pub unsafe fn new(index: u8, alg: Alg, budget: u64, base: usize) -> SharedCopies {
        SharedCopies {
            index,
            base,
            layout: Layout::of(budget),
            map: OnceLock::new(),
            writer: Mutex::new(None),
            codec: Codec::new(alg),
            key: OnceLock::new(),
            leases: AtomicU32::new(0),
            since_us: AtomicU64::new(0),
            uses: AtomicU64::new(0),
            orphaned: AtomicBool::new(false),
        }
    }

    /// Addresses that it takes with a budget of so many bytes.
    pub fn bytes(budget: u64) -> usize {
        2 * Layout::of(budget).len
    }

    /// The process is about to be forked: from now on, until [`SwapDevice::end_lease`] for this fork, descendants may
    /// need what there is. Where the kernel has no descriptor, address space or memory for copies, each process stores
    /// its own.
    pub fn lease(&self) {
        if self.leases.fetch_add(1, Relaxed) == 0 {
            self.since_us.store(now_us(), Relaxed);
            self.map().into_iter().for_each(|map| map.set_full(false));
        }
        if self.map.get().is_none() {
            let _ = self.open();
        }
        self.tell();
    }

    fn open(&self) -> Result<(), Errno> {
        let base = NonNull::new(self.base as *mut u8).ok_or(Errno::INVAL)?;
        // SAFETY: promise to `new`.
        let map = unsafe { CopyMap::make(base, self.layout) }?;
        *self.writer.lock() = Some(Writer::new(&map));
        self.map.set(map).map_err(|_| Errno::ALREADY)
    }

    /// Whether the children may be such as stay: most of those that do not have become another program by now.
    pub fn is_settled(&self) -> bool {
        now_us() > self.since_us.load(Relaxed) + SETTLED_US
    }

    /// What is shared, if it can be read.
    fn map(&self) -> Option<&CopyMap> {
        self.map.get().filter(|map| map.is_readable())
    }

    /// Whether a page that others have may have a copy for all, or get one.
    pub fn is_at_work(&self) -> bool {
        let has_others = |map: &CopyMap| match map.is_written() {
            true => self.leases.load(Relaxed) > 0,
            false => !self.orphaned.load(Relaxed),
        };
        self.map().is_some_and(|map| !map.header().full.load(Relaxed) && has_others(map))
    }

    /// The copy of a page that other processes have, too, for one that leaves this one: what is there, or, in the
    /// process that writes, a new one. `None`: there is none. `vpn`: the page's number.
    pub fn share(&self, page: &Page, check: u128, vpn: u64) -> Option<Entry> {
        self.map().filter(|_| same_filled(page).is_none())?;
        let found = self.share_compressed(&[], check, None);
        if found.is_some() || !self.is_at_work() || !self.map()?.is_written() {
            return found;
        }
        self.codec.compress(page, |bytes| self.share_compressed(bytes, check, Some(vpn)))?
    }

    /// As [`SharedCopies::share`], of a page that was compressed to `bytes`. Without `vpn`: only if there is a copy.
    pub fn share_compressed(&self, bytes: &[u8], check: u128, vpn: Option<u64>) -> Option<Entry> {
        let mut writer = self.writer.lock();
        let map = self.map()?;
        let number = match writer.as_mut() {
            // Mapped now, it can be read whatever limits come.
            None => map.find(check).filter(|number| map.bytes(*number).is_some()),
            Some(_) if self.leases.load(Relaxed) == 0 => None,
            Some(writer) => writer.find(map, check).or_else(|| {
                let vpn = vpn?;
                // Pages of a pool have a place already, and take no last room.
                if bytes.len() > COMPRESSED_MAX || vpn == 0 && writer.is_nearly_full() {
                    return None;
                }
                let added = writer.add(map, bytes, check, vpn);
                map.set_full(added.is_none());
                map.write.header().resident.store(writer.resident_bytes(map), Relaxed);
                added
            }),
        }?;
        self.uses.fetch_add(1, Relaxed);
        Entry::new(self.index, u64::from(number) + 1)
    }

    /// Whether a page with this number that others have, too, is better taken out than kept: it was stored for all, or
    /// soon will be, or this is the process that does so.
    pub fn is_for(&self, vpn: u64) -> bool {
        let gives = |map: &CopyMap| now_us() < map.header().gave_us.load(Relaxed) + GIVES_US;
        let is_for = |map: &CopyMap| map.is_written() || map.has(vpn) || gives(map);
        self.is_at_work() && self.map().is_some_and(is_for)
    }

    /// This process takes its own pages out for others, so that its descendants find them.
    pub fn gives(&self) {
        if let Some(map) = self.map().filter(|map| map.is_written()) {
            map.write.header().gave_us.store(now_us(), Relaxed);
        }
    }

    /// What it compresses with.
    pub fn alg(&self) -> Alg {
        self.codec.alg()
    }

    /// The device's number.
    pub fn index(&self) -> u8 {
        self.index
    }

    fn number(entry: Entry) -> Option<u32> {
        u32::try_from(entry.slot().checked_sub(1)?).ok()
    }

    /// Gives up what only the next pages that are stored need.
    pub fn rest(&self) {
        self.codec.rest();
    }

    /// Bytes of memory that this process has to count: all of it if it writes. If the process that wrote it is gone,
    /// each of its children has a part.
    pub fn resident_bytes(&self) -> u64 {
        let Some(map) = self.map() else { return 0 };
        let header = map.header();
        let parts = match (map.is_written(), self.orphaned.load(Relaxed)) {
            (true, _) => 1,
            (false, true) => header.leases.load(Relaxed).max(1),
            (false, false) => return 0,
        };
        header.resident.load(Relaxed) / u64::from(parts)
    }

    /// A descendant looks whether the process that writes is gone. If so, and it needs none of the copies, they are
    /// gone for it, too: with the last such process their memory goes back.
    pub fn look_for_writer(&self, is_gone: impl Fn() -> bool) {
        let Some(map) = self.map().filter(|map| !map.is_written() && is_gone()) else { return };
        self.orphaned.store(true, Relaxed);
        // Under the lock no page comes to need one.
        let _writer = self.writer.lock();
        if self.uses.load(Relaxed) == 0 {
            map.close();
        }
    }

    /// Tells descendants what there is.
    fn tell(&self) {
        if let (Some(map), Some(writer)) = (self.map(), self.writer.lock().as_ref()) {
            map.write.header().resident.store(writer.resident_bytes(map), Relaxed);
            map.write.header().leases.store(self.leases.load(Relaxed), Relaxed);
        }
    }

    /// Gives empty spans back to the kernel, the system calls without the lock.
    fn release(&self) {
        let Some(map) = self.map() else { return };
        loop {
            let release = self.writer.lock().as_mut().and_then(Writer::take_empty);
            let Some(release) = release else { break };
            release.run();
            if let Some(writer) = self.writer.lock().as_mut() {
                writer.released(release);
            }
            map.set_full(false);
        }
        self.tell();
    }
}

impl SwapDevice for SharedCopies {
    fn name(&self) -> &str {
        "shared"
    }

    fn caps(&self) -> Caps {
        Caps { synchronous: true, ..Caps::default() }
    }

    /// It takes only pages that other processes have, too ([`SharedCopies::share`]).
    fn store(&self, _page: &Page, _check: u128) -> Result<Entry, StoreError> {
        Err(StoreError::Full)
    }

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let missing = LoadError::NotInUse { device, slot };
        let (map, number) = self.map().zip(SharedCopies::number(entry)).ok_or(missing)?;
        let bytes = map.bytes(number).ok_or(missing)?;
        let is_right = |page: &Page| {
            let key = self.key.get().filter(|_| !map.is_written());
            key.is_none_or(|key| map.check(number) == Some(key.hash(page)))
        };
        match self.codec.decompress(bytes, into) && is_right(into) {
            true => Ok(()),
            false => Err(LoadError::Corrupt { device, slot }),
        }
    }

    fn check_contents(&self, key: ContentKey) {
        let _ = self.key.set(key);
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        self.map()?.check(SharedCopies::number(entry)?)
    }

    fn free(&self, entry: Entry) -> bool {
        let (Some(map), Some(number)) = (self.map(), SharedCopies::number(entry)) else { return false };
        let leases = self.leases.load(Relaxed) > 0;
        let freed = self.writer.lock().as_mut().is_none_or(|writer| writer.free(map, number, leases));
        self.uses.fetch_sub(u64::from(freed), Relaxed);
        freed
    }

    fn give_up(&self, _entry: Entry) -> bool {
        // What descendants may need stays anyway.
        self.leases.load(Relaxed) > 0 || self.map().is_none_or(|map| !map.is_written())
    }

    fn add_usage(&self, usage: &mut Usage) {
        if let (Some(map), Some(writer)) = (self.map(), self.writer.lock().as_ref()) {
            usage.slots_in_use += writer.len() as u64;
            usage.meta_bytes += writer.resident_bytes(map);
        }
    }

    fn end_lease(&self, _lease: u32) {
        if self.leases.fetch_sub(1, Relaxed) == 1
            && let (Some(map), Some(writer)) = (self.map(), self.writer.lock().as_mut())
        {
            writer.remove_dead(map);
        }
        self.release();
    }

    fn fork_child(&self, fds: &[(RawFd, RawFd)]) {
        // SAFETY: the child has one thread, which is here and has no guard. The pager may have been reading a page,
        // which takes no lock but that of the codec; other threads held none.
        unsafe {
            self.writer.free_in_child();
            self.codec.fork_child();
        }
        *self.writer.lock() = None;
        self.leases.store(0, Relaxed);
        if let Some(map) = self.map() {
            let given = fds.iter().find(|(old, _)| *old == map.fd()).map(|(_, given)| *given);
            // SAFETY: as above.
            unsafe { map.fork_child(given) };
        }
    }

    fn fds(&self, out: &mut Vec<RawFd>) {
        out.extend(self.map().map(CopyMap::fd));
    }
}
