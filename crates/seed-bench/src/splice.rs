//! Page lists that many threads add to at once: batches, sorted and linked outside of the lock, then spliced.
//!
//! A thread gathers pages in a [`Batch`] of 31. When it is full they are sorted into local lists, one for each
//! [`Place`] (list and budget group) among them, without any lock; under the lock each local list is spliced in O(1),
//! which also brings the length up to date. So the lock is held as long for 31 pages as for one. Removal goes in
//! batches too.
//!
//! # The token
//!
//! Each page has a word; its *on-LRU* bit says that the page is on the list that the word names. The thread that clears
//! the bit owns the page: only the owner unlinks it or changes its place. The bit is set last, after the splice, so it
//! is never seen set on a page that is not on a list.
//!
//! ```text
//!            add                 flush: sort, splice            bit set
//!    Out ----------> in a batch ----------------------> listed ---------> On LRU
//!     ^                   |                               |                 |
//!     |                   '------- dead: not linked       '- dead: unlinked |
//!     '-------------------+-------------------------------'                 |
//!     '---------------------------- isolate, isolate_tail, release ---------'
//! ```
//! Freeing a page that another thread owns (in a batch, isolated) only marks it *dead*; the owner finishes when it
//! comes to put the page somewhere, and is told.
//!
//! # Locks
//!
//! One [`Lock`] around all lists, innermost: nothing is called while it is held. Words are changed without it.
//!
//! Measured by `farpage-bench lru`, which is also why linking one by one is here. After the LRU splice of Daniel Jordan
//! (2018), with two things otherwise: there the bit was set before the page was on a list, and local lists were not
//! told apart by list (docs/measurements/2026-11-24-seeds.md).

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use farpage_swap::lock::{Lock, Meter, Site};
use farpage_swap::lru::{Links, List, NIL};
use farpage_swap::sync::{AtomicU32, Ordering};

/// Where the lock is taken.
pub static ADD: Site = Site { index: 19, lock: "lru", name: "add" };
static ISOLATE: Site = Site { index: 20, lock: "lru", name: "isolate" };
static RELEASE: Site = Site { index: 21, lock: "lru", name: "unlink" };
static COUNT: Site = Site { index: 22, lock: "lru", name: "count" };

/// Pages of a batch.
pub const SPLICE_BATCH: usize = if cfg!(loom) { 2 } else { 31 };
/// Local lists of one splice; a batch with more places is spliced in several rounds.
const LOCALS: usize = if cfg!(loom) { 1 } else { 4 };

const ON_LRU: u32 = 1;
const DEAD: u32 = 1 << 1;
const LIST_SHIFT: u32 = 8;
const GROUP_SHIFT: u32 = 16;

/// Which list a page is on, or is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// List, as in active and inactive.
    pub list: u8,
    /// Budget group.
    pub group: u8,
}

impl Place {
    fn bits(self) -> u32 {
        u32::from(self.list) << LIST_SHIFT | u32::from(self.group) << GROUP_SHIFT
    }

    fn of(word: u32) -> Place {
        Place { list: (word >> LIST_SHIFT) as u8, group: (word >> GROUP_SHIFT) as u8 }
    }
}

/// How pages of a batch are linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linking {
    /// The lock is taken for each page: what batches are measured against.
    OneByOne,
    /// The lock is taken once, and the pages are linked under it.
    Batched,
    /// The pages are linked before, and spliced under the lock.
    Spliced,
}

/// Pages of one thread on their way to the lists.
#[derive(Debug, Default)]
pub struct Batch {
    pages: [u32; SPLICE_BATCH],
    len: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// The pages in it.
    pub fn pages(&self) -> &[u32] {
        &self.pages[..self.len]
    }

    fn push(&mut self, page: u32) -> bool {
        self.pages[self.len] = page;
        self.len += 1;
        self.len == SPLICE_BATCH
    }
}

struct Nodes(Vec<[AtomicU32; 2]>);

impl Links for Nodes {
    fn prev(&self, n: u32) -> u32 {
        self.0[n as usize][0].load(Ordering::Relaxed)
    }
    fn next(&self, n: u32) -> u32 {
        self.0[n as usize][1].load(Ordering::Relaxed)
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.0[n as usize][0].store(to, Ordering::Relaxed);
    }
    fn set_next(&self, n: u32, to: u32) {
        self.0[n as usize][1].store(to, Ordering::Relaxed);
    }
}

