//! Work in pieces that its owner and helpers do together, each from its end, without a lock.
//!
//! ```text
//!   piece   0   1   2   3   4   5   6   7   8   9
//!        helpers: first() -->     ...     <-- last(): owner
//! ```
//! The owner posts the work and goes on with something else. When it wants the result, it does what is left, from the
//! end on, and then waits for the pieces, if any, that helpers are at. If no helper came, the owner has lost nothing.
//! So a helper without a CPU is never waited for, unless it lost its CPU within a piece.
//!
//! What is to be done, and what came of it, stands beside this, in the owner's records: the owner writes them before
//! [`Split::post`] and reads them once the work is over; a helper reads and writes those of its piece, between
//! [`Split::first`] and [`Split::finish`], never before: what it may have looked at then can be long over.
//!
//! No locks. Used by `farpage run`, to decompress windows in advance and to load what several threads wait for.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::sync::{AtomicU32, Ordering};

/// In `done`: the owner sleeps until the helpers' last piece is.
const WAITS: u32 = 1 << 31;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Split {
    /// First and end of the pieces that no thread has taken (16 bits each).
    left: AtomicU32,
    /// The helpers' pieces that are done, and [`WAITS`].
    done: AtomicU32,
}

#[derive(Clone, Copy)]
struct Left(u32);

impl Left {
    fn new(first: u32, end: u32) -> Left {
        Left(first << 16 | end)
    }

    fn first(self) -> u32 {
        self.0 >> 16
    }

    fn end(self) -> u32 {
        self.0 & 0xffff
    }

    fn is_empty(self) -> bool {
        self.first() >= self.end()
    }
}

impl Split {
    /// The owner, once all that was posted before is over: so many pieces of new work, 65,535 at most.
    pub fn post(&self, pieces: u16) {
        self.done.store(0, Ordering::Relaxed);
        self.left.store(Left::new(0, pieces.into()).0, Ordering::Release);
    }

    /// Whether there is a piece that no thread has taken. It may be taken, and more posted, the next moment.
    pub fn has_some(&self) -> bool {
        !Left(self.left.load(Ordering::Relaxed)).is_empty()
    }

    /// A helper takes the next piece.
    pub fn first(&self) -> Option<u32> {
        self.take(|left| (left.first(), Left::new(left.first() + 1, left.end())))
    }

    /// The owner takes the last piece that is left.
    pub fn last(&self) -> Option<u32> {
        self.take(|left| (left.end() - 1, Left::new(left.first(), left.end() - 1)))
    }

    /// The owner takes all that is left, so that it is not done; how much.
    pub fn rest(&self) -> u32 {
        let all = self.take(|left| (left.end() - left.first(), Left::new(left.first(), left.first())));
        all.unwrap_or(0)
    }

    /// A helper's piece is done. Whether it has to wake the owner, at [`Split::word`].
    #[must_use = "the owner may sleep"]
    pub fn finish(&self) -> bool {
        self.done.fetch_add(1, Ordering::AcqRel) & WAITS != 0
    }

    /// The pieces that helpers have taken, or had.
    pub fn helped(&self) -> u32 {
        Left(self.left.load(Ordering::Relaxed)).first()
    }

    /// The owner: whether nothing is left, and nothing on its way. What helpers did is visible then.
    pub fn is_over(&self) -> bool {
        let left = Left(self.left.load(Ordering::Relaxed));
        left.is_empty() && self.done.load(Ordering::Acquire) & !WAITS == left.first()
    }

    /// The owner, when nothing is left: whether to sleep until [`Split::word`] is no longer this.
    pub fn must_wait(&self) -> Option<u32> {
        let seen = self.done.fetch_or(WAITS, Ordering::AcqRel) | WAITS;
        (seen & !WAITS != self.helped()).then_some(seen)
    }

    /// Where the owner sleeps.
    pub fn word(&self) -> &AtomicU32 {
        &self.done
    }

    /// What [`Left`] becomes if there is something left.
    fn take(&self, how: impl Fn(Left) -> (u32, Left)) -> Option<u32> {
        let mut seen = self.left.load(Ordering::Acquire);
        loop {
            if Left(seen).is_empty() {
                return None;
            }
            let (taken, left) = how(Left(seen));
            match self.left.compare_exchange(seen, left.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(taken),
                Err(now) => seen = now,
            }
        }
    }
}
