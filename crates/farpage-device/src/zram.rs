//! Compressed pages in memory, and their demotion to a file.
//!
//! A page of one repeated word is kept as that word. Another is compressed; if that saves too little the device
//! refuses it, so that the next one takes it (or it is stored as it is: `store_raw`). The oldest pages can be moved
//! on to a file ([`Zram::writeback`]); the slot then *forwards* to the file's entry, so the page's own entry
//! does not change.
//!
//! ```text
//!            store                     writeback: marked           written, mark still there
//!   (free) --------> Same                 +-----------------+   +----------------------------> Forward(entry)
//!          --------> Object, Raw -------> | Object/Raw, marked |--+
//!                       ^                 +-----------------+   '-- write failed: mark off, stays
//!                       '-- a slot that was freed (and perhaps used again) meanwhile has lost the mark:
//!                           the file's copy is freed
//!   Forward(entry) --promote--> Object backed by entry --grows old, or give_up--> Forward(entry)      ([`promote`])
//! ```
//!
//! Callers: `space`. Locks: `writeback` (one at a time), codec state, `inner` (the pool, the hands; inside it those of
//! a slot's record). Compressing, decompressing, filling a fresh object, giving out slots and all file I/O happen
//! without `inner`; under it are pool look-ups and the copy of at most one page, so a load never waits for a
//! compression. What it copies is fetched into the CPU's cache before. Where a page is, and its check value, is read
//! without a lock.
//!
//! Which locks a change of a record needs: one that has an object in the pool, or gets one, changes under `inner`, so
//! what is read of it there stays true. Others (words, forwardings) come and go without.

mod device;
mod promote;
mod promote_policy;
mod recompress;
mod record;
#[cfg(test)]
mod tests;
mod writeback;

use super::file::FileDevice;
use super::pool::{COMPRESSED_MAX, Handle, OBJECT_MAX, Objects, Pool, Release};
use super::shared::SharedCopies;
use super::{Caps, Entry, LoadError, Page, StoreError, SwapDevice, Usage, check_value};
use farpage_base::sys::cpu;
use farpage_base::sys::mutex::Mutex;
use farpage_codec::codec::{Codec, fill, same_filled};
use farpage_ipc::conf::Alg;
use farpage_swap::PAGE_SIZE;
use farpage_swap::pool_share::{SHARE_EIGHTHS, TIGHT_EIGHTHS};
use farpage_swap::slots::SlotMap;
use promote_policy::PromotePolicy;
use record::{FLAGS, PASSED, Packing, Record, RecordKind, WORDS, YOUNG};
use rustix::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Pages moved to the file in one go.
const WRITEBACK_BATCH: usize = 32;

/// Pages that do not compress wait in the pool while they are fewer than one in so many of its pages.
const RAW_PART: u64 = 3;

struct ZramState {
    pool: Pool,
    /// Pages in the pool and the bytes they were compressed to.
    pool_pages: u64,
    compressed_bytes: u64,
    /// Pages in the pool as they are.
    raw_pages: u64,
    /// Objects moved to fill holes.
    compacted_pages: u64,
    /// Where the next recompression goes on.
    recompress_hand: u64,
    /// Objects that have a copy in a file.
    backed_pages: u64,
    /// Clock hand of the writeback: the next slot to look at.
    hand: u64,
    /// Where the next compaction goes on.
    compact_hand: u64,
    /// It has moved something in this round.
    compacted: bool,
    /// The round was in vain: the next one waits until enough has been freed.
    compact_waits: bool,
    /// Objects freed since the round began.
    compact_freed: u64,
}

/// A page-aligned buffer for writeback.
#[repr(align(4096))]
struct WritebackPage(Page);

/// What is counted without a lock.
#[derive(Default)]
struct ZramCounts {
    /// Pages that are one word.
    same_pages: AtomicU64,
    incompressible: AtomicU64,
    written_back: AtomicU64,
    old_loads: AtomicU64,
    recompressed: AtomicU64,
    bad_frees: AtomicU64,
}

