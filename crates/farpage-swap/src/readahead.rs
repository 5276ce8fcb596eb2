//! How many pages to bring in around a fault.
//!
//! Owns two families of rules, no I/O and no page state; all numbers are page (or slot) numbers:
//! - the kernel's: [`window`], [`VmaState`] (virtual-address order), [`ClusterState`] (slot order, rotational devices).
//!   They need hits: pages read ahead sit in the swap cache and the first touch of each is a minor fault. Called for
//!   explicit regions, and by the benches that compare ours with the kernel's.
//! - ours: [`Streams`], for memory where pages read ahead are mapped at once, so that hits are invisible. Called by the
//!   engine's fault path, once for swap-in and (another instance, larger `max`) once for zero fills.

use std::ops::Range;

/// The kernel's block that VMA readahead does not leave: 2 MiB of pages.
const PMD_PAGES: u64 = 512;

/// The kernel's window in pages for a miss at `this`: from the hits since the last miss, which was at `prev` and used
/// `prev_window`. 1 means no readahead. Never above `max`, except that it never shrinks by more than half.
pub fn window(hits: u32, prev: u64, this: u64, max: u32, prev_window: u32) -> u32 {
    let wanted = match hits {
        0 if prev.abs_diff(this) == 1 => 2,
        0 => 1,
        _ => hits.saturating_add(2).checked_next_power_of_two().unwrap_or(max),
    };
    wanted.min(max).max(prev_window / 2)
}

/// The kernel's VMA readahead: state of one mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmaState {
    /// The page of the last miss or hit.
    pub prev: u64,
    /// The window of the last miss, before clipping.
    pub window: u32,
    /// Marked hits since the last miss, at most 63 (6 bits in the kernel's state word).
    pub hits: u32,
}

/// A fresh state claims some hits, so that the first miss reads a medium window.
impl Default for VmaState {
    fn default() -> Self {
        Self { prev: 0, window: 0, hits: 4 }
    }
}

impl VmaState {
    /// The pages to read for a miss at `f` in the mapping `[vma_start, vma_end)`, `f` included. Every page of it that
    /// is read anew, other than `f`, is to be marked and counted as `swap_ra`.
    pub fn on_miss(&mut self, f: u64, vma_start: u64, vma_end: u64, page_cluster: u32) -> Range<u64> {
        let max = 1 << page_cluster.min(5);
        if max == 1 {
            return f..f.saturating_add(1);
        }
        let win = window(self.hits, self.prev, f, max, self.window);
        let before = match f.wrapping_sub(self.prev) {
            1 => 0,
            u64::MAX => win - 1,
            _ => (win - 1) / 2,
        };
        *self = Self { prev: f, window: win, hits: 0 };
        let block = f - f % PMD_PAGES;
        let start = f.saturating_sub(before.into()).max(vma_start).max(block);
        let end = f.saturating_add((win - before).into()).min(vma_end).min(block.saturating_add(PMD_PAGES));
        start..end
    }

    /// `page` was found in the swap cache; `marked`: with the readahead mark (cleared, and counted as `swap_ra_hit`).
    pub fn on_hit(&mut self, page: u64, marked: bool) {
        self.prev = page;
        self.hits = self.hits.saturating_add(marked.into()).min(63);
    }
}

/// The kernel's slot-order readahead: one state for all devices.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterState(VmaState);

impl ClusterState {
    /// The slots to read for a miss at `slot` of a device with `slots` slots: the aligned block around it, without
    /// slot 0 (the kernel's header) and what lies behind the device's end.
    pub fn on_miss(&mut self, slot: u64, slots: u64, page_cluster: u32) -> Range<u64> {
        let max = 1 << page_cluster.min(31);
        if max == 1 {
            return slot..slot.saturating_add(1);
        }
        let VmaState { prev, window: prev_window, hits } = self.0;
        // All that it is made of are powers of two, and so is the window.
        let win = window(hits, prev, slot, max, prev_window);
        self.0 = VmaState { prev: if hits == 0 { slot } else { prev }, window: win, hits: 0 };
        let mask = u64::from(win) - 1;
        (slot & !mask).max(1)..(slot | mask).saturating_add(1).min(slots)
    }

