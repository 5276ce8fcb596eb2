//! References to a device by threads that are about to do something that must end before the device is gone.
//!
//! Callers: `search`, `reclaim`, `swap`. No locks.

use crate::sync::{AtomicU64, Ordering};

/// The number of references; bit 63: no new ones.
pub(super) struct Live(AtomicU64);

const DEAD: u64 = 1 << 63;

impl Live {
    pub(super) fn dead() -> Live {
        Live(AtomicU64::new(DEAD))
    }

    /// One more reference, unless the device is going.
    pub(super) fn get(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & DEAD == 0 {
            match self.0.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    pub(super) fn put(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// No new references from now on.
    #[cfg(feature = "seed")]
    pub(super) fn kill(&self) {
        self.0.fetch_or(DEAD, Ordering::AcqRel);
    }

    /// Killed, and without a reference.
    #[cfg(feature = "seed")]
    pub(super) fn is_drained(&self) -> bool {
        self.0.load(Ordering::Acquire) == DEAD
    }

    /// References are given out (again).
    pub(super) fn resurrect(&self) {
        self.0.fetch_and(!DEAD, Ordering::Release);
    }
}
