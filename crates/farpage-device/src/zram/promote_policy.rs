//! Whether it pays to compress what came back from a file into the pool.
//!
//! Caller: `promote`, on any thread that loads. Counts without a lock.

use farpage_swap::fading_ratio::FadingRatio;
use farpage_swap::score::OneIn;
use std::sync::OnceLock;

/// Whether pages that come back into the pool are loaded from there before they leave it again.
#[derive(Default)]
pub(super) struct PromotePolicy {
    hits: FadingRatio,
    seldom: OneIn<32>,
    held: OnceLock<bool>,
}

impl PromotePolicy {
    /// A promoted page was loaded (a read of the file was saved), or left the pool unread (a compression was wasted).
    pub(super) fn note(&self, hit: bool) {
        self.hits.note(hit);
    }

    /// From now on it is what `promote` says (the first time), for an experiment.
    pub(super) fn hold(&self, promote: bool) {
        let _ = self.held.set(promote);
    }

    /// Whether it pays: while one in eight is hit. A read from a file costs about eight compressions.
    pub(super) fn pays(&self) -> bool {
        let (hits, all) = self.hits.counts();
        self.held.get().copied().unwrap_or(hits * 8 + 256 > all)
    }

    /// Promote a page? While it pays; otherwise one in 32, to notice when that changes.
    pub(super) fn promote(&self) -> bool {
        self.pays() || self.held.get().is_none() && self.seldom.comes()
    }
}
