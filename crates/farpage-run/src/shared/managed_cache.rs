//! Managed ranges in which there was something large and new lately, so that program threads need not tell of them
//! again: most of what an allocator hands out lies in memory that it has had for long.
//!
//! Written by the pager, read by any thread without a lock (why: [`crate::shared::notice_ring`]). A reader that
//! meets a writer may see parts of two ranges. What follows from a wrong answer is that memory is registered some
//! moments late, or once more.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Ranges kept: an allocator has one or two for each CPU.
const KEPT: usize = 32;

/// See the module header.
#[derive(Debug, Default)]
pub struct Recent {
    /// Start and end, bytes; the end of one that is empty is 0.
    ranges: [(AtomicUsize, AtomicUsize); KEPT],
    next: AtomicUsize,
    /// Messages may have been read that are not heeded here yet.
    behind: AtomicBool,
}

impl Recent {
    /// Whether all of `[start, end)` is in one of the ranges. Any thread.
    pub fn covers(&self, start: usize, end: usize) -> bool {
        !self.behind.load(Acquire) && self.lists(start, end)
    }

    fn lists(&self, start: usize, end: usize) -> bool {
        self.ranges.iter().any(|(from, to)| from.load(Relaxed) <= start && end <= to.load(Relaxed))
    }

    /// Messages are about to be read. A thread that unmaps goes on as soon as its message is read, and may be given
    /// the same place again before the pager gets a CPU: until [`Recent::caught_up`] nothing is known. Pager only.
    pub fn fall_behind(&self) {
        self.behind.store(true, SeqCst);
    }

    /// What the messages say is cut. Pager only.
    pub fn caught_up(&self) {
        self.behind.store(false, Release);
    }

    /// `[start, end)` is managed; takes an empty place, or that of one that has been there for long. Pager only.
    pub fn add(&self, start: usize, end: usize) {
        if self.lists(start, end) {
            return;
        }
        self.cut(start, end);
        let empty = self.ranges.iter().position(|(_, to)| to.load(Relaxed) == 0);
        let place = empty.unwrap_or_else(|| {
            let oldest = self.next.load(Relaxed) % KEPT;
            self.next.store(oldest + 1, Relaxed);
            oldest
        });
        let (from, to) = &self.ranges[place];
        to.store(0, Relaxed);
        from.store(start, Relaxed);
        to.store(end, Relaxed);
    }

    /// Something in `[start, end)` is not managed any more. Pager only.
    pub fn cut(&self, start: usize, end: usize) {
        for (from, to) in &self.ranges {
            if from.load(Relaxed) < end && start < to.load(Relaxed) {
                to.store(0, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_known_until_it_is_cut() {
        let recent = Recent::default();
        assert!(!recent.covers(0, 1), "nothing at first");
        recent.add(100, 200);
        assert!(recent.covers(100, 200) && recent.covers(150, 160));
        assert!(!recent.covers(150, 201) && !recent.covers(99, 101), "only what is in it as a whole");
        recent.cut(200, 300);
        assert!(recent.covers(100, 200), "the end is not in it");
        recent.fall_behind();
        assert!(!recent.covers(100, 200), "a message may say that it is unmapped");
        recent.caught_up();
        assert!(recent.covers(100, 200));
        recent.cut(199, 300);
        assert!(!recent.covers(100, 110));
    }

    #[test]
    fn a_range_that_has_grown_takes_one_place_and_the_oldest_gives_way() {
        let recent = Recent::default();
        recent.add(5000, 5001);
        (1..100).for_each(|i| recent.add(1000, 1000 + i));
        assert!(recent.covers(1000, 1099) && recent.covers(5000, 5001));
        (0..KEPT).for_each(|i| recent.add(10_000 * (i + 1), 10_000 * (i + 1) + 1));
        assert!(!recent.covers(5000, 5001) && !recent.covers(1000, 1099));
        assert!((0..KEPT).all(|i| recent.covers(10_000 * (i + 1), 10_000 * (i + 1) + 1)));
    }
}
