//! Swap slots: given out and taken back, on all devices together.
//!
//! A device of up to 2^40 slots is cut into *clusters* of 512 naturally aligned slots. A block of *order* `o` is `2^o`
//! slots, aligned to its size, inside one cluster; a cluster serves one order at a time, except that order 0 takes
//! what it can get. Slot 0 is the device's header and, like bad slots, never given out; 0 can so mean "no slot".
//!
//! ```text
//!                 taken                        last slot used              a slot freed
//!    free  ------------------>  frag[o]  --------------------->  full  <----------------->  holes
//!     ^                         |  ^  '---- a slot freed, no CPU is at it ---->  nonfull[o]   last slot used
//!     |                         |  '---------------- taken (isolate) ---------------'
//!     '------ last slot freed (every state)
//!  discard <- the same, on a device with discards
//! ```
//!
//! * A full cluster of which slots are freed (*holes*) stays on the full list. When they are worth a search (an eighth
//!   of a cluster while the device has room, fewer as it fills up), it goes on a stack from which a search takes it
//!   without the device lock: module `ready`.
//! * *nonfull*: something was freed since the last search. *frag*: being used by a CPU, or searched in vain.
//! * Each CPU remembers, per order, where its next block should come from (a *hint*: device and slot). While that works
//!   an allocation takes the cluster's lock and nothing else. A rotational device has one place for all CPUs instead.
//! * *isolate* takes a cluster off a list: under the device lock, but it only *tries* the cluster's lock and passes
//!   over those that are busy. *relocate* puts a cluster where its count says, at the tail. The device lock is held for
//!   links only. (The kernel isolates to no list and relocates afterwards: two acquisitions. Here the cluster goes from
//!   list to list in one, since it stays locked until the search in it is over.)
//!
//! | module | what it does |
//! | --- | --- |
//! | `device` | one device: clusters, lists, isolate and relocate |
//! | `hint` | where each CPU goes on |
//! | `scan` | a search in one locked cluster; commit |
//! | `search` | allocation: hint, devices in turn, lists in order |
//! | `refs`, `cache` | counts and freeing; binding slots to frames, look-up |
//! | `ready` | full clusters with holes, blocks of which single slots are free |
//! | `pending` | frees that meet a lock and do not wait |
//! | `reclaim`, `worker` | lazily freed slots and discards, in a search and in the background |
//! | `live` | references to a device |
//! | `usage` | the counter of used slots and its off-list bit |
//! | `swap` | all devices: priorities, swapon |
//! | `seed` | what the engine does not use, by the feature of this name |
//!
//! # What this improves on the kernel of the day (6.18)
//! After the off-list bit was cleared, "full again" is tested without the bit, which lies where no size reaches;
//! a cluster that became full and its successor are handled in one acquisition of the device lock; a search that wraps
//! around finds what was freed behind the hint; a failed high order falls to the next smaller one (`alloc_at_most`)
//! and looks at all devices first.

mod cache;
mod device;
mod hint;
mod live;
mod pending;
mod ready;
mod reclaim;
mod refs;
mod scan;
mod search;
#[cfg(feature = "seed")]
mod seed;
mod swap;
mod usage;
mod worker;

#[cfg(all(test, loom, feature = "seed"))]
mod loom_tests;
#[cfg(all(test, not(loom), feature = "seed"))]
mod tests;

pub use crate::sync::{CLUSTER_SHIFT, CLUSTER_SLOTS, ORDERS};
pub use cache::CacheError;
pub use refs::CountError;
#[cfg(feature = "seed")]
pub use seed::{DeviceRef, Swapoff};
pub use swap::{DeviceOptions, Stats, Swap, SwaponError};

use crate::lock::Lock;
use crate::sync::{AtomicU32, AtomicU64, Guarded, Ordering};
use crate::table::{Table, Word};
use hint::User;

/// Devices at most.
pub const DEVICES: usize = 32;
/// Slots of a device at most.
pub const SLOTS_MAX: u64 = 1 << 40;
/// No cluster: the end of a list.
const NIL: u32 = u32::MAX;

/// A slot of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// Number of the device.
    pub device: u8,
    /// The slot; never 0 for an entry that was given out.
    pub slot: u64,
}

impl Entry {
    /// The entry `n` slots later.
    pub fn offset(self, n: u64) -> Entry {
        Entry { slot: self.slot + n, ..self }
    }

    fn cluster(self) -> u32 {
        u32::try_from(self.slot >> CLUSTER_SHIFT).unwrap_or(NIL)
    }

    fn place(self) -> usize {
        (self.slot % CLUSTER_SLOTS as u64) as usize
    }
}

/// What the slots of a new block are: the state of its first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Swapped out, one reference: for a user that stores a page and frees it once.
    Swapped,
    /// In the swap cache in this frame, no reference yet. All slots of the block name the same frame.
    Cached(u64),
}

