//! How much of a pager's budget compressed pages get: what [`farpage_swap::pool_share`] decides, asked for regions.
//!
//! Caller: the thread that looks at the size of the pool ([`PagerCore::update_overhead`]), mostly reclaim. Locks:
//! `share`, which is only tried, so that no thread waits; under it `lists`, then those of the devices. There is
//! something to divide only where there are compressed memory and a file.

use super::pager_core::PagerCore;
use farpage_base::mem::lock::lock;
use farpage_device::Usage;
use farpage_swap::PAGE_SIZE;
use farpage_swap::pool_share::{PoolShare, Sample};
use farpage_swap::workingset::Distances;
use std::sync::atomic::Ordering::Relaxed;

/// What a fault costs besides the load, ns: the thread that has it serves it.
const FAULT_NS: f64 = 6_000.0;

/// The pool's largest share, in eighths: only data is in a region, no code or stack, and a fault that the pool serves
/// costs a tenth of one that a file serves. (512 MiB at random in 285: 8.3 us a page with six, 6.2 with seven.)
const MOST_EIGHTHS: u64 = 7;

/// For a budget of so many bytes.
pub(super) fn new_share(budget: u64) -> PoolShare {
    let share = PoolShare::new(budget, PoolShare::initial_limit(budget));
    share.with_fault_ns(FAULT_NS).with_most(MOST_EIGHTHS)
}

impl PagerCore {
    /// Begins anew, with another budget of so many bytes.
    pub(super) fn divide_anew(&self, budget: u64) {
        let mut share = lock(&self.share);
        *share = new_share(budget);
        self.lists.lock().distances = Distances::new((budget / PAGE_SIZE as u64) as usize);
        self.swap.begin_division(budget);
    }

    /// Moves the border between pages as they are and compressed ones, if it is time to.
    pub(super) fn divide_budget(&self, usage: &Usage) {
        if !self.swap.is_tiered() {
            return;
        }
        let Ok(mut share) = self.share.try_lock() else { return };
        let s = &*self.stat;
        let (pool_load_ns, file_load_ns) = self.load_times.means();
        let sample = Sample {
            major: s.pgmajfault.load(Relaxed),
            major_file: s.pgmajfault_file.load(Relaxed),
            loaded: s.pswpin.load(Relaxed),
            stored: s.pswpout.load(Relaxed),
            pages: u64::from(self.lists.present() + self.lists.waiting()),
            stuck: self.pinned.load(Relaxed).max(0) as u64,
            unmanaged: (self.beside() as u64).saturating_sub(usage.pool_bytes / PAGE_SIZE as u64),
            pool_bytes: usage.pool_bytes,
            pool_orig_bytes: usage.pool_orig_bytes,
            pool_raw_bytes: usage.raw_pages * PAGE_SIZE as u64,
            pool_load_ns,
            file_load_ns,
            out: self.swapped.load(Relaxed).max(0) as u64,
            unchanged: self.clean.unchanged_share(),
        };
        let budget = self.limit.load(Relaxed).max(0) as u64 * PAGE_SIZE as u64;
        // The lists' lock only where there may be something to decide.
        let turn = |share: &mut PoolShare| {
            let due = share.is_due(&sample);
            due.then(|| share.turn(sample, &mut self.lists.lock().distances)).flatten()
        };
        let limit = share.decide(&self.controls, budget, turn);
        self.swap.set_pools_steady(share.is_steady());
        if let Some(limit) = limit {
            self.swap.set_pool_limit(limit);
            self.swap.let_raw_wait(share.is_worth_room());
        }
    }
}
