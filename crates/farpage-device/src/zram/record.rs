//! What zram keeps for a slot. Records of objects change behind `inner`.

use crate::pool::Handle;
use crate::{Entry, check_words};

/// What a slot holds; `data` means: Same the word, Object and Raw the pool handle (and, with `backup_high`, the entry
/// of a copy in a file, if there is one), Forward the entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum RecordKind {
    #[default]
    Same,
    Object,
    Raw,
    Forward,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Low half first.
    pub(super) data: [u32; 2],
    pub(super) check: [u32; 4],
    /// Bytes of an object.
    pub(super) len: u16,
    /// Bits 32 to 47 of the entry of a copy in a file; the others are `data[1]`.
    pub(super) backup_high: u16,
    pub(super) kind: RecordKind,
    /// Stored or loaded since the clock hand passed.
    pub(super) young: bool,
    /// Being written back. A new record has none, so a mark that is still there means: still the same page.
    pub(super) marked: bool,
    pub(super) packing: Packing,
    /// Forks of this process so far, modulo 256, when the page was stored.
    pub(super) epoch: u8,
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

/// 32-bit words of a [`Record`].
pub(super) const WORDS: usize = 8;
/// The word of a record that has these bits.
pub(super) const FLAGS: usize = 7;
pub(super) const YOUNG: u32 = 1 << 4;
pub(super) const MARKED: u32 = 1 << 5;
/// Where the epoch is.
const EPOCH_SHIFT: u32 = 8;
/// The bit by which [`Packing::Passed`] differs from [`Packing::Fresh`].
pub(super) const PASSED: u32 = 1 << 2;

impl From<Record> for [u32; WORDS] {
    fn from(record: Record) -> [u32; WORDS] {
        let ([low, high], [a, b, c, d]) = (record.data, record.check);
        let len = u32::from(record.len) | u32::from(record.backup_high) << 16;
        let flags = if record.young { YOUNG } else { 0 } | if record.marked { MARKED } else { 0 };
        let flags = flags | u32::from(record.epoch) << EPOCH_SHIFT;
        [low, high, a, b, c, d, len, record.kind as u32 | (record.packing as u32) << 2 | flags]
    }
}

impl From<[u32; WORDS]> for Record {
    fn from([low, high, a, b, c, d, len, flags]: [u32; WORDS]) -> Record {
        Record {
            data: [low, high],
            check: [a, b, c, d],
            len: len as u16,
            backup_high: (len >> 16) as u16,
            kind: [RecordKind::Same, RecordKind::Object, RecordKind::Raw, RecordKind::Forward][(flags & 3) as usize],
            young: flags & YOUNG != 0,
            marked: flags & MARKED != 0,
            packing: [Packing::Fresh, Packing::Passed, Packing::Stubborn, Packing::Dense][(flags >> 2 & 3) as usize],
            epoch: (flags >> EPOCH_SHIFT) as u8,
        }
    }
}

impl Record {
    /// A record of a page just stored.
    pub(super) fn new(kind: RecordKind, data: u64, len: usize, check: u128) -> Record {
        let data = [data as u32, (data >> 32) as u32];
        let (check, len) = (check_words(check), len as u16);
        Record { data, check, len, backup_high: 0, kind, young: true, marked: false, packing: Packing::Fresh, epoch: 0 }
    }

    /// An object of which `backup` is a copy in a file.
    pub(super) fn backed(kind: RecordKind, handle: Handle, len: usize, backup: Entry, check: u128) -> Record {
        let data = u64::from(handle.raw()) | (backup.raw() & u64::from(u32::MAX)) << 32;
        let backup_high = (backup.raw() >> 32) as u16;
        Record { backup_high, ..Record::new(kind, data, len, check) }
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
        matches!(self.kind, RecordKind::Object | RecordKind::Raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_the_same_in_words() {
        for kind in [RecordKind::Same, RecordKind::Object, RecordKind::Raw, RecordKind::Forward] {
            for packing in [Packing::Fresh, Packing::Passed, Packing::Stubborn, Packing::Dense] {
                let one =
                    Record { packing, backup_high: 0xabcd, ..Record::new(kind, u64::MAX - 5, 4096, 77 << 96 | 3) };
                let one =
                    Record { young: kind == RecordKind::Raw, marked: kind == RecordKind::Same, epoch: 0xa5, ..one };
                let words = <[u32; WORDS]>::from(one);
                let back = Record::from(words);
                assert!(back == one);
                assert!(words[FLAGS] & YOUNG != 0 || !one.young);
            }
        }
        let passed = Record { packing: Packing::Passed, ..Record::default() };
        let mut words = <[u32; WORDS]>::from(passed);
        words[FLAGS] &= !PASSED;
        assert!(Record::from(words).packing == Packing::Fresh);
    }
}