impl Fill {
    fn word(self) -> Word {
        match self {
            Fill::Swapped => Word::swapped(1, 0),
            Fill::Cached(frame) => Word::cached(0, frame),
        }
    }
}

/// What the allocator asks of its owner. Every function has a default for owners that do without.
pub trait Env: Send + Sync + 'static {
    /// What is done with lock statistics; `()` for none.
    type Meter: crate::lock::Meter;

    /// These slots of a device opened with `discard` have no content any more. No lock is held.
    fn discard(&self, _device: u8, _first: u64, _slots: u64) {}

    /// There is something to do for a background worker, and there was not before. No cluster is locked; it must not
    /// call the swap.
    fn work_wanted(&self) {}

    /// Tries to lock a frame that is bound to a lazily freed slot, so that the slot can be reclaimed. `false`: busy, or
    /// the frame must keep its slot (it is being written). No lock is held, and it must not wait for one.
    fn try_lock_frame(&self, _frame: u64) -> bool {
        false
    }

    /// Unlocks it. `unbound`: it has no slot any more, so its content exists nowhere else (it is dirty now).
    fn unlock_frame(&self, _frame: u64, _unbound: bool) {}
}

impl Env for () {
    type Meter = ();
}

/// Which list a cluster is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    /// None: never used yet.
    None,
    Free,
    Nonfull,
    Frag,
    /// On the full list, with no free slot.
    Full,
    /// On the full list, with free slots (see `ready`).
    Holes,
    Discard,
    /// None: its discard is running.
    Discarding,
}

/// What a cluster's lock protects.
struct State {
    /// Slots not free, bad ones included.
    count: u16,
    /// Of these, lazily freed ones.
    lazy: u16,
    flag: Flag,
    /// The order it serves; 0 while empty.
    order: u8,
    /// The users that took it last: for blocks of its order, and for single slots of larger ones. As long as they go on
    /// here (their hints say so), frees need not offer it to others, and a search wraps around.
    users: [User; 2],
    /// The order of the stack that it is on.
    ready: Option<u8>,
    /// It is on the stack of clusters with broken blocks.
    broken: bool,
    table: Option<Box<Table>>,
}

/// A cluster: 64 bytes, a cache line of its own.
#[repr(align(64))]
struct Cluster<M> {
    state: Lock<State, M>,
    /// The table for readers without the lock: number + 1 in the low half, 0 for none; the high half counts changes.
    table: AtomicU64,
    /// Which parts of the table have pending words, see `pending`.
    pending: AtomicU64,
    /// List links, which belong to the device lock.
    links: Guarded,
    /// The next cluster of the stack of its order, and of that of broken blocks.
    below: [AtomicU32; 2],
}

impl<M: crate::lock::Meter> Cluster<M> {
    fn new() -> Cluster<M> {
        let state = State {
            count: 0,
            lazy: 0,
            flag: Flag::None,
            order: 0,
            users: [hint::NO_USER; 2],
            ready: None,
            broken: false,
            table: None,
        };
        Cluster {
            state: Lock::new(state),
            table: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            links: Guarded::new(NIL, NIL),
            below: [(); 2].map(|()| AtomicU32::new(NIL)),
        }
    }

    /// Gives the cluster a table. Caller holds its lock.
    ///
    /// One step here and in `detach`, not a load and a store, though no other thread writes: loom, which turns a store
    /// round only with the last access before it, would not look at readers in between.
    fn attach(&self, state: &mut State, table: Box<Table>) {
        self.table.fetch_add((1 << 32) + u64::from(table.id) + 1, Ordering::Release);
        state.table = Some(table);
    }

    /// Takes the table away. Readers can see it before another cluster can have it. Caller holds the lock.
    fn detach(&self, state: &mut State) -> Option<Box<Table>> {
        let table = state.table.take()?;
        self.table.fetch_add((1 << 32) - (u64::from(table.id) + 1), Ordering::Release);
        Some(table)
    }

    /// The word at a place, without the lock; of a pending slot that of a free one.
    ///
    /// If the table went to another cluster while we read, the word may be the other's. It was written after the change
    /// of `table`, and read with acquire; so the second look at `table` sees that change.
    fn lookup(&self, pool: &crate::table::TablePool<M>, at: usize) -> Word {
        loop {
            let seen = self.table.load(Ordering::Acquire);
            let Some(id) = (seen as u32).checked_sub(1) else { return Word::FREE };
            let word = pool.words(id).map_or(Word::FREE, |words| words.get(at));
            if self.table.load(Ordering::Relaxed) == seen {
                return if word.is_pending() { Word::FREE } else { word };
            }
        }
    }
}

/// What one idle cluster costs, bytes.
pub const CLUSTER_BYTES: usize = size_of::<Cluster<()>>();

#[cfg(not(loom))]
const _: () = assert!(CLUSTER_BYTES == 64);
