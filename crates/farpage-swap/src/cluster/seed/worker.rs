//! What is left for a background thread: discards of emptied clusters, and reclaim in full ones when a device has
//! become full.
//!
//! The swap has no thread of its own. [`Env::work_wanted`] says that there is something to do, and a thread of the
//! owner does it in steps:
//!
//! ```ignore
//! loop {
//!     while swap.work(16) {}
//!     sleep until work_wanted is called;
//! }
//! ```
//!
//! Without such a thread nothing is lost: an allocation that finds nothing else discards and reclaims by itself.
//! Locks: none is held between steps, nor while the owner discards or locks a frame.

use crate::cluster::worker::{DISCARD, RECLAIM};
use crate::cluster::{Env, Flag, Swap};
use crate::sync::Ordering;

impl<E: Env> Swap<E> {
    /// One step of the background work, in at most `clusters` clusters of each device: discards, then reclaim of lazily
    /// freed slots. Returns whether there is more to do now; otherwise [`Env::work_wanted`] will say when there is. One
    /// thread at a time is enough; several do no harm.
    pub fn work(&self, clusters: u32) -> bool {
        // First: what comes after this is not forgotten, it calls `work_wanted` again.
        let wanted = self.wanted.swap(0, Ordering::AcqRel);
        let mut more = 0;
        for device in self.devices() {
            if wanted & DISCARD != 0 && device.discard.load(Ordering::Relaxed) {
                self.discard_some(device.index, clusters as usize);
                // Also those whose lock was busy.
                if device.list_len(Flag::Discard, 0) > 0 {
                    more |= DISCARD;
                }
            }
            if wanted & RECLAIM != 0 && self.is_half_full() {
                let left = device.reclaim_left.load(Ordering::Relaxed);
                let now = left.min(clusters);
                if now > 0 && device.live.get() {
                    self.reclaim_full(device, now);
                    device.live.put();
                }
                device.reclaim_left.store(left - now, Ordering::Relaxed);
                if left > now {
                    more |= RECLAIM;
                }
            }
        }
        // The caller knows: no call of `work_wanted`.
        if more != 0 {
            self.wanted.fetch_or(more, Ordering::AcqRel);
        }
        more != 0
    }
}
