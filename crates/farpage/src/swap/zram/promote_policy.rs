//! Whether it pays to compress what came back from a file into the pool.
//!
//! Caller: `promote`, on any thread that loads. Counts without a lock.

use crate::mm::fading_ratio::FadingRatio;
use crate::mm::score::OneIn;

/// Whether pages that come back into the pool are loaded from there before they leave it again.
#[derive(Default)]
pub(super) struct PromotePolicy {
    hits: FadingRatio,
    seldom: OneIn<32>,
}

impl PromotePolicy {
    /// A promoted page was loaded (a read of the file was saved), or left the pool unread (a compression was wasted).
    pub(super) fn note(&self, hit: bool) {
        self.hits.note(hit);
    }

    /// Promote a page? While one in eight is hit: a read from a file costs about eight compressions. Otherwise one in
    /// 32, to notice when that changes.
    pub(super) fn promote(&self) -> bool {
        let (hits, all) = self.hits.counts();
        hits * 8 + 256 > all || self.seldom.comes()
    }
}
