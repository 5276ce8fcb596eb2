//! Whether a page that comes in keeps its slot: if it leaves unchanged, nothing has to be stored.
//!
//! Callers: the pager and the writer of `run`, faulting and reclaiming threads of regions. Counts without a lock.

use crate::fading_ratio::FadingRatio;
use crate::score::OneIn;
use crate::tuning::Controller::CleanSlots;
use crate::tuning::Controls;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that keep no slot after the devices were full.
const SCARCE: u32 = 4096;

/// Whether keeping the slots of clean pages pays: a moving balance of pages that came by again unchanged and changed.
/// Not while slots are scarce: what is kept then is soon looked for again.
#[derive(Debug, Default)]
pub struct CleanSlotPolicy {
    scarce: AtomicU32,
    unchanged: FadingRatio,
    seldom: OneIn<64>,
}

impl CleanSlotPolicy {
    /// A page with a kept slot is stored again: had it changed?
    pub fn note(&self, unchanged: bool) {
        self.unchanged.note(unchanged);
    }

    /// The devices are full.
    pub fn note_full(&self) {
        self.scarce.store(SCARCE, Relaxed);
    }

    /// Of the pages with a kept slot that left lately, those that had not changed: 0 to 1, 1 if there were none.
    pub fn unchanged_share(&self) -> f64 {
        let (unchanged, all) = self.unchanged.counts();
        (f64::from(unchanged) + 1.0) / (f64::from(all) + 1.0)
    }

    /// Keep a slot? Yes while that pays; otherwise one in 64, to notice when that changes. Called by the pager only.
    pub fn keep(&self, controls: &Controls) -> bool {
        let scarce = self.scarce.load(Relaxed);
        if scarce > 0 {
            self.scarce.store(scarce - 1, Relaxed);
            return false;
        }
        let (unchanged, all) = self.unchanged.counts();
        // At least a quarter.
        let pays = controls.decide(CleanSlots, unchanged * 4 + 64 > all);
        let held = controls.pinned(CleanSlots).is_some();
        pays || !held && self.seldom.comes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Pins;

    #[test]
    fn keeping_stops_when_it_does_not_pay() {
        let balance = CleanSlotPolicy::default();
        let free = Controls::new(Pins::default());
        assert!(balance.keep(&free));
        (0..1000).for_each(|_| balance.note(false));
        let kept = (0..640).filter(|_| balance.keep(&free)).count();
        assert_eq!(kept, 10);
        (0..3000).for_each(|_| balance.note(true));
        assert!((0..100).all(|_| balance.keep(&free)));
        balance.note_full();
        assert!((0..SCARCE).all(|_| !balance.keep(&free)) && balance.keep(&free));
    }

    #[test]
    fn a_pin_decides_alone() {
        let held = |text| {
            let mut pins = Pins::default();
            pins.add(text).unwrap();
            Controls::new(pins)
        };
        let balance = CleanSlotPolicy::default();
        assert!((0..200).all(|_| !balance.keep(&held("clean-slots=0"))));
        (0..1000).for_each(|_| balance.note(false));
        assert!((0..200).all(|_| balance.keep(&held("clean-slots=1"))));
    }
}
