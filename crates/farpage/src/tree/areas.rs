//! Which process of a tree has which part of the exports that they swap to.
//!
//! No locks: a place is taken by compare-and-swap, for good.

use super::segment;
use crate::conf::nbd::ExportId;
use crate::swap::remote::areas::Owners;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Exports of a tree at most.
pub const EXPORTS: usize = 4;

/// What is said of one.
#[repr(C)]
#[derive(Debug)]
pub struct ExportAreas {
    /// The first half of its id; 0: none.
    id: AtomicU64,
    owners: Owners,
}

/// Where the owners of the areas of this export are noted; `None`: this process is in no tree, or there is no room.
pub fn areas(id: ExportId) -> Option<&'static Owners> {
    let (half, _) = id.split_first_chunk()?;
    let id = u64::from_ne_bytes(*half).max(1);
    let is_it = |place: &&ExportAreas| match place.id.compare_exchange(0, id, SeqCst, SeqCst) {
        Ok(_) => true,
        Err(has) => has == id,
    };
    segment()?.exports.iter().find(is_it).map(|place| &place.owners)
}
