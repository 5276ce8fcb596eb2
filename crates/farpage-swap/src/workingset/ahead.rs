//! Pages that were read ahead, and wait in the swap cache for their first touch.
//!
//! Whether they are cold is not known yet, and they are about to be used. So they have a list of their own, and leave
//! only where there are too many of them. Their first touch proves nothing, so it does not raise their rank. Pure; the
//! caller locks.

use super::{Pages, Rank, Shadow, WorkingSet};
use crate::lru::Links;

impl WorkingSet {
    /// How many there are.
    pub fn ahead(&self) -> u32 {
        self.ahead.len()
    }

    /// A page that was on no list waits from now on.
    pub fn cache_ahead(&mut self, links: &impl Links, n: u32) {
        self.ahead.push_front(links, n);
    }

    /// A page that waited is mapped, because it was touched.
    pub fn touch_ahead(&mut self, links: &impl Links, n: u32, rank: Rank) {
        self.uncache_ahead(links, n);
        self.map(links, n, rank);
    }

    /// A page that waited is gone.
    pub fn uncache_ahead(&mut self, links: &impl Links, n: u32) {
        self.ahead.remove(links, n);
    }

    /// The page that leaves the swap cache now, and its shadow: the oldest of those that wait where there are more than
    /// `most`, else as [`WorkingSet::evict_one_if`] says.
    pub fn evict_cached(
        &mut self,
        pages: &impl Pages,
        most: u32,
        refusals: &mut usize,
        may: impl Fn(u32, Shadow) -> bool,
    ) -> Option<(u32, Shadow)> {
        while self.ahead.len() > most {
            let (n, shadow) = (self.ahead.pop_back(pages)?, self.next_shadow(false));
            if may(n, shadow) {
                self.departs();
                return Some((n, shadow));
            }
            self.ahead.push_front(pages, n);
            *refusals = refusals.checked_sub(1)?;
        }
        self.evict_one_if(pages, refusals, may)
    }
}
