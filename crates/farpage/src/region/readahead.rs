//! Which pages come in with one that is missing, and how well that went: the state of readahead of a pager.
//!
//! ```text
//!   fault on a swapped page -> on_miss -> SwapInPlan: these pages or slots   (fault brings them in)
//!   touch of a marker       -> on_hit  -> a window for the background           (prefetch brings it in)
//! ```
//! The rules are pure ([`farpage_swap::readahead`]); this module keeps one state for each region and thread, the
//! counters, and the page of each slot where slot order is used. Pages read ahead are mapped at once, but for one
//! *marker* in every chunk, which waits in the swap cache with the *credit* of its chunk (`word`); with `exact`, and
//! with the kernel's rules, all of them wait, with a credit of one. So `swap_ra_hit` is exact there, and right on the
//! average elsewhere.
//!
//! Called by `fault` and `prefetch`. Locks: `maps` for reading (for writing when regions come and go), then `streams`,
//! `vma` or `cluster` of one of them: leaves, held for a look-up, under a busy page, never across a system call.

use super::word::{Hint, Seen};
use super::write_protect_policy::WriteProtectPolicy;
use farpage_base::mem::lock::{lock, lock_with_room};
use farpage_device::Entry;
use farpage_device::slot_pages::SlotPages;
use farpage_ipc::stat::Stat;
use farpage_swap::readahead::{ClusterState, Rule, Streams, Tuning, VmaState, Window};
use farpage_swap::score::{OneIn, Score};
use farpage_swap::tuning::{Controller, Controls};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// Threads with a state of their own; more share.
const THREADS: usize = 8;
/// Most slots read for one fault.
pub const SLOT_WINDOW: usize = 32;
/// The background is given up while it came too late much more often than in time...
const SCORE_MAX: i32 = 8;
/// (once too late counts as much as so many times in time)
const LATE: i32 = 2;
/// ... but tried again now and then.
const TRY_EVERY: u32 = 8;

/// What to bring in for a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapInPlan {
    /// These pages.
    Pages(Window),
    /// What lies in these slots of the faulting page's device.
    Slots(Range<u64>),
}

/// Readahead of one region, see [`Region::readahead_stats`](super::Region::readahead_stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadaheadStats {
    /// Pages read ahead.
    pub swap_ra: u64,
    /// Of them, pages that were touched later; see [`Tuning::exact`].
    pub swap_ra_hit: u64,
    /// The last window, pages.
    pub window: u32,
}

impl ReadaheadStats {
    /// Hits in percent of the pages read ahead; `None` if there are none.
    pub fn hit_pct(&self) -> Option<f64> {
        (self.swap_ra > 0).then(|| 100.0 * self.swap_ra_hit as f64 / self.swap_ra as f64)
    }
}

/// One region's.
struct Map {
    first: u32,
    pages: u32,
    tuning: Tuning,
    streams: [Mutex<Streams>; THREADS],
    vma: Mutex<VmaState>,
    /// For single faults under [`Rule::Stream`]; under [`Rule::Slot`] all regions share one, as in the kernel.
    cluster: Mutex<ClusterState>,
    /// Faults on pages that were on a device.
    faults: AtomicU64,
    ra: AtomicU64,
    hit: AtomicU64,
    window: AtomicU32,
    /// Whether what comes in is written.
    write_protect: WriteProtectPolicy,
    /// Its pages come from a device that is waited for: the background costs no CPU time then.
    queued: AtomicBool,
}

impl Map {
    fn new(first: u32, pages: u32, tuning: Tuning) -> Map {
        Map {
            first,
            pages,
            tuning,
            streams: [const { Mutex::new(Streams::with_strides()) }; THREADS],
            vma: Mutex::default(),
            cluster: Mutex::default(),
            faults: AtomicU64::new(0),
            ra: AtomicU64::new(0),
            hit: AtomicU64::new(0),
            window: AtomicU32::new(0),
            write_protect: WriteProtectPolicy::default(),
            queued: AtomicBool::new(false),
        }
    }
}

/// Whether reading in the background pays: it does not while no CPU is idle.
#[derive(Debug, Default)]
struct PrefetchScore {
    score: Score<SCORE_MAX>,
    seldom: OneIn<TRY_EVERY>,
}

impl PrefetchScore {
    fn note(&self, late: bool) {
        self.score.add(if late { -LATE } else { 1 });
    }

