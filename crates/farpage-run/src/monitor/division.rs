//! How the budget is divided between pages as they are and compressed ones: what [`PoolShare`] decides, carried out.
//! The monitor's. Takes the lock of the lists, and under it none.

use crate::budget::share;
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_device::space::build::memory_most;
use farpage_swap::PAGE_SIZE;
use farpage_swap::pool_share::{PoolShare, Sample, UnevictableEstimate};
use farpage_swap::tuning::Controller;
use std::sync::atomic::Ordering::Relaxed;

/// A change by fewer pages changes no limit: hardly anything follows from it, and each has a full pool tried again.
const FEW: i64 = 8;

/// How it is divided now.
pub(super) struct BudgetDivision {
    share: PoolShare,
    /// For a budget of so many pages.
    divided: i64,
    /// Without a file, the pool's limit is for so many.
    limited: i64,
    stuck: UnevictableEstimate,
}

impl BudgetDivision {
    pub(super) fn new(e: &Engine) -> BudgetDivision {
        BudgetDivision {
            share: PoolShare::new(e.conf.ram, e.space.usage().pool_limit_bytes),
            divided: e.most_pages(),
            limited: 0,
            stuck: UnevictableEstimate::default(),
        }
    }

    /// What was worked out for another budget follows it, if that has become another one by an eighth; the limit of a
    /// pool without a file by a few pages: a process that is promised its floor needs all of that.
    fn follow_budget(&mut self, e: &Engine) {
        let pages = e.budget.promised().max(1);
        // Its memory was reserved for the budget at the start.
        let bytes = |pages: i64| (pages as u64 * PAGE_SIZE as u64).min(e.conf.ram);
        if !e.space.is_tiered() && (pages - self.limited).abs() >= FEW {
            self.limited = pages;
            e.space.set_pool_limit(memory_most(bytes(pages)));
        }
        if (pages - self.divided).abs() <= self.divided / 8 {
            return;
        }
        self.divided = pages;
        lock(&e.lru).resize(pages as usize);
        // What the process is always left with is not divided: one that rests keeps nothing in the pool.
        let limit = self.share.resize(bytes((pages - share::floor(e.engine_pages())).max(1)));
        if let Some(limit) = limit.filter(|_| e.space.is_tiered()) {
            e.space.set_pool_limit(limit);
        }
    }

    /// Moves the border between pages as they are and compressed ones. Without a file there is nowhere else to go.
    pub(super) fn turn(&mut self, e: &Engine) {
        self.follow_budget(e);
        if !e.space.is_tiered() {
            return;
        }
        let (pool_load_ns, file_load_ns) = e.slots.load_times.means();
        let (taken, skipped) = (e.stat.pgsteal_anon.load(Relaxed), e.stat.move_skipped.load(Relaxed));
        let mut lru = lock(&e.lru);
        let sample = Sample {
            major: e.stat.pgmajfault.load(Relaxed),
            major_file: e.stat.pgmajfault_file.load(Relaxed),
            loaded: e.stat.pswpin.load(Relaxed),
            stored: e.stat.pswpout.load(Relaxed),
            pages: (lru.active_len() + lru.cached_len() + lru.set.ahead() as usize) as u64,
            stuck: e.controls.value_for(
                Controller::Immovable,
                self.stuck.estimate(taken, skipped, u64::from(lru.set.mapped_lens().0)),
            ),
            unmanaged: e.budget.unmanaged() as u64,
            pool_bytes: e.stat.pool_bytes.load(Relaxed),
            pool_orig_bytes: e.stat.pool_orig_bytes.load(Relaxed),
            pool_raw_bytes: e.stat.huge_pages.load(Relaxed) * PAGE_SIZE as u64,
            pool_load_ns,
            file_load_ns,
            out: e.table.swapped_pages(),
            unchanged: e.slots.clean.unchanged_share(),
        };
        let promised = e.budget.promised().max(1) as u64 * PAGE_SIZE as u64;
        let limit = self.share.decide(&e.controls, promised, |share| share.turn(sample, &mut lru.set.distances));
        drop(lru);
        e.space.set_pools_steady(self.share.is_steady());
        if let Some(limit) = limit {
            e.space.set_pool_limit(limit);
            e.space.let_raw_wait(self.share.is_worth_room());
            e.wake_writer();
        }
    }
}
