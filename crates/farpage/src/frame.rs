//! Frames: pages at addresses in the arena, the only pages the engine reads and writes.
//!
//! A frame number is an address that either has a page or has none:
//! ```text
//!            take_empty, page moved in                      given back
//!   Empty  ------------------------------>  in use  ------------------------->  Free (has a page, content worthless)
//!     ^                                       ^  |                               |        |
//!     |            page moved out             |  |          take_free            |        |
//!     +---------------------------------------|--+  <----------------------------+        |
//!     +------------------------------------------------------- released to the kernel ----+
//! ```
//! Taking several frames prefers neighbours: moving a run of pages costs a sixth of moving them one by one.
//!
//! The pool is one mutex; it is held for bit operations only, never during a system call. Lock order: after the LRU
//! lock; nothing is called while it is held.

use crate::PAGE_SIZE;
use crate::arena::Part;
use crate::page_table::FrameNo;
use crate::sys::raw::fatal;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A set of frame numbers with a moving search position.
struct Bits {
    words: Vec<u64>,
    count: usize,
    cursor: usize,
}

impl Bits {
    fn new(n: usize, full: bool) -> Bits {
        let mut words = vec![if full { u64::MAX } else { 0 }; n.div_ceil(64)];
        if full
            && !n.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last = (1 << (n % 64)) - 1;
        }
        Bits { words, count: if full { n } else { 0 }, cursor: 0 }
    }

    fn insert(&mut self, f: FrameNo) {
        let (w, bit) = (f as usize / 64, 1u64 << (f % 64));
        self.count += usize::from(self.words[w] & bit == 0);
        self.words[w] |= bit;
    }

    fn contains(&self, f: FrameNo) -> bool {
        self.words[f as usize / 64] >> (f % 64) & 1 == 1
    }

    /// Takes up to `want` neighbouring numbers: the first run found from the search position on.
    fn take_run(&mut self, want: usize) -> Option<(FrameNo, usize)> {
        let n = self.words.len();
        if self.count == 0 || want == 0 {
            return None;
        }
        for step in 0..=n {
            let w = (self.cursor + step) % n;
            if self.words[w] == 0 {
                continue;
            }
            let first = w * 64 + self.words[w].trailing_zeros() as usize;
            let mut len = 0;
            while len < want
                && (first + len) / 64 < n
                && self.words[(first + len) / 64] >> ((first + len) % 64) & 1 == 1
            {
                self.words[(first + len) / 64] &= !(1 << ((first + len) % 64));
                len += 1;
            }
            self.count -= len;
            self.cursor = (first + len) / 64 % n;
            return Some((first as FrameNo, len));
        }
        None
    }
}

struct State {
    empty: Bits,
    free: Bits,
}

impl State {
    /// A frame given back by somebody who does not own it would soon have two owners, and a page wrong bytes.
    fn check_in_use(&self, f: FrameNo) {
        if self.empty.contains(f) || self.free.contains(f) {
            fatal("a frame was given back twice: this is a bug in farpage");
        }
    }
}

/// All frames.
pub struct Frames {
    part: Part,
    state: Mutex<State>,
}

impl Frames {
    /// Frames over `part`, all empty.
    pub fn new(part: Part) -> Frames {
        let n = part.len / PAGE_SIZE;
        Frames { part, state: Mutex::new(State { empty: Bits::new(n, true), free: Bits::new(n, false) }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many frames there are.
    pub fn len(&self) -> usize {
        self.part.len / PAGE_SIZE
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frames that have a page of no worth.
    pub fn free_count(&self) -> usize {
        self.state().free.count
    }

    /// Frames that have a page, of worth or not: what the arena costs.
    pub fn present_count(&self) -> usize {
        self.len() - self.state().empty.count
    }

    /// Up to `want` neighbouring frames without pages.
    pub fn take_empty(&self, want: usize) -> Option<(FrameNo, usize)> {
        self.state().empty.take_run(want)
    }

    /// Up to `want` neighbouring frames with a page of no worth.
    pub fn take_free(&self, want: usize) -> Option<(FrameNo, usize)> {
        self.state().free.take_run(want)
    }

    /// Frames `[first, first + n)` have lost their pages.
    pub fn put_empty(&self, first: FrameNo, n: usize) {
        let mut state = self.state();
        (first..first + n as FrameNo).for_each(|f| {
            state.check_in_use(f);
            state.empty.insert(f);
        });
    }

    /// Frames `[first, first + n)` have pages that nobody needs.
    pub fn put_free(&self, first: FrameNo, n: usize) {
        let mut state = self.state();
        (first..first + n as FrameNo).for_each(|f| {
            state.check_in_use(f);
            state.free.insert(f);
        });
    }

    /// Address of a frame.
    #[inline]
    pub fn addr(&self, f: FrameNo) -> usize {
        self.part.base + f as usize * PAGE_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours_and_nothing_is_lost() {
        let frames = Frames::new(Part { base: 0, len: 200 * PAGE_SIZE });
        let mut owner = [false; 200];
        let mut taken = 0;
        while let Some((first, n)) = frames.take_empty(48) {
            assert!((1..=48).contains(&n));
            for owned in &mut owner[first as usize..first as usize + n] {
                assert!(!std::mem::replace(owned, true));
            }
            taken += n;
        }
        assert_eq!(taken, 200);
        for f in (0..200).step_by(2) {
            frames.put_free(f, 1);
        }
        assert_eq!((frames.free_count(), frames.present_count()), (100, 200));
        assert_eq!(frames.take_free(8).map(|r| r.1), Some(1));
        frames.put_empty(1, 1);
        assert_eq!(frames.take_empty(4), Some((1, 1)));
    }
}