    fn pays(&self, controls: &Controls) -> bool {
        controls.decide(Controller::Background, self.score.get() >= 0) || self.seldom.comes()
    }
}

/// See the module documentation.
pub struct RegionReadahead {
    maps: RwLock<Vec<Box<Map>>>,
    /// For new regions.
    tuning: Tuning,
    /// Most pages of a window here: a share of the budget.
    limit: u32,
    cluster: Mutex<ClusterState>,
    /// One of the devices is.
    rotational: bool,
    /// Where slot order is used.
    slot_pages: OnceLock<SlotPages>,
    background: PrefetchScore,
}

impl std::fmt::Debug for RegionReadahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionReadahead")
            .field("tuning", &self.tuning)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl RegionReadahead {
    /// For a pager whose windows have at most `limit` pages; `rotational`: one of its devices is.
    pub fn new(tuning: Tuning, limit: u32, rotational: bool) -> RegionReadahead {
        let readahead = RegionReadahead {
            maps: RwLock::default(),
            tuning,
            limit: limit.max(1),
            cluster: Mutex::default(),
            rotational,
            slot_pages: OnceLock::new(),
            background: PrefetchScore::default(),
        };
        readahead.want_slot_pages(tuning);
        readahead
    }

    /// Some region is read ahead in this way from now on. Slots stored before are not known; they are read alone.
    fn want_slot_pages(&self, tuning: Tuning) {
        if SlotPages::are_wanted(tuning, self.rotational) {
            self.slot_pages.get_or_init(SlotPages::new);
        }
    }

    /// A region was made.
    pub fn open(&self, first: u32, pages: u32) {
        // Every fault takes the lock, perhaps in a handler that interrupts an allocation: none under it.
        let map = Box::new(Map::new(first, pages, self.tuning));
        let (mut maps, spare) = lock_with_room(|| self.maps.write().unwrap_or_else(PoisonError::into_inner));
        let at = maps.partition_point(|m| m.first < first);
        maps.insert(at, map);
        drop(maps);
        drop(spare);
    }

    /// A region goes.
    pub fn close(&self, first: u32) {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        let gone = maps.iter().position(|m| m.first == first).map(|at| maps.remove(at));
        drop(maps);
        drop(gone);
    }

    /// Changes how pages of the region that begins at `first` are read ahead, from nothing.
    pub(super) fn tune(&self, first: u32, tuning: Tuning) {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = maps.iter_mut().find(|m| m.first == first) {
            **map = Map::new(map.first, map.pages, tuning);
        }
        self.want_slot_pages(tuning);
    }

    /// How well reading ahead went so far in the region that `page` is in.
    pub(super) fn stats(&self, page: u32) -> ReadaheadStats {
        let stats = self.with(page, |m| {
            // In this order, because what is a hit was read before; or before `tune`.
            let hit = m.hit.load(Relaxed);
            let swap_ra = m.ra.load(Relaxed);
            ReadaheadStats { swap_ra, swap_ra_hit: hit.min(swap_ra), window: m.window.load(Relaxed) }
        });
        stats.unwrap_or_default()
    }

    /// `f` with the region around a page.
    fn with<R>(&self, page: u32, f: impl FnOnce(&Map) -> R) -> Option<R> {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        let map = maps[..maps.partition_point(|m| m.first <= page)].last()?;
        (page - map.first < map.pages).then(|| f(map))
    }

    /// A page was stored in a slot.
    #[inline]
    pub fn stored(&self, page: u32, entry: Entry) {
        if let Some(pages) = self.slot_pages.get() {
            pages.stored(page, entry);
        }
    }

    /// The page that was stored in a slot last, perhaps.
    pub fn page_of(&self, entry: Entry) -> u32 {
        self.slot_pages.get().map_or(0, |pages| pages.page_of(entry))
    }

    /// `f` with what is known of writes to the region around `page`.
    pub fn write_protect<R>(&self, page: u32, f: impl FnOnce(&WriteProtectPolicy) -> R) -> Option<R> {
        self.with(page, |m| f(&m.write_protect))
    }

    /// Whether every page read ahead around `page` is left unmapped.
    pub fn is_exact(&self, page: u32) -> bool {
        self.with(page, |m| m.tuning.is_exact()).unwrap_or(false)
    }

    /// What to bring in for a fault on a swapped page; `queued`, `rotational`: its device is; `is_there` says of
    /// another page whether it is in memory.
    pub fn on_miss(
        &self,
        page: u32,
        entry: Entry,
        hint: Hint,
        queued: bool,
        rotational: bool,
        is_there: impl Fn(u64) -> bool,
    ) -> SwapInPlan {
        let alone = SwapInPlan::Pages(Window::single(page.into()));
        let planned = self.with(page, |m| {
            m.faults.fetch_add(1, Relaxed);
            if hint == Hint::Random {
                return alone.clone();
            }
            let (first, end) = (u64::from(m.first), u64::from(m.first + m.pages));
            let max = m.tuning.max_pages().min(self.limit);
            let cluster = m.tuning.page_cluster().min(max.max(1).ilog2());
            match m.tuning.rule {
                _ if max == 1 => alone.clone(),
                Rule::None => alone.clone(),
                Rule::Slot => slots(&self.cluster, entry, cluster),
                Rule::Vma => {
                    let mut vma = lock(&m.vma);
                    let r = vma.on_miss(page.into(), first, end, cluster);
                    m.window.store(vma.window, Relaxed);
                    SwapInPlan::Pages(Window::of(r.start, (r.end - r.start) as u32))
                }
                Rule::Stream => {
                    let mut streams = lock(&m.streams[thread()]);
                    let w = match hint {
                        Hint::Sequential => streams.on_sequential(page.into(), max),
                        _ => streams.on_fault(page.into(), max, is_there),
                    };
                    drop(streams);
                    if m.queued.load(Relaxed) != queued {
                        m.queued.store(queued, Relaxed);
                    }
                    if w.late && !queued {
                        self.background.note(true);
                    }
                    m.window.store(w.pages, Relaxed);
                    if w.pages == 1 && rotational {
                        return slots(&m.cluster, entry, 3);
                    }
                    w.clipped(first, end).map_or(alone.clone(), SwapInPlan::Pages)
                }
            }
        });
        planned.unwrap_or(alone)
    }

    /// What really came in of a window.
    pub fn on_served(&self, page: u32, start: u32, pages: u32) {
        self.with(page, |m| {
            if m.tuning.rule == Rule::Stream {
                lock(&m.streams[thread()]).on_served(start.into(), pages);
            }
        });
    }

    /// `n` pages around `page` were read ahead.
    pub fn read(&self, page: u32, n: usize) {
        self.with(page, |m| m.ra.fetch_add(n as u64, Relaxed));
    }

    /// A page of the swap cache was touched; `cached`: its word then. What to read in the background now.
    pub fn on_hit(&self, controls: &Controls, page: u32, cached: Seen) -> Option<Window> {
        let credit = cached.credit();
        self.with(page, |m| {
            Stat::add_hits(&m.hit, &m.ra, credit.into());
            let max = m.tuning.max_pages().min(self.limit);
            match m.tuning.rule {
                Rule::Slot => {
                    if credit > 0 {
                        lock(&self.cluster).on_hit();
                    }
                    None
                }
                Rule::Vma => {
                    lock(&m.vma).on_hit(page.into(), credit > 0);
                    None
                }
                Rule::Stream if cached.is_by_slot() => {
                    lock(&m.cluster).on_hit();
                    let next = lock(&m.streams[thread()]).on_touch(page.into(), max);
                    next?.clipped(m.first.into(), (m.first + m.pages).into())
                }
                Rule::Stream if credit > 0 && max > 1 && (m.queued.load(Relaxed) || self.background.pays(controls)) => {
                    // The stream of this thread, most likely; it may have been handed on.
                    let own = thread();
                    let ask = |i: usize| lock(&m.streams[(own + i) % THREADS]).on_hit(page.into(), max);
                    let next = (0..THREADS).find_map(ask)?;
                    self.background.note(false);
                    m.window.store(next.pages, Relaxed);
                    next.clipped(m.first.into(), (m.first + m.pages).into())
                }
                _ => None,
            }
        })
        .flatten()
    }
}

fn slots(state: &Mutex<ClusterState>, entry: Entry, page_cluster: u32) -> SwapInPlan {
    // The end of the device: slots behind it belong to no page.
    SwapInPlan::Slots(lock(state).on_miss(entry.slot(), u64::MAX >> 24, page_cluster.min(5)))
}

/// A number for the calling thread, below [`THREADS`]: from the address of its `errno`.
fn thread() -> usize {
    // SAFETY: only the address is used.
    let at = unsafe { libc::__errno_location() } as usize;
    // Thread control blocks are pages apart, and often a power of two of them.
    (at >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61
}

mod publish;
#[cfg(test)]
mod tests;