/// Compressed memory as a swap device.
pub struct Zram {
    index: u8,
    priority: i32,
    name: String,
    codec: Codec,
    /// For pages that have not been wanted for some time, and whose turn it is (one thread at a time).
    dense: Option<Codec>,
    recompressing: Mutex<()>,
    slots: SlotMap<Record, WORDS>,
    inner: Mutex<ZramState, true>,
    objects: Objects,
    /// Where pages can move on to, in priority order.
    files: Vec<Arc<FileDevice>>,
    /// Where those go first that forked processes have, too.
    shared: OnceLock<Arc<SharedCopies>>,
    /// Forks so far, modulo 256.
    epoch: AtomicU8,
    /// Buffers of the writeback; made at its first use.
    writeback: Mutex<Vec<WritebackPage>>,
    /// The last allocation found no room and nothing was freed since.
    full: AtomicBool,
    promote_policy: PromotePolicy,
    counts: ZramCounts,
    /// See [`super::SwapSpace::let_raw_wait`].
    raw_waits: AtomicBool,
    /// See [`super::SwapSpace::set_pools_steady`].
    steady: AtomicBool,
}

impl Zram {
    /// The same device with a priority to be shown.
    pub fn with_priority(self, priority: i32) -> Zram {
        Zram { priority, ..self }
    }

    /// From now on, pages that forked processes have, too, move on to `shared`, if that has the same codec.
    pub fn share_with(&self, shared: &Arc<SharedCopies>) {
        if shared.alg() == self.codec.alg() {
            let _ = self.shared.set(shared.clone());
        }
    }

    /// A device number `index` over `pool`, for `pages_max` pages at most. Its pages can move on to `files`.
    pub fn new(index: u8, alg: Alg, pages_max: u64, pool: Pool, files: Vec<Arc<FileDevice>>) -> Zram {
        Zram {
            index,
            priority: Caps::default().priority,
            name: String::from(if alg == Alg::Zstd { "zram,alg=zstd" } else { "zram" }),
            codec: Codec::new(alg),
            dense: None,
            recompressing: Mutex::new(()),
            slots: SlotMap::new(pages_max.saturating_add(1), cpu::count()),
            objects: pool.objects(),
            inner: Mutex::common(ZramState {
                pool,
                pool_pages: 0,
                compressed_bytes: 0,
                raw_pages: 0,
                compacted_pages: 0,
                recompress_hand: 1,
                backed_pages: 0,
                hand: 1,
                compact_hand: 1,
                compacted: false,
                compact_waits: false,
                compact_freed: 0,
            }),
            files,
            shared: OnceLock::new(),
            epoch: AtomicU8::new(0),
            writeback: Mutex::new(Vec::new()),
            full: AtomicBool::new(false),
            promote_policy: PromotePolicy::default(),
            counts: ZramCounts::default(),
            raw_waits: AtomicBool::new(false),
            steady: AtomicBool::new(false),
        }
    }

    /// Whether pages that do not compress wait in the pool, as they are, while it is below its share.
    pub fn let_raw_wait(&self, wait: bool) {
        self.raw_waits.store(wait, Relaxed);
    }

    /// Takes a page that does not compress as it is, if such pages may wait here now.
    ///
    /// # Errors
    /// [`StoreError::Incompressible`]: they may not; [`StoreError::Full`].
    pub fn store_waiting(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        if self.has_room_for_raw() {
            self.insert(RecordKind::Raw, page, check)
        } else {
            Err(StoreError::Incompressible)
        }
    }

    /// Whether such a page may wait now: where few do not compress. Where most do not, they would fill the pool before
    /// it is known what it is worth.
    fn has_room_for_raw(&self) -> bool {
        if !self.raw_waits.load(Relaxed) {
            return false;
        }
        let inner = self.inner.lock();
        inner.pool_pages > RAW_PART * inner.raw_pages && inner.above(SHARE_EIGHTHS) == 0
    }

    /// Makes loads free of allocation.
    pub fn warm(&self) {
        self.codec.warm();
        self.dense.iter().for_each(Codec::warm);
    }

    /// What an object was compressed with.
    fn codec_of(&self, record: &Record) -> &Codec {
        self.dense.as_ref().filter(|_| record.packing == Packing::Dense).unwrap_or(&self.codec)
    }

    /// Changes the most bytes of memory the pool may hold. Above it nothing more is stored until pages have left.
    pub fn set_pool_limit(&self, bytes: u64) {
        self.inner.lock().pool.set_limit(bytes);
        self.full.store(false, Relaxed);
        self.trim();
    }

    /// Bytes of memory the pool holds (touched spans).
    pub fn pool_bytes(&self) -> u64 {
        self.inner.lock().pool.resident_bytes()
    }

    /// Gives empty spans back to the kernel, the system call without the lock.
    fn trim(&self) {
        self.release_all(Pool::take_excess);
    }

