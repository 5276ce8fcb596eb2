//! Allocation: the hint, then the devices in turn, then the lists of each in order.
//!
//! | step | order `o` > 0 | order 0 | why here |
//! | --- | --- | --- | --- |
//! | hint | yes | yes | takes the cluster's lock only |
//! | full clusters with holes, then nonfull\[o\], all | yes | yes | packs the device; the former without its lock |
//! | broken blocks | | yes | pieces before whole blocks, without the device lock |
//! | free, then a cluster never used | yes | yes | |
//! | reclaim one full cluster, if more than half of all is used; then nonfull\[o\] again | yes | yes | |
//! | frag\[o\], one | yes | yes | the whole list would be a long search for little |
//! | the full list for holes, the next 4 | yes | all, last | not worth a search before |
//! | frag\[k\], nonfull\[k\], full clusters with holes, k = 1.. | | yes | order 0 fits everywhere, but breaks blocks |
//! | all devices: pending discards; reclaim in full clusters; once more | | yes | must not fail while there is room |
//!
//! A device whose clusters are discarded takes free clusters first, to spread the writes. On a rotational device all
//! CPUs go on at one place, under one lock, so that writes stay in order.

use super::device::{Device, Taken};
use super::hint::ALL;
use super::ready::Stack;
use super::scan::{Next, Want};
use super::{CLUSTER_SLOTS, Entry, Env, Fill, Flag, ORDERS, Swap};
use crate::lock::sites;
use crate::sync::Ordering;

/// How often an allocation that finds every lock taken waits for one.
const WAITS: usize = if cfg!(loom) { 4 } else { 64 };
/// Full clusters that a search for a larger block looks at.
const FEW_VISITS: u32 = 4;
/// Clusters of a stack that one search looks at: only one that changed since it was pushed has no block.
const READY_VISITS: usize = 4;
const TOP: u8 = ORDERS as u8 - 1;

impl<E: Env> Swap<E> {
    /// Takes a block of `2^order` slots. `cpu` is the number of the CPU (or anything else that spreads callers); a
    /// wrong one costs locality and contention, nothing else. `None`: no device has such a block, or `order` is too
    /// large. After a failure with order 0 there was no free slot, nor one that could be reclaimed.
    pub fn alloc(&self, cpu: usize, order: u8, fill: Fill) -> Option<Entry> {
        if order > TOP {
            return None;
        }
        let want = Want { order, fill, user: self.hints.user(cpu) };
        let hint = self.hints.get(cpu, order);
        if let Some(hint) = hint
            && let Some(device) = self.device(hint.device)
            && let Some(cluster) = device.cluster(hint.cluster())
            && let Some(state) = cluster.state.try_lock(&sites::CLUSTER_HINT)
        {
            // If another thread has the lock, another cluster does as well: frees offer this one again, because the
            // hint will be gone (`ready`). No reference: a cluster's record is never freed, and its lock orders us with
            // swapoff, which clears `writable` and then takes each lock.
            let taken = Taken { index: hint.cluster(), cluster, state };
            if let Ok((entry, next)) = self.scan(device, taken, hint.place(), want, false) {
                self.hints.set(cpu, order, next);
                return Some(entry);
            }
        }
        self.alloc_slow(cpu, want)
    }

    /// Takes a block of `2^order` slots or, failing that, of the largest order below it that is to be had. Returns the
    /// order it has.
    pub fn alloc_at_most(&self, cpu: usize, order: u8, fill: Fill) -> Option<(Entry, u8)> {
        (0..=order.min(TOP)).rev().find_map(|order| Some((self.alloc(cpu, order, fill)?, order)))
    }

    #[cold]
    fn alloc_slow(&self, cpu: usize, want: Want) -> Option<Entry> {
        let mut waits = 0;
        loop {
            let mut tried = 0;
            while let Some(device) = self.next_device(&mut tried) {
                if !device.live.get() {
                    continue;
                }
                let found = if device.rotational.load(Ordering::Relaxed) {
                    self.search_rotational(device, Want { user: ALL, ..want })
                } else {
                    self.search(device, want).map(|(entry, next)| {
                        self.hints.set(cpu, want.order, next);
                        entry
                    })
                };
                device.live.put();
                if found.is_some() {
                    return found;
                }
            }
            if want.order > 0 {
                return None;
            }
            if !self.discard_all() && !self.reclaim_any() {
                // Is there room, only behind locks that others hold?
                waits += 1;
                if waits > WAITS || !self.wait_for_busy() {
                    return None;
                }
            }
        }
    }

    /// If some device has room, sees to it that the next try can find it: the device must be on the list, which the
    /// thread that freed a slot may not have come to; and a cluster's lock that was busy is waited for, so are frees
    /// that met one. `false`: there is no room.
    fn wait_for_busy(&self) -> bool {
        let has_room = |device: &&Device<E::Meter>| {
            device.writable.load(Ordering::Relaxed) && device.usage.in_use() < device.usage.capacity()
        };
        for device in self.devices().filter(has_room) {
            if device.usage.is_off_list() {
                self.has_room(device);
                return true;
            }
            if let Some(cluster) = device.any_with_room() {
                drop(self.lock(device, cluster, &sites::CLUSTER_ISOLATE));
                return true;
            }
        }
        let mut devices = self.devices().filter(|device| device.writable.load(Ordering::Relaxed));
        devices.any(|device| self.carry_out_all(device))
    }

