//! What zram keeps for a slot. Plain data, behind `inner`.

use super::{Entry, Handle, check_words};

/// What a slot holds; `data` means: Same the word, Object and Raw the pool handle (and, with `backup_high`, the entry of
/// a copy in a file, if there is one), Forward the entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Same,
    Object,
    Raw,
    Forward,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Record {
    /// Two halves, so that the record is aligned to 4 and takes 32 bytes.
    pub(super) data: [u32; 2],
    pub(super) check: [u32; 4],
    /// Bytes of an object.
    pub(super) len: u16,
    /// Bits 32 to 47 of the entry of a copy in a file; the others are `data[1]`.
    pub(super) backup_high: u16,
    pub(super) kind: Kind,
    /// Stored or loaded since the clock hand passed.
    pub(super) young: bool,
    /// Being written back. A new record has none, so a mark that is still there means: still the same page.
    pub(super) marked: bool,
    pub(super) packing: Packing,
}

/// How an object was compressed, and whether it could be better.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Packing {
    /// By the device's codec; stored or loaded since the hand of `recompress` passed.
    #[default]
    Fresh,
    /// By the device's codec; not wanted since.
    Passed,
    /// By the device's codec, and zstd makes it no smaller.
    Stubborn,
    /// By zstd, later.
    Dense,
}

const _: () = assert!(size_of::<Record>() <= 32);

impl Record {
    /// A record of a page just stored.
    pub(super) fn new(kind: Kind, data: u64, len: usize, check: u128) -> Record {
        let data = [data as u32, (data >> 32) as u32];
        let (check, len) = (check_words(check), len as u16);
        Record { data, check, len, backup_high: 0, kind, young: true, marked: false, packing: Packing::Fresh }
    }

    /// An object of which `backup` is a copy in a file.
    pub(super) fn backed(handle: Handle, len: usize, backup: Entry, check: u128) -> Record {
        let data = u64::from(handle.raw()) | (backup.raw() & u64::from(u32::MAX)) << 32;
        let backup_high = (backup.raw() >> 32) as u16;
        Record { backup_high, ..Record::new(Kind::Object, data, len, check) }
    }

    /// The copy in a file, if an object has one.
    pub(super) fn backup(&self) -> Option<Entry> {
        let raw = u64::from(self.backup_high) << 32 | u64::from(self.data[1]);
        Entry::from_raw(raw).filter(|_| self.in_pool())
    }

    pub(super) fn data(&self) -> u64 {
        u64::from(self.data[1]) << 32 | u64::from(self.data[0])
    }

    pub(super) fn handle(&self) -> Handle {
        Handle::from_raw(self.data[0])
    }

    pub(super) fn in_pool(&self) -> bool {
        matches!(self.kind, Kind::Object | Kind::Raw)
    }
}
