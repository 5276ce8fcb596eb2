//! Whether something pays, where a gain and a loss weigh differently, and a try now and then while it does not.
//!
//! Callers: `clean_slots`, compressed memory (`farpage_device`), the pager of `run` (whether to wait awake), regions
//! (write protection, reading ahead). Any thread; no lock. An update that is lost to another thread does not matter:
//! it is one observation among many. Where both sides weigh the same: [`super::fading_ratio`].

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU32};

/// A sum of gains and losses. It stays between `-MOST` and `MOST`, because what was so for long may change.
#[derive(Debug, Default)]
pub struct Score<const MOST: i32>(AtomicI32);

impl<const MOST: i32> Score<MOST> {
    /// Adds a gain, or a loss below zero.
    pub fn add(&self, n: i32) {
        self.0.store((self.get() + n).clamp(-MOST, MOST), Relaxed);
    }

    /// The sum.
    pub fn get(&self) -> i32 {
        self.0.load(Relaxed)
    }
}

/// Lets one of `N` through: what does not pay is tried now and then, to notice when that changes.
#[derive(Debug, Default)]
pub struct OneIn<const N: u32>(AtomicU32);

impl<const N: u32> OneIn<N> {
    /// Whether this one is it.
    pub fn comes(&self) -> bool {
        (self.0.fetch_add(1, Relaxed) + 1).is_multiple_of(N)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_has_two_ends() {
        let score = Score::<8>::default();
        (0..99).for_each(|_| score.add(1));
        assert_eq!(score.get(), 8);
        score.add(-3);
        assert_eq!(score.get(), 5);
        (0..99).for_each(|_| score.add(-2));
        assert_eq!(score.get(), -8);
    }

    #[test]
    fn one_of_so_many_comes() {
        let seldom = OneIn::<4>::default();
        let seen: Vec<bool> = (0..8).map(|_| seldom.comes()).collect();
        assert_eq!(seen, [false, false, false, true, false, false, false, true]);
    }
}
