//! Swap slots of one device, given out and taken back.
//!
//! A device of `n` slots is cut into *clusters* of 512 naturally aligned slots, so that pages swapped out together
//! lie together. Slot 0 is the device's header and is never given out; 0 can so mean "no slot" everywhere.
//! A cluster costs one small record from its first use on, and a table (bitmap + one value of type `T` per slot)
//! only while slots of it are in use; a device of 2^32 slots costs nothing until it is used.
//!
//! ```text
//!           chosen                last slot used            a slot freed             chosen
//!   Free  ---------->  Current  ----------------->  Full  -------------->  Nonfull  -------->  Current
//!    ^                    | another is chosen: cannot happen before it is full                   |
//!    +--------------------+---- last slot freed (the current cluster stays current) ------------+
//! ```
//!
//! Order of search: the current cluster from the hint on, then the nonfull list (head first), then the free list,
//! then a cluster never used before. Nonfull before free packs the device; see kernel 6.18.
//!
//! Callers: the devices of the engine (`device::zram`, `device::file`), each under its own lock. Nothing here locks.
//!
//! # Invariants (`check_invariants` in the tests)
//! I1  a cluster is on exactly the list that its state names, the current one on none;
//! I2  `count` equals the bits set for usable slots, and `in_use` is the sum of all counts;
//! I3  a cluster has a table if it is Nonfull, Full or Current, none if it is Free;
//! I4  Nonfull: 0 < count < capacity; Full: count = capacity; Free: count = 0.

/// Slots per cluster.
pub const CLUSTER_SLOTS: usize = 512;
const WORDS: usize = CLUSTER_SLOTS / 64;
/// End of a list, and "no cluster".
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Nonfull,
    Full,
    Current,
}

/// What exists only while slots of the cluster are in use.
struct Table<T> {
    /// One bit per slot; bits of slots that do not exist (slot 0, beyond the end) are always set.
    used: [u64; WORDS],
    values: [T; CLUSTER_SLOTS],
}

struct Cluster<T> {
    prev: u32,
    next: u32,
    /// Slots in use.
    count: u16,
    state: State,
    table: Option<Box<Table<T>>>,
}

#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const fn new() -> List {
        List { head: NIL, tail: NIL, len: 0 }
    }
}

/// Gives out the slots `1..slots` of one device and keeps one `T` for each slot in use.
pub struct SlotAllocator<T> {
    /// Slots of the device, slot 0 included.
    slots: u64,
    clusters: Vec<Cluster<T>>,
    free: List,
    nonfull: List,
    full: List,
    current: u32,
    /// Where in the current cluster the next search starts.
    hint: usize,
    in_use: u64,
    tables: usize,
    /// The last table given back, so that a cluster that goes back and forth does not allocate each time.
    spare: Option<Box<Table<T>>>,
}

impl<T: Copy + Default> SlotAllocator<T> {
    /// An allocator for a device of `slots` slots, slot 0 included (so it gives out at most `slots - 1`).
    /// At most 2^40 slots are used. Allocates nothing.
    pub fn new(slots: u64) -> SlotAllocator<T> {
        SlotAllocator {
            slots: slots.min(1 << 40),
            clusters: Vec::new(),
            free: List::new(),
            nonfull: List::new(),
            full: List::new(),
            current: NIL,
            hint: 0,
            in_use: 0,
            tables: 0,
            spare: None,
        }
    }

    /// Most slots that can be in use at once.
    pub fn capacity(&self) -> u64 {
        self.slots.saturating_sub(1)
    }

    /// Makes the device larger: `slots` slots, slot 0 included. A smaller number changes nothing.
    pub fn grow(&mut self, slots: u64) {
        let old = self.slots;
        self.slots = old.max(slots.min(1 << 40));
        // The last cluster may have been cut short: its table, if it has one, gets the new slots.
        let (index, at) = split(old);
        let capacity = self.cluster_capacity(index);
        let end = self.slots.min(u64::from(index) * CLUSTER_SLOTS as u64 + CLUSTER_SLOTS as u64);
        let Some(cluster) = self.clusters.get_mut(index as usize) else { return };
        if let Some(table) = &mut cluster.table {
            for i in at..at + (end - old) as usize {
                table.used[i / 64] &= !(1 << (i % 64));
            }
        }
        if cluster.state == State::Full && cluster.count < capacity {
            self.unlink(index);
            self.push(index, State::Nonfull);
        }
    }

    /// Slots in use.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// First slot that has never been given out since the last time everything was free; a device file needs to be
    /// at most this long. Rounded up to a whole cluster.
    pub fn end(&self) -> u64 {
        ((self.clusters.len() * CLUSTER_SLOTS) as u64).min(self.slots)
    }

