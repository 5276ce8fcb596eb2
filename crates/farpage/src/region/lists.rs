//! Which page goes next: four lists.
//!
//! *Mapped* pages are in regions, in the order in which they came in; the oldest go. A page that comes back sooner
//! after it went than there are pages present (its *refault distance*, by a clock that ticks with every page taken
//! out) goes to *hot* instead, which gives pages up only while it is longer than *mapped* deserves. Pages that were
//! moved out in runs (thread mode) wait in the swap cache, *cached*, where a touch brings them back. Pages that were read ahead and wait
//! there for their first touch are on a list of their own, *ahead*: they are about to be used, so they go only when they
//! have become too many.

use super::space::Space;
use super::word::{Seen, State};
use farpage_swap::lru::List;

/// The lists; kept in a mutex.
#[derive(Debug, Default)]
pub struct Lists {
    /// Pages in regions, youngest first.
    pub mapped: List,
    /// Pages in regions that came back soon, youngest first.
    pub hot: List,
    /// Pages in the swap cache, youngest first.
    pub cached: List,
    /// Pages in the swap cache that were read ahead and not touched yet, youngest first.
    pub ahead: List,
    /// Pages taken out so far.
    pub clock: u32,
}

impl Lists {
    /// A page that the caller has busy came in: it is the youngest of its list.
    pub fn link_mapped(&mut self, space: &Space, page: u32, seen: Seen) {
        if seen.is_hot() {
            self.hot.push_front(space, page);
        } else {
            self.mapped.push_front(space, page);
        }
    }

    /// A page that the caller has busy was taken out into a frame.
    pub fn link_cached(&mut self, space: &Space, page: u32) {
        self.cached.push_front(space, page);
    }

    /// A page that the caller has busy was read ahead into a frame.
    pub fn link_ahead(&mut self, space: &Space, page: u32) {
        self.ahead.push_front(space, page);
    }

    /// Takes a page that the caller has busy off its list.
    pub fn unlink(&mut self, space: &Space, page: u32, seen: Seen) {
        match seen.state() {
            State::Mapped(_) if seen.is_hot() => self.hot.remove(space, page),
            State::Mapped(_) => self.mapped.remove(space, page),
            State::Cached(_) if seen.credit() > 0 => self.ahead.remove(space, page),
            State::Cached(_) => self.cached.remove(space, page),
            _ => {}
        }
    }

    /// Pages present in regions.
    pub fn present(&self) -> u32 {
        self.mapped.len() + self.hot.len()
    }

    /// The list whose oldest page goes next: a quarter of the pages at least is for those that came in once.
    pub fn next_hot(&self) -> bool {
        self.mapped.len() < self.present() / 4 || self.mapped.is_empty()
    }
}
