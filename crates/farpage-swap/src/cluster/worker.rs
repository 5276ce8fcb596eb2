//! What is left for a background thread of the owner, if it has one: discards of emptied clusters, and reclaim in full
//! ones when a device has become full (`seed/worker.rs`). Without one an allocation that finds nothing else does it by
//! itself.

use super::device::Device;
use super::{Env, Flag, Swap};
use crate::sync::Ordering;

/// Clusters wait for their discard.
pub(super) const DISCARD: u32 = 1;
/// A device became full while more than half of all slots were used.
pub(super) const RECLAIM: u32 = 2;

impl<E: Env> Swap<E> {
    /// There is work of this kind. No lock is held.
    pub(super) fn want(&self, what: u32) {
        // The thread that takes the bit sees the work.
        if self.wanted.fetch_or(what, Ordering::AcqRel) & what == 0 {
            self.env.work_wanted();
        }
    }

    /// The device is full: each of its full clusters is to be looked at once.
    pub(super) fn want_reclaim(&self, device: &Device<E::Meter>) {
        device.reclaim_left.store(device.list_len(Flag::Full, 0), Ordering::Relaxed);
        self.want(RECLAIM);
    }
}
