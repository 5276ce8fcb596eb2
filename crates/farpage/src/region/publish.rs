//! Levels of a pager for its statistics page.
//!
//! Caller: the thread that reclaims. The lock of the last time is a leaf, which is only tried.

use super::pager_core::PagerCore;
use farpage_device::Usage;
use farpage_swap::PAGE_SIZE;
use farpage_swap::tuning::Controller;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Readahead by region is not published more often: there may be many regions.
const SELDOM: Duration = Duration::from_millis(100);

impl PagerCore {
    /// Brings the levels up to date, and now and then readahead by region.
    pub(super) fn publish(&self, usage: &Usage) {
        let page = PAGE_SIZE as u64;
        let bytes = |pages: i64| pages.max(0) as u64 * page;
        let s = &*self.stat;
        for (level, now) in [
            (&s.budget_bytes, bytes(self.limit.load(Relaxed))),
            (&s.used_bytes, bytes(self.total())),
            (&s.resident_bytes, u64::from(self.lists.present()) * page),
            (&s.hot_bytes, u64::from(self.lists.hot()) * page),
            (&s.cached_bytes, u64::from(self.lists.waiting()) * page),
            (&s.free_frames_bytes, self.frames.free_count() as u64 * page),
            (&s.swapped_bytes, bytes(self.swapped.load(Relaxed))),
            (&s.pinned_bytes, bytes(self.pinned.load(Relaxed))),
            (&s.managed_bytes, self.space.places.pages() * page),
            (&s.meta_bytes, usage.meta_bytes + self.space.places.bytes()),
        ] {
            level.store(now, Relaxed);
        }
        usage.publish(s);
        if let Some(pays) = self.swap.promotion_pays() {
            self.controls.decide(Controller::Promotion, pays);
        }
        self.controls.publish(&s.tuning, &s.tuning_held);
        // If another thread publishes now, what it writes is as new.
        if let Ok(mut last) = self.stat.published.try_lock()
            && last.is_none_or(|last| last.elapsed() >= SELDOM)
        {
            *last = Some(Instant::now());
            self.readahead.publish((self.space.addr(0) / PAGE_SIZE) as u64, &s.readahead);
        }
    }
}