    fn release_all(&self, take: impl Fn(&mut Pool) -> Option<Release>) {
        loop {
            let Some(release) = take(&mut self.inner.lock().pool) else { return };
            release.run();
            self.inner.lock().pool.released(release);
        }
    }

    /// Gives back what only the next pages that are stored need: buffers, what compresses, empty spans.
    pub fn rest(&self) {
        if let Some(mut buffers) = self.writeback.try_lock() {
            *buffers = Vec::new();
        }
        self.codec.rest();
        self.dense.iter().for_each(Codec::rest);
        self.release_all(Pool::take_empty);
    }

    /// An object that holds `bytes` and is not known yet, counted.
    fn new_object(&self, kind: RecordKind, bytes: &[u8]) -> Result<Handle, StoreError> {
        let (handle, at) = {
            let mut inner = self.inner.lock();
            let handle = inner.pool.alloc(bytes.len());
            let place = handle.and_then(|handle| Some((handle, inner.pool.object(handle, bytes.len())?)));
            // A pool with many holes has no room for this size, but may have for the next: no mark then.
            let holes = inner.pool.is_fragmented();
            let place = place.ok_or_else(|| if holes { StoreError::Full } else { self.no_room() })?;
            inner.pool_pages += 1;
            inner.compressed_bytes += bytes.len() as u64;
            inner.raw_pages += u64::from(kind == RecordKind::Raw);
            place
        };
        // SAFETY: the object has at least `bytes.len()` bytes, was allocated above and its handle is not known
        // else until the record is stored below, so nothing reads, writes or frees it. `bytes` is not in the pool.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Ok(handle)
    }

    /// Puts bytes in the pool and takes a slot for them.
    fn insert(&self, kind: RecordKind, bytes: &[u8], check: u128) -> Result<Entry, StoreError> {
        let handle = self.new_object(kind, bytes)?;
        let epoch = self.epoch.load(Relaxed);
        let record = Record { epoch, ..Record::new(kind, u64::from(handle.raw()), bytes.len(), check) };
        let Some(slot) = self.slots.alloc(cpu::current(), record) else {
            self.inner.lock().forget(&record);
            return Err(self.no_room());
        };
        Entry::new(self.index, slot).ok_or(StoreError::Full)
    }

    fn no_room(&self) -> StoreError {
        self.full.store(true, Relaxed);
        StoreError::Full
    }

    fn insert_same(&self, word: u64, check: u128) -> Result<Entry, StoreError> {
        self.counts.same_pages.fetch_add(1, Relaxed);
        let Some(slot) = self.slots.alloc(cpu::current(), Record::new(RecordKind::Same, word, 0, check)) else {
            self.counts.same_pages.fetch_sub(1, Relaxed);
            return Err(StoreError::Full);
        };
        Entry::new(self.index, slot).ok_or(StoreError::Full)
    }

    /// The device that a page was moved on to.
    fn next_of(&self, entry: Entry) -> Option<&dyn SwapDevice> {
        let shared = self.shared.get().filter(|shared| shared.index() == entry.device());
        let file = || self.files.iter().find(|file| file.index() == entry.device()).map(|file| file.as_ref() as _);
        shared.map(|shared| shared.as_ref() as &dyn SwapDevice).or_else(file)
    }

    /// The file entry that a slot forwards to.
    fn forwarded(&self, entry: Entry) -> Option<Entry> {
        let record = self.slots.get(entry.slot())?;
        (record.kind == RecordKind::Forward).then(|| Entry::from_raw(record.data()))?
    }
}

impl ZramState {
    /// Takes back an object of a page, and its share of the counts.
    fn drop_object(&mut self, kind: RecordKind, handle: Handle, len: usize) {
        self.pool.free(handle);
        self.pool_pages -= 1;
        self.compressed_bytes -= len as u64;
        self.raw_pages -= u64::from(kind == RecordKind::Raw);
    }

    /// Bytes that the pool holds beyond so many eighths of its limit.
    fn above(&self, eighths: u64) -> u64 {
        self.pool.resident_bytes().saturating_sub(self.pool.limit() / 8 * eighths)
    }

    /// Takes back what the record of a page that goes has in the pool.
    fn forget(&mut self, record: &Record) {
        if record.in_pool() {
            self.drop_object(record.kind, record.handle(), usize::from(record.len));
            self.backed_pages -= u64::from(record.backup().is_some());
            self.compact_freed += 1;
        }
    }
}