    /// A page with the readahead mark was found in the swap cache.
    pub fn on_hit(&mut self) {
        self.0.hits = self.0.hits.saturating_add(1);
    }
}

/// Streams that are followed at the same time.
const STREAMS: usize = 8;
/// The first window of a stream once it is recognised.
const FIRST_WINDOW: u32 = 4;
/// Largest patience with a silent stream, see [`Stream::staleness`].
const MAX_PATIENCE: u32 = 64;
/// One past the last page number of a 64-bit address space; windows end there.
const END: u64 = (u64::MAX >> crate::PAGE_SHIFT) + 1;

/// Pages to bring in for one fault; the faulting page is the first (ascending) or the last (descending) of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First page.
    pub start: u64,
    /// Number of pages, at least 1.
    pub pages: u32,
}

impl Window {
    /// One past the last page.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.pages as u64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// One fault seen: a candidate that may go either way.
    Unknown,
    Up,
    Down,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// What was brought in last: `[low, high)`. The stream goes on at `high` (up) or `low - 1` (down).
    low: u64,
    high: u64,
    direction: Direction,
    /// Its last window before clipping; 0: unused entry.
    window: u32,
    /// How far behind the expected page a fault still continues the stream.
    slack: u64,
    /// Time (faults) of its last fault.
    seen: u64,
}

impl Stream {
    const UNUSED: Self = Self { low: 0, high: 0, direction: Direction::Unknown, window: 0, slack: 0, seen: 0 };

    /// If `page` continues this stream: how many pages it skipped, and the direction.
    fn gap(&self, page: u64) -> Option<(u64, Direction)> {
        let up = page.checked_sub(self.high);
        let down = self.low.checked_sub(1).and_then(|next| next.checked_sub(page));
        let (gap, direction) = match (self.direction, up, down) {
            (Direction::Up | Direction::Unknown, Some(gap), _) => (gap, Direction::Up),
            (Direction::Down | Direction::Unknown, _, Some(gap)) => (gap, Direction::Down),
            _ => return None,
        };
        (self.window > 0 && gap <= self.slack).then_some((gap, direction))
    }

    /// How fit this entry is to be replaced at time `now` by a candidate at `page`: its age, measured in its own windows
    /// (a stream faults once per window, and must outlive the random faults between), up to a limit that makes room
    /// after a phase ends. An entry whose last window contains `page` goes first: what it read ahead is gone again.
    fn staleness(&self, page: u64, now: u64) -> u64 {
        match self.window {
            _ if (self.low..self.high).contains(&page) => u64::MAX,
            0 => u64::MAX - 1,
            w => now.wrapping_sub(self.seen).saturating_mul(MAX_PATIENCE.into()) / u64::from(w.min(MAX_PATIENCE)),
        }
    }
}

