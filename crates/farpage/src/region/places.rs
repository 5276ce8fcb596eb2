//! Which regions a pager has, and which of their pages have words.
//!
//! Words and links cost memory, so they are paid for where a region is used: the words of a *leaf* (512 pages, as many
//! as a page has words of) are written when one of its pages is needed first. Until then they are zero, *Outside*. A
//! thread that is to change the word of a page that may be Outside calls [`super::space::Space::touch`] first; so no
//! thread makes such a page busy, and the leaf's words can be written without a look at them.
//!
//! A region gets words while it is open ([`Places::set_open`]): from when its pages can be brought in until it goes. It
//! is closed first; then the pages that have words are made Outside again, and no thread that still accesses the region
//! finds another. Its place is free after [`Places::free`].
//!
//! Callers: the handles, faults, and the walks of reclaim and forks. The lock is a leaf, and a fault may interrupt an
//! allocation: nothing is allocated under it.

use super::word::Hint;
use farpage_base::mem::lock::{lock, lock_with_room};
use farpage_swap::PAGE_SIZE;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A page that has a word takes so many bytes besides: its word and its links.
const BYTES_PER_PAGE: u64 = 16;
/// Pages of a leaf: one page has their words, and one their links.
pub(super) const LEAF: u32 = 512;
const _: () = assert!(LEAF as u64 * BYTES_PER_PAGE == 2 * PAGE_SIZE as u64);

/// A region's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPlace {
    /// The first.
    pub first: u32,
    /// How many.
    pub pages: u32,
}

impl RegionPlace {
    /// The first page behind it.
    pub fn end(self) -> u32 {
        self.first + self.pages
    }

    /// The part of a leaf that is the region's.
    fn of_leaf(self, leaf: u32) -> Range<u32> {
        self.first.max(leaf * LEAF)..self.end().min((leaf + 1) * LEAF)
    }
}

/// What is known of a region.
#[derive(Debug)]
struct KnownPlace {
    place: RegionPlace,
    /// Its pages get words: it is registered.
    open: bool,
    /// For pages that get their words.
    hint: Hint,
    /// A bit for each leaf that has words.
    leaves: Box<[u64]>,
}

impl KnownPlace {
    /// Of a region whose place is not known yet.
    fn new(pages: u32) -> KnownPlace {
        let leaves = pages.div_ceil(LEAF) as usize + 1; // the first one may be a part
        let place = RegionPlace { first: 0, pages };
        KnownPlace { place, open: false, hint: Hint::Normal, leaves: vec![0; leaves.div_ceil(64)].into() }
    }

    /// Where the bit of a leaf is.
    fn bit(&self, leaf: u32) -> (usize, u64) {
        let at = (leaf - self.place.first / LEAF) as usize;
        (at / 64, 1 << (at % 64))
    }

    fn has_words(&self, leaf: u32) -> bool {
        let (at, bit) = self.bit(leaf);
        self.leaves[at] & bit != 0
    }

    /// The first leaf of these that has words, or has none.
    fn find(&self, leaves: Range<u32>, words: bool) -> Option<u32> {
        let mut leaf = leaves.start;
        while leaf < leaves.end {
            let (at, bit) = self.bit(leaf);
            let bits = if words { self.leaves[at] } else { !self.leaves[at] };
            let found = bits & !(bit - 1);
            leaf += found.trailing_zeros() - bit.trailing_zeros(); // none: to the next 64
            if found != 0 {
                break;
            }
        }
        (leaf < leaves.end).then_some(leaf)
    }

