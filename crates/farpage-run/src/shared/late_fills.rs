//! What the pager did during a pause, for the child (see `pause`).

use farpage_base::mem::units::Vpn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Most entries of one pause.
pub(crate) const LATE_FILLS_MAX: usize = 4096;

/// Stands for a change of mappings.
const EVENT: u64 = u64::MAX;

/// The pages placed during a pause against their words, and when between them changes of mappings became known. One
/// thread writes it, and it is whole at every moment. No allocation.
#[derive(Debug)]
pub struct LateFills {
    entries: Box<[AtomicU64]>,
    n: AtomicUsize,
}

impl Default for LateFills {
    fn default() -> LateFills {
        // SAFETY: all zero bits are such a word. Not written here: most processes never fork, and it would cost memory.
        let entries = unsafe { Box::new_zeroed_slice(LATE_FILLS_MAX).assume_init() };
        LateFills { entries, n: AtomicUsize::new(0) }
    }
}

impl LateFills {
    /// Nothing yet.
    pub(crate) fn clear(&self) {
        self.n.store(0, SeqCst);
    }

    /// A page is about to be placed; `false`: the list is full.
    pub(crate) fn page(&self, vpn: Vpn) -> bool {
        self.push(vpn.number())
    }

    /// The next change of mappings was read; `false`: the list is full.
    pub(crate) fn event(&self) -> bool {
        self.push(EVENT)
    }

    fn push(&self, entry: u64) -> bool {
        let n = self.n.load(SeqCst);
        let Some(place) = self.entries.get(n) else { return false };
        place.store(entry, SeqCst);
        self.n.store(n + 1, SeqCst);
        true
    }

    /// The last page was not placed.
    pub(crate) fn take_back(&self) {
        self.n.store(self.n.load(SeqCst).saturating_sub(1), SeqCst);
    }

    /// Pages in order; `None` stands for the next change of mappings.
    pub fn entries(&self) -> impl Iterator<Item = Option<Vpn>> {
        let entries = self.entries.iter().take(self.n.load(SeqCst));
        entries.map(|entry| Some(entry.load(SeqCst)).filter(|entry| *entry != EVENT).map(Vpn::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept_and_full_is_said() {
        let late_fills = LateFills::default();
        assert!(
            late_fills.page(Vpn::new(7))
                && late_fills.event()
                && late_fills.page(Vpn::new(9))
                && late_fills.page(Vpn::new(3))
        );
        late_fills.take_back();
        assert_eq!(late_fills.entries().collect::<Vec<_>>(), [Some(Vpn::new(7)), None, Some(Vpn::new(9))]);
        late_fills.clear();
        (0..LATE_FILLS_MAX as u64).for_each(|n| assert!(late_fills.page(Vpn::new(n))));
        assert!(!late_fills.page(Vpn::new(1)) && !late_fills.event());
        assert_eq!(late_fills.entries().count(), LATE_FILLS_MAX);
    }
}
