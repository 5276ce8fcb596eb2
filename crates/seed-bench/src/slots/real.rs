//! The engine's allocator in the bench's terms: with its own way to fall back, and with the kernel's, for the
//! difference.

use super::{Block, Fallback, Slots};
use farpage_swap::cluster::{DeviceOptions, Entry, Env, Fill, Stats, Swap};
use farpage_swap::lock::Meter;
use std::marker::PhantomData;

/// Owner of nothing but a meter.
pub struct Owner<M>(PhantomData<fn() -> M>);

impl<M: Meter> Env for Owner<M> {
    type Meter = M;
}

/// `SINGLE`: a failed large block becomes single slots, as in the kernel; else the next smaller orders that fit.
pub struct Real<M: Meter, const SINGLE: bool> {
    swap: Swap<Owner<M>>,
    device: u8,
}

impl<M: Meter, const SINGLE: bool> Real<M, SINGLE> {
    pub fn new(slots: u64, cpus: usize) -> Real<M, SINGLE> {
        let swap = Swap::new(cpus, Owner(PhantomData));
        let options = DeviceOptions { slots, ..DeviceOptions::default() };
        // The first of 32 devices.
        let device = swap.swapon(options).unwrap_or(0);
        Real { swap, device }
    }

    pub fn stats(&self) -> Stats {
        self.swap.stats(self.device)
    }
}

impl<M: Meter, const SINGLE: bool> Slots for Real<M, SINGLE> {
    type Local = ();
    const FALLBACK: Fallback = if SINGLE { Fallback::Single } else { Fallback::Smaller };

    fn local(&self) {}

    #[inline]
    fn alloc(&self, _: &mut (), cpu: usize, order: u8) -> Option<Block> {
        self.swap.alloc(cpu, order, Fill::Swapped).map(|entry| Block { slot: entry.slot, order })
    }

    #[inline]
    fn free(&self, _: &mut (), block: Block) {
        let entry = Entry { device: self.device, slot: block.slot };
        let freed = self.swap.put(entry, 1 << block.order);
        debug_assert_eq!(freed, Ok(1 << block.order));
    }

    fn clusters_in_use(&self) -> u64 {
        let stats = self.stats();
        stats.clusters - stats.clusters_free
    }
}
