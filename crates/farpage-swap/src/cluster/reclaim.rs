//! Taking back slots that are only lazily free, and discards.
//!
//! A slot without references whose page is in the swap cache keeps its place: if the page goes out again unchanged,
//! nothing need be written. When more than half of all slots are used, such slots are reclaimed where a search meets
//! them, one full cluster a search, and by the background `worker` when a device has become full.
//!
//! Callers: `scan`, `search`, `worker`. Cluster locks are dropped while the owner of the frames is asked.

use super::device::Device;
use super::{CLUSTER_SLOTS, Entry, Env, Flag, Swap};
use crate::lock::sites;
use crate::sync::Ordering;

impl<E: Env> Swap<E> {
    /// Tries to reclaim the lazily freed slots among `n` slots of one cluster; stops at the first that cannot be.
    /// Returns how many are free now. No lock is held.
    pub(super) fn reclaim_range(&self, first: Entry, n: usize) -> usize {
        let mut freed = 0;
        for at in 0..n as u64 {
            let entry = first.offset(at);
            let word = self.lookup(entry);
            if word.is_lazily_free() {
                let Some(frame) = word.frame() else { break };
                if !self.env.try_lock_frame(frame) {
                    break;
                }
                // Under the frame's lock the word either still names it, or the frame is none of our business.
                let gone = self.cache_reclaim(entry, 1, frame).is_ok();
                self.env.unlock_frame(frame, gone);
                if !gone {
                    break;
                }
                freed += 1;
            } else if word.is_in_use() {
                break;
            }
        }
        freed
    }

    /// Reclaims in up to `clusters` full clusters; how many slots are free now. A cluster in which nothing was freed
    /// goes to the end of the list, so that the next call looks at others.
    pub(super) fn reclaim_full(&self, device: &Device<E::Meter>, clusters: u32) -> usize {
        let mut freed = 0;
        for _ in 0..clusters {
            if device.lazy.load(Ordering::Relaxed) == 0 {
                break;
            }
            let Some(taken) = device.isolate_full() else { break };
            let index = taken.index;
            let any = self.locked(device, taken).lazy > 0;
            let base = Entry { device: device.index, slot: u64::from(index) * CLUSTER_SLOTS as u64 };
            if any {
                freed += (0..CLUSTER_SLOTS as u64).map(|at| self.reclaim_range(base.offset(at), 1)).sum::<usize>();
            }
        }
        freed
    }

    /// Discards up to `clusters` clusters of a device that wait for it and makes them free; how many.
    pub(super) fn discard_some(&self, device: u8, clusters: usize) -> usize {
        let Some(device) = self.device(device) else { return 0 };
        if !device.live.get() {
            return 0;
        }
        let mut done = 0;
        while done < clusters && self.discard_one(device) {
            done += 1;
        }
        device.live.put();
        done
    }

    fn discard_one(&self, device: &Device<E::Meter>) -> bool {
        let Some(index) = device.isolate_discard() else { return false };
        // The cluster is on no list, empty and without a table: no thread can take anything from it.
        self.env.discard(device.index, u64::from(index) * CLUSTER_SLOTS as u64, CLUSTER_SLOTS as u64);
        self.set_free(device, index);
        true
    }

    fn set_free(&self, device: &Device<E::Meter>, index: u32) {
        if let Some(mut state) = self.lock(device, index, &sites::CLUSTER_ADMIN) {
            device.relocate(index, &mut state, Flag::Free, &sites::DEVICE_RELOCATE);
        }
    }

    /// Takes one cluster that waits for its discard: its first slot. No slot of it is given out, and the device stays,
    /// until [`Swap::end_discard`]: for an owner that discards while it holds a lock that the allocator's user would
    /// want.
    pub fn begin_discard(&self, device: u8) -> Option<u64> {
        let device = self.device(device)?;
        if !device.live.get() {
            return None;
        }
        let index = device.isolate_discard();
        if index.is_none() {
            device.live.put();
        }
        index.map(|index| u64::from(index) * CLUSTER_SLOTS as u64)
    }

    /// The cluster at `first`, from [`Swap::begin_discard`], is free from now on.
    pub fn end_discard(&self, device: u8, first: u64) {
        if let Some(device) = self.device(device) {
            self.set_free(device, Entry { device: device.index, slot: first }.cluster());
            device.live.put();
        }
    }

    /// Reclaims on all devices, full ones too, until something is free; whether something is.
    pub(super) fn reclaim_any(&self) -> bool {
        let devices = self.devices().filter(|device| device.writable.load(Ordering::Relaxed));
        let mut devices = devices.filter(|device| device.lazy.load(Ordering::Relaxed) > 0 && self.is_half_full());
        devices.any(|device| self.reclaim_full(device, device.list_len(Flag::Full, 0)) > 0)
    }

    /// All pending discards of all devices, also of full ones; whether there was one.
    pub(super) fn discard_all(&self) -> bool {
        let mut any = false;
        for device in self.devices() {
            if device.discard.load(Ordering::Relaxed) {
                any |= self.discard_some(device.index, usize::MAX) > 0;
            }
        }
        any
    }
}
