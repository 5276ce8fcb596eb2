//! Which page each slot has, where pages are read ahead in slot order.
//!
//! Callers: the engines of `run` and `region`: threads that store pages, and those that read them ahead. No locks.

use crate::entry::Entry;
use farpage_swap::readahead::{Rule, Tuning};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Slots whose page can be known at a time; more overwrite each other: less is read ahead.
const SLOTS: usize = 1 << 24;
/// So many are made room for at a time, when one of them is used first.
const PIECE: usize = 1 << 14;

/// The page of each slot, as of when it was stored: a hint, to be compared with the page's word. Four bytes a slot.
#[derive(Debug)]
pub struct SlotPages(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl SlotPages {
    /// Whether the rule wants it; `rotational`: a device has heads to move.
    pub fn are_wanted(tuning: Tuning, rotational: bool) -> bool {
        tuning.rule == Rule::Slot || tuning.rule == Rule::Stream && rotational
    }

    /// None is known.
    pub fn new() -> SlotPages {
        SlotPages((0..SLOTS / PIECE).map(|_| OnceLock::new()).collect())
    }

    /// Its piece, and the place in it.
    fn place(entry: Entry) -> (usize, usize) {
        let at = entry.raw() as usize % SLOTS;
        (at / PIECE, at % PIECE)
    }

    /// A page was stored in a slot: by the number that the engine has for it. Allocates.
    #[inline]
    pub fn stored(&self, page: u32, entry: Entry) {
        let (piece, at) = SlotPages::place(entry);
        // SAFETY: all zero bits are such a word. Not written here: memory is what is used of it.
        let new = || unsafe { Box::new_zeroed_slice(PIECE).assume_init() };
        self.0[piece].get_or_init(new)[at].store(page, Relaxed);
    }

    /// The page that was stored in a slot last, perhaps.
    pub fn page_of(&self, entry: Entry) -> u32 {
        let (piece, at) = SlotPages::place(entry);
        self.0[piece].get().map_or(0, |piece| piece[at].load(Relaxed))
    }
}

impl Default for SlotPages {
    fn default() -> SlotPages {
        SlotPages::new()
    }
}
