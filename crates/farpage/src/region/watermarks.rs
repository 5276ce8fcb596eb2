//! How much reclaim is wanted now: from when until when, by how many threads, how many pages at a time.
//!
//! Pure. Caller: `reclaim`, before each step.
//!
//! ```text
//!   room in the budget, pages     ...... 0 ............ low .............. high
//!   reclaim                         goes on            begins              ends
//!   pages at a time               as many as are missing to high, between 64 and 256
//!   threads                       one, and one more for each thread that waits
//! ```
//! A batch is emptied with one system call and one interrupt of the other CPUs, so a large one costs less a page; a
//! thread that waits is told when the batch is done. A thread that waits has given its CPU up, so one of reclaim may
//! have it; while nobody waits a second one would take it from the program.

/// Pages of a batch at least.
pub const BATCH_MIN: usize = 64;
/// Pages of a batch at most.
pub const BATCH_MAX: usize = 256;

/// What there is.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Room in the budget, pages; negative above it.
    pub room: i64,
    /// The high watermark, pages of room.
    pub high: usize,
    /// Threads that wait for room or frames.
    pub waiting: u32,
}

/// What reclaim is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// The first thread of reclaim is to run, for room.
    pub first: bool,
    /// How many others are.
    pub helpers: u32,
    /// Pages that each takes out at a time.
    pub batch: usize,
}

/// The low watermark, pages of room: whoever leaves less wakes reclaim.
pub fn low(high: usize) -> i64 {
    high as i64 / 2
}

impl Level {
    /// The demand; `running`: reclaim is under way.
    pub fn demand(self, running: bool) -> Demand {
        let high = self.high as i64;
        let missing = (high - self.room).max(0) as usize;
        Demand {
            first: self.room < if running { high } else { low(self.high) },
            helpers: self.waiting,
            batch: missing.clamp(BATCH_MIN, BATCH_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_begins_low_and_ends_high() {
        let first = |room, running| Level { room, high: 512, waiting: 0 }.demand(running).first;
        assert_eq!([first(255, false), first(256, false), first(-9, false)], [true, false, true]);
        assert_eq!([first(256, true), first(511, true), first(512, true)], [true, true, false]);
    }

    #[test]
    fn batches_are_as_large_as_what_is_missing() {
        let batch = |room| Level { room, high: 512, waiting: 0 }.demand(true).batch;
        assert_eq!([batch(512), batch(400), batch(300), batch(100), batch(-10_000)], [64, 112, 212, 256, 256]);
    }

    #[test]
    fn each_thread_that_waits_brings_a_helper() {
        let helpers = |waiting| Level { room: 0, high: 512, waiting }.demand(true).helpers;
        assert_eq!([helpers(0), helpers(1), helpers(3)], [0, 1, 3]);
    }
}
