//! All devices: which have room, in what order they are asked, and how they come and go.
//!
//! Callers: the owner. Locks: `admin` around swapon, swapoff and grow; `avail` for the list of devices with room, taken
//! only when a device becomes full or has room again, and by an allocation whose hint did not work.

use super::device::Device;
use super::hint::Hints;
use super::{CLUSTER_SLOTS, DEVICES, Entry, Env, ORDERS, SLOTS_MAX};
use crate::lock::{Guard, Lock, sites};
use crate::sync::{AtomicU32, OnceLock, Ordering};
use crate::table::{TABLE_BYTES, TablePool, Word};

/// What a device is like.
#[derive(Debug, Clone, Default)]
pub struct DeviceOptions {
    /// Slots, slot 0 (the header) included. Cut to [`SLOTS_MAX`].
    pub slots: u64,
    /// Devices of higher priority are used first, those of equal priority in turn. Without one: -1.
    pub priority: Option<i32>,
    /// Writes should come in slot order, whichever thread makes them.
    pub rotational: bool,
    /// [`Env::discard`] is to be called for clusters that became empty.
    pub discard: bool,
    /// Slots that must not be used. Those beyond the end are ignored.
    pub bad: Vec<u64>,
}

/// Why a device was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwaponError {
    /// There are [`DEVICES`] already.
    TooMany,
}

/// A device that has room.
pub(super) struct Avail {
    priority: i32,
    device: u8,
}

/// See [`Swap::first`].
const ONLY: u32 = 1 << 31;

pub(super) struct Admin {
    pub(super) used: [bool; DEVICES],
    priority: [i32; DEVICES],
}

/// Devices and their slots. Shared by all threads; see the header of [`crate::cluster`].
///
/// All memory is from the global allocator, nothing belongs to a thread, and the state is complete whenever no thread
/// is inside: a copy of the memory made then (a fork) is a swap of its own.
pub struct Swap<E: Env = ()> {
    pub(super) env: E,
    devices: [OnceLock<Box<Device<E::Meter>>>; DEVICES],
    pub(super) admin: Lock<Admin, E::Meter>,
    pub(super) avail: Lock<Vec<Avail>, E::Meter>,
    /// Number + 1 of the device that is asked first, if it has no equal; 0: none. With [`ONLY`]: there is no other one.
    first: AtomicU32,
    pub(super) hints: Hints,
    pub(super) tables: TablePool<E::Meter>,
    /// What `worker` has to do.
    pub(super) wanted: AtomicU32,
}

/// Numbers of one device or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Slots that can be in use.
    pub capacity: u64,
    /// Slots in use, lazily freed ones included.
    pub in_use: u64,
    /// Clusters that exist, whatever their state.
    pub clusters: u64,
    /// Clusters of those that have no slot in use.
    pub clusters_free: u64,
    /// Tables made so far (of the whole swap), each as large as its cluster's share of [`Stats::meta_bytes`].
    pub tables: u64,
    /// Tables of those that no cluster uses now.
    pub tables_spare: u64,
    /// Bytes of memory for all of it.
    pub meta_bytes: u64,
}

impl<E: Env> Swap<E> {
    /// A swap without devices, for `cpus` CPUs (the range of what callers pass as `cpu`; larger numbers wrap around).
    pub fn new(cpus: usize, env: E) -> Swap<E> {
        Swap {
            env,
            devices: [const { OnceLock::new() }; DEVICES],
            admin: Lock::new(Admin { used: [false; DEVICES], priority: [0; DEVICES] }),
            avail: Lock::new(Vec::with_capacity(DEVICES)),
            first: AtomicU32::new(0),
            hints: Hints::new(cpus),
            tables: TablePool::new(),
            wanted: AtomicU32::new(0),
        }
    }

    /// What was given to [`Swap::new`].
    pub fn env(&self) -> &E {
        &self.env
    }

    /// Adds a device and returns its number. A device without usable slots is legal: it may grow.
    ///
    /// # Errors
    /// There are too many.
    pub fn swapon(&self, options: DeviceOptions) -> Result<u8, SwaponError> {
        let mut admin = self.admin.lock(&sites::ADMIN);
        let index = admin.used.iter().position(|used| !used).ok_or(SwaponError::TooMany)?;
        let device = self.devices[index].get_or_init(|| Box::new(Device::new(index as u8)));
        let limit = options.slots.min(SLOTS_MAX);
        let mut bad = options.bad;
        bad.retain(|&slot| slot != 0 && slot < limit);
        bad.sort_unstable();
        bad.dedup();
        let capacity = limit.saturating_sub(1) - bad.len() as u64;
        device.reset_lists(limit, bad);
        *device.next.lock(&sites::ROTATIONAL) = [0; ORDERS];
        device.rotational.store(options.rotational, Ordering::Relaxed);
        device.discard.store(options.discard, Ordering::Relaxed);
        admin.used[index] = true;
        admin.priority[index] = options.priority.unwrap_or(-1);
        // Everything is built: now it may be found.
        device.live.resurrect();
        self.enter(device, admin.priority[index], Some(capacity));
        Ok(index as u8)
    }

