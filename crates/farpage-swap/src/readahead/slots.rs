//! The kernel's readahead in slot order: one state for all devices. It finds the pages that were swapped out together,
//! whosever they are; right for devices with heads to move, and confused by other programs' faults.

use super::VmaState;
use super::window;
use std::ops::Range;

/// The kernel's slot-order readahead: one state for all devices.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterState(VmaState);

impl ClusterState {
    /// The slots to read for a miss at `slot` of a device with `slots` slots: the aligned block around it, without
    /// slot 0 (the kernel's header) and what lies behind the device's end.
    pub fn on_miss(&mut self, slot: u64, slots: u64, page_cluster: u32) -> Range<u64> {
        let max = 1 << page_cluster.min(31);
        if max == 1 {
            return slot..slot.saturating_add(1);
        }
        let VmaState { prev, window: prev_window, hits } = self.0;
        // All that it is made of are powers of two, and so is the window.
        let win = window(hits, prev, slot, max, prev_window);
        self.0 = VmaState { prev: if hits == 0 { slot } else { prev }, window: win, hits: 0 };
        let mask = u64::from(win) - 1;
        (slot & !mask).max(1)..(slot | mask).saturating_add(1).min(slots)
    }

    /// A page with the readahead mark was found in the swap cache.
    pub fn on_hit(&mut self) {
        self.0.hits = self.0.hits.saturating_add(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slot_order_reads_aligned_blocks() {
        let mut c = ClusterState::default();
        assert_eq!([13, 100, 101, 3, 4].map(|s| c.on_miss(s, 1000, 3)), [8..16, 100..104, 100..102, 3..4, 4..6]);
        c.on_hit();
        // A miss after hits does not become the previous one: 3 is beside 4, not beside 50.
        assert_eq!([50, 3, 9].map(|s| c.on_miss(s, 1000, 1)), [50..52, 2..4, 9..10]);
        assert_eq!([1, 9].map(|s| ClusterState::default().on_miss(s, 12, 3)), [1..8, 8..12]);
    }

    proptest! {
        /// The block has the slot, is aligned and a power of two before it is clipped, and stays in the device.
        #[test]
        fn blocks_stay_in_the_device(
            faults in prop::collection::vec((1..5000u64, 0..20u32), 1..200),
            slots in 2..5000u64,
            page_cluster in 0..12u32,
        ) {
            let mut state = ClusterState::default();
            for (slot, hits) in faults {
                let slot = 1 + slot % (slots - 1);
                (0..hits).for_each(|_| state.on_hit());
                let before = state.0.window;
                let r = state.on_miss(slot, slots, page_cluster);
                prop_assert!(r.contains(&slot) && r.start >= 1 && r.end <= slots);
                let most = u64::from((1 << page_cluster).max(before / 2));
                prop_assert!(r.end - r.start <= most && r.start / most == (r.end - 1) / most);
            }
        }
    }
}