    /// Bytes of memory held for bookkeeping.
    pub fn meta_bytes(&self) -> usize {
        let tables = self.tables + usize::from(self.spare.is_some());
        self.clusters.capacity() * size_of::<Cluster<T>>() + tables * size_of::<Table<T>>()
    }

    /// Takes one slot and gives it `value`. `None`: every slot is in use.
    pub fn alloc(&mut self, value: T) -> Option<u64> {
        let (first, _) = self.alloc_run(1)?;
        self.set(first, value);
        Some(first)
    }

    /// Takes up to `max` slots that follow each other inside one cluster: the first run of `max` free slots of the
    /// cluster that is next in the search order, or its longest run. Values are `T::default()`.
    /// `None`: every slot is in use, or `max` is 0.
    pub fn alloc_run(&mut self, max: usize) -> Option<(u64, usize)> {
        if max == 0 {
            return None;
        }
        let index = self.choose()?;
        let capacity = self.cluster_capacity(index);
        let hint = self.hint;
        let cluster = self.clusters.get_mut(index as usize)?;
        let table = cluster.table.as_mut()?;
        let (at, len) = find_run(&table.used, hint, max.min(CLUSTER_SLOTS))?;
        for i in at..at + len {
            table.used[i / 64] |= 1 << (i % 64);
        }
        table.values[at..at + len].fill(T::default());
        cluster.count += len as u16;
        self.hint = (at + len) % CLUSTER_SLOTS;
        self.in_use += len as u64;
        if cluster.count == capacity {
            self.current = NIL;
            self.push(index, State::Full);
        }
        Some((u64::from(index) * CLUSTER_SLOTS as u64 + at as u64, len))
    }

    /// Gives a slot back and returns its value. `None`: it was not in use (a bug of the caller), nothing changed.
    pub fn free(&mut self, slot: u64) -> Option<T> {
        let value = self.get(slot)?;
        let (index, at) = split(slot);
        let cluster = self.clusters.get_mut(index as usize)?;
        let table = cluster.table.as_mut()?;
        table.used[at / 64] &= !(1 << (at % 64));
        cluster.count -= 1;
        self.in_use -= 1;
        let (count, state) = (cluster.count, cluster.state);
        match state {
            State::Current | State::Free => {}
            State::Full | State::Nonfull if count == 0 => {
                self.unlink(index);
                self.spare = self.clusters[index as usize].table.take();
                self.tables -= 1;
                self.push(index, State::Free);
            }
            State::Full => {
                self.unlink(index);
                self.push(index, State::Nonfull);
            }
            State::Nonfull => {}
        }
        Some(value)
    }

    /// Value of a slot in use.
    pub fn get(&self, slot: u64) -> Option<T> {
        let (index, at) = self.locate(slot)?;
        let table = self.clusters.get(index)?.table.as_ref()?;
        (table.used[at / 64] >> (at % 64) & 1 == 1).then(|| table.values[at])
    }

    /// Changes the value of a slot in use; `false`: it is not in use, nothing changed.
    pub fn set(&mut self, slot: u64, value: T) -> bool {
        self.get_mut(slot).map(|v| *v = value).is_some()
    }

    /// The value of a slot in use, to change in place.
    pub fn get_mut(&mut self, slot: u64) -> Option<&mut T> {
        let (index, at) = self.locate(slot)?;
        let table = self.clusters.get_mut(index)?.table.as_mut()?;
        (table.used[at / 64] >> (at % 64) & 1 == 1).then(|| &mut table.values[at])
    }