    fn search_rotational(&self, device: &Device<E::Meter>, want: Want) -> Option<Entry> {
        let mut places = device.next.lock(&sites::ROTATIONAL);
        let place = Entry { device: device.index, slot: places[usize::from(want.order)] };
        let cluster = device.cluster(place.cluster()).filter(|_| place.slot != 0);
        let here = cluster.and_then(|cluster| {
            let state = cluster.state.lock(&sites::CLUSTER_HINT);
            let taken = Taken { index: place.cluster(), cluster, state };
            self.scan(device, taken, place.place(), want, false).ok()
        });
        let (entry, next) = here.or_else(|| self.search(device, want))?;
        places[usize::from(want.order)] = next.map_or(0, |next| next.slot);
        Some(entry)
    }

    /// The lists of one device in order.
    fn search(&self, device: &Device<E::Meter>, want: Want) -> Option<(Entry, Next)> {
        let order = want.order;
        let discard = device.discard.load(Ordering::Relaxed);
        if discard && let Some(found) = self.try_free(device, want) {
            return Some(found);
        }
        if let Some(found) =
            self.try_stack(device, Stack::Holes(order), want).or_else(|| self.try_nonfull(device, want))
        {
            return Some(found);
        }
        if order == 0
            && let Some(found) = self.try_stack(device, Stack::Broken, want)
        {
            return Some(found);
        }
        if !discard && let Some(found) = self.try_free(device, want) {
            return Some(found);
        }
        if self.is_half_full()
            && self.reclaim_full(device, 1) > 0
            && let Some(found) = (self.try_stack(device, Stack::Holes(order), want))
                .or_else(|| self.try_list(device, Flag::Nonfull, order, want))
                .or_else(|| self.try_free(device, want))
        {
            return Some(found);
        }
        if order < TOP
            && let Some(found) = self.try_list(device, Flag::Frag, order, want)
        {
            return Some(found);
        }
        if order > 0 {
            // Once that has failed, whole blocks go on a stack as soon as they are free.
            if device.short_of_blocks.load(Ordering::Relaxed) {
                return None;
            }
            let found = self.try_few(device, FEW_VISITS, want);
            device.short_of_blocks.store(found.is_none(), Ordering::Relaxed);
            return found;
        }
        for stolen in 1..TOP + 1 {
            for flag in [Flag::Frag, Flag::Nonfull] {
                if let Some(found) = self.try_list(device, flag, stolen, want) {
                    return Some(found);
                }
            }
            if let Some(found) = self.try_stack(device, Stack::Holes(stolen), want) {
                return Some(found);
            }
        }
        // What is free now is in clusters that are nearly full.
        let any = device.usage.in_use() < device.usage.capacity();
        if any { self.try_few(device, device.list_len(Flag::Full, 0), want) } else { None }
    }

    /// The clusters on top of a stack: one that has no such block stays where it is. Of those with broken blocks no
    /// other is broken.
    fn try_stack(&self, device: &Device<E::Meter>, stack: Stack, want: Want) -> Option<(Entry, Next)> {
        for _ in 0..READY_VISITS {
            let taken = self.take_ready(device, stack)?;
            if let Some(found) = self.scan_taken(device, taken, want, stack != Stack::Broken) {
                return Some(found);
            }
        }
        None
    }

    pub(super) fn take_ready<'a>(&'a self, device: &'a Device<E::Meter>, stack: Stack) -> Option<Taken<'a, E::Meter>> {
        device.take_ready(stack, &self.hints, &sites::CLUSTER_ISOLATE, |cluster, index| {
            self.carry_out_pending(device, cluster, index)
        })
    }

    fn try_few(&self, device: &Device<E::Meter>, visits: u32, want: Want) -> Option<(Entry, Next)> {
        let taken =
            device.isolate_few(want.order, visits, |cluster, index| self.carry_out_pending(device, cluster, index))?;
        self.scan_taken(device, taken, want, true)
    }

    /// Each cluster of nonfull\[order\] once: one that has no block goes to frag.
    fn try_nonfull(&self, device: &Device<E::Meter>, want: Want) -> Option<(Entry, Next)> {
        let order = want.order;
        if order == TOP {
            return None;
        }
        // One try nearly always does; the length only bounds what others put on the list meanwhile.
        let mut limit = None;
        loop {
            let taken = device.isolate(Flag::Nonfull, order, Flag::Frag)?;
            if let Some(found) = self.scan_taken(device, taken, want, true) {
                return Some(found);
            }
            let left = limit.get_or_insert_with(|| device.list_len(Flag::Nonfull, order));
            *left = left.checked_sub(1)?;
        }
    }

    fn try_list(&self, device: &Device<E::Meter>, flag: Flag, list: u8, want: Want) -> Option<(Entry, Next)> {
        let taken = device.isolate(flag, list, Flag::Frag)?;
        self.scan_taken(device, taken, want, true)
    }

    /// A free cluster, or one that was never used.
    fn try_free(&self, device: &Device<E::Meter>, want: Want) -> Option<(Entry, Next)> {
        let order = want.order;
        let taken = match device.isolate(Flag::Free, order, Flag::Frag) {
            Some(mut taken) => {
                taken.cluster.attach(&mut taken.state, self.tables.take());
                taken
            }
            None => device.take_fresh(order, &self.tables)?,
        };
        if order > 0 {
            device.short_of_blocks.store(false, Ordering::Relaxed);
        }
        self.scan_taken(device, taken, want, true)
    }

    fn scan_taken(
        &self,
        device: &Device<E::Meter>,
        mut taken: Taken<'_, E::Meter>,
        want: Want,
        breaks: bool,
    ) -> Option<(Entry, Next)> {
        *taken.state.user(want.order) = want.user;
        debug_assert!(usize::from(taken.state.count) < CLUSTER_SLOTS);
        self.scan(device, taken, 0, want, breaks).ok()
    }
}
