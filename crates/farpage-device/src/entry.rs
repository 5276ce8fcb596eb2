//! The name of a stored page.
//!
//! Callers: all that keep pages. A type only.

use std::num::NonZeroU64;

/// Bits of a slot number in an [`Entry`].
pub const SLOT_BITS: u32 = 40;

/// Where a swapped-out page is.
///
/// ```text
///   63        48 47       40 39                                    0
///  |  always 0  |  device   |  slot of the device, never 0          |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry(NonZeroU64);

impl Entry {
    /// The entry for `slot` of device number `device`; `None` if the slot is 0 or above 2^40 - 1.
    pub fn new(device: u8, slot: u64) -> Option<Entry> {
        let raw = NonZeroU64::new(u64::from(device) << SLOT_BITS | slot)?;
        (slot != 0 && slot >> SLOT_BITS == 0).then_some(Entry(raw))
    }

    /// As a number of 48 bits, never 0.
    pub fn raw(self) -> u64 {
        self.0.get()
    }

    /// From [`Entry::raw`]; `None` for a number that is not an entry.
    pub fn from_raw(raw: u64) -> Option<Entry> {
        Entry::new(u8::try_from(raw >> SLOT_BITS).ok()?, raw & ((1 << SLOT_BITS) - 1))
    }

    /// Number of the device.
    pub fn device(self) -> u8 {
        (self.raw() >> SLOT_BITS) as u8
    }

    /// Slot of the device.
    pub fn slot(self) -> u64 {
        self.raw() & ((1 << SLOT_BITS) - 1)
    }

    /// The entry `n` slots later on the same device, if there can be one.
    pub fn offset(self, n: usize) -> Option<Entry> {
        Entry::new(self.device(), self.slot().checked_add(n as u64)?)
    }
}
