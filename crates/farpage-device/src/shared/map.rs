//! The memory of the copies for all: where its parts are, and how they are read.
//!
//! ```text
//!   memfd:  header | buckets: number of a record | records: hash, address, place | compressed pages
//! ```
//! A record is named twice: by its hash, and by the address from which its page was stored.
//!
//! Callers: `shared` and its writer. Lock: `grows`, innermost.

use crate::pool::{COMPRESSED_MAX, SPAN_BYTES};
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::proc::for_reading;
use farpage_swap::PAGE_SIZE;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, fallocate, fchmod, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munlock, munmap};
use rustix::process::{Resource, getrlimit};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

/// Its name in `/proc/*/maps`.
const NAME: &str = "farpage-shared";
/// The compressed pages take this part of the budget at most: they cannot move on to a file.
const PART: u64 = 16;
/// Records, of which there is one for each page of the budget, at most.
const RECORDS_MAX: u64 = 1 << 22;
/// Buckets that are looked at for one hash.
const PROBES: usize = 64;
/// Bytes that are mapped at a time.
const STEP: usize = 1 << 20;
/// Bytes of records that memory is had for at a time.
pub(super) const RECORDS_STEP: usize = 64 << 10;
/// Once named a record that is gone.
const GONE: u32 = u32::MAX;

/// What descendants are told besides.
pub(super) struct CopyHeader {
    /// Bytes of memory.
    pub(super) resident: AtomicU64,
    /// Children that may still be there.
    pub(super) leases: AtomicU32,
    /// There was no room at the last try, and nothing was freed since.
    pub(super) full: AtomicBool,
    /// When the process that writes last took its own pages out for others, microseconds.
    pub(super) gave_us: AtomicU64,
    /// A bit for each page of the buckets that has any. Reading another would make it memory.
    pages: [AtomicU64; 256],
}

const _: () = assert!(RECORDS_MAX as usize * 4 * 4 / PAGE_SIZE <= 256 * 64 && size_of::<CopyHeader>() <= PAGE_SIZE);

/// A stored page: its hash, the page number that it was stored from (0: unknown), its place and length in bytes.
pub(super) struct CopyRecord {
    pub(super) check: [AtomicU64; 2],
    pub(super) vpn: AtomicU64,
    pub(super) place: AtomicU32,
    pub(super) len: AtomicU32,
}

/// Where the parts are, bytes from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    buckets: usize,
    records: usize,
    records_at: usize,
    pub(super) pages_at: usize,
    /// Of the compressed pages, and of all.
    pub(super) pages: usize,
    pub(super) len: usize,
}

impl Layout {
    /// Within a budget of so many bytes.
    pub(super) fn of(budget: u64) -> Layout {
        let most = (budget / PART).clamp(SPAN_BYTES as u64, u64::from(u32::MAX));
        let pages = most as usize / SPAN_BYTES * SPAN_BYTES;
        let records = (budget / PAGE_SIZE as u64).clamp(64, RECORDS_MAX) as usize;
        let buckets = (4 * records).next_power_of_two();
        let records_at = (PAGE_SIZE + buckets * size_of::<AtomicU32>()).next_multiple_of(PAGE_SIZE);
        // A step may end behind the last record.
        let pages_at = (records_at + records * size_of::<CopyRecord>() + RECORDS_STEP).next_multiple_of(SPAN_BYTES);
        Layout { buckets, records, records_at, pages_at, pages, len: pages_at + pages }
    }
}

