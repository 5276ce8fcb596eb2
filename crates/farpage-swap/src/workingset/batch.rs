//! Pages that come in together: they are linked without the lock, and spliced under it. So it is held for as long as
//! for one page.
//!
//! Pure. A batch belongs to the thread that has its pages.

use super::{Rank, WorkingSet};
use crate::lru::{Links, List};

/// Pages that are on no list of the working set, each as the youngest when it was added.
#[derive(Debug, Default)]
pub struct Batch {
    cold: List,
    hot: List,
    ahead: List,
}

impl Batch {
    /// Adds a page that is mapped.
    pub fn push(&mut self, links: &impl Links, n: u32, rank: Rank) {
        if rank.is_hot() { &mut self.hot } else { &mut self.cold }.push_front(links, n);
    }

    /// Adds a page that waits in the swap cache for its first touch.
    pub fn push_ahead(&mut self, links: &impl Links, n: u32) {
        self.ahead.push_front(links, n);
    }

    /// Whether it has no pages.
    pub fn is_empty(&self) -> bool {
        self.cold.is_empty() && self.hot.is_empty() && self.ahead.is_empty()
    }
}

impl WorkingSet {
    /// The pages of a batch, which is empty afterwards, become the youngest of their lists.
    pub fn map_batch(&mut self, links: &impl Links, batch: &mut Batch) {
        let now = self.now;
        for (queue, list) in [(&mut self.probation, &mut batch.cold), (&mut self.main, &mut batch.hot)] {
            let n = list.len();
            if n > 0 {
                queue.mapped.splice_front(links, list);
                queue.came(n, now);
            }
        }
        self.ahead.splice_front(links, &mut batch.ahead);
    }

    /// The same, as the oldest of their lists: the next to be unmapped.
    pub fn map_batch_oldest(&mut self, links: &impl Links, batch: &mut Batch) {
        self.probation.mapped.splice_back(links, &mut batch.cold);
        self.main.mapped.splice_back(links, &mut batch.hot);
        self.ahead.splice_back(links, &mut batch.ahead);
    }
}
