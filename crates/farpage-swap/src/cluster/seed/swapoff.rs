//! Devices that go.
//!
//! Swapoff: (1) off the list for good and not `writable`; (2) each cluster's lock is taken once: a thread that holds
//! one commits before, and one that takes it later sees that the device is not writable, so no slot appears from here
//! on; (3) the owner moves the content elsewhere, slot by slot, and may give up, which undoes everything; (4) no more
//! references to the device, hints to it are dropped, its tables go back to the pool. Its record stays for the next
//! device.

use crate::cluster::device::Device;
use crate::cluster::{Entry, Env, Flag, Swap};
use crate::lock::sites;
use crate::sync::Ordering;
use crate::table::Word;

impl<E: Env> Swap<E> {
    /// A reference to a device: until it is dropped, [`Swapoff::finish`] of this device fails.
    pub fn get(&self, device: u8) -> Option<DeviceRef<'_, E>> {
        let device = self.device(device).filter(|device| device.live.get())?;
        Some(DeviceRef { device })
    }

    /// Begins to switch a device off: from now on it gives out no slot. `None`: there is no such device, or another
    /// thread has begun already.
    pub fn swapoff(&self, device: u8) -> Option<Swapoff<'_, E>> {
        let admin = self.admin.lock(&sites::ADMIN);
        let device = self.device(device).filter(|device| admin.used[usize::from(device.index)])?;
        {
            let mut avail = self.avail.lock(&sites::AVAIL_ADMIN);
            if !device.writable.swap(false, Ordering::Relaxed) {
                return None;
            }
            if device.usage.set_off_list() {
                self.unlink(&mut avail, device.index);
            }
        }
        drop(admin);
        let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh;
        for index in 0..fresh {
            drop(self.lock(device, index, &sites::CLUSTER_ADMIN));
        }
        Some(Swapoff { swap: self, device, gone: false })
    }
}

/// See [`Swap::get`].
pub struct DeviceRef<'a, E: Env> {
    device: &'a Device<E::Meter>,
}

impl<E: Env> Drop for DeviceRef<'_, E> {
    fn drop(&mut self) {
        self.device.live.put();
    }
}

/// A device that is being switched off. Dropped before [`Swapoff::finish`] succeeded, it takes pages again.
pub struct Swapoff<'a, E: Env> {
    swap: &'a Swap<E>,
    device: &'a Device<E::Meter>,
    gone: bool,
}

impl<E: Env> Swapoff<'_, E> {
    /// The first slot in use at or after `from`, with its word: its content must be moved, its references and its frame
    /// taken away. `None`: none is left from there on.
    pub fn next(&self, from: u64) -> Option<(Entry, Word)> {
        let mut from = from;
        loop {
            match self.swap.next_in_use(self.device.index, from, usize::MAX) {
                Ok((slot, word)) => return Some((Entry { device: self.device.index, slot }, word)),
                Err(0) => return None,
                Err(next) => from = next,
            }
        }
    }

    /// Ends it: the device's number is free for another one.
    ///
    /// # Errors
    /// Slots are in use, or a thread has a reference to the device; nothing is lost, try again later.
    pub fn finish(mut self) -> Result<(), Self> {
        // What was freed before this call counts as free.
        self.swap.carry_out_all(self.device);
        if self.device.usage.in_use() > 0 {
            return Err(self);
        }
        self.device.live.kill();
        if !self.device.live.is_drained() {
            return Err(self);
        }
        self.swap.hints.forget(self.device.index);
        let fresh = self.device.lists.lock(&sites::DEVICE_ADMIN).fresh;
        for index in 0..fresh {
            let Some(cluster) = self.device.cluster(index) else { continue };
            let mut state = cluster.state.lock(&sites::CLUSTER_ADMIN);
            if let Some(mut table) = cluster.detach(&mut state) {
                table.clear();
                self.swap.tables.give(table);
            }
            (state.count, state.lazy, state.order) = (0, 0, 0);
            state.leave();
            (state.ready, state.broken) = (None, false);
            state.flag = Flag::None;
        }
        let mut admin = self.swap.admin.lock(&sites::ADMIN);
        {
            let _avail = self.swap.avail.lock(&sites::AVAIL_ADMIN);
            self.device.usage.set_capacity(0);
        }
        self.device.reset_lists(0, Vec::new());
        admin.used[usize::from(self.device.index)] = false;
        self.gone = true;
        Ok(())
    }
}

impl<E: Env> Drop for Swapoff<'_, E> {
    fn drop(&mut self) {
        if !self.gone {
            self.device.live.resurrect();
            let priority = self.device.priority.load(Ordering::Relaxed) as i32;
            self.swap.enter(self.device, priority, None);
        }
    }
}