/// By which a record is named for its page number.
fn key_of(vpn: u64) -> u64 {
    vpn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// The parts, in one mapping of the memfd.
#[derive(Clone, Copy)]
pub(super) struct View {
    base: NonNull<u8>,
    layout: Layout,
}

impl View {
    pub(super) fn header(&self) -> &CopyHeader {
        // SAFETY: the mapping begins with it; all zero bits are one.
        unsafe { self.base.cast().as_ref() }
    }

    fn buckets(&self) -> &[AtomicU32] {
        // SAFETY: the layout has as many there; all zero bits are such a word.
        unsafe { std::slice::from_raw_parts(self.base.add(PAGE_SIZE).as_ptr().cast(), self.layout.buckets) }
    }

    pub(super) fn records(&self) -> &[CopyRecord] {
        let at = self.base.as_ptr().wrapping_add(self.layout.records_at);
        // SAFETY: the layout has as many there; all zero bits are one.
        unsafe { std::slice::from_raw_parts(at.cast(), self.layout.records) }
    }

    /// The first byte of the compressed pages.
    pub(super) fn pages(&self) -> NonNull<u8> {
        // SAFETY: in the owner's addresses.
        unsafe { self.base.add(self.layout.pages_at) }
    }

    fn page_bit(&self, bucket: usize) -> (&AtomicU64, u64) {
        let page = bucket * size_of::<AtomicU32>() / PAGE_SIZE;
        (&self.header().pages[page / 64], 1 << (page % 64))
    }
}

/// The memfd in memory, as far as it is used: a program may limit its address space. It is mapped twice: for reading,
/// which all descendants inherit, and for writing, which none does.
pub(super) struct CopyMap {
    pub(super) layout: Layout,
    read: View,
    /// Only in the process that writes.
    pub(super) write: View,
    /// In the engine's table. For writing, of the process that writes; for reading, what its descendants get.
    fd: AtomicI32,
    fd_for_reading: AtomicI32,
    /// By this process; else by one that it descends from.
    is_written: AtomicBool,
    /// Bytes from the beginning that are mapped; 0: a descendant has closed it.
    mapped: AtomicUsize,
    grows: Mutex<()>,
}

// SAFETY: the mapping stays as long as the process; what is in it are atomic words, and pages that do not change while
// they may be read.
unsafe impl Send for CopyMap {}
// SAFETY: as above.
unsafe impl Sync for CopyMap {}

impl CopyMap {
    /// Makes the memfd. Nothing but the header takes memory.
    ///
    /// # Errors
    /// The kernel has no descriptor, address space or memory for it, or a limit is too low.
    ///
    /// # Safety
    /// From `base` on, twice `layout.len` addresses are the caller's, and nothing is mapped there, as long as the
    /// process lives.
    pub(super) unsafe fn make(base: NonNull<u8>, layout: Layout) -> Result<CopyMap, Errno> {
        let limit = |resource| getrlimit(resource).current;
        // Beyond the first there is a signal. Of the second the program needs all.
        if limit(Resource::Fsize).is_some_and(|most| most < layout.len as u64) || limit(Resource::As).is_some() {
            return Err(Errno::FBIG);
        }
        let fd = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
        let for_reading = for_reading(fd.as_raw_fd())?;
        // A descendant that has become another user cannot open it once more for writing.
        fchmod(&fd, Mode::RUSR)?;
        ftruncate(&fd, layout.len as u64)?;
        let map = CopyMap {
            layout,
            read: View { base, layout },
            // SAFETY: in the caller's addresses.
            write: View { base: unsafe { base.add(layout.len) }, layout },
            fd: AtomicI32::new(fd.as_raw_fd()),
            fd_for_reading: AtomicI32::new(for_reading.as_raw_fd()),
            is_written: AtomicBool::new(true),
            mapped: AtomicUsize::new(0),
            grows: Mutex::new(()),
        };
        map.allocate(0, PAGE_SIZE)?;
        if !map.reach(layout.pages_at) {
            return Err(Errno::NOMEM);
        }
        let _ = (fd.into_raw_fd(), for_reading.into_raw_fd());
        Ok(map)
    }

    /// The descriptor for reading.
    pub(super) fn fd(&self) -> RawFd {
        self.fd_for_reading.load(Relaxed)
    }

    /// Whether it can be read.
    pub(super) fn is_readable(&self) -> bool {
        self.mapped.load(Relaxed) > 0
    }

    /// Whether this process writes to it.
    pub(super) fn is_written(&self) -> bool {
        self.is_written.load(Relaxed)
    }

    /// A descendant needs nothing of it any more, and no thread reads.
    pub(super) fn close(&self) {
        let mapped = self.mapped.swap(0, Relaxed);
        // SAFETY: the map's own addresses. No page of this process is there, so no thread reads (caller's promise).
        let _ = unsafe { munmap(self.read.base.as_ptr().cast(), mapped) };
        // SAFETY: the map's own descriptor, which a descendant has one of, and which is not used from here on.
        drop(unsafe { OwnedFd::from_raw_fd(self.fd_for_reading.swap(-1, Relaxed)) });
    }

    /// In a child, which has the descriptor for reading under the number `fd`.
    ///
    /// # Safety
    /// The child has one thread, which is here.
    pub(super) unsafe fn fork_child(&self, fd: Option<RawFd>) {
        // SAFETY: caller's promise.
        unsafe { self.grows.free_in_child() };
        self.is_written.store(false, Relaxed);
        self.fd.store(-1, Relaxed);
        // Without one, it reads what is mapped.
        self.fd_for_reading.store(fd.unwrap_or(-1), Relaxed);
    }

    /// Has memory for the pages of `len` bytes at `at`, which the kernel may refuse; at the first touch it would end
    /// the process. The process that writes.
    ///
    /// # Errors
    /// It does.
    pub(super) fn allocate(&self, at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: open as long as the process lives.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd.load(Relaxed)) };
        let (first, end) = (at / PAGE_SIZE * PAGE_SIZE, (at + len).next_multiple_of(PAGE_SIZE));
        fallocate(fd, FallocateFlags::empty(), first as u64, (end - first) as u64)
    }

    /// Whether the bytes below `to` are mapped: maps them if need be.
    pub(super) fn reach(&self, to: usize) -> bool {
        if to <= self.mapped.load(Acquire) {
            return true;
        }
        let _grows = self.grows.lock();
        let from = self.mapped.load(Relaxed);
        let end = to.next_multiple_of(STEP).min(self.layout.len);
        if to <= from || to > end {
            return to <= from;
        }
        let map = |view: &View, fd: RawFd, rights| {
            if fd < 0 {
                return Err(Errno::BADF);
            }
            // SAFETY: open as long as the process lives, or it is closed.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: addresses of the caller's own (promise to `make`), where nothing is mapped.
            let at = unsafe { mmap(view.base.add(from).as_ptr().cast(), end - from, rights, flags, fd, from as u64) }?;
            // SAFETY: mapped just now. After `mlockall` it would be locked.
            let _ = unsafe { munlock(at, end - from) };
            Ok(at)
        };
        if self.is_written() {
            let written = map(&self.write, self.fd.load(Relaxed), ProtFlags::READ | ProtFlags::WRITE).and_then(|at| {
                // SAFETY: mapped just now.
                unsafe { madvise(at, end - from, Advice::LinuxDontFork).inspect_err(|_| _ = munmap(at, end - from)) }
            });
            // What is mapped already, from a try of which the second part failed, is as it should be.
            if written.is_err_and(|error| error != Errno::EXIST) {
                return false;
            }
        }
        let read = map(&self.read, self.fd_for_reading.load(Relaxed), ProtFlags::READ);
        if read.is_ok() {
            self.mapped.store(end, Release);
        }
        read.is_ok()
    }

    pub(super) fn header(&self) -> &CopyHeader {
        self.read.header()
    }

    /// No more can be added, or there is room again. In a descendant, nothing.
    pub(super) fn set_full(&self, full: bool) {
        if self.is_written() && self.header().full.load(Relaxed) != full {
            self.write.header().full.store(full, Relaxed);
        }
    }

    /// Where a record is, bytes from the beginning.
    pub(super) fn record_at(&self, number: u32) -> usize {
        self.layout.records_at + number as usize * size_of::<CopyRecord>()
    }

    fn has_page(&self, bucket: usize) -> bool {
        let (word, bit) = self.read.page_bit(bucket);
        word.load(Acquire) & bit != 0
    }

    /// The buckets that a record with this key may be named by, in order, and what they name.
    fn buckets_of(&self, key: u64) -> impl Iterator<Item = (usize, u32)> {
        let (mask, first) = (self.layout.buckets - 1, key as usize);
        let named = |bucket| if self.has_page(bucket) { self.read.buckets()[bucket].load(Acquire) } else { 0 };
        (0..PROBES).map(move |i| first.wrapping_add(i) & mask).map(move |bucket| (bucket, named(bucket)))
    }

    /// The numbers of the records that may have this key.
    fn named(&self, key: u64) -> impl Iterator<Item = u32> {
        let named = self.buckets_of(key).map(|(_, named)| named).take_while(|&named| named != 0);
        named.filter(|&named| named != GONE).map(|named| named - 1)
    }

    /// The number of the record of a page with this hash.
    pub(super) fn find(&self, check: u128) -> Option<u32> {
        self.named(check as u64).find(|&number| self.check(number) == Some(check))
    }

    /// Whether the page of this number was stored, as it was at some time.
    pub(super) fn has(&self, vpn: u64) -> bool {
        let is_of = |number: u32| self.read.records().get(number as usize).is_some_and(|r| r.vpn.load(Relaxed) == vpn);
        self.named(key_of(vpn)).any(is_of)
    }

    /// Names a record by its hash and its page number; `false`: there is no room. The process that writes.
    pub(super) fn name(&self, check: u128, vpn: u64, number: u32) -> bool {
        // Without this others store the page once more.
        let _ = vpn == 0 || self.name_by(key_of(vpn), number);
        self.name_by(check as u64, number)
    }

    fn name_by(&self, key: u64, number: u32) -> bool {
        let mut free = self.buckets_of(key).filter(|(_, named)| matches!(*named, 0 | GONE));
        let Some((bucket, _)) = free.next() else { return false };
        if !self.has_page(bucket) {
            if self.allocate(PAGE_SIZE + bucket * size_of::<AtomicU32>(), 1).is_err() {
                return false;
            }
            let (word, bit) = self.write.page_bit(bucket);
            word.fetch_or(bit, Release);
        }
        self.write.buckets()[bucket].store(number + 1, Release);
        true
    }

    /// The record is named no more. The process that writes; no other process reads.
    pub(super) fn forget(&self, check: u128, number: u32) {
        let vpn = self.read.records().get(number as usize).map_or(0, |record| record.vpn.load(Relaxed));
        for key in [check as u64, key_of(vpn)] {
            let named = self.buckets_of(key).find(|(_, named)| *named == number + 1);
            named.into_iter().for_each(|(bucket, _)| self.write.buckets()[bucket].store(GONE, Relaxed));
        }
    }

    /// No record is named, and their memory goes back. As [`CopyMap::forget`].
    pub(super) fn clear(&self) {
        self.write.header().pages.iter().for_each(|word| word.store(0, Relaxed));
        // SAFETY: buckets and records, none of which is in use: they are zero again.
        let _ = unsafe {
            let from = self.write.base.add(PAGE_SIZE).as_ptr().cast();
            madvise(from, self.layout.pages_at - PAGE_SIZE, Advice::LinuxRemove)
        };
    }

    /// Bytes of buckets that are memory.
    pub(super) fn bucket_bytes(&self) -> usize {
        self.header().pages.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum::<usize>() * PAGE_SIZE
    }

    /// The hash of a record.
    pub(super) fn check(&self, number: u32) -> Option<u128> {
        let [low, high] = &self.read.records().get(number as usize)?.check;
        Some(u128::from(high.load(Relaxed)) << 64 | u128::from(low.load(Relaxed)))
    }

    /// The compressed bytes of a record.
    pub(super) fn bytes(&self, number: u32) -> Option<&[u8]> {
        let record = self.read.records().get(number as usize)?;
        let (place, len) = (record.place.load(Relaxed) as usize, record.len.load(Relaxed) as usize);
        let is_inside = len > 0 && len <= COMPRESSED_MAX && place + len <= self.layout.pages;
        if !is_inside || !self.reach(self.layout.pages_at + place + len) {
            return None;
        }
        // SAFETY: mapped; it does not change while a process needs the record (`shared`).
        Some(unsafe { std::slice::from_raw_parts(self.read.pages().add(place).as_ptr(), len) })
    }
}