/// The lists, and the words and links of the pages.
pub struct PageLists<M: Meter = ()> {
    words: Vec<AtomicU32>,
    links: Nodes,
    lists: Lock<Vec<List>, M>,
    groups: u8,
}

impl<M: Meter> PageLists<M> {
    /// `lists` empty lists for each of `groups` budget groups, for pages below `pages`.
    pub fn new(pages: u32, lists: u8, groups: u8) -> PageLists<M> {
        let words = (0..pages).map(|_| AtomicU32::new(0)).collect();
        let links = Nodes((0..pages).map(|_| [AtomicU32::new(0), AtomicU32::new(0)]).collect());
        let all = (0..usize::from(lists) * usize::from(groups)).map(|_| List::new()).collect();
        PageLists { words, links, lists: Lock::new(all), groups }
    }

    /// Length of a list.
    pub fn len(&self, place: Place) -> u32 {
        self.lists.lock(&COUNT).get(self.index(place)).map_or(0, List::len)
    }

    /// Whether no page is on the list.
    pub fn is_empty(&self, place: Place) -> bool {
        self.len(place) == 0
    }

    /// The caller, which owns `page`, puts it into its batch, to be linked at `place`. When the batch is full it is
    /// flushed; see [`PageLists::flush`] for `dead`.
    pub fn add(&self, batch: &mut Batch, page: u32, place: Place, how: Linking, dead: impl FnMut(u32)) {
        // Everything but the mark that another thread may have set.
        let word = &self.words[page as usize];
        let mut seen = word.load(Ordering::Relaxed);
        while let Err(now) =
            word.compare_exchange(seen, seen & DEAD | place.bits(), Ordering::AcqRel, Ordering::Relaxed)
        {
            seen = now;
        }
        if batch.push(page) {
            self.flush(batch, how, dead);
        }
    }

    /// Puts the pages of a batch onto their lists, the last one added in front. Pages that were freed meanwhile are not
    /// linked, or unlinked again; each of these is given to `dead`, with nothing locked: it is free now.
    pub fn flush(&self, batch: &mut Batch, how: Linking, mut dead: impl FnMut(u32)) {
        let mut pages = [0; SPLICE_BATCH];
        let mut n = 0;
        for &page in batch.pages() {
            if self.words[page as usize].load(Ordering::Acquire) & DEAD == 0 {
                pages[n] = page;
                n += 1;
            } else {
                self.out(page, &mut dead);
            }
        }
        batch.len = 0;
        let pages = &pages[..n];
        match how {
            Linking::OneByOne => pages.chunks(1).for_each(|one| self.link(one)),
            Linking::Batched => self.link(pages),
            Linking::Spliced => self.splice(pages),
        }
        for &page in pages {
            let word = &self.words[page as usize];
            let place = Place::of(word.load(Ordering::Relaxed)).bits();
            if word.compare_exchange(place, place | ON_LRU, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // Freed since the look at it. It is still ours to unlink.
                self.unlink(&[page]);
                self.out(page, &mut dead);
            }
        }
    }