    /// Makes a device larger: `slots` slots, slot 0 included. A smaller number changes nothing. Not while it is being
    /// switched off.
    pub fn grow(&self, device: u8, slots: u64) {
        let admin = self.admin.lock(&sites::ADMIN);
        let Some(device) = self.device(device).filter(|device| admin.used[usize::from(device.index)]) else { return };
        if !device.writable.load(Ordering::Relaxed) {
            return;
        }
        let slots = slots.min(SLOTS_MAX);
        let old = device.lists.lock(&sites::DEVICE_ADMIN).limit;
        if slots <= old {
            return;
        }
        let last = Entry { device: device.index, slot: old };
        // A cluster that was cut short gets the new slots. Its lock keeps it from being made meanwhile.
        let cut = (last.place() != 0).then_some(last.cluster());
        let mut state = cut.and_then(|index| self.lock(device, index, &sites::CLUSTER_ADMIN));
        let (made, bad) = {
            let mut lists = device.lists.lock(&sites::DEVICE_ADMIN);
            lists.limit = slots;
            device.all_made.store(false, Ordering::Relaxed);
            (last.cluster() < lists.fresh, lists.bad.len() as u64)
        };
        if let (true, Some(state)) = (made, &mut state) {
            let end = (slots - (old - last.place() as u64)).min(CLUSTER_SLOTS as u64) as usize;
            if let Some(table) = &mut state.table {
                (last.place()..end).for_each(|at| table.set(at, Word::FREE));
                state.count -= (end - last.place()) as u16;
            }
            device.after_free(last.cluster(), state, last.place(), end - last.place(), &self.tables, &self.hints);
        }
        drop(state);
        self.enter(device, admin.priority[usize::from(device.index)], Some(slots - 1 - bad));
    }

    /// The device becomes writable and, if it has room, is put on the list.
    pub(super) fn enter(&self, device: &Device<E::Meter>, priority: i32, capacity: Option<u64>) {
        let mut avail = self.avail.lock(&sites::AVAIL_ADMIN);
        if let Some(capacity) = capacity {
            device.usage.set_capacity(capacity);
        }
        device.writable.store(true, Ordering::Relaxed);
        self.link(&mut avail, device, priority);
    }

    fn link(&self, avail: &mut Guard<'_, Vec<Avail>, E::Meter>, device: &Device<E::Meter>, priority: i32) {
        device.priority.store(priority as u32, Ordering::Relaxed);
        if device.usage.clear_off_list_if_room() {
            let at = avail.iter().position(|other| other.priority < priority).unwrap_or(avail.len());
            avail.insert(at, Avail { priority, device: device.index });
            self.note_first(avail);
        }
    }

    pub(super) fn unlink(&self, avail: &mut Guard<'_, Vec<Avail>, E::Meter>, device: u8) {
        avail.retain(|other| other.device != device);
        self.note_first(avail);
    }

    fn note_first(&self, avail: &[Avail]) {
        let first = match avail {
            [only] => (u32::from(only.device) + 1) | ONLY,
            [first, second, ..] if first.priority > second.priority => u32::from(first.device) + 1,
            _ => 0,
        };
        self.first.store(first, Ordering::Relaxed);
    }

    /// Whether an allocation that used up a cluster of this device may go straight to its next one: it would be asked
    /// anyway.
    #[inline]
    pub(super) fn may_go_on(&self, device: u8) -> bool {
        self.first.load(Ordering::Relaxed) & !ONLY == u32::from(device) + 1
            && self.device(device).is_some_and(|device| !device.rotational.load(Ordering::Relaxed))
    }

    /// The first device with room that was not tried, moved behind its equals. Marks it as tried.
    pub(super) fn next_device(&self, tried: &mut u64) -> Option<&Device<E::Meter>> {
        // Without an equal there is no turn to take, and no need for the lock.
        let first = self.first.load(Ordering::Relaxed);
        if let Some(device) = (first & !ONLY).checked_sub(1) {
            if *tried & 1 << device == 0 {
                *tried |= 1 << device;
                return self.device(device as u8);
            }
            if first & ONLY != 0 {
                return None;
            }
        }
        let mut avail = self.avail.lock(&sites::AVAIL_NEXT);
        let at = avail.iter().position(|a| *tried >> a.device & 1 == 0)?;
        let chosen = avail.remove(at);
        let (device, priority) = (chosen.device, chosen.priority);
        let behind = avail.iter().position(|other| other.priority < priority).unwrap_or(avail.len());
        avail.insert(behind, chosen);
        *tried |= 1 << device;
        self.device(device)
    }

