//! What `farpage stat` and `farpage run --stats` read from outside: the counters of one engine, or of one pager of
//! regions.
//!
//! The engine, or the pager, is the only writer, and counts in the page itself; every field is one atomic word, so
//! neither side needs a lock, and a signal handler may count. Names are the kernel's (`/proc/vmstat`) where the kernel
//! has the counter. The page is a memfd named [`MEMFD_NAME`] (`page`): it goes away with the last process that holds
//! it, whatever happens.

mod events;
mod page;
mod waiting;

pub use events::{EVENTS, Event, EventKind, Events};
pub use page::RW;
pub use page::{StatPage, complete, new_memfd};
pub use waiting::{FULL, Waiting};

use farpage_base::mem::units::Vpn;
#[cfg(doc)]
use farpage_swap::tuning::CONTROLLERS;
use farpage_swap::tuning::COUNT;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Name of the memfd: `/proc/PID/task/TID/fd/N` links to `/memfd:farpage-stat (deleted)`.
pub const MEMFD_NAME: &str = "farpage-stat";
/// `comm` of the engine's first thread; its descriptor table holds the memfd.
pub const THREAD_NAME: &str = "farpage-monitor";
/// `comm` of a pager's reclaim threads; they share the program's descriptor table, which holds the pagers' memfds.
pub const PAGER_THREAD_NAME: &str = "farpage-reclaim";
/// First word of the page: [`FAMILY`] and the version of the layout, which a program brings along with its library.
pub const MAGIC: u64 = u64::from_le_bytes(*b"farpage7");
/// The bytes of [`MAGIC`] that are the same in all versions.
pub const FAMILY: &[u8; 7] = b"farpage";
/// Bytes of the mapping.
pub const STAT_BYTES: usize = (16 * 1024 + size_of::<Events>()).next_multiple_of(4096);

const SUB: usize = 4;
/// Mappings whose readahead is shown: those that fault most.
pub const READAHEADS: usize = 16;
/// Buckets of the fault latency histogram: 4 per power of two nanoseconds.
pub const BUCKETS: usize = 40 * SUB;

