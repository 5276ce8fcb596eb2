//! The slots of one device with a value each: the allocator as a device of the engine uses it.
//!
//! The allocator knows which slots are in use and where the next one should be; what a device must remember of a slot
//! (where its compressed bytes are, a checksum) is here, in tables beside the swap table that live as long as their
//! cluster has slots in use.
//!
//! Callers: `device::zram` and `device::file` of the engine, each with its own lock around this (which also covers what the
//! values point to). So every lock in here is free when it is taken. A copy made while nobody is inside (a fork) is
//! complete.

use crate::cluster::{CLUSTER_SLOTS, DeviceOptions, Entry, Fill, ORDERS, Swap};

/// The number of the only device.
const DEVICE: u8 = 0;

struct Values<T> {
    used: u32,
    values: Box<[T]>,
}

/// Gives out the slots `1..slots` of one device and keeps one `T` for each slot in use.
pub struct SlotMap<T> {
    swap: Swap,
    /// Values by cluster; `None` while no slot of the cluster is in use.
    tables: Vec<Option<Values<T>>>,
    made: usize,
    /// The last table given back, so that a cluster that goes back and forth does not allocate each time.
    spare: Option<Box<[T]>>,
    slots: u64,
}

impl<T: Copy + Default> SlotMap<T> {
    /// For a device of `slots` slots, slot 0 included (so it gives out at most `slots - 1`), used by `cpus` CPUs.
    pub fn new(slots: u64, cpus: usize) -> SlotMap<T> {
        SlotMap::with_options(DeviceOptions { slots, ..DeviceOptions::default() }, cpus)
    }

    /// The same for a device whose empty clusters are given back to what is below it ([`SlotMap::begin_discard`]).
    pub fn with_discard(slots: u64, cpus: usize) -> SlotMap<T> {
        SlotMap::with_options(DeviceOptions { slots, discard: true, ..DeviceOptions::default() }, cpus)
    }

    fn with_options(options: DeviceOptions, cpus: usize) -> SlotMap<T> {
        let slots = options.slots;
        let swap = Swap::new(cpus, ());
        // The first of many devices is never refused.
        let added = swap.swapon(options);
        debug_assert_eq!(added, Ok(DEVICE));
        SlotMap { swap, tables: Vec::new(), made: 0, spare: None, slots }
    }

    /// Most slots that can be in use at once.
    pub fn capacity(&self) -> u64 {
        self.swap.capacity(DEVICE)
    }

    /// Slots of the device, slot 0 included.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Makes the device larger: `slots` slots, slot 0 included. A smaller number changes nothing.
    pub fn grow(&mut self, slots: u64) {
        self.slots = self.slots.max(slots);
        self.swap.grow(DEVICE, slots);
    }

    /// Slots in use.
    pub fn in_use(&self) -> u64 {
        self.swap.in_use(DEVICE)
    }

    /// Bytes of memory held for bookkeeping.
    pub fn meta_bytes(&self) -> usize {
        let tables = self.made + usize::from(self.spare.is_some());
        let values = self.tables.capacity() * size_of::<Option<Values<T>>>() + tables * size_of::<T>() * CLUSTER_SLOTS;
        self.swap.meta_bytes(DEVICE) as usize + values
    }

    /// Takes one slot and gives it `value`. `cpu` is the caller's. `None`: every slot is in use.
    pub fn alloc(&mut self, cpu: usize, value: T) -> Option<u64> {
        let entry = self.swap.alloc(cpu, 0, Fill::Swapped)?;
        self.fill(entry, 1, value);
        Some(entry.slot)
    }

    /// Takes up to `max` slots that follow each other: the largest block of `2^o` of them, aligned to its size, that is not
    /// larger than `max` and is to be had. Each gets `value`. `None`: every slot is in use, or `max` is 0.
    pub fn alloc_run(&mut self, cpu: usize, max: usize, value: T) -> Option<(u64, usize)> {
        let order = max.checked_ilog2()?.min(ORDERS as u32 - 1) as u8;
        let mut found = self.swap.alloc(cpu, order, Fill::Swapped).map(|entry| (entry, order));
        // A cluster that waits to be given back is better than a smaller block.
        if found.is_none() && self.reuse_discard() {
            found = self.swap.alloc(cpu, order, Fill::Swapped).map(|entry| (entry, order));
        }
        let (entry, order) = found.or_else(|| self.swap.alloc_at_most(cpu, order, Fill::Swapped))?;
        self.fill(entry, 1 << order, value);
        Some((entry.slot, 1 << order))
    }