    /// The first slot in use at or after `from`; for a clock hand. Looks at `clusters_max` clusters with slots in use
    /// at most, so that one call stays short; `Err(next)`: nothing until there, go on at `next` (0: end reached).
    pub fn next_in_use(&self, from: u64, clusters_max: usize) -> Result<u64, u64> {
        let mut at = from.max(1);
        let mut looked = 0;
        while let Some(cluster) = self.clusters.get((at / CLUSTER_SLOTS as u64) as usize) {
            let base = at / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64;
            if let (Some(table), true) = (&cluster.table, cluster.count > 0) {
                if looked == clusters_max {
                    return Err(at);
                }
                looked += 1;
                let i = next_bit(&table.used, (at - base) as usize, true);
                if i < CLUSTER_SLOTS && base + (i as u64) < self.slots {
                    return Ok(base + i as u64);
                }
            }
            at = base + CLUSTER_SLOTS as u64;
        }
        Err(0)
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

    /// (cluster, place in it) of a slot that can be in use.
    fn locate(&self, slot: u64) -> Option<(usize, usize)> {
        let (index, at) = split(slot);
        (slot != 0 && slot < self.slots).then_some((index as usize, at))
    }

    /// Usable slots of a cluster.
    fn cluster_capacity(&self, index: u32) -> u16 {
        let base = u64::from(index) * CLUSTER_SLOTS as u64;
        let slots = self.slots.saturating_sub(base).min(CLUSTER_SLOTS as u64) as u16;
        if index == 0 { slots.saturating_sub(1) } else { slots }
    }

    /// Makes sure that there is a current cluster with a free slot and a table.
    fn choose(&mut self) -> Option<u32> {
        if self.current != NIL {
            return Some(self.current);
        }
        let index = if self.nonfull.head != NIL {
            self.nonfull.head
        } else if self.free.head != NIL {
            self.free.head
        } else {
            let index = u32::try_from(self.clusters.len()).ok().filter(|&i| i != NIL)?;
            if self.cluster_capacity(index) == 0 {
                return None;
            }
            self.clusters.push(Cluster { prev: NIL, next: NIL, count: 0, state: State::Free, table: None });
            self.push(index, State::Free);
            index
        };
        self.unlink(index);
        if self.clusters[index as usize].table.is_none() {
            let mut table = match self.spare.take() {
                Some(table) => table,
                None => Box::new(Table { used: [0; WORDS], values: [T::default(); CLUSTER_SLOTS] }),
            };
            table.used = [0; WORDS];
            let base = u64::from(index) * CLUSTER_SLOTS as u64;
            for i in 0..CLUSTER_SLOTS {
                if base + i as u64 == 0 || base + i as u64 >= self.slots {
                    table.used[i / 64] |= 1 << (i % 64);
                }
            }
            self.clusters[index as usize].table = Some(table);
            self.tables += 1;
        }
        self.clusters[index as usize].state = State::Current;
        self.current = index;
        self.hint = 0;
        Some(index)
    }

    fn list(&mut self, state: State) -> Option<&mut List> {
        match state {
            State::Free => Some(&mut self.free),
            State::Nonfull => Some(&mut self.nonfull),
            State::Full => Some(&mut self.full),
            State::Current => None,
        }
    }

    /// Puts an off-list cluster at the tail of the list for `state`.
    fn push(&mut self, index: u32, state: State) {
        let Some(list) = self.list(state) else { return };
        let tail = list.tail;
        list.tail = index;
        list.len += 1;
        if tail == NIL {
            list.head = index;
        } else {
            self.clusters[tail as usize].next = index;
        }
        let cluster = &mut self.clusters[index as usize];
        cluster.prev = tail;
        cluster.next = NIL;
        cluster.state = state;
    }

    /// Takes a cluster off the list that its state names.
    fn unlink(&mut self, index: u32) {
        let Cluster { prev, next, state, .. } = self.clusters[index as usize];
        let Some(list) = self.list(state) else { return };
        list.len -= 1;
        if prev == NIL {
            list.head = next;
        }
        if next == NIL {
            list.tail = prev;
        }
        if prev != NIL {
            self.clusters[prev as usize].next = next;
        }
        if next != NIL {
            self.clusters[next as usize].prev = prev;
        }
    }
}

/// (cluster, place in it).
fn split(slot: u64) -> (u32, usize) {
    let index = u32::try_from(slot / CLUSTER_SLOTS as u64).unwrap_or(NIL);
    (index, (slot % CLUSTER_SLOTS as u64) as usize)
}

/// First place from `from` on whose bit is `set`; `CLUSTER_SLOTS`: none up to the end.
fn next_bit(used: &[u64; WORDS], from: usize, set: bool) -> usize {
    let mut at = from;
    while at < CLUSTER_SLOTS {
        let word = if set { used[at / 64] } else { !used[at / 64] };
        let word = word >> (at % 64);
        if word != 0 {
            return at + word.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    CLUSTER_SLOTS
}

/// Length of the run of clear bits at `at`, at most `max`.
fn run_len(used: &[u64; WORDS], at: usize, max: usize) -> usize {
    next_bit(used, at, true).min(at + max) - at
}

/// The first run of `max` free places from `hint` on, wrapping around, or the longest run. `None`: no place is free.
fn find_run(used: &[u64; WORDS], hint: usize, max: usize) -> Option<(usize, usize)> {
    let mut best = (0, 0);
    for (start, end) in [(hint, CLUSTER_SLOTS), (0, hint)] {
        let mut at = next_bit(used, start, false);
        while at < end {
            let len = run_len(used, at, max);
            if len > best.1 {
                best = (at, len);
            }
            if len == max {
                return Some(best);
            }
            at = next_bit(used, at + len, false);
        }
    }
    (best.1 > 0).then_some(best)
}

#[cfg(test)]
mod tests;