    /// The device was filled by the caller.
    #[cold]
    pub(super) fn became_full(&self, device: &Device<E::Meter>) {
        let mut avail = self.avail.lock(&sites::AVAIL_FULL);
        // A free may have come first: then there is nothing to do.
        if device.usage.set_off_list_if_full() {
            self.unlink(&mut avail, device.index);
            drop(avail);
            if self.is_half_full() {
                self.want_reclaim(device);
            }
        }
    }

    /// The caller freed a slot of a device that is off the list.
    #[cold]
    pub(super) fn has_room(&self, device: &Device<E::Meter>) {
        let mut avail = self.avail.lock(&sites::AVAIL_FULL);
        if device.writable.load(Ordering::Relaxed) {
            let priority = device.priority.load(Ordering::Relaxed) as i32;
            self.link(&mut avail, device, priority);
        }
    }

    /// More than half of all slots of all devices are used.
    pub fn is_half_full(&self) -> bool {
        let (mut used, mut all) = (0, 0);
        for device in self.devices().filter(|device| device.writable.load(Ordering::Relaxed)) {
            used += device.usage.in_use();
            all += device.usage.capacity();
        }
        used * 2 > all
    }

    /// Slots in use of a device, lazily freed ones included.
    pub fn in_use(&self, device: u8) -> u64 {
        self.device(device).map_or(0, |device| device.usage.in_use())
    }

    /// Slots of a device that can be in use.
    pub fn capacity(&self, device: u8) -> u64 {
        self.device(device).map_or(0, |device| device.usage.capacity())
    }

    /// The first slot in use at or after `from`, and its word. Looks at `clusters_max` clusters with slots in use at
    /// most, so that one call stays short; `Err(next)`: nothing until there, go on at `next` (0: end reached).
    ///
    /// # Errors
    /// See above.
    pub fn next_in_use(&self, device: u8, from: u64, clusters_max: usize) -> Result<(u64, Word), u64> {
        let Some(device) = self.device(device) else { return Err(0) };
        let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh;
        let mut at = Entry { device: device.index, slot: from.max(1) };
        let mut looked = 0;
        while at.cluster() < fresh {
            let Some(state) = self.lock(device, at.cluster(), &sites::CLUSTER_ADMIN) else { break };
            let base = at.slot - at.place() as u64;
            if let Some(table) = &state.table {
                if looked == clusters_max {
                    return Err(at.slot);
                }
                looked += 1;
                for place in at.place()..CLUSTER_SLOTS {
                    let word = table.word(place);
                    if word.is_in_use() {
                        return Ok((base + place as u64, word));
                    }
                }
            }
            at.slot = base + CLUSTER_SLOTS as u64;
        }
        Err(0)
    }

    /// Numbers of a device. Takes each cluster's lock.
    pub fn stats(&self, device: u8) -> Stats {
        let Some(device) = self.device(device) else { return Stats::default() };
        let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh;
        let free =
            |index: &u32| self.lock(device, *index, &sites::CLUSTER_ADMIN).is_some_and(|state| state.table.is_none());
        let (tables, tables_spare) = self.tables.counts();
        Stats {
            capacity: device.usage.capacity(),
            in_use: device.usage.in_use(),
            clusters: u64::from(fresh),
            clusters_free: (0..fresh).filter(free).count() as u64,
            tables,
            tables_spare,
            meta_bytes: self.meta_bytes(device.index),
        }
    }

    /// Bytes of memory for a device's clusters and for what all devices share (tables, hints).
    pub fn meta_bytes(&self, device: u8) -> u64 {
        let Some(device) = self.device(device) else { return 0 };
        let own = device.clusters.bytes() + size_of::<Device<E::Meter>>();
        let shared = self.tables.directory_bytes() + self.hints.bytes();
        self.tables.counts().0 * TABLE_BYTES as u64 + (own + shared) as u64
    }

    #[inline]
    pub(super) fn device(&self, index: u8) -> Option<&Device<E::Meter>> {
        self.devices.get(usize::from(index))?.get().map(Box::as_ref)
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = &Device<E::Meter>> {
        self.devices.iter().filter_map(OnceLock::get).map(Box::as_ref)
    }

    #[cfg(test)]
    pub(super) fn available(&self) -> Vec<(i32, u8)> {
        self.avail.lock(&sites::AVAIL_ADMIN).iter().map(|a| (a.priority, a.device)).collect()
    }
}
