//! The kernel's readahead in virtual-address order: one state for each mapping.
//!
//! Pages read ahead sit in the swap cache with a mark, and the first touch of each is a minor fault: that is how hits
//! are known. After the kernel's documentation and behaviour (swap readahead per VMA, Linux 4.14 to 6.18).

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

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

    proptest! {
        /// A window is 1 or 2 to `max` pages, never below half of the last one, never above `max` but for that rule;
        /// the range has the page, and stays in the mapping and in its block of 2 MiB.
        #[test]
        fn windows_keep_to_their_limits(
            accesses in prop::collection::vec((0..3000u64, any::<bool>(), any::<bool>()), 1..200),
            (start, len) in (0..1500u64, 1..3000u64),
            page_cluster in 0..8u32,
        ) {
            let (mut vma, max) = (VmaState::default(), 1u32 << page_cluster.min(5));
            for (page, hit, marked) in accesses {
                let page = start + page % len;
                if hit {
                    vma.on_hit(page, marked);
                    prop_assert!(vma.hits <= 63);
                    continue;
                }
                let before = vma.window;
                let r = vma.on_miss(page, start, start + len, page_cluster);
                prop_assert!(r.contains(&page) && r.start >= start && r.end <= start + len);
                prop_assert!(r.start / PMD_PAGES == (r.end - 1) / PMD_PAGES);
                if max > 1 {
                    prop_assert!(vma.window >= 1 && vma.window >= before / 2 && vma.window <= max.max(before / 2));
                    prop_assert!(vma.window.is_power_of_two() && r.end - r.start <= u64::from(vma.window));
                } else {
                    prop_assert_eq!(r, page..page + 1);
                }
            }
        }
    }
}
