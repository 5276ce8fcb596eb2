//! No allocator at all: each thread has slots of its own and writes a word a slot. What the load leaves of two
//! processors where nothing is shared but the words of slots that it hands from thread to thread.

use super::{Block, Fallback, Slots};
use farpage_swap::cluster::CLUSTER_SLOTS;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words, and the first slot that no thread has had yet.
pub struct Bare {
    words: Box<[AtomicU64]>,
    fresh: AtomicU64,
}

impl Bare {
    pub fn new(slots: u64) -> Bare {
        Bare { words: (0..slots).map(|_| AtomicU64::new(0)).collect(), fresh: AtomicU64::new(0) }
    }
}

impl Slots for Bare {
    /// A thread's free slots, the last one first.
    type Local = Vec<u64>;
    const FALLBACK: Fallback = Fallback::Single;

    fn local(&self) -> Vec<u64> {
        Vec::new()
    }

    #[inline]
    fn alloc(&self, free: &mut Vec<u64>, _cpu: usize, order: u8) -> Option<Block> {
        if free.is_empty() {
            let first = self.fresh.fetch_add(CLUSTER_SLOTS as u64, Ordering::Relaxed);
            free.extend((first..first + CLUSTER_SLOTS as u64).rev());
        }
        let slot = free.pop()?;
        self.words.get(slot as usize)?.store(1, Ordering::Release);
        Some(Block { slot, order })
    }

    #[inline]
    fn free(&self, free: &mut Vec<u64>, block: Block) {
        if let Some(word) = self.words.get(block.slot as usize) {
            word.store(0, Ordering::Release);
            free.push(block.slot);
        }
    }

    fn clusters_in_use(&self) -> u64 {
        0
    }
}
