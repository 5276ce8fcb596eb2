//! How long a page was away, and what follows from that.
//!
//! A copy of some numbers of the policy, so that a thread that brings a page in can ask before it takes the lists'
//! lock. Pure.

use super::page::{Rank, Shadow};

/// A refault distance is short up to one in so many of the pages in memory.
const NEAR_PART: u32 = 4;
/// One in so many pages that come back after long goes to main all the same; and of all, while main is saturated.
const FAR_LOTS: u32 = 32;

/// But none that was away for more than so many times memory: a pass, or a loop of which so little would stay that it
/// is not worth what it takes the place of.
const FAR_END: u32 = 8;

/// Departures so far, and pages in memory.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    /// How many pages have left memory, around `u32::MAX`.
    pub departures: u32,
    /// How many are in it.
    pub pages: u32,
    /// What main gives up comes back soon ([`super::WorkingSet::note_back`]): it has nothing worse to give up than what
    /// would take its place.
    pub saturated: bool,
}

impl Ages {
    /// How many pages left memory since the one that left at `shadow`: its refault distance.
    pub fn distance(self, shadow: Shadow) -> u32 {
        self.departures.wrapping_sub(shadow.0 >> 1) & (u32::MAX >> 1)
    }

    /// A page that main gave up at `shadow` was away for at most half as many departures as there are pages in memory.
    pub(super) fn was_given_up(self, shadow: Shadow) -> bool {
        shadow.was_hot() && self.distance(shadow) <= self.pages / 2
    }

    /// The refault distance is short: at most a quarter of the pages in memory.
    fn is_near(self, shadow: Shadow) -> bool {
        self.distance(shadow) <= self.pages / NEAR_PART
    }

    /// The rank of a page that left at `shadow` and comes back now because it was touched: hot if its refault distance
    /// is at most a quarter of the pages in memory; one in two, by lot, if it is at most half of them, or if main has
    /// given it up already; otherwise one in 32, up to eight times memory. While main is saturated it is one in 32 in
    /// any case. The lots are for what goes in circles through more than memory holds: it would push itself out for
    /// ever; this way a part of it stays.
    pub fn rank_of(self, shadow: Shadow) -> Rank {
        // Fibonacci hashing: a lot that does not follow the order of departures.
        let lot = shadow.0.wrapping_mul(0x9E37_79B9) >> 16;
        let one_in = match self.distance(shadow) {
            d if d / FAR_END > self.pages => return Rank::NEW,
            _ if self.saturated => FAR_LOTS,
            _ if self.is_near(shadow) && !shadow.was_hot() => 1,
            d if d <= self.pages / 2 => 2,
            _ => FAR_LOTS,
        };
        if lot.is_multiple_of(one_in) { Rank::HOT } else { Rank::NEW }
    }
}