    /// Takes the page off its list, if it is on one and no other thread does so: then the caller owns it.
    pub fn isolate(&self, page: u32) -> bool {
        let word = &self.words[page as usize];
        let mut seen = word.load(Ordering::Relaxed);
        while seen & ON_LRU != 0 {
            match word.compare_exchange(seen, seen & !ON_LRU, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.unlink(&[page]);
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes up to `out.len()` of the oldest pages off a list; the caller owns them. Pages that another thread is about
    /// to take off, or has not finished adding, are passed over.
    pub fn isolate_tail(&self, place: Place, out: &mut [u32]) -> usize {
        let mut lists = self.lists.lock(&ISOLATE);
        let Some(list) = lists.get_mut(self.index(place)) else { return 0 };
        let (mut n, mut at, mut looks) = (0, list.back(), 2 * out.len() + SPLICE_BATCH);
        while let Some(page) = at
            && n < out.len()
            && looks > 0
        {
            looks -= 1;
            // Neighbours are stable: only holders of the lock change links of listed pages.
            at = Some(self.links.prev(page)).filter(|&n| n != NIL);
            let word = &self.words[page as usize];
            let seen = word.load(Ordering::Relaxed);
            let on = seen & ON_LRU != 0;
            if on && word.compare_exchange(seen, seen & !ON_LRU, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                list.remove(&self.links, page);
                out[n] = page;
                n += 1;
            }
        }
        n
    }

    /// Frees pages, each named once: those on a list are taken off under one acquisition of the lock, and given to
    /// `dead`. Those that a thread owns are marked; their owner gives them to its own `dead`.
    pub fn release(&self, pages: &[u32], mut dead: impl FnMut(u32)) {
        for pages in pages.chunks(SPLICE_BATCH) {
            let mut mine = [0; SPLICE_BATCH];
            let mut n = 0;
            for &page in pages {
                let word = &self.words[page as usize];
                let mut seen = word.load(Ordering::Relaxed);
                let to = |seen: u32| if seen & ON_LRU != 0 { seen & !ON_LRU } else { seen | DEAD };
                while let Err(now) = word.compare_exchange(seen, to(seen), Ordering::AcqRel, Ordering::Relaxed) {
                    seen = now;
                }
                if seen & ON_LRU != 0 {
                    mine[n] = page;
                    n += 1;
                }
            }
            self.unlink(&mine[..n]);
            mine[..n].iter().for_each(|&page| self.out(page, &mut dead));
        }
    }

    /// The page, which the caller owns and which is on no list, has no owner from now on.
    fn out(&self, page: u32, dead: &mut impl FnMut(u32)) {
        self.words[page as usize].store(0, Ordering::Release);
        dead(page);
    }

    /// Takes listed pages that the caller owns off their lists.
    fn unlink(&self, pages: &[u32]) {
        if pages.is_empty() {
            return;
        }
        let mut lists = self.lists.lock(&RELEASE);
        for &page in pages {
            let place = Place::of(self.words[page as usize].load(Ordering::Relaxed));
            if let Some(list) = lists.get_mut(self.index(place)) {
                list.remove(&self.links, page);
            }
        }
    }

    /// Links pages under the lock.
    fn link(&self, pages: &[u32]) {
        if pages.is_empty() {
            return;
        }
        let mut lists = self.lists.lock(&ADD);
        for &page in pages {
            let place = Place::of(self.words[page as usize].load(Ordering::Relaxed));
            if let Some(list) = lists.get_mut(self.index(place)) {
                list.push_front(&self.links, page);
            }
        }
    }

    /// Links pages on local lists and splices these.
    fn splice(&self, pages: &[u32]) {
        let mut left = [0; SPLICE_BATCH];
        left[..pages.len()].copy_from_slice(pages);
        let mut n = pages.len();
        while n > 0 {
            let mut locals = [const { (usize::MAX, List::new()) }; LOCALS];
            let mut later = 0;
            for i in 0..n {
                let page = left[i];
                let index = self.index(Place::of(self.words[page as usize].load(Ordering::Relaxed)));
                match locals.iter_mut().find(|(at, _)| *at == index || *at == usize::MAX) {
                    Some((at, local)) => {
                        *at = index;
                        local.push_front(&self.links, page);
                    }
                    None => {
                        left[later] = page;
                        later += 1;
                    }
                }
            }
            let mut lists = self.lists.lock(&ADD);
            for (at, local) in &mut locals {
                if let Some(list) = lists.get_mut(*at) {
                    list.splice_front(&self.links, local);
                }
            }
            drop(lists);
            n = later;
        }
    }

    fn index(&self, place: Place) -> usize {
        usize::from(place.list) * usize::from(self.groups) + usize::from(place.group)
    }

    /// For tests: all lists, front to back, and that nothing but what is on them has its bit set.
    #[cfg(test)]
    fn checked(&self) -> Vec<Vec<u32>> {
        let lists = self.lists.lock(&COUNT);
        let all: Vec<Vec<u32>> = lists.iter().map(|list| list.iter(&self.links).collect()).collect();
        let mut on = vec![0; self.words.len()];
        for (at, (list, pages)) in lists.iter().zip(&all).enumerate() {
            assert_eq!(list.len() as usize, pages.len(), "[45] the counter is the length");
            assert!(list.iter(&self.links).rev().eq(pages.iter().rev().copied()), "both directions");
            for &page in pages {
                on[page as usize] += 1;
                let word = self.words[page as usize].load(Ordering::Relaxed);
                assert_eq!(self.index(Place::of(word)), at, "page {page} is on the list that its word names");
            }
        }
        for (page, on) in on.iter().enumerate() {
            let bit = self.words[page].load(Ordering::Relaxed) & ON_LRU;
            assert_eq!(bit, *on, "[44] page {page}: on-LRU bit, and lists that it is on");
        }
        all
    }
}
