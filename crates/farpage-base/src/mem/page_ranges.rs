//! Sets of pages of the program: [`RangeSet`], which knows numbers only, in terms of [`Vpn`].
//!
//! Callers: the engine of `run`, for what it manages. No locks.

use crate::mem::units::Vpn;
use farpage_swap::range::RangeSet;

/// A set of pages, kept as ranges that do not touch. Ranges are pairs: first page, and the one behind the last.
#[derive(Debug, Clone, Default)]
pub struct PageRanges(RangeSet);

fn pages((start, end): (u64, u64)) -> (Vpn, Vpn) {
    (Vpn::new(start), Vpn::new(end))
}

impl PageRanges {
    /// The empty set.
    pub const fn new() -> PageRanges {
        PageRanges(RangeSet::new())
    }

    /// Adds a range.
    pub fn insert(&mut self, start: Vpn, end: Vpn) {
        self.0.insert(start.number(), end.number());
    }

    /// Takes a range out.
    pub fn remove(&mut self, start: Vpn, end: Vpn) {
        self.0.remove(start.number(), end.number());
    }

    /// Whether a page is in the set.
    pub fn contains(&self, vpn: Vpn) -> bool {
        self.0.contains(vpn.number())
    }

    /// The whole range that a page is in.
    pub fn covering(&self, vpn: Vpn) -> Option<(Vpn, Vpn)> {
        self.0.covering(vpn.number()).map(pages)
    }

    /// Whether any page of a range is in the set.
    pub fn meets(&self, start: Vpn, end: Vpn) -> bool {
        start < end && self.gaps(start, end).next() != Some((start, end))
    }

    /// The parts of a range that are not in the set, ascending.
    pub fn gaps(&self, start: Vpn, end: Vpn) -> impl Iterator<Item = (Vpn, Vpn)> {
        self.0.gaps(start.number(), end.number()).map(pages)
    }

    /// The parts of a range that are in the set, ascending.
    pub fn overlaps(&self, start: Vpn, end: Vpn) -> Vec<(Vpn, Vpn)> {
        self.0.overlaps(start.number(), end.number()).into_iter().map(pages).collect()
    }

    /// How many pages are in the set.
    pub const fn pages(&self) -> u64 {
        self.0.pages()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Vpn, Vpn)> {
        self.0.iter().map(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_meets_a_set_that_has_one_of_its_pages() {
        let page = |n| Vpn::new(n);
        let mut set = PageRanges::new();
        set.insert(page(10), page(20));
        let meets = |start, end| set.meets(page(start), page(end));
        assert!(meets(10, 11) && meets(0, 11) && meets(19, 30) && meets(0, 30));
        assert!(!meets(0, 10) && !meets(20, 30) && !meets(15, 15) && !meets(16, 15));
    }
}
