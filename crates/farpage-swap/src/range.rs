//! Sets of pages, kept as ranges.
//!
//! Owns which pages belong to a set, as disjoint half-open ranges that never touch (neighbours are merged). Called by
//! the engine: for the pages that are managed (its `mem/page_ranges` names them by type), and for bytes that were
//! looked at while mappings changed. Pure bookkeeping: it allocates tree nodes from the global allocator, so callers on
//! a path that must not allocate only use the `&self` methods other than [`RangeSet::overlaps`].

use std::collections::BTreeMap;

/// A set of page numbers as sorted, disjoint, non-touching ranges `[start, end)`. Empty arguments (`start >= end`) are
/// no-ops everywhere. Page `u64::MAX` cannot be in a set (no half-open range holds it).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// start -> end
    map: BTreeMap<u64, u64>,
    pages: u64,
}

impl RangeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { map: BTreeMap::new(), pages: 0 }
    }

    /// Adds `[start, end)`, merging with ranges that it overlaps or touches. Returns how many pages are new.
    pub fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let before = self.pages;
        let (mut low, mut high) = (start, end);
        if let Some((&s, &e)) = self.map.range(..start).next_back()
            && e >= start
        {
            if e >= end {
                return 0;
            }
            low = s;
        }
        while let Some((&s, &e)) = self.map.range(low..=end).next() {
            high = high.max(e);
            self.drop_range(s, e);
        }
        self.add_range(low, high);
        self.pages - before
    }

    /// Takes `[start, end)` out, splitting ranges that reach over its ends. Returns how many pages were in the set.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        let before = self.pages;
        while let Some((s, e)) = self.first_overlap(start, end) {
            self.drop_range(s, e);
            self.add_range(s, start);
            self.add_range(end, e);
        }
        before - self.pages
    }

    /// Whether page `p` is in the set.
    pub fn contains(&self, p: u64) -> bool {
        self.covering(p).is_some()
    }

    /// The whole range that page `p` is in.
    pub fn covering(&self, p: u64) -> Option<(u64, u64)> {
        self.map.range(..=p).next_back().map(|(&s, &e)| (s, e)).filter(|&(_, e)| p < e)
    }

    /// The parts of `[start, end)` that are not in the set, ascending.
    pub fn gaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut inside = self.clipped(start, end);
        let mut at = start;
        std::iter::from_fn(move || {
            while at < end {
                let (gap_end, next) = inside.next().unwrap_or((end, end));
                let gap = (at, gap_end);
                at = next;
                if gap.0 < gap.1 {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// The parts of `[start, end)` that are in the set, ascending.
    pub fn overlaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        self.clipped(start, end).collect()
    }

    /// How many pages are in the set. O(1).
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.map.iter().map(|(&s, &e)| (s, e))
    }

    /// How many ranges the set consists of.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no page is in the set.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Takes all pages out.
    pub fn clear(&mut self) {
        self.map.clear();
        self.pages = 0;
    }

    /// The first range with a page in `[start, end)`, not clipped.
    fn first_overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        self.covering(start).or_else(|| self.map.range(start..end).next().map(|(&s, &e)| (s, e)))
    }

    fn clipped(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        // Where the first overlapping range starts, or `end`: `range` must not be given a start behind its end.
        let from = self.first_overlap(start, end).map_or(end, |(s, _)| s);
        self.map.range(from..end).map(move |(&s, &e)| (s.max(start), e.min(end)))
    }

    fn add_range(&mut self, start: u64, end: u64) {
        if start < end {
            self.map.insert(start, end);
            self.pages += end - start;
        }
    }

    fn drop_range(&mut self, start: u64, end: u64) {
        self.map.remove(&start);
        self.pages -= end - start;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const PAGES: u64 = 96;

    /// The maximal runs of the pages of `[start, end)` for which `keep` holds.
    fn runs(start: u64, end: u64, keep: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for p in (start..end).filter(|&p| keep(p)) {
            match runs.last_mut() {
                Some(run) if run.1 == p => run.1 = p + 1,
                _ => runs.push((p, p + 1)),
            }
        }
        runs
    }

    #[test]
    fn neighbours_merge_and_holes_split() {
        let mut set = RangeSet::new();
        assert_eq!((set.insert(10, 20), set.insert(30, 40), set.insert(20, 30)), (10, 10, 10));
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 40)]);
        assert_eq!((set.insert(5, 50), set.insert(6, 49)), (15, 0));
        assert_eq!(set.remove(15, 18), 3);
        assert_eq!(set.iter().rev().collect::<Vec<_>>(), [(18, 50), (5, 15)]);
        assert_eq!((set.covering(17), set.covering(18), set.covering(50)), (None, Some((18, 50)), None));
        assert_eq!(set.gaps(0, 60).collect::<Vec<_>>(), [(0, 5), (15, 18), (50, 60)]);
        assert_eq!(set.overlaps(10, 20), [(10, 15), (18, 20)]);
        assert_eq!((set.pages(), set.len()), (42, 2));
        set.clear();
        assert!(set.is_empty() && set.pages() == 0 && set == RangeSet::default());
    }

    #[test]
    fn empty_and_reversed_arguments_do_nothing() {
        let mut set = RangeSet::new();
        set.insert(10, 20);
        for (start, end) in [(15, 15), (18, 12), (10, 10), (20, 10), (30, 0), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
            assert_eq!((set.insert(start, end), set.remove(start, end)), (0, 0));
            assert_eq!((set.overlaps(start, end), set.gaps(start, end).count()), (vec![], 0));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 20)]);
    }

    #[test]
    fn the_ends_of_the_number_range() {
        let mut set = RangeSet::new();
        assert_eq!(set.insert(0, u64::MAX), u64::MAX);
        assert_eq!(set.remove(1, u64::MAX - 1), u64::MAX - 2);
        assert!(set.contains(0) && set.contains(u64::MAX - 1) && !set.contains(u64::MAX) && !set.contains(1));
        assert_eq!(set.gaps(0, u64::MAX).collect::<Vec<_>>(), [(1, u64::MAX - 1)]);
        assert_eq!((set.insert(0, u64::MAX), set.pages(), set.len()), (u64::MAX - 2, u64::MAX, 1));
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_pages(
            ops in prop::collection::vec((any::<bool>(), 0..PAGES, 0..24u64), 0..80),
            (from, to) in (0..PAGES + 30, 0..PAGES + 30),
        ) {
            let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
            for (add, start, pages) in ops {
                let (end, size) = (start + pages, model.len() as u64);
                if add {
                    let new = set.insert(start, end);
                    model.extend(start..end);
                    prop_assert_eq!(new, model.len() as u64 - size);
                } else {
                    let gone = set.remove(start, end);
                    model.retain(|p| !(start..end).contains(p));
                    prop_assert_eq!(gone, size - model.len() as u64);
                }
                let all = runs(0, PAGES + 30, |p| model.contains(&p));
                prop_assert_eq!(set.len(), all.len());
                prop_assert_eq!(set.is_empty(), all.is_empty());
                prop_assert_eq!(set.pages(), model.len() as u64);
                prop_assert!(set.iter().eq(all.iter().copied()));
                for p in 0..PAGES + 30 {
                    prop_assert_eq!(set.contains(p), model.contains(&p));
                    prop_assert_eq!(set.covering(p), all.iter().copied().find(|r| (r.0..r.1).contains(&p)));
                }
                prop_assert_eq!(set.overlaps(from, to), runs(from, to, |p| model.contains(&p)));
                prop_assert!(set.gaps(from, to).eq(runs(from, to, |p| !model.contains(&p))));
            }
        }
    }
}
