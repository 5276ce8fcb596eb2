//! Counters of one process, in one shared page range that `farpage stat` and `farpage run --stats` read from outside.
//!
//! The engine is the only writer; every field is one atomic word, so readers need no lock. Names are the kernel's
//! (`/proc/vmstat`) where the kernel has the counter. The page is a memfd named [`MEMFD_NAME`]: it goes away with the
//! last process that holds it, whatever happens.

use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

/// Name of the memfd: `/proc/PID/task/TID/fd/N` links to `/memfd:farpage-stat (deleted)`.
pub const MEMFD_NAME: &str = "farpage-stat";
/// `comm` of the engine's first thread; its descriptor table holds the memfd.
pub const THREAD_NAME: &str = "farpage-monitor";
/// First word of the page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"farpage1");
/// Bytes of the mapping.
pub const STAT_BYTES: usize = 16 * 1024;

const SUB: usize = 4;
/// Mappings whose readahead is shown: those that fault most.
pub const READAHEADS: usize = 16;
/// Buckets of the fault latency histogram: 4 per power of two nanoseconds.
pub const BUCKETS: usize = 40 * SUB;

macro_rules! fields {
    ($($kind:ident { $($(#[doc = $doc:literal])+ $name:ident,)+ })+) => {
        /// The shared page. Values ending in `_bytes` are bytes, in `_ns` nanoseconds, the others counts.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Stat {
            /// [`MAGIC`] once the page is set up.
            pub magic: AtomicU64,
            /// Process that writes the page.
            pub pid: AtomicU64,
            $($($(#[doc = $doc])+ pub $name: AtomicU64,)+)+
            /// Readahead by mapping; unused entries have no pages.
            pub readahead: [MappingReadahead; READAHEADS],
            /// Fault service times, from the message read to the thread woken; see [`bucket_of`].
            pub fault_ns: [AtomicU64; BUCKETS],
        }

        impl Stat {
            /// Every named value in order: name, one-line description, value, whether it only grows.
            pub fn values(&self) -> Vec<Value> {
                vec![$($(Value {
                    name: stringify!($name),
                    help: concat!($($doc),+),
                    value: self.$name.load(Relaxed),
                    counter: stringify!($kind).as_bytes()[0] == b'c',
                }),+),+]
            }
        }
    };
}

/// Readahead in one managed mapping.
#[repr(C)]
#[derive(Debug, Default)]
pub struct MappingReadahead {
    /// First page.
    pub start: AtomicU64,
    /// Pages of the mapping.
    pub pages: AtomicU64,
    /// Faults that read a device.
    pub faults: AtomicU64,
    /// Pages read ahead.
    pub swap_ra: AtomicU64,
    /// Of them, pages known to have been used.
    pub swap_ra_hit: AtomicU64,
    /// Last window, pages.
    pub window: AtomicU64,
}

/// One named value of a [`Stat`].
#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// Name as printed and as JSON key.
    pub name: &'static str,
    /// What it is, one line.
    pub help: &'static str,
    /// Value when read.
    pub value: u64,
    /// A counter only grows; the others are levels.
    pub counter: bool,
}

fields! {
    level {
        /// 1 once memory is managed; 0 while the program is below its budget.
        active,
        /// The budget.
        budget_bytes,
        /// Resident anonymous memory as the kernel counts it, last sample.
        rss_anon_bytes,
        /// Largest sample so far.
        rss_anon_peak_bytes,
        /// Managed pages that are mapped in the program (an estimate after MADV_DONTNEED).
        resident_bytes,
        /// Of these, the ones that proved hot.
        hot_bytes,
        /// Pages in the swap cache: taken out of the program, still in RAM.
        cached_bytes,
        /// Free frames kept for swap-in.
        free_frames_bytes,
        /// Pages whose only copy is on a swap device.
        swapped_bytes,
        /// RAM of the compressed pool, fragmentation included.
        pool_bytes,
        /// Compressed bytes in the pool.
        pool_compressed_bytes,
        /// Uncompressed bytes the pool stands for.
        pool_orig_bytes,
        /// Most RAM the compressed pool may take.
        pool_limit_bytes,
        /// Most RAM the compressed pool has taken.
        pool_peak_bytes,
        /// Pages kept as one word.
        same_filled_pages,
        /// Pages kept in the pool as they are: they do not compress, and no other device takes them.
        huge_pages,
        /// Bytes of pages on file devices.
        file_bytes,
        /// Address space registered with userfaultfd.
        managed_bytes,
        /// Engine metadata: page table, heap.
        meta_bytes,
    }
    counter {
        /// Faults served.
        pgfault,
        /// Faults that read a swap device.
        pgmajfault,
        /// Of these, faults that waited for a file.
        pgmajfault_file,
        /// Of these, faults whose read was queued, so that those of other threads could be served meanwhile.
        pgmajfault_queued,
        /// Pages read from swap devices, readahead included.
        pswpin,
        /// Pages written to swap devices.
        pswpout,
        /// Pages served as zero: first touches and swapped-out zero pages.
        swpin_zero,
        /// Pages found all zero at swap-out: no device space, no I/O.
        swpout_zero,
        /// Pages dropped without a write because their slot still held the same bytes.
        swpout_clean,
        /// Pages brought in by readahead.
        swap_ra,
        /// Of these, pages that were touched later; where most are mapped at once, by sampling.
        swap_ra_hit,
        /// Windows whose read was begun before the program came to them.
        swap_ra_windows,
        /// Of these, windows of which a page was wanted.
        swap_ra_windows_hit,
        /// Faults served from the swap cache, without I/O.
        workingset_refault_cached,
        /// Pages taken out of the program into the swap cache.
        pgsteal_anon,
        /// Faults that had to wait for reclaim.
        allocstall,
        /// Pages that could not be taken out for now (pinned, locked, other access rights).
        move_skipped,
        /// Pages unshared after a fork so that they could be taken out.
        cow_unshared,
        /// MADV_DONTNEED, MADV_FREE followed.
        event_remove,
        /// munmap, brk shrinking, mmap over a mapping followed.
        event_unmap,
        /// mremap followed.
        event_remap,
        /// Mappings adopted.
        adopted_ranges,
        /// Forks followed.
        forks,
        /// Samples of resident anonymous memory above budget + 5 %.
        over_budget_samples,
        /// Pages that had to stay in RAM because every device was full or failing.
        swap_full,
        /// Compressed pages moved on to a file device.
        pool_writeback,
        /// Loads of compressed pages that were among the older half.
        pool_old_loads,
        /// Compressed pages moved to fill holes of the pool.
        pages_compacted,
        /// Pages compressed once more, to less.
        pool_recompressed,
        /// Pages that zram refused because they do not compress.
        incompressible_pages,
        /// Unused space given back to disk or filesystem.
        discarded_bytes,
        /// Pages taken off devices that failed.
        drained_pages,
        /// Pages that no device could read back: threads that touch them get SIGBUS.
        pages_lost,
        /// Slots that are not used again because a write to them failed.
        bad_slots,
        /// Device write errors.
        write_errors,
        /// Device read errors.
        read_errors,
        /// Time for which idle CPUs were kept from sleeping, because faults came one after the other.
        idle_poll_ns,
        /// Checksums compared by `--verify` and found equal.
        verified,
    }
}

impl Stat {
    /// Adds `n` to a counter.
    #[inline]
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Books a swap-in fault in the mapping `[start, end)`: pages read ahead by it, and its window. Called by one thread
    /// only. A new mapping takes the place of the one with the fewest faults.
    pub fn note_readahead(&self, (start, end): (u64, u64), read: u64, window: u32) {
        let free = || self.readahead.iter().min_by_key(|m| m.faults.load(Relaxed));
        let known = self.readahead_of(start);
        let Some(m) = known.or_else(free) else { return };
        if known.is_none() {
            m.start.store(start, Relaxed);
            [&m.faults, &m.swap_ra, &m.swap_ra_hit].into_iter().for_each(|n| n.store(0, Relaxed));
        }
        m.pages.store(end - start, Relaxed);
        m.window.store(window.into(), Relaxed);
        Stat::add(&m.faults, 1);
        Stat::add(&m.swap_ra, read);
        Stat::add(&self.swap_ra, read);
    }

    /// Books that `hits` pages read ahead were used, in the mapping that starts at page `start`. Called by one thread only.
    pub fn note_touched(&self, start: u64, hits: u64) {
        // No more than were read: a forked child counts from zero, but has its parent's pages.
        let add = |hit: &AtomicU64, ra: &AtomicU64| {
            Stat::add(hit, hits.min(ra.load(Relaxed).saturating_sub(hit.load(Relaxed))));
        };
        add(&self.swap_ra_hit, &self.swap_ra);
        if let Some(m) = self.readahead_of(start) {
            add(&m.swap_ra_hit, &m.swap_ra);
        }
    }

    fn readahead_of(&self, start: u64) -> Option<&MappingReadahead> {
        self.readahead.iter().find(|m| m.start.load(Relaxed) == start && m.pages.load(Relaxed) > 0)
    }

    /// Records one served fault of `ns` nanoseconds.
    #[inline]
    pub fn record_fault(&self, ns: u64) {
        Stat::add(&self.fault_ns[bucket_of(ns)], 1);
    }

    /// The latency in nanoseconds below which `share` (0 to 1) of the served faults stayed; `None` before the first.
    /// The answer is the upper edge of a bucket, so at most 25 % too high.
    pub fn fault_percentile_ns(&self, share: f64) -> Option<u64> {
        let counts: Vec<u64> = self.fault_ns.iter().map(|c| c.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let wanted = ((total as f64 * share).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (i, n) in counts.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return Some(bucket_end(i));
            }
        }
        None
    }
}

/// Bucket of a latency: four buckets per power of two.
pub fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let log = 63 - ns.leading_zeros() as usize;
    let sub = (ns >> (log - 2)) as usize & (SUB - 1);
    ((log - 1) * SUB + sub).min(BUCKETS - 1)
}

/// First latency that is above bucket `i`, nanoseconds.
pub fn bucket_end(i: usize) -> u64 {
    if i < SUB {
        return i as u64 + 1;
    }
    let (log, sub) = (i / SUB + 1, i % SUB);
    (SUB as u64 + sub as u64 + 1) << (log - 2)
}

/// The mapping behind a [`Stat`] and its descriptor.
#[derive(Debug)]
pub struct StatPage;

/// Descriptor of the memfd: in the engine's table and, until [`StatPage::close_descriptor`], in the program's.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The descriptor came from the launcher and stays open in the program's table, for a program that execs itself.
static FROM_LAUNCHER: AtomicBool = AtomicBool::new(false);
/// Where counters go if there is no memory for a page of their own: they count, but nobody sees them.
static NOWHERE: [AtomicU64; STAT_BYTES / 8] = [const { AtomicU64::new(0) }; STAT_BYTES / 8];

impl StatPage {
    /// The page of this process: the one the launcher made for it, else a new one.
    pub fn of_environment() -> &'static Stat {
        let given = std::env::var(crate::conf::ENV_STAT_FD).ok().and_then(|v| {
            let (fd, pid) = v.split_once(':')?;
            let (fd, pid) = (fd.parse::<RawFd>().ok()?, pid.parse::<u32>().ok()?);
            (pid == std::process::id()).then_some(fd)
        });
        let map = |fd: RawFd| -> Option<&'static Stat> {
            // SAFETY: the descriptor is open: the launcher's word, or just made.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            // SAFETY: a new mapping at an address of the kernel's choice.
            let at = unsafe { mmap(std::ptr::null_mut(), STAT_BYTES, RW, MapFlags::SHARED, borrowed, 0) }.ok()?;
            // SAFETY: mapped for good, zeroed or written by an earlier image of this process; atomics only.
            Some(unsafe { &*at.cast::<Stat>() })
        };
        let stat = match given.and_then(|fd| Some((fd, map(fd)?))) {
            Some((fd, stat)) => {
                FROM_LAUNCHER.store(true, Relaxed);
                DESCRIPTOR.store(fd, Relaxed);
                Some(stat)
            }
            None => new_memfd().and_then(|fd| {
                let raw = fd.into_raw_fd();
                DESCRIPTOR.store(raw, Relaxed);
                map(raw)
            }),
        };
        // SAFETY: as large as a Stat (checked below), zeroed, atomics only.
        let stat = stat.unwrap_or(unsafe { &*NOWHERE.as_ptr().cast::<Stat>() });
        stat.pid.store(u64::from(std::process::id()), Relaxed);
        stat.magic.store(MAGIC, Relaxed);
        stat
    }

    /// In a forked child: puts a new page in place of the parent's, at the same address.
    pub fn renew(stat: &'static Stat, budget_bytes: u64) {
        let at = std::ptr::from_ref(stat).cast_mut().cast::<std::ffi::c_void>();
        FROM_LAUNCHER.store(false, Relaxed);
        DESCRIPTOR.store(-1, Relaxed);
        let flags = MapFlags::FIXED;
        match new_memfd() {
            Some(fd) => {
                // SAFETY: replaces the mapping of the same size that holds the parent's page; atomics only, so other
                // content is no surprise to anybody.
                if unsafe { mmap(at, STAT_BYTES, RW, flags | MapFlags::SHARED, &fd, 0) }.is_ok() {
                    DESCRIPTOR.store(fd.into_raw_fd(), Relaxed);
                }
            }
            None => {
                // SAFETY: as above.
                let _ = unsafe { mmap_anonymous(at, STAT_BYTES, RW, flags | MapFlags::PRIVATE) };
            }
        }
        stat.budget_bytes.store(budget_bytes, Relaxed);
        stat.pid.store(u64::from(std::process::id()), Relaxed);
        stat.magic.store(MAGIC, Relaxed);
    }

    /// The memfd's number, which the engine's table keeps.
    pub fn descriptor() -> Option<RawFd> {
        Some(DESCRIPTOR.load(Relaxed)).filter(|fd| *fd >= 0)
    }

    /// Closes the memfd in the program's table, once the engine has a table of its own.
    pub fn close_descriptor() {
        if let Some(fd) = StatPage::descriptor().filter(|_| !FROM_LAUNCHER.load(Relaxed)) {
            // SAFETY: made by this module; in the program's table nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn new_memfd() -> Option<OwnedFd> {
    let fd = rustix::fs::memfd_create(MEMFD_NAME, rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    rustix::fs::ftruncate(&fd, STAT_BYTES as u64).ok()?;
    Some(fd)
}

const _: () = assert!(size_of::<Stat>() <= STAT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readahead_is_booked_by_mapping() {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        for i in 0..100u64 {
            stat.note_readahead((1000, 2000), 7, 8);
            stat.note_touched(1000, 5);
            stat.note_readahead((0, 1000), 1, 2);
            stat.note_readahead((i * 4000 + 4000, i * 4000 + 5000), 1, 1);
        }
        let find =
            |start: u64| stat.readahead.iter().find(|m| m.start.load(Relaxed) == start && m.pages.load(Relaxed) > 0);
        let values = |m: &MappingReadahead| {
            [&m.pages, &m.faults, &m.swap_ra, &m.swap_ra_hit, &m.window].map(|n| n.load(Relaxed))
        };
        assert_eq!(find(1000).map(values), Some([1000, 100, 700, 500, 8]));
        assert_eq!(find(0).map(values), Some([1000, 100, 100, 0, 2]));
        assert_eq!((stat.swap_ra.load(Relaxed), stat.swap_ra_hit.load(Relaxed)), (900, 500));
        stat.note_touched(1000, 300);
        assert_eq!((find(1000).map(values), stat.swap_ra_hit.load(Relaxed)), (Some([1000, 100, 700, 700, 8]), 800));
    }

    #[test]
    fn buckets_tile_the_line() {
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789, 1 << 37]) {
            let i = bucket_of(ns);
            assert!(ns < bucket_end(i), "{ns} {i}");
            assert!(i == 0 || ns >= bucket_end(i - 1), "{ns} {i}");
        }
    }
}
