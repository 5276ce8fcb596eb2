//! Pages that are left alone for a while, because a page beside them was wanted back too soon.
//!
//! What a program uses at a time often lies together. So when a page is wanted back from the cache, or was read back
//! after a short refault distance, the stretch of neighbours that it lies in is marked, and while the mark is young,
//! pages of this stretch whose turn it is to be unmapped become the youngest of their list instead.
//!
//! Time is counted in *ticks*, each a part of memory that has departed: a memory in which nothing leaves does not age.
//! A mark is one byte. It looks young once more 255 ticks later, when twice the memory has departed; that costs one
//! detour.
//!
//! Nothing is left alone for ever: for each page asked for, at most [`PASSES`] are passed over, whatever the marks say,
//! and the order stays that of the list. docs/measurements/2026-11-24-policy.md has what it is worth, and what was
//! tried beside it. Pure; the caller locks.

use super::page::Pages;
use crate::lru::{List, NIL};

/// Neighbours that share a mark.
pub const STRETCH_PAGES: u32 = 32;
/// A tick: one page in so many of those in memory has left it.
const TICK_PART: u32 = 128;
/// A mark is young in the tick in which it was set, and in so many after it.
const YOUNG: u8 = 2;
/// For each page that is to be unmapped, at most so many are passed over.
const PASSES: usize = 4;

/// A mark, one byte: when a page of a stretch was wanted back. The default is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tick(u8);

impl Tick {
    /// Of the number that [`Tick::bits`] gave.
    pub fn from_bits(bits: u8) -> Tick {
        Tick(bits)
    }

    /// As a number.
    pub fn bits(self) -> u8 {
        self.0
    }
}

/// The policy's clock.
#[derive(Debug)]
pub(super) struct Clock {
    /// 1 to 255; 0 is the mark of a stretch that has none.
    now: u8,
    departed: u32,
}

impl Clock {
    pub(super) const fn new() -> Clock {
        Clock { now: 1, departed: 0 }
    }

    /// A page has left a memory of `pages`.
    pub(super) fn on_departure(&mut self, pages: u32) {
        self.departed += 1;
        if self.departed >= pages / TICK_PART {
            self.departed = 0;
            self.now = self.now.checked_add(1).unwrap_or(1);
        }
    }

    pub(super) fn now(&self) -> Tick {
        Tick(self.now)
    }

    fn is_young(&self, mark: Tick) -> bool {
        // In steps from the mark to now, around 255.
        let age = if self.now >= mark.0 { self.now - mark.0 } else { 255 - (mark.0 - self.now) };
        mark.0 != 0 && age <= YOUNG
    }

    /// How many pages may be passed over where `wanted` are asked for.
    pub(super) fn passes(wanted: usize) -> usize {
        wanted.saturating_mul(PASSES)
    }

    /// The oldest pages of a list that are not left alone, from the oldest on; they stay on it. The others become its
    /// youngest, as many as `passes` says.
    pub(super) fn oldest(&self, list: &mut List, pages: &impl Pages, passes: &mut usize, out: &mut [u32]) -> usize {
        let (mut n, mut at) = (0, list.back().unwrap_or(NIL));
        while n < out.len() && at != NIL {
            let page = at;
            at = pages.prev(page);
            if *passes > 0 && self.is_young(pages.wanted(page)) {
                *passes -= 1;
                list.move_to_front(pages, page);
            } else {
                out[n] = page;
                n += 1;
            }
        }
        n
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
