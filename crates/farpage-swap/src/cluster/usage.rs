//! Slots in use on a device, and whether the device is off the list of those with room, in one atomic word.
//!
//! ```text
//!   63        62                                0
//!  | off-list |  slots in use                    |
//! ```
//!
//! Allocations and frees only add and subtract. The thread that makes the word *equal* to the capacity (full, and still
//! on the list) takes the device off the list; one that subtracts and sees the bit puts it back. The bit changes under
//! the avail lock only, so it always tells the truth about the list at its unlock. Bit 63 is out of reach: a device has
//! 2^40 slots at most.

use crate::sync::{AtomicU64, Ordering};

const OFF_LIST: u64 = 1 << 63;

pub(super) struct Usage {
    word: AtomicU64,
    /// Slots that can be in use. Changes under the avail lock.
    capacity: AtomicU64,
}

/// What is left to do after a change of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// The device became full: call `Swap::became_full`.
    Full,
    /// A slot was freed on a device that is off the list: call `Swap::has_room`.
    HasRoom,
}

impl Usage {
    /// A device that is off the list and has no capacity.
    pub(super) fn new() -> Usage {
        Usage { word: AtomicU64::new(OFF_LIST), capacity: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, n: u64) -> After {
        let now = self.word.fetch_add(n, Ordering::Relaxed) + n;
        if now == self.capacity.load(Ordering::Relaxed) { After::Full } else { After::Nothing }
    }

    /// What was cleaned up before is visible to a thread that sees the lower number.
    pub(super) fn sub(&self, n: u64) -> After {
        let now = self.word.fetch_sub(n, Ordering::Release) - n;
        if now & OFF_LIST != 0 { After::HasRoom } else { After::Nothing }
    }

    pub(super) fn in_use(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !OFF_LIST
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Caller holds the avail lock.
    pub(super) fn set_capacity(&self, capacity: u64) {
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    pub(super) fn is_off_list(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OFF_LIST != 0
    }

    /// Sets the bit if the device is full and on the list; `true`: the caller takes it off. Caller holds the avail
    /// lock.
    pub(super) fn set_off_list_if_full(&self) -> bool {
        let full = self.capacity.load(Ordering::Relaxed);
        self.word.compare_exchange(full, full | OFF_LIST, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Sets the bit; `true`: it was clear. Caller holds the avail lock.
    #[cfg(feature = "seed")]
    pub(super) fn set_off_list(&self) -> bool {
        self.word.fetch_or(OFF_LIST, Ordering::Relaxed) & OFF_LIST == 0
    }

    /// Clears the bit if it is set and there is room; `true`: the caller puts the device on the list. Caller holds the
    /// avail lock.
    pub(super) fn clear_off_list_if_room(&self) -> bool {
        if !self.is_off_list() {
            return false;
        }
        let before = self.word.fetch_and(!OFF_LIST, Ordering::Relaxed) & !OFF_LIST;
        // It may be full again. A hint needs no list to allocate, so the bit must be back before another thread frees:
        // if this fails, one just did, and there is room.
        before < self.capacity.load(Ordering::Relaxed) || !self.set_off_list_if_full()
    }
}