    /// Bytes of the words that there are.
    fn bytes(&self) -> u64 {
        let leaves = self.place.first / LEAF..=(self.place.end() - 1) / LEAF;
        let pages: usize = leaves.filter(|l| self.has_words(*l)).map(|l| self.place.of_leaf(l).len()).sum();
        pages as u64 * BYTES_PER_PAGE
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Places {
    /// Sorted.
    all: Mutex<Vec<KnownPlace>>,
    /// Bytes of all words and links.
    bytes: AtomicU64,
}

impl Places {
    /// Takes a place for `pages` pages below `end`, with a page between regions that may not be touched.
    pub fn reserve(&self, pages: u32, end: u32) -> Option<RegionPlace> {
        let mut known = KnownPlace::new(pages);
        let (mut all, spare) = lock_with_room(|| lock(&self.all));
        let (mut from, mut at) = (1, all.len());
        for (i, other) in all.iter().enumerate() {
            if other.place.first > from && other.place.first - from > pages {
                at = i;
                break;
            }
            from = other.place.end() + 1;
        }
        let fits = from.checked_add(pages).is_some_and(|behind| behind < end);
        known.place.first = from;
        let place = known.place;
        if fits {
            all.insert(at, known);
        }
        drop((all, spare));
        fits.then_some(place)
    }

    /// The region's pages get words from now on, or no more.
    pub fn set_open(&self, place: RegionPlace, open: bool) {
        if let Some(known) = lock(&self.all).iter_mut().find(|known| known.place == place) {
            known.open = open;
        }
    }

    /// The place can be used again: there are no words.
    pub fn free(&self, place: RegionPlace) {
        let mut all = lock(&self.all);
        let at = all.iter().position(|known| known.place == place);
        let gone = at.map(|at| all.remove(at));
        if let Some(gone) = &gone {
            self.bytes.fetch_sub(gone.bytes(), Relaxed);
        }
        drop(all);
        drop(gone);
    }

    /// Has words given, by `give`, to the pages around `page`, unless they have some; `false`: no region is there.
    pub(super) fn touch(&self, page: u32, give: impl FnOnce(Range<u32>, Hint)) -> bool {
        let mut all = lock(&self.all);
        let at = all.partition_point(|known| known.place.end() <= page);
        let Some(known) = all.get_mut(at).filter(|known| known.place.first <= page && known.open) else {
            return false;
        };
        let (at, bit) = known.bit(page / LEAF);
        if known.leaves[at] & bit == 0 {
            let pages = known.place.of_leaf(page / LEAF);
            self.bytes.fetch_add(pages.len() as u64 * BYTES_PER_PAGE, Relaxed);
            give(pages, known.hint);
            known.leaves[at] |= bit;
        }
        true
    }

    /// Which of these pages have words: neighbours of one region together, in ascending order. What gets some meanwhile
    /// may be left out; the lock is only held for each step.
    pub fn with_words(&self, pages: Range<u32>) -> impl Iterator<Item = (RegionPlace, Range<u32>)> + '_ {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let left = Some(at..pages.end).filter(|left| !left.is_empty())?;
            let (place, found) = self.first_with_words(left)?;
            at = found.end;
            Some((place, found))
        })
    }

    /// The first neighbours of these pages that have words.
    fn first_with_words(&self, pages: Range<u32>) -> Option<(RegionPlace, Range<u32>)> {
        let all = lock(&self.all);
        let at = all.partition_point(|known| known.place.end() <= pages.start);
        all[at..].iter().take_while(|known| known.place.first < pages.end).find_map(|known| {
            let place = known.place;
            let (from, end) = (pages.start.max(place.first), pages.end.min(place.end()));
            let behind = end.div_ceil(LEAF);
            let first = known.find(from / LEAF..behind, true)?;
            let last = known.find(first..behind, false).unwrap_or(behind);
            Some((place, from.max(first * LEAF)..end.min(last * LEAF)))
        })
    }

    /// Pages of the region that get their words from now on have this hint.
    pub fn set_hint(&self, place: RegionPlace, hint: Hint) {
        if let Some(known) = lock(&self.all).iter_mut().find(|known| known.place == place) {
            known.hint = hint;
        }
    }

    /// The regions, in ascending order; as of the moment when each is asked for.
    pub fn each(&self) -> impl Iterator<Item = RegionPlace> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let place = self.at_or_behind(from)?;
            from = place.end();
            Some(place)
        })
    }

    fn at_or_behind(&self, from: u32) -> Option<RegionPlace> {
        let all = lock(&self.all);
        all.get(all.partition_point(|known| known.place.first < from)).map(|known| known.place)
    }

    /// There is such a region.
    pub fn contains(&self, place: RegionPlace) -> bool {
        self.at_or_behind(place.first) == Some(place)
    }

    /// Pages of all regions.
    pub fn pages(&self) -> u64 {
        lock(&self.all).iter().map(|known| u64::from(known.place.pages)).sum()
    }

    /// Bytes that words and links take.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(places: &Places, from: u32) -> Option<Range<u32>> {
        places.with_words(from..u32::MAX).next().map(|(_, pages)| pages)
    }

    #[test]
    fn words_are_where_a_page_was_touched_and_paid_for() {
        let places = Places::default();
        let small = places.reserve(10, 100_000).unwrap();
        let large = places.reserve(2000, 100_000).unwrap();
        assert_eq!((small, large), (RegionPlace { first: 1, pages: 10 }, RegionPlace { first: 12, pages: 2000 }));
        assert!(!places.touch(20, |_, _| panic!("it is not open yet")));
        [small, large].iter().for_each(|place| places.set_open(*place, true));
        assert_eq!((touched(&places, 0), places.bytes()), (None, 0));
        let mut given = Vec::new();
        assert!(places.touch(1500, |pages, hint| given.push((pages, hint))));
        assert!(places.touch(1400, |pages, hint| given.push((pages, hint))), "it has its word");
        places.set_hint(large, Hint::Random);
        assert!(places.touch(20, |pages, hint| given.push((pages, hint))));
        assert!(places.touch(2, |pages, hint| given.push((pages, hint))), "the same leaf, another region");
        for outside in [0, 11, 2012, 99_999] {
            assert!(!places.touch(outside, |_, _| panic!("no region is there")));
        }
        assert_eq!(given, [(1024..1536, Hint::Normal), (12..512, Hint::Random), (1..11, Hint::Normal)]);
        assert_eq!(places.bytes(), (512 + 500 + 10) * 16);
        assert_eq!([0, 5, 11, 100, 512].map(|from| touched(&places, from)), {
            let last = Some(1024..1536);
            [Some(1..11), Some(5..11), Some(12..512), Some(100..512), last]
        });
        assert_eq!((touched(&places, 1535), touched(&places, 1536)), (Some(1535..1536), None));
        let all: Vec<_> = places.with_words(5..1200).collect();
        assert_eq!(all, [(small, 5..11), (large, 12..512), (large, 1024..1200)]);
        assert!(places.touch(600, |_, _| ()));
        assert_eq!(touched(&places, 13), Some(13..1536), "neighbours come together");
        places.set_open(large, false);
        assert!(!places.touch(1600, |_, _| panic!("it goes")) && !places.touch(20, |_, _| ()));
        assert_eq!(touched(&places, 600), Some(600..1536), "what has words still has some");
        places.free(large);
        assert_eq!((places.bytes(), places.pages(), touched(&places, 11)), (160, 10, None));
        places.free(small);
        assert_eq!((places.bytes(), places.pages(), places.each().next()), (0, 0, None));
    }

    #[test]
    fn places_lie_apart_and_are_used_again() {
        let places = Places::default();
        let made: Vec<_> = (0..5).map(|_| places.reserve(9, 60).unwrap()).collect();
        assert_eq!(made.iter().map(|p| p.first).collect::<Vec<_>>(), [1, 11, 21, 31, 41]);
        assert!(places.reserve(9, 60).is_none() && places.reserve(8, 60).is_some());
        assert!(places.contains(made[1]) && !places.contains(RegionPlace { first: 12, pages: 9 }));
        places.free(made[1]);
        places.free(made[2]);
        assert!(places.reserve(20, 60).is_none(), "a page between regions is in neither");
        assert_eq!(places.reserve(19, 60), Some(RegionPlace { first: 11, pages: 19 }));
        assert_eq!(places.each().map(|p| p.first).collect::<Vec<_>>(), [1, 11, 31, 41, 51]);
    }
}
