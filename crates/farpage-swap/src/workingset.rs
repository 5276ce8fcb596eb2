//! Which page leaves memory next, decided without accessed bits.
//!
//! User space does not see which pages a program touches. It sees *refaults*: a page that was unmapped and is wanted
//! back. So pages pass three lists, and two kinds of refault tell the hot from the cold:
//!
//! ```text
//!     first touch, read ahead, refault after long            refault after short
//!            |                                                      |
//!            v                                                      v
//!       probation ----oldest----> cached <-------oldest--------- main
//!                                  |  |                           ^
//!                    to a device <-'  '---- touched: refault -----'
//! ```
//!
//! * *Probation* is small. What is touched once, as in a pass over much data, goes through it and disturbs nothing else.
//! * *Cached* pages are unmapped but still in memory: a touch costs a minor fault and proves the page hot.
//! * *Main* holds what proved hot. It loses pages only while probation is at its share.
//! * A page that leaves memory gets the count of all departures so far as its *shadow*. When it comes back, the
//!   difference to the count by then says how many pages would have had to stay for it to stay too (its *refault
//!   distance*). If that is not more than main can hold, it may go there directly.
//!
//! Lists and thresholds in the manner of S3-FIFO (Yang et al., SOSP 2023); refault distance as in Linux' workingset
//! code. The caller keeps one bit a page (*hot*: on main) while it is in memory, and the shadow while it is not.
//! Pure; the caller locks.

use crate::lru::{Links, List};

/// Probation's share of the pages in memory: one in this many.
const PROBATION_SHARE: u32 = 8;
/// Probation is at least this long, so that a page has time to be touched again.
const PROBATION_MIN: u32 = 64;

/// Count of departures when a page left.
pub type Shadow = u32;

/// The lists.
#[derive(Debug, Default)]
pub struct WorkingSet {
    probation: List,
    main: List,
    cached: List,
    departures: u32,
}

impl WorkingSet {
    /// Empty lists.
    pub const fn new() -> WorkingSet {
        WorkingSet { probation: List::new(), main: List::new(), cached: List::new(), departures: 0 }
    }

    /// Pages in memory and mapped.
    pub fn mapped(&self) -> u32 {
        self.probation.len() + self.main.len()
    }

    /// Mapped pages that proved hot.
    pub fn hot(&self) -> u32 {
        self.main.len()
    }

    /// Pages unmapped, but still in memory.
    pub fn cached(&self) -> u32 {
        self.cached.len()
    }

    /// How many pages left memory since the one that left at `shadow`: its refault distance.
    pub fn distance(&self, shadow: Shadow) -> u32 {
        self.departures.wrapping_sub(shadow)
    }

    /// Whether a page that left at `shadow` and comes back now is to be mapped as hot: it would have stayed, had it been
    /// on main at its full size. Only one in two of these, by lot: what goes in circles through more than main holds
    /// would push itself out for ever; this way a part of it stays.
    pub fn is_near(&self, shadow: Shadow) -> bool {
        let main = self.mapped() - self.mapped() / PROBATION_SHARE;
        // Fibonacci hashing: a lot that does not follow the order of departures.
        let lot = shadow.wrapping_mul(0x9E37_79B9) >> 31;
        self.distance(shadow) <= main && lot == 0
    }

    /// A page is mapped that was on no list.
    pub fn map(&mut self, links: &impl Links, n: u32, hot: bool) {
        self.list(hot).push_front(links, n);
    }

    /// A mapped page is gone, or goes elsewhere.
    pub fn unmap(&mut self, links: &impl Links, n: u32, hot: bool) {
        self.list(hot).remove(links, n);
    }

    /// A mapped page cannot leave now: it becomes the youngest of its list.
    pub fn rotate(&mut self, links: &impl Links, n: u32, hot: bool) {
        self.list(hot).move_to_front(links, n);
    }

    /// A mapped page was unmapped into the cache.
    pub fn cache(&mut self, links: &impl Links, n: u32, hot: bool) {
        self.list(hot).remove(links, n);
        self.cached.push_front(links, n);
    }

    /// A page that was on no list is cached: as the next to leave, or the last.
    pub fn recache(&mut self, links: &impl Links, n: u32, oldest: bool) {
        if oldest {
            self.cached.push_back(links, n);
        } else {
            self.cached.push_front(links, n);
        }
    }

    /// A cached page is wanted back (then [`WorkingSet::map`] it as hot), or gone.
    pub fn uncache(&mut self, links: &impl Links, n: u32) {
        self.cached.remove(links, n);
    }

    /// The page that leaves memory now, and its shadow.
    pub fn depart(&mut self, links: &impl Links) -> Option<(u32, Shadow)> {
        let n = self.cached.pop_back(links)?;
        self.departures = self.departures.wrapping_add(1);
        Some((n, self.departures))
    }

    /// Up to `out.len()` mapped pages to be unmapped next, oldest first; they stay on their lists.
    pub fn oldest(&self, links: &impl Links, out: &mut [u32]) -> usize {
        let share = (self.mapped() / PROBATION_SHARE).max(PROBATION_MIN);
        let from_probation = self.probation.len().saturating_sub(share) as usize;
        let (first, rest) = out.split_at_mut(from_probation.min(out.len()));
        let mut n = tail(&self.probation, links, first, 0);
        n += tail(&self.main, links, rest, 0);
        // Main is short: probation below its share, too.
        n + tail(&self.probation, links, &mut out[n..], n.min(from_probation))
    }

    fn list(&mut self, hot: bool) -> &mut List {
        if hot { &mut self.main } else { &mut self.probation }
    }
}

/// The oldest nodes of a list, but `skip`.
fn tail(list: &List, links: &impl Links, out: &mut [u32], skip: usize) -> usize {
    let nodes = list.iter(links).rev().skip(skip);
    out.iter_mut().zip(nodes).map(|(out, n)| *out = n).count()
}

#[cfg(test)]
mod tests;