/// Recognised streams of faults in memory where pages read ahead are mapped at once.
///
/// The first touch of such a page is invisible, but the *next fault* is not: when it is the first page behind what was
/// brought in, the program went through the window, and the stream is confirmed. A fault that continues nothing is
/// served alone and becomes a candidate; a second one right beside it makes a stream of 4 pages, which doubles with
/// every fault at exactly the expected page. A fault a little further on (half a window: pages there were still
/// present, or the program skips a few) goes on with the window unchanged. Random and strided faults stay single.
#[derive(Debug, Clone)]
pub struct Streams {
    table: [Stream; STREAMS],
    now: u64,
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Streams {
    /// No streams yet. One instance is meant to be used under one lock.
    pub const fn new() -> Self {
        Self { table: [Stream::UNUSED; STREAMS], now: 0 }
    }

    /// The pages to bring in for a fault at `page`, at most `max` (0 is taken as 1). The caller clips it to the mapping
    /// and to what is swapped out, and says with [`Self::on_served`] what remained of it.
    pub fn on_fault(&mut self, page: u64, max: u32) -> Window {
        self.now = self.now.wrapping_add(1);
        let (now, max) = (self.now, max.max(1));
        let followed = self.table.iter_mut().filter_map(|s| Some((s.gap(page)?, s))).min_by_key(|((gap, _), _)| *gap);
        let (direction, window, stream) = match followed {
            Some(((0, direction), s)) => (direction, s.window.saturating_mul(2).max(FIRST_WINDOW), s),
            Some(((_, direction), s)) => (direction, s.window, s),
            None => match self.table.iter_mut().max_by_key(|s| s.staleness(page, now)) {
                Some(s) => (Direction::Unknown, 1, s),
                None => return Window { start: page, pages: 1 },
            },
        };
        let window = window.min(max);
        let ahead = u64::from(window) - 1;
        let down = direction == Direction::Down;
        let start = if down { page.saturating_sub(ahead) } else { page };
        let last = if down { page } else { page.saturating_add(ahead).min(END - 1).max(page) };
        let slack = if direction == Direction::Unknown { 0 } else { u64::from(window / 2 + 1) };
        *stream = Stream { low: start, high: last.saturating_add(1), direction, window, slack, seen: now };
        Window { start, pages: (last - start + 1) as u32 } // at most `window`, so it fits
    }

    /// `[start, start + pages)` of the last window was worked through: brought in, or found present already. The
    /// stream goes on behind it, or anywhere in the part of the window that was cut off.
    pub fn on_served(&mut self, start: u64, pages: u32) {
        let end = start.saturating_add(pages.into());
        let window = |s: &&mut Stream| s.window > 0 && start < end && s.low < end && start < s.high;
        if let Some(s) = self.table.iter_mut().filter(window).max_by_key(|s| s.seen) {
            s.slack = s.slack.saturating_add((s.high - s.low).saturating_sub(end - start));
            (s.low, s.high) = (start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    /// The misses of the kernel's VMA rule as "page:hits,window>window[range) "; no page is accessed twice.
    fn kernel(pages: impl IntoIterator<Item = u64>, page_cluster: u32) -> String {
        let (mut vma, mut misses, mut cached) = (VmaState::default(), String::new(), HashSet::new());
        for p in pages {
            if cached.contains(&p) {
                vma.on_hit(p, true);
                continue;
            }
            let (old, r) = (vma, vma.on_miss(p, 1024, 4096, page_cluster));
            misses += &format!("{p}:{},{}>{}[{},{}) ", old.hits, old.window, vma.window, r.start, r.end);
            cached.extend(r);
        }
        misses
    }

    #[test]
    fn vma_vectors_of_the_reference() {
        let up = "1100:4,0>8[1097,1105) 1105:4,8>8[1105,1113) 1113:7,8>";
        let small = "8[1113,1121) 1121:7,8>8[1121,1129) 1129:7,8>8[1129,1137) 1137:7,8>8[1137,1145) ";
        let large = "16[1113,1129) 1129:15,16>32[1129,1161) 1161:31,32>32[1161,1193) ";
        let down = "1600:4,0>8[1597,1605) 1596:3,8>8[1589,1597) 1588:7,8>8[1581,1589) 1580:7,8>8[1573,1581) \
                    1572:7,8>8[1565,1573) 1564:7,8>8[1557,1565) ";
        let stride = "1100:4,0>8[1097,1105) 1137:0,8>4[1136,1140) 1174:0,4>2[1174,1176) 1211:0,2>1[1211,1212) \
                      1248:0,1>1[1248,1249) ";
        let single = "1285:0,1>1[1285,1286) 1322:0,1>1[1322,1323) 1359:0,1>1[1359,1360) ";
        let grow = "2000:0,1>1[2000,2001) 2001:0,1>2[2001,2003) 2003:1,2>4[2003,2007) 2007:3,4>8[2007,2015) \
                    2015:7,8>8[2015,2023) 2023:7,8>8[2023,2031) ";
        let edge = "1530:4,0>8[1527,1535) 1535:4,8>8[1535,1536) 1536:0,8>4[1536,1540) 1540:3,4>8[1540,1548) ";
        assert_eq!((kernel(1100..1140, 3), kernel(1100..1180, 5)), (format!("{up}{small}"), format!("{up}{large}")));
        assert_eq!((kernel((1561..=1600).rev(), 3), kernel(1530..1545, 3)), (down.into(), edge.into()));
        assert_eq!(kernel((1100..).step_by(37).take(8), 3), format!("{stride}{single}"));
        assert_eq!(kernel((1100..).step_by(37).take(5).chain(2000..2024), 3), format!("{stride}{grow}"));
    }

    #[test]
    fn slot_order_reads_aligned_blocks() {
        let mut c = ClusterState::default();
        assert_eq!([13, 100, 101, 3, 4].map(|s| c.on_miss(s, 1000, 3)), [8..16, 100..104, 100..102, 3..4, 4..6]);
        c.on_hit();
        // A miss after hits does not become the previous one: 3 is beside 4, not beside 50.
        assert_eq!([50, 3, 9].map(|s| c.on_miss(s, 1000, 1)), [50..52, 2..4, 9..10]);
        assert_eq!([1, 9].map(|s| ClusterState::default().on_miss(s, 12, 3)), [1..8, 8..12]);
    }

    /// Plays accesses through `Streams`: the windows used, and how many pages were brought in.
    fn play(accesses: impl IntoIterator<Item = u64>, max: u32) -> (Vec<u32>, usize) {
        let (mut streams, mut windows, mut mapped) = (Streams::new(), vec![], HashSet::new());
        for p in accesses {
            if !mapped.contains(&p) {
                let w = streams.on_fault(p, max);
                windows.push(w.pages);
                mapped.extend(w.start..w.end());
                streams.on_served(w.start, w.pages);
            }
        }
        (windows, mapped.len())
    }

    fn random(i: u64) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(i) >> 44
    }

    #[test]
    fn sequential_streams_reach_the_largest_window() {
        for (windows, brought) in [play(10_000..14_096, 32), play((10_000..14_096).rev(), 32)] {
            assert_eq!((&windows[..6], windows.len()), (&[1, 4, 8, 16, 32, 32][..], 132));
            assert!(brought < 4096 + 32);
        }
        assert_eq!(play(0..4096, 512).0, [1, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512, 512, 512, 512, 512, 512]);
        assert_eq!(play((0..4096).flat_map(|i| [10_000 + i, 90_000 - i]), 32).0.len(), 2 * 132);
        // The random faults between its own do not push a stream out: a fifth of the accesses suffices.
        let noisy = (0..5 * 4096).map(|i| if i % 5 == 0 { i / 5 } else { 10_000 + random(i) });
        assert!(play(noisy, 32).0.iter().filter(|&&w| w == 32).count() >= 127);
    }

    #[test]
    fn random_and_strided_faults_stay_single() {
        let (windows, brought) = play((0..20_000).map(random), 32);
        assert!(windows.iter().filter(|&&w| w == 1).count() * 1000 > windows.len() * 999);
        assert!(brought < windows.len() * 1001 / 1000, "{brought}");
        (2..40).for_each(|k| assert!(play((0..).step_by(k).take(1000), 32).0.iter().all(|&w| w == 1)));
    }

    #[test]
    fn a_window_cut_short_goes_on_behind_the_cut() {
        let mut s = Streams::new();
        assert_eq!([10, 11, 15].map(|p| s.on_fault(p, 32).pages), [1, 4, 8]);
        s.on_served(15, 3);
        assert_eq!(s.clone().on_fault(18, 32), Window { start: 18, pages: 16 }, "the expected page: doubles");
        assert_eq!(s.clone().on_fault(27, 32), Window { start: 27, pages: 8 }, "cut 5 and slack 5: goes on");
        assert_eq!(s.clone().on_fault(29, 32), Window { start: 29, pages: 1 }, "too far");
    }

    proptest! {
        #[test]
        fn windows_contain_the_page(faults in prop::collection::vec((0..3usize, 0..60u64, 0..40u32, 0..40u64), 1..99)) {
            let (mut s, mut vma) = (Streams::new(), VmaState::default());
            for (base, offset, max, cut) in faults {
                let page = [0, 1 << 30, END - 60][base] + offset;
                let w = s.on_fault(page, max);
                prop_assert!((1..=max.max(1)).contains(&w.pages) && w.end() <= END);
                prop_assert!(w.start == page || w.end() == page + 1);
                s.on_served(w.start.max(page.saturating_sub(cut)), w.pages.min(cut as u32 + 1));
                let r = vma.on_miss(page, page - offset.min(3), page + 1 + cut, max);
                prop_assert!(r.contains(&page) && r.end - r.start <= 32 && r.start / PMD_PAGES == (r.end - 1) / PMD_PAGES);
            }
        }
    }
}
