//! The slots of one device with a value each: the allocator as a device of the engine uses it.
//!
//! The allocator knows which slots are in use and where the next one should be; what a device must remember of a slot
//! (where its compressed bytes are, a checksum) is here: a table of values a cluster, made with the cluster's first
//! value and kept. All functions may be called by any thread at any time.
//!
//! ```text
//!   free ----take----> taken, no value ----insert----> has a value --update--.
//!    ^                  |           ^                   |     ^--------------'
//!    '----give_back-----'           '------remove-------'          free = remove, then give_back
//! ```
//!
//! * A slot has its value only between `insert` and `remove`, so no thread finds one of a slot that is being filled,
//!   and a value is out before the slot can be another's.
//! * A thread that changes values has the lock of their cluster's table. A reader takes no lock: a sequence number
//!   beside each value says whether it changed meanwhile, and only then the reader takes the lock. So a reader leaves
//!   nothing behind if it is cut off (a fork), and waits for no thread while none changes that very value.
//!
//! Callers: the devices of the engine. Locks: the table's is a leaf; the allocator's are not held together with it. A
//! copy of the memory made while no thread changes anything (a fork) is complete, whatever readers there were.

use crate::chunked::Chunked;
use crate::cluster::{CLUSTER_SLOTS, DeviceOptions, Entry, Fill, ORDERS, Swap};
use crate::lock::{Lock, sites};
use crate::sync::{AtomicU32, AtomicU64, OnceLock, Ordering};
use std::marker::PhantomData;

/// The number of the only device.
const DEVICE: u8 = 0;

/// In a sequence number: there is a value.
const PRESENT: u32 = 1;
/// The value is being changed.
const CHANGING: u32 = 2;
/// One change.
const STEP: u32 = 4;

/// A value and its sequence number. (2^30 changes of one slot while one reader reads a few words would fool it.)
struct Place<const N: usize> {
    sequence: AtomicU32,
    words: [AtomicU32; N],
}