macro_rules! fields {
    ($($kind:ident { $($(#[doc = $doc:literal])+ $name:ident = $shown:expr,)+ })+) => {
        /// How many named values there are.
        pub(crate) const VALUES: usize = [$($(stringify!($name)),+),+].len();

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
            /// Fault service times, from the message read to the thread woken; see [`bucket_of`]. The engine's only.
            pub fault_ns: [AtomicU64; BUCKETS],
            /// Number of the pager in its process, from 1; 0: an engine's page.
            pub pager: AtomicU64,
            /// Where each of [`CONTROLLERS`] is now: its value + 1, 0 if it has not decided anything yet.
            pub tuning: [AtomicU64; COUNT],
            /// One bit for each controller that is held.
            pub tuning_held: AtomicU64,
            /// What happened last. The engine's only.
            pub events: Events,
            /// The last message that could not be written.
            pub unsaid: Unsaid,
        }

        impl Stat {
            /// Every named value that engine or pager has, in order: name, one-line description, value, whether it only
            /// grows.
            pub fn values(&self) -> Vec<Value> {
                let mut values = vec![$($((stringify!($kind), Value {
                    name: stringify!($name),
                    help: concat!($($doc),+),
                    value: self.$name.load(Relaxed),
                    counter: stringify!($kind).ends_with("counter"),
                    shown: $shown,
                })),+),+];
                let pager = self.pager.load(Relaxed) > 0;
                values.retain(|(kind, value)| match pager {
                    true => !value.shown.engine,
                    false => !kind.starts_with("pager"),
                });
                values.into_iter().map(|(_, value)| value).collect()
            }

            /// What an engine counts, in order.
            pub(crate) fn counters(&self) -> impl Iterator<Item = &AtomicU64> {
                let all = [$($((stringify!($kind), &self.$name)),+),+];
                all.into_iter().filter(|(kind, _)| *kind == "counter").map(|(_, counter)| counter)
            }

            /// One of them; `None`: there is none of this name.
            pub fn get(&self, name: &str) -> Option<u64> {
                $($(if name == stringify!($name) {
                    return Some(self.$name.load(Relaxed));
                })+)+
                None
            }
        }
    };
}

/// A message that could not be written to standard error, because that is another file by now: its text, as far as
/// there is room. Several at a time may mix; nothing depends on it.
#[repr(C)]
#[derive(Debug)]
pub struct Unsaid {
    /// How many there were.
    count: AtomicU64,
    text: [AtomicU64; 32],
}

impl Unsaid {
    /// Keeps one.
    pub fn keep(&self, text: &[u8]) {
        self.count.fetch_add(1, Relaxed);
        let (whole, rest) = text.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for (to, bytes) in self.text.iter().zip(whole.iter().chain([&last, &[0; 8]])) {
            to.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
    }

    /// How many there were, and the last one.
    pub fn last(&self) -> (u64, Vec<u8>) {
        let bytes = self.text.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes());
        (self.count.load(Relaxed), bytes.take_while(|byte| *byte != 0).collect())
    }
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
    /// How it is shown and exported.
    pub shown: Presentation,
}

/// How a value is shown and exported.
#[derive(Debug, Clone, Copy)]
pub struct Presentation {
    /// The part of the sheet of `farpage stat` that it is in.
    pub group: &'static str,
    /// A brief sheet has it, though it is a level.
    pub brief: bool,
    /// As a metric.
    pub exported: Exported,
    /// A pager of regions does not have it.
    engine: bool,
}

/// What a value is as a metric.
#[derive(Debug, Clone, Copy)]
pub enum Exported {
    /// What it is here.
    AsNamed,
    /// None: a peak is `max_over_time` of what it is the peak of.
    Not,
    /// One of another name.
    As(&'static str),
    /// A kind of `farpage_errors`.
    Error(&'static str),
}

const fn group(group: &'static str) -> Presentation {
    Presentation { group, brief: false, exported: Exported::AsNamed, engine: false }
}

const MEMORY: Presentation = group("memory");
const FAULTS: Presentation = group("faults");
const SWAP: Presentation = group("swap");
const EVENTS_SEEN: Presentation = group("events");
const TROUBLE: Presentation = group("trouble");
const OTHER: Presentation = group("other");

impl Presentation {
    const fn brief(self) -> Presentation {
        Presentation { brief: true, ..self }
    }
    const fn of_engines(self) -> Presentation {
        Presentation { engine: true, ..self }
    }
    const fn not_exported(self) -> Presentation {
        Presentation { exported: Exported::Not, ..self }
    }
    const fn exported_as(self, name: &'static str) -> Presentation {
        Presentation { exported: Exported::As(name), ..self }
    }
    const fn error(self, kind: &'static str) -> Presentation {
        Presentation { exported: Exported::Error(kind), ..self }
    }
}

fields! {
    level {
        /// 1 once memory is managed; 0 while the program is below its budget.
        active = MEMORY.of_engines(),
        /// The budget.
        budget_bytes = MEMORY.brief(),
        /// Resident anonymous memory as the kernel counts it, last sample.
        rss_anon_bytes = MEMORY.brief().of_engines(),
        /// Largest sample so far.
        rss_anon_peak_bytes = MEMORY.of_engines().not_exported(),
        /// Managed pages that are mapped in the program (an estimate after MADV_DONTNEED).
        resident_bytes = MEMORY.brief(),
        /// Managed pages that are mapped in the program and proved hot.
        hot_bytes = MEMORY,
        /// Pages in the swap cache: taken out of the program, still in RAM.
        cached_bytes = MEMORY,
        /// Frames not in use: to read ahead into, or on their way back to the kernel.
        free_frames_bytes = MEMORY,
        /// Pages whose only copy is on a swap device.
        swapped_bytes = MEMORY.brief(),
        /// RAM of the compressed pool, fragmentation included.
        pool_bytes = MEMORY.brief(),
        /// Compressed bytes in the pool.
        pool_compressed_bytes = MEMORY,
        /// Uncompressed bytes the pool stands for.
        pool_orig_bytes = MEMORY,
        /// Most RAM the compressed pool may take.
        pool_limit_bytes = MEMORY,
        /// Most RAM the compressed pool has taken.
        pool_peak_bytes = MEMORY.not_exported(),
        /// Pages kept as one word.
        same_filled_pages = MEMORY,
        /// Pages kept in the pool as they are: they do not compress, and no other device takes them.
        // zram's word; beside huge pages of the processor it would say something else.
        huge_pages = MEMORY.exported_as("pool_raw_pages"),
        /// Bytes of pages on file devices.
        file_bytes = MEMORY.brief(),
        /// Address space registered with userfaultfd.
        managed_bytes = MEMORY,
        /// Resident memory that cannot be managed, while it leaves too little of the budget for the rest.
        unmanaged_bytes = MEMORY.of_engines(),
        /// Engine metadata: page table, heap.
        meta_bytes = MEMORY.brief(),
    }
    counter {
        /// Faults served.
        pgfault = FAULTS,
        /// Time for which threads waited in faults, from when the engine heard of each until it was served.
        fault_wait_ns = FAULTS.exported_as("fault_wait_seconds"),
        /// Time for which threads waited after they were given memory, until the engine had looked at it.
        alloc_wait_ns = FAULTS.of_engines().exported_as("alloc_wait_seconds"),
        /// Threads that had faults; more than 255 are not told apart.
        fault_threads = FAULTS.of_engines(),
        /// Faults that read a swap device.
        pgmajfault = FAULTS,
        /// Faults that read a swap device and waited for a file.
        pgmajfault_file = OTHER,
        /// Faults whose read was queued, so that those of other threads could be served meanwhile.
        pgmajfault_queued = OTHER.of_engines(),
        /// Pages read from swap devices, readahead included.
        pswpin = SWAP,
        /// Pages written to swap devices.
        pswpout = SWAP,
        /// Pages served as zero: first touches and swapped-out zero pages.
        swpin_zero = SWAP,
        /// Pages found all zero at swap-out: no device space, no I/O.
        swpout_zero = SWAP,
        /// Pages dropped without a write because their slot still held the same bytes.
        swpout_clean = SWAP,
        /// Pages dropped because other processes have a copy of them for all, or stored as such a copy.
        swpout_shared = SWAP.of_engines(),
        /// Pages brought in by readahead.
        swap_ra = SWAP,
        /// Pages read ahead and touched later: sampled in regions; in `run` with `exact`, `vma`, `slot`.
        swap_ra_hit = SWAP,
        /// Windows whose read was begun before the program came to them.
        swap_ra_windows = SWAP.of_engines(),
        /// Those of these windows of which a page was wanted.
        swap_ra_windows_hit = SWAP.of_engines(),
        /// Faults served from the swap cache, without I/O.
        workingset_refault_cached = FAULTS.exported_as("workingset_refault"),
        /// Pages taken out of the program into the swap cache.
        pgsteal_anon = SWAP.of_engines(),
        /// Faults that had to wait for reclaim.
        allocstall = FAULTS,
        /// Pages that could not be taken out for now (pinned, locked, other access rights).
        move_skipped = TROUBLE.of_engines(),
        /// Pages unshared after a fork so that they could be taken out.
        cow_unshared = EVENTS_SEEN.of_engines(),
        /// MADV_DONTNEED, MADV_FREE followed.
        event_remove = EVENTS_SEEN.of_engines(),
        /// munmap, brk shrinking, mmap over a mapping followed.
        event_unmap = EVENTS_SEEN.of_engines(),
        /// mremap followed.
        event_remap = EVENTS_SEEN.of_engines(),
        /// Mappings adopted.
        adopted_ranges = EVENTS_SEEN.of_engines(),
        /// Pages of libraries' relocated tables taken over.
        relocated_pages = EVENTS_SEEN.of_engines(),
        /// Forks followed.
        forks = EVENTS_SEEN.of_engines(),
        /// Samples of resident anonymous memory above budget + 5 %.
        over_budget_samples = TROUBLE.of_engines().error("over_budget"),
        /// Tries to swap a page out that failed because no device had room; the page stays in RAM.
        swap_full = TROUBLE.of_engines().error("device_full"),
        /// Bytes of pages read from file devices, readahead included.
        file_read_bytes = SWAP,
        /// Bytes of pages written to file devices.
        file_write_bytes = SWAP,
        /// Compressed pages moved on to a file device.
        pool_writeback = SWAP,
        /// Loads of compressed pages that were among the older half.
        pool_old_loads = OTHER,
        /// Compressed pages moved to fill holes of the pool.
        pages_compacted = SWAP,
        /// Pages compressed once more, to less.
        pool_recompressed = SWAP,
        /// Pages that zram refused because they do not compress.
        incompressible_pages = SWAP,
        /// Unused space given back to disk or filesystem.
        discarded_bytes = SWAP,
        /// Pages taken off devices that failed.
        drained_pages = TROUBLE,
        /// Pages that no device could read back: threads that touch them get SIGBUS.
        pages_lost = TROUBLE.of_engines().error("lost_page"),
        /// Slots that are not used again because a write to them failed.
        bad_slots = TROUBLE.error("bad_slot"),
        /// Device write errors.
        write_errors = TROUBLE.error("write"),
        /// Device read errors.
        read_errors = TROUBLE.error("read"),
        /// Time for which idle CPUs were kept from sleeping, because faults came one after the other.
        idle_poll_ns = SWAP.of_engines().exported_as("idle_poll_seconds"),
        /// Checksums of pages that came back, compared and equal: `--verify`, or a pager that verifies.
        verified = SWAP,
    }
    // Pagers only. Behind the others, so that these have the same places everywhere.
    pager_level {
        /// What counts against the budget: pages of regions, frames, pool, tables.
        used_bytes = MEMORY.brief(),
        /// Pages that are pinned.
        pinned_bytes = MEMORY.brief(),
    }
    pager_counter {
        /// Faults by writing to a page that was write-protected to see that.
        wp_fault = FAULTS,
        /// Pages taken above the budget because nothing could be swapped out.
        over_budget = TROUBLE.error("over_budget"),
    }
}

impl Stat {
    /// Adds `n` to a counter.
    #[inline]
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Adds up to `n` hits of pages read ahead, no more than were read: a forked child counts from zero, but has its
    /// parent's pages.
    #[inline]
    pub fn add_hits(hit: &AtomicU64, ra: &AtomicU64, n: u64) {
        let _ = hit.fetch_update(Relaxed, Relaxed, |hit| {
            let n = n.min(ra.load(Relaxed).saturating_sub(hit));
            (n > 0).then_some(hit + n)
        });
    }

    /// Books a swap-in fault in the mapping `[start, end)`: pages read ahead by it, and its window. Called by one
    /// thread only. A new mapping takes the place of the one with the fewest faults.
    pub fn note_readahead(&self, (start, end): (Vpn, Vpn), read: u64, window: u32) {
        let free = || self.readahead.iter().min_by_key(|m| m.faults.load(Relaxed));
        let known = self.readahead_of(start);
        let Some(m) = known.or_else(free) else { return };
        if known.is_none() {
            m.start.store(start.number(), Relaxed);
            [&m.faults, &m.swap_ra, &m.swap_ra_hit].into_iter().for_each(|n| n.store(0, Relaxed));
        }
        m.pages.store((end - start) as u64, Relaxed);
        m.window.store(window.into(), Relaxed);
        Stat::add(&m.faults, 1);
        Stat::add(&m.swap_ra, read);
        Stat::add(&self.swap_ra, read);
    }

    /// Books that `hits` pages read ahead were used, in the mapping that starts at page `start`. Called by one thread
    /// only.
    pub fn note_touched(&self, start: Vpn, hits: u64) {
        Stat::add_hits(&self.swap_ra_hit, &self.swap_ra, hits);
        if let Some(m) = self.readahead_of(start) {
            Stat::add_hits(&m.swap_ra_hit, &m.swap_ra, hits);
        }
    }

    fn readahead_of(&self, start: Vpn) -> Option<&MappingReadahead> {
        self.readahead.iter().find(|m| m.start.load(Relaxed) == start.number() && m.pages.load(Relaxed) > 0)
    }

    /// Records one served fault of `ns` nanoseconds.
    #[inline]
    pub fn record_fault(&self, ns: u64) {
        Stat::add(&self.fault_ns[bucket_of(ns)], 1);
        Stat::add(&self.fault_wait_ns, ns);
    }

    /// The latency in nanoseconds below which `share` (0 to 1) of the served faults stayed; `None` before the first.
    /// The answer is the upper edge of a bucket, so at most 25 % too high.
    pub fn fault_percentile_ns(&self, share: f64) -> Option<u64> {
        let counts: Vec<u64> = self.fault_ns.iter().map(|c| c.load(Relaxed)).collect();
        percentile_ns(&counts, share)
    }
}

/// The same of any faults, counted in the buckets of [`bucket_of`].
pub fn percentile_ns(counts: &[u64], share: f64) -> Option<u64> {
    let total = counts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    if total == 0 {
        return None;
    }
    let wanted = ((total as f64 * share).ceil() as u64).clamp(1, total);
    let mut seen = 0u64;
    for (i, n) in counts.iter().enumerate() {
        seen = n.saturating_add(seen);
        if seen >= wanted {
            return Some(bucket_end(i));
        }
    }
    None
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

const _: () = assert!(size_of::<Stat>() <= STAT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readahead_is_booked_by_mapping() {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        let mapping = |start: u64| (Vpn::new(start), Vpn::new(start + 1000));
        for i in 0..100u64 {
            stat.note_readahead(mapping(1000), 7, 8);
            stat.note_touched(Vpn::new(1000), 5);
            stat.note_readahead(mapping(0), 1, 2);
            stat.note_readahead(mapping(i * 4000 + 4000), 1, 1);
        }
        let find = |start: u64| stat.readahead_of(Vpn::new(start));
        let values = |m: &MappingReadahead| {
            [&m.pages, &m.faults, &m.swap_ra, &m.swap_ra_hit, &m.window].map(|n| n.load(Relaxed))
        };
        assert_eq!(find(1000).map(values), Some([1000, 100, 700, 500, 8]));
        assert_eq!(find(0).map(values), Some([1000, 100, 100, 0, 2]));
        assert_eq!((stat.swap_ra.load(Relaxed), stat.swap_ra_hit.load(Relaxed)), (900, 500));
        stat.note_touched(Vpn::new(1000), 300);
        assert_eq!((find(1000).map(values), stat.swap_ra_hit.load(Relaxed)), (Some([1000, 100, 700, 700, 8]), 800));
    }

    #[test]
    fn a_fault_is_in_the_histogram_and_in_the_sum() {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        [900, 5_000, 2_000_000_000].into_iter().for_each(|ns| stat.record_fault(ns));
        assert_eq!(stat.fault_wait_ns.load(Relaxed), 2_000_005_900);
        assert_eq!(stat.fault_ns.iter().map(|n| n.load(Relaxed)).sum::<u64>(), 3);
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
