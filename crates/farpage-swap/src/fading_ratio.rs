//! How often something pays, counted so that what is long ago fades.
//!
//! Callers: `clean_slots`, compressed memory (`farpage_device`); any thread. No lock. Where a gain and a loss weigh
//! differently: [`super::score`].

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Above this the counts are halved.
const FADE: u32 = 4096;

/// Counts of what paid and what did not. Any thread may count; a count that is lost to another thread does not matter.
#[derive(Debug, Default)]
pub struct FadingRatio {
    paid: AtomicU32,
    wasted: AtomicU32,
}

impl FadingRatio {
    /// One more.
    pub fn note(&self, paid: bool) {
        let side = if paid { &self.paid } else { &self.wasted };
        if side.fetch_add(1, Relaxed) > FADE {
            self.paid.store(self.paid.load(Relaxed) / 2, Relaxed);
            self.wasted.store(self.wasted.load(Relaxed) / 2, Relaxed);
        }
    }

    /// Counts of what paid, and of all.
    pub fn counts(&self) -> (u32, u32) {
        let (paid, wasted) = (self.paid.load(Relaxed), self.wasted.load(Relaxed));
        (paid, paid + wasted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_ago_fades() {
        let ratio = FadingRatio::default();
        (0..1000).for_each(|_| ratio.note(false));
        assert_eq!(ratio.counts(), (0, 1000));
        (0..20_000).for_each(|_| ratio.note(true));
        let (paid, all) = ratio.counts();
        assert!(paid > FADE / 2 && all - paid < 100, "{paid} of {all}");
    }
}
