//! Which process of a tree has which part of the exports that they swap to.
//!
//! Caller: the segment. No locks: a place is taken by compare-and-swap, for good.

use crate::conf::nbd::ExportId;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Areas of an export at most.
pub const AREAS_MAX: usize = 1024;

/// The owner of each area; 0: none.
pub type Owners = [AtomicU64; AREAS_MAX];

/// Exports of a tree at most.
const EXPORTS: usize = 4;

/// What is said of all of them.
#[repr(C)]
#[derive(Debug)]
pub struct Exports([ExportAreas; EXPORTS]);

/// What is said of one.
#[repr(C)]
#[derive(Debug)]
struct ExportAreas {
    /// The first half of its id; 0: none.
    id: AtomicU64,
    owners: Owners,
}

impl Exports {
    /// Where the owners of the areas of this export are noted; `None`: there is no room.
    pub fn owners(&self, id: ExportId) -> Option<&Owners> {
        let (half, _) = id.split_first_chunk()?;
        let id = u64::from_ne_bytes(*half).max(1);
        let is_it = |place: &&ExportAreas| match place.id.compare_exchange(0, id, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(has) => has == id,
        };
        self.0.iter().find(is_it).map(|place| &place.owners)
    }
}
