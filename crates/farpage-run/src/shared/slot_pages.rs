//! Which page each slot has, where pages are read ahead in slot order.
//!
//! Callers: the writer, which stores pages; the pager, which reads them ahead. No locks.

use crate::shared::page_table::Node;
use farpage_device::Entry;
use farpage_swap::readahead::{Rule, Tuning};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Slots whose page is known at a time, where that is wanted; more overwrite each other: less is read ahead.
const SLOTS: usize = 1 << 22;
/// So many are made room for at a time.
const PIECE: usize = 1 << 13;

/// The page of each slot, as of when it was stored: a hint, to be compared with the page's word. Four bytes a slot, in
/// pieces that are made when they are needed.
pub struct SlotPages(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl SlotPages {
    /// If the rule wants it; `rotational`: a device has heads to move.
    pub fn new(tuning: Tuning, rotational: bool) -> Option<SlotPages> {
        let new = || SlotPages((0..SLOTS / PIECE).map(|_| OnceLock::new()).collect());
        (tuning.rule == Rule::Slot || tuning.rule == Rule::Stream && rotational).then(new)
    }

    /// Its piece, and the place in it.
    fn place(entry: Entry) -> (usize, usize) {
        let at = entry.raw() as usize % SLOTS;
        (at / PIECE, at % PIECE)
    }

    /// The page of `node` was stored in a slot.
    pub fn stored(&self, node: Node, entry: Entry) {
        let (piece, at) = SlotPages::place(entry);
        // SAFETY: all zero bits are such a word. Not written here: memory is what is used of it.
        let new = || unsafe { Box::new_zeroed_slice(PIECE).assume_init() };
        self.0[piece].get_or_init(new)[at].store(node.0, Relaxed);
    }

    /// The page that was stored in a slot last, perhaps.
    pub fn page_of(&self, entry: Entry) -> Node {
        let (piece, at) = SlotPages::place(entry);
        Node(self.0[piece].get().map_or(0, |piece| piece[at].load(Relaxed)))
    }
}
