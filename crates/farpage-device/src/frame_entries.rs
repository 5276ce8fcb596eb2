//! The slot of each frame: where the same bytes may be stored, of a page that is in the swap cache, and whether other
//! processes had the page, too.
//!
//! Callers: the engines of `run` and `region`. No locks: the place of a frame belongs to the thread that owns the
//! frame, and what hands the frame on also orders the accesses to its place.

use crate::entry::Entry;
use farpage_base::mem::units::FrameNo;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Other processes had the page.
const SHARED: u64 = 1 << 63;

/// One place a frame: a raw entry, or 0 for none, and a bit.
#[derive(Debug)]
pub struct FrameEntries(Box<[AtomicU64]>);

impl FrameEntries {
    /// For so many frames, none of which has an entry.
    pub fn new(frames: usize) -> FrameEntries {
        // SAFETY: all zero bits are such a word. Not written here: a large budget would cost memory that is never used.
        FrameEntries(unsafe { Box::new_zeroed_slice(frames).assume_init() })
    }

    /// The entry of a frame.
    #[inline]
    pub fn get(&self, f: FrameNo) -> Option<Entry> {
        Entry::from_raw(self.0[f.index()].load(Relaxed) & !SHARED)
    }

    /// From now on the frame has this one, or none.
    #[inline]
    pub fn set(&self, f: FrameNo, entry: Option<Entry>) {
        self.0[f.index()].store(entry.map_or(0, Entry::raw), Relaxed);
    }

    /// As [`FrameEntries::set`], of a page that other processes had, too.
    pub fn set_shared(&self, f: FrameNo, entry: Option<Entry>) {
        self.0[f.index()].store(entry.map_or(0, Entry::raw) | SHARED, Relaxed);
    }

    /// Whether other processes had the page.
    pub fn is_shared(&self, f: FrameNo) -> bool {
        self.0[f.index()].load(Relaxed) & SHARED != 0
    }

    /// The entry of a frame, which has none from now on.
    #[inline]
    pub fn take(&self, f: FrameNo) -> Option<Entry> {
        Entry::from_raw(self.0[f.index()].swap(0, Relaxed) & !SHARED)
    }

    /// How many frames have one.
    #[cfg(any(test, feature = "testing"))]
    pub fn count(&self) -> usize {
        self.0.iter().filter(|entry| entry.load(Relaxed) & !SHARED != 0).count()
    }
}