impl<const N: usize> Place<N> {
    fn new() -> Place<N> {
        Place { sequence: AtomicU32::new(0), words: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// The value, if there is one. `Err`: it is being changed, or was.
    ///
    /// A word of a later value was written after `sequence` had changed, and is read with acquire: then the second look
    /// at `sequence` sees that change.
    #[inline]
    fn read(&self) -> Result<Option<[u32; N]>, ()> {
        let seen = self.sequence.load(Ordering::Acquire);
        if seen & CHANGING != 0 {
            return Err(());
        }
        if seen & PRESENT == 0 {
            return Ok(None);
        }
        let words = std::array::from_fn(|i| self.words[i].load(Ordering::Acquire));
        if self.sequence.load(Ordering::Relaxed) == seen { Ok(Some(words)) } else { Err(()) }
    }

    /// Puts a value in the place of what is there. Caller has the table's lock.
    fn write(&self, value: [u32; N]) {
        let now = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(now | CHANGING, Ordering::Relaxed);
        self.words.iter().zip(value).for_each(|(word, value)| word.store(value, Ordering::Release));
        self.sequence.store((now | PRESENT).wrapping_add(STEP), Ordering::Release);
    }

    /// Takes the value away. Caller has the table's lock.
    fn clear(&self) {
        let now = self.sequence.load(Ordering::Relaxed);
        self.sequence.store((now & !PRESENT).wrapping_add(STEP), Ordering::Release);
    }
}

/// The values of a cluster.
struct Values<const N: usize> {
    /// For threads that change one.
    lock: Lock<()>,
    places: Box<[Place<N>]>,
}

/// Gives out the slots `1..slots` of one device and keeps a `T` of `N` words for slots in use.
pub struct SlotMap<T, const N: usize> {
    swap: Swap,
    /// By cluster.
    values: Chunked<OnceLock<Values<N>>>,
    /// Tables of them.
    made: AtomicU32,
    slots: AtomicU64,
    value: PhantomData<fn() -> T>,
}

impl<T: Copy + From<[u32; N]> + Into<[u32; N]>, const N: usize> SlotMap<T, N> {
    /// For a device of `slots` slots, slot 0 included (so it gives out at most `slots - 1`), used by `cpus` CPUs.
    pub fn new(slots: u64, cpus: usize) -> SlotMap<T, N> {
        SlotMap::with_options(DeviceOptions { slots, ..DeviceOptions::default() }, cpus)
    }

    /// The same for a device of which more is known. With `discard`, empty clusters are given back to what is below it
    /// ([`SlotMap::begin_discard`]).
    pub fn with_options(options: DeviceOptions, cpus: usize) -> SlotMap<T, N> {
        let slots = AtomicU64::new(options.slots);
        let swap = Swap::new(cpus, ());
        // The first of many devices is never refused.
        let added = swap.swapon(options);
        debug_assert_eq!(added, Ok(DEVICE));
        SlotMap { swap, values: Chunked::new(), made: AtomicU32::new(0), slots, value: PhantomData }
    }

    /// Most slots that can be in use at once.
    pub fn capacity(&self) -> u64 {
        self.swap.capacity(DEVICE)
    }

    /// Slots of the device, slot 0 included.
    pub fn slots(&self) -> u64 {
        self.slots.load(Ordering::Relaxed)
    }

    /// Makes the device larger: `slots` slots, slot 0 included. A smaller number changes nothing.
    pub fn grow(&self, slots: u64) {
        self.swap.grow(DEVICE, slots);
        self.slots.fetch_max(slots, Ordering::Relaxed);
    }

    /// Slots in use, with a value or without.
    pub fn in_use(&self) -> u64 {
        self.swap.in_use(DEVICE)
    }

    /// Bytes of memory held for bookkeeping.
    pub fn meta_bytes(&self) -> usize {
        let tables = self.made.load(Ordering::Relaxed) as usize;
        self.swap.meta_bytes(DEVICE) as usize + self.values.bytes() + tables * size_of::<Place<N>>() * CLUSTER_SLOTS
    }

    /// Takes one slot and gives it `value`. `cpu` is the caller's. `None`: every slot is in use.
    pub fn alloc(&self, cpu: usize, value: T) -> Option<u64> {
        let slot = self.swap.alloc(cpu, 0, Fill::Swapped)?.slot;
        self.insert(slot, value);
        Some(slot)
    }

    /// Takes up to `max` slots that follow each other, without values: the largest block of `2^o` of them, aligned to
    /// its size, that is not larger than `max` and is to be had. `None`: every slot is in use, or `max` is 0.
    pub fn take_run(&self, cpu: usize, max: usize) -> Option<(u64, usize)> {
        let order = max.checked_ilog2()?.min(ORDERS as u32 - 1) as u8;
        let mut found = self.swap.alloc(cpu, order, Fill::Swapped).map(|entry| (entry, order));
        // A cluster that waits to be given back is better than a smaller block.
        if found.is_none() && self.reuse_discard() {
            found = self.swap.alloc(cpu, order, Fill::Swapped).map(|entry| (entry, order));
        }
        let (entry, order) = found.or_else(|| self.swap.alloc_at_most(cpu, order, Fill::Swapped))?;
        Some((entry.slot, 1 << order))
    }

    /// Gives a slot that the caller has taken its value. `false`: it has one (a bug of the caller), nothing changed.
    pub fn insert(&self, slot: u64, value: T) -> bool {
        let (cluster, at) = split(slot);
        let values = self.values.get_or_make(cluster).get_or_init(|| {
            self.made.fetch_add(1, Ordering::Relaxed);
            Values { lock: Lock::new(()), places: (0..CLUSTER_SLOTS).map(|_| Place::new()).collect() }
        });
        let _lock = values.lock.lock(&sites::VALUES);
        let vacant = matches!(values.places[at].read(), Ok(None));
        if vacant {
            values.places[at].write(value.into());
        }
        vacant
    }

    /// Takes a slot's value away if `which` says so; the slot stays taken. `None`: it has no value, or `which` said no.
    pub fn remove_if(&self, slot: u64, which: impl FnOnce(&T) -> bool) -> Option<T> {
        let (values, at) = self.values_of(slot)?;
        let _lock = values.lock.lock(&sites::VALUES);
        let value = T::from(values.places[at].read().ok()??);
        which(&value).then(|| {
            values.places[at].clear();
            value
        })
    }

    /// Gives a slot without a value back. `false`: it was not in use (a bug of the caller), nothing changed.
    pub fn give_back(&self, slot: u64) -> bool {
        self.swap.put(Entry { device: DEVICE, slot }, 1).is_ok()
    }

    /// [`SlotMap::remove_if`], then [`SlotMap::give_back`].
    pub fn free_if(&self, slot: u64, which: impl FnOnce(&T) -> bool) -> Option<T> {
        let value = self.remove_if(slot, which)?;
        self.give_back(slot);
        Some(value)
    }

    /// Gives a slot back and returns its value. `None`: it had none (a bug of the caller), nothing changed.
    pub fn free(&self, slot: u64) -> Option<T> {
        self.free_if(slot, |_| true)
    }

    /// Takes a cluster that became empty, to be given back to what is below the device: its first slot. None of its
    /// [`CLUSTER_SLOTS`] slots is given out until [`SlotMap::end_discard`].
    pub fn begin_discard(&self) -> Option<u64> {
        self.swap.begin_discard(DEVICE)
    }

    /// The cluster at `first`, from [`SlotMap::begin_discard`], may be used again.
    pub fn end_discard(&self, first: u64) {
        self.swap.end_discard(DEVICE, first);
    }

    /// A cluster that waits to be given back may be used again as it is; whether there was one.
    fn reuse_discard(&self) -> bool {
        let first = self.begin_discard();
        first.inspect(|&first| self.end_discard(first)).is_some()
    }

    /// The value of a slot, if it has one.
    #[inline]
    pub fn get(&self, slot: u64) -> Option<T> {
        let (values, at) = self.values_of(slot)?;
        let place = &values.places[at];
        let read = place.read().or_else(|()| {
            let _lock = values.lock.lock(&sites::VALUES);
            place.read()
        });
        read.ok().flatten().map(T::from)
    }

    /// Changes a slot's value as `change` says, unless that returns `None`. `None` also for a slot without a value.
    pub fn update<R>(&self, slot: u64, change: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
        let (values, at) = self.values_of(slot)?;
        let _lock = values.lock.lock(&sites::VALUES);
        let mut value = T::from(values.places[at].read().ok()??);
        let result = change(&mut value)?;
        values.places[at].write(value.into());
        Some(result)
    }

    /// Clears and sets bits of one word of a slot's value in one step, for what a reader notes. It may meet the slot's
    /// next value, and a change by [`SlotMap::update`] at the same moment may undo it, unless the caller's own rules
    /// prevent that.
    pub fn set_bits(&self, slot: u64, word: usize, clear: u32, set: u32) {
        let Some((values, at)) = self.values_of(slot) else { return };
        let Some(word) = values.places[at].words.get(word) else { return };
        let mut now = word.load(Ordering::Relaxed);
        while let Err(other) = word.compare_exchange_weak(now, now & !clear | set, Ordering::Release, Ordering::Relaxed)
        {
            now = other;
        }
    }

    /// The first slot in use at or after `from`, with a value or without; for a clock hand. Looks at `clusters_max`
    /// clusters with slots in use at most, so that one call stays short; `Err(next)`: nothing until there, go on at
    /// `next` (0: end reached).
    ///
    /// # Errors
    /// See above.
    pub fn next_in_use(&self, from: u64, clusters_max: usize) -> Result<u64, u64> {
        self.swap.next_in_use(DEVICE, from, clusters_max).map(|(slot, _)| slot)
    }

    fn values_of(&self, slot: u64) -> Option<(&Values<N>, usize)> {
        let (cluster, at) = split(slot);
        Some((self.values.get(cluster)?.get()?, at))
    }
}

/// (cluster, place in it).
fn split(slot: u64) -> (usize, usize) {
    ((slot / CLUSTER_SLOTS as u64) as usize, (slot % CLUSTER_SLOTS as u64) as usize)
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