    fn fill(&mut self, first: Entry, n: usize, value: T) {
        let (index, at) = split(first.slot);
        if self.tables.len() <= index {
            self.tables.resize_with(index + 1, || None);
        }
        let table = self.tables[index].get_or_insert_with(|| {
            self.made += 1;
            let values = self.spare.take().unwrap_or_else(|| vec![T::default(); CLUSTER_SLOTS].into());
            Values { used: 0, values }
        });
        table.used += n as u32;
        table.values[at..at + n].fill(value);
    }

    /// Gives a slot back and returns its value. `None`: it was not in use (a bug of the caller), nothing changed.
    pub fn free(&mut self, slot: u64) -> Option<T> {
        self.swap.put(Entry { device: DEVICE, slot }, 1).ok()?;
        let (index, at) = split(slot);
        let place = self.tables.get_mut(index)?;
        let table = place.as_mut()?;
        let value = table.values[at];
        table.used -= 1;
        if table.used == 0 {
            self.spare = place.take().map(|table| table.values);
            self.made -= 1;
        }
        Some(value)
    }

    /// Takes a cluster that became empty, to be given back to what is below the device: its first slot. None of its
    /// [`CLUSTER_SLOTS`] slots is given out until [`SlotMap::end_discard`], so this may take its time without the owner's
    /// lock.
    pub fn begin_discard(&mut self) -> Option<u64> {
        self.swap.begin_discard(DEVICE)
    }

    /// The cluster at `first`, from [`SlotMap::begin_discard`], may be used again.
    pub fn end_discard(&mut self, first: u64) {
        self.swap.end_discard(DEVICE, first);
    }

    /// A cluster that waits to be given back may be used again as it is; whether there was one.
    fn reuse_discard(&mut self) -> bool {
        let first = self.begin_discard();
        first.inspect(|&first| self.end_discard(first)).is_some()
    }

    fn is_in_use(&self, slot: u64) -> bool {
        self.swap.lookup(Entry { device: DEVICE, slot }).is_in_use()
    }

    /// Value of a slot in use.
    pub fn get(&self, slot: u64) -> Option<T> {
        let (index, at) = split(slot);
        let table = self.tables.get(index)?.as_ref()?;
        self.is_in_use(slot).then(|| table.values[at])
    }

    /// Changes the value of a slot in use; `false`: it is not in use, nothing changed.
    pub fn set(&mut self, slot: u64, value: T) -> bool {
        self.get_mut(slot).map(|v| *v = value).is_some()
    }

    /// The value of a slot in use, to change in place.
    pub fn get_mut(&mut self, slot: u64) -> Option<&mut T> {
        let in_use = self.is_in_use(slot);
        let (index, at) = split(slot);
        let table = self.tables.get_mut(index)?.as_mut()?;
        in_use.then(|| &mut table.values[at])
    }

    /// The first slot in use at or after `from`; for a clock hand. Looks at `clusters_max` clusters with slots in use
    /// at most, so that one call stays short; `Err(next)`: nothing until there, go on at `next` (0: end reached).
    ///
    /// # Errors
    /// See above.
    pub fn next_in_use(&self, from: u64, clusters_max: usize) -> Result<u64, u64> {
        self.swap.next_in_use(DEVICE, from, clusters_max).map(|(slot, _)| slot)
    }

    /// Every slot in use with its value, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, T)> + '_ {
        let mut at = 1;
        std::iter::from_fn(move || {
            let slot = self.next_in_use(at, usize::MAX).ok()?;
            at = slot + 1;
            Some((slot, self.get(slot)?))
        })
    }
}

/// (cluster, place in it).
fn split(slot: u64) -> (usize, usize) {
    ((slot / CLUSTER_SLOTS as u64) as usize, (slot % CLUSTER_SLOTS as u64) as usize)
}

#[cfg(all(test, not(loom)))]
mod tests;
