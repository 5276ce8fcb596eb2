//! Frames: pages at addresses in the arena: what the engine reads and writes (besides pages of regions, read in place).
//!
//! Those of the program's engine are opened as they are needed: a program may limit its address space.
//!
//! A frame number is an address that either has a page or has none:
//! ```text
//!            take_empty, page moved in                      given back
//!   Empty  ------------------------------>  in use  ------------------------->  Free (has a page, content worthless)
//!     ^                                       ^  |                               |        |
//!     |            page moved out             |  |          take_free            |        |
//!     +---------------------------------------|--+  <----------------------------+        |
//!     +------------------------------------------------------- released to the kernel ----+
//!
//!            take_empty, page moved in           its content is elsewhere             given back
//!   Empty  ------------------------>  in use  ------------------------>  Spent  ----------------------> Empty
//! ```
//! *Spent* frames have a page that was the program's. It may still be read elsewhere: what a program gives to a pipe
//! (`vmsplice`) or a socket (`MSG_ZEROCOPY`) stays there until it is read or sent, whatever becomes of the program's
//! mapping. So no other content is ever written to such a page; all that is done with it is to give it back to the
//! kernel.
//!
//! Taking several frames prefers neighbours: moving a run of pages costs a sixth of moving them one by one.
//!
//! The pool is one mutex; it is held for bit operations only, never during a call; its place: docs/dev/locking.md.

use crate::mem::arena::Part;
use crate::mem::open::Opening;
use crate::mem::units::{FrameNo, Page};
use crate::sys::message::fatal;
use farpage_swap::PAGE_SIZE;
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

    fn insert(&mut self, f: usize) {
        let (w, bit) = (f / 64, 1u64 << (f % 64));
        self.count += usize::from(self.words[w] & bit == 0);
        self.words[w] |= bit;
    }

    fn contains(&self, f: usize) -> bool {
        self.words[f / 64] >> (f % 64) & 1 == 1
    }

    /// Takes up to `want` neighbouring numbers: the first run from the search position on that is long enough, else the
    /// longest there is.
    fn take_run(&mut self, want: usize) -> Option<(usize, usize)> {
        let run = self.find_run(want)?;
        Some(self.take(run))
    }

    /// Takes up to `want` neighbouring numbers: the first run from the search position on, however short.
    fn take_first_run(&mut self, want: usize) -> Option<(usize, usize)> {
        let (first, _) = self.find_run(1)?;
        let len = (first..self.words.len() * 64).take(want).take_while(|f| self.contains(*f)).count();
        (len > 0).then(|| self.take((first, len)))
    }

    fn take(&mut self, (first, len): (usize, usize)) -> (usize, usize) {
        for f in first..first + len {
            self.words[f / 64] &= !(1 << (f % 64));
        }
        self.count -= len;
        self.cursor = (first + len) / 64 % self.words.len();
        (first, len)
    }

    fn find_run(&self, want: usize) -> Option<(usize, usize)> {
        let bits = self.words.len() * 64;
        if self.count == 0 || want == 0 {
            return None;
        }
        let (mut best, mut at, mut left) = ((0, 0), self.cursor * 64, bits);
        while left > 0 {
            let word = self.words[at / 64] >> (at % 64);
            if word == 0 {
                let skip = 64 - at % 64;
                (at, left) = ((at + skip) % bits, left.saturating_sub(skip));
                continue;
            }
            let skip = word.trailing_zeros() as usize;
            let first = at + skip;
            let mut len = 0;
            // A run ends at the last number; it does not go on at the first.
            while len < want && first + len < bits {
                let ones = (self.words[(first + len) / 64] >> ((first + len) % 64)).trailing_ones() as usize;
                len += ones.min(64 - (first + len) % 64);
                if ones == 0 || !(first + len).is_multiple_of(64) {
                    break;
                }
            }
            let len = len.min(want);
            if len > best.1 {
                best = (first, len);
            }
            if best.1 == want {
                break;
            }
            (at, left) = ((first + len) % bits, left.saturating_sub(skip + len));
        }
        (best.1 > 0).then_some(best)
    }
}

/// A run by its first number, and how many there are.
fn named((first, n): (usize, usize)) -> (FrameNo, usize) {
    (FrameNo::new(first as u32), n)
}

struct FrameSets {
    /// So many have memory, or may have; the others cannot be used.
    opened: usize,
    /// There are no more, whatever their part has.
    is_all: bool,
    empty: Bits,
    free: Bits,
    spent: Bits,
}

impl FrameSets {
    /// A frame given back by a thread that does not own it would soon have two owners, and a page wrong bytes.
    fn check_in_use(&self, f: FrameNo) {
        if [&self.empty, &self.free, &self.spent].iter().any(|set| set.contains(f.index())) {
            fatal("a frame was given back twice: this is a bug in farpage");
        }
    }
}

/// All frames.
pub struct Frames {
    part: Part,
    opening: Opening,
    state: Mutex<FrameSets>,
}

impl Frames {
    /// Frames over `part`, all of them open, and empty.
    pub fn new(part: Part) -> Frames {
        // SAFETY: an opening of nothing.
        Frames::with(part, part.len / PAGE_SIZE, unsafe { Opening::new(part.end(), part.end()) })
    }

    /// Frames over `part`, which is opened as they are needed ([`Frames::open_more`]).
    ///
    /// # Safety
    /// As [`Opening::new`].
    pub unsafe fn closed(part: Part) -> Frames {
        // SAFETY: caller's promise.
        Frames::with(part, 0, unsafe { Opening::new(part.base, part.end()) }.giving_way())
    }

    fn with(part: Part, opened: usize, opening: Opening) -> Frames {
        let n = part.len / PAGE_SIZE;
        let empty = Bits::new(n, opened == n);
        let sets = FrameSets { opened, is_all: false, empty, free: Bits::new(n, false), spent: Bits::new(n, false) };
        Frames { part, opening, state: Mutex::new(sets) }
    }

    fn state(&self) -> MutexGuard<'_, FrameSets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens up to `more` frames behind the others: bytes that are the caller's to register, before
    /// [`Frames::add_opened`] says that they can be used. None, where no memory is to be had: there will not be more.
    pub fn open_more(&self, more: usize) -> Part {
        let opened = self.opened();
        let more = more.min(self.part.len / PAGE_SIZE - opened);
        let new = Part { base: self.part.base + opened * PAGE_SIZE, len: more * PAGE_SIZE };
        if more > 0 && self.opening.reach(new.end()) {
            return new;
        }
        self.no_more();
        Part { len: 0, ..new }
    }

    /// What [`Frames::open_more`] has opened can be used.
    pub fn add_opened(&self, new: Part) {
        let mut state = self.state();
        let first = state.opened;
        state.opened += new.len / PAGE_SIZE;
        (first..state.opened).for_each(|f| state.empty.insert(f));
    }

    /// What is open is all that there will be.
    pub fn no_more(&self) {
        self.state().is_all = true;
    }

    /// Frames that are open.
    pub fn opened(&self) -> usize {
        self.state().opened
    }

    /// Whether more should be opened for `want` neighbouring ones.
    pub fn are_few(&self, want: usize) -> bool {
        let state = self.state();
        !state.is_all && state.opened < self.part.len / PAGE_SIZE && state.empty.count < want.max(state.opened / 8)
    }

    /// The bytes of those that are open.
    pub fn open_part(&self) -> Part {
        Part { base: self.part.base, len: self.opened() * PAGE_SIZE }
    }

    /// How many frames there are, or may be.
    pub fn len(&self) -> usize {
        let state = self.state();
        if state.is_all { state.opened } else { self.part.len / PAGE_SIZE }
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frames that have a page whose content is not needed.
    pub fn free_count(&self) -> usize {
        self.state().free.count
    }

    /// Frames whose page holds nothing that is needed, spent ones included: what could go back to the kernel.
    pub fn worthless_count(&self) -> usize {
        let state = self.state();
        state.free.count + state.spent.count
    }

    /// Frames that have a page, of worth or not: what the arena costs.
    pub fn present_count(&self) -> usize {
        let state = self.state();
        state.opened - state.empty.count
    }

    /// Frames in use.
    pub fn in_use(&self) -> usize {
        self.opened() - self.unused_count()
    }

    /// Frames not in use, with or without a page.
    pub fn unused_count(&self) -> usize {
        let state = self.state();
        state.free.count + state.spent.count + state.empty.count
    }

    /// Up to `want` neighbouring frames without pages.
    pub fn take_empty(&self, want: usize) -> Option<(FrameNo, usize)> {
        self.state().empty.take_run(want).map(named)
    }

    /// Exactly `want` neighbouring frames with a page whose content is not needed, or none.
    pub fn take_free_run(&self, want: usize) -> Option<(FrameNo, usize)> {
        let mut state = self.state();
        let run = state.free.find_run(want).filter(|run| run.1 == want)?;
        Some(named(state.free.take(run)))
    }

    /// Up to `want` neighbouring frames with a page whose content is not needed.
    pub fn take_free(&self, want: usize) -> Option<(FrameNo, usize)> {
        self.state().free.take_run(want).map(named)
    }

    fn put(&self, first: FrameNo, n: usize, set: impl Fn(&mut FrameSets) -> &mut Bits) {
        let mut state = self.state();
        first.run(n).for_each(|f| {
            state.check_in_use(f);
            set(&mut state).insert(f.index());
        });
    }

    /// Frames `[first, first + n)` have lost their pages.
    pub fn put_empty(&self, first: FrameNo, n: usize) {
        self.put(first, n, |sets| &mut sets.empty);
    }

    /// Frames `[first, first + n)` have pages that are not needed.
    pub fn put_free(&self, first: FrameNo, n: usize) {
        self.put(first, n, |sets| &mut sets.free);
    }

    /// Frames `[first, first + n)` have pages that were the program's, and that it does not need.
    pub fn put_spent(&self, first: FrameNo, n: usize) {
        self.put(first, n, |sets| &mut sets.spent);
    }

    /// Up to `want` neighbouring spent frames. Their pages can be given back, nothing else.
    pub fn take_spent(&self, want: usize) -> Option<(FrameNo, usize)> {
        self.state().spent.take_first_run(want).map(named)
    }

    /// Spent frames.
    pub fn spent_count(&self) -> usize {
        self.state().spent.count
    }

    /// Address of a frame.
    #[inline]
    pub fn addr(&self, f: FrameNo) -> usize {
        self.part.base + f.index() * PAGE_SIZE
    }

    /// The page in a frame that the caller owns.
    ///
    /// # Safety
    /// Frame `f` has a page and no mutable reference to it exists.
    pub unsafe fn page(&self, f: FrameNo) -> &Page {
        // SAFETY: inside the frames part, page sized and aligned; present and unshared (caller's promise).
        unsafe { &*(self.addr(f) as *const Page) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// Frame `f` has a page, is owned by the caller, and no reference to it exists.
    #[expect(clippy::mut_from_ref, reason = "frames are owned by number, not through this table")]
    pub unsafe fn page_mut(&self, f: FrameNo) -> &mut Page {
        // SAFETY: as for `page`, exclusive by the caller's promise.
        unsafe { &mut *(self.addr(f) as *mut Page) }
    }

    /// Makes a frame that a forked child still shares this process's alone: one write that changes nothing, volatile so
    /// that it happens.
    ///
    /// # Safety
    /// As for [`Frames::page_mut`].
    pub unsafe fn unshare(&self, f: FrameNo) {
        let p = self.addr(f) as *mut u8;
        // SAFETY: a byte of the caller's frame.
        unsafe { p.write_volatile(p.read_volatile()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a set that is searched the long way.
    #[test]
    fn a_run_is_the_first_that_is_long_enough_or_the_longest() {
        let mut random = 1u64;
        let mut draw = move |n: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) as usize % n
        };
        for round in 0..2000 {
            let n = [64, 100, 192][round % 3];
            let mut bits = Bits::new(n, false);
            let holes = 1 + draw(9);
            let mut set: Vec<bool> = (0..n).map(|_| draw(10) < holes).collect();
            (0..n).filter(|f| set[*f]).for_each(|f| bits.insert(f));
            for _ in 0..4 {
                let (cursor, want) = (bits.cursor * 64, draw(70));
                let run = |first: usize| set[first..].iter().take_while(|x| **x).count().min(want);
                let longest = (0..n).map(run).max().unwrap_or(0);
                match bits.take_run(want) {
                    None => assert_eq!(longest, 0),
                    Some((first, len)) => {
                        assert_eq!((len, run(first)), (longest, longest), "{want} from {cursor} in {set:?}");
                        let is_start = |f: usize| f == 0 || !set[f - 1] || f == cursor;
                        let before = (cursor..n).chain(0..cursor).take_while(|f| *f != first);
                        assert!(before.filter(|f| is_start(*f)).all(|f| run(f) < longest));
                        set[first..first + len].fill(false);
                    }
                }
                assert_eq!(bits.count, set.iter().filter(|x| **x).count());
            }
        }
    }

    #[test]
    fn runs_are_neighbours_and_nothing_is_lost() {
        let frames = Frames::new(Part { base: 0, len: 200 * PAGE_SIZE });
        let mut owner = [false; 200];
        let mut taken = 0;
        while let Some((first, n)) = frames.take_empty(48) {
            assert!((1..=48).contains(&n));
            for owned in &mut owner[first.index()..first.index() + n] {
                assert!(!std::mem::replace(owned, true));
            }
            taken += n;
        }
        assert_eq!(taken, 200);
        for f in (0..200).step_by(2) {
            frames.put_free(FrameNo::new(f), 1);
        }
        assert_eq!((frames.free_count(), frames.present_count(), frames.unused_count()), (100, 200, 100));
        assert_eq!(frames.take_free(8).map(|r| r.1), Some(1));
        let one = FrameNo::new(1);
        frames.put_empty(one, 1);
        assert_eq!(frames.take_empty(4), Some((one, 1)));
    }

    #[test]
    fn frames_are_opened_when_there_are_few() {
        let base = crate::mem::open::WINDOW.end - (2 << 30);
        // SAFETY: addresses that nothing else uses.
        let frames = unsafe { Frames::closed(Part { base, len: 1024 * PAGE_SIZE }) };
        assert_eq!((frames.opened(), frames.len(), frames.unused_count(), frames.take_empty(4)), (0, 1024, 0, None));
        assert!(frames.are_few(1));
        let new = frames.open_more(256);
        assert_eq!((new, frames.opened()), (Part { base, len: 256 * PAGE_SIZE }, 0));
        frames.add_opened(new);
        assert_eq!((frames.opened(), frames.in_use(), frames.present_count()), (256, 0, 0));
        assert!(!frames.are_few(64) && frames.are_few(512));
        let (first, n) = frames.take_empty(240).unwrap();
        assert_eq!((n, frames.in_use(), frames.are_few(1)), (240, 240, true));
        frames.put_free(first, n);
        assert_eq!((frames.in_use(), frames.present_count()), (0, 240));
        frames.add_opened(frames.open_more(usize::MAX / PAGE_SIZE));
        assert_eq!((frames.opened(), frames.open_part().len, frames.are_few(4096)), (1024, 1024 * PAGE_SIZE, false));
    }

    #[test]
    fn where_there_is_no_memory_there_are_no_more_frames() {
        let base = crate::mem::open::WINDOW.end - (3 << 30);
        // SAFETY: addresses that nothing else uses.
        let frames = unsafe { Frames::closed(Part { base, len: 512 * PAGE_SIZE }) };
        frames.add_opened(frames.open_more(256));
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED_NOREPLACE;
        let (at, prot) = (frames.open_part().end(), rustix::mm::ProtFlags::empty());
        // SAFETY: takes nothing's place.
        unsafe { rustix::mm::mmap_anonymous(at as *mut _, PAGE_SIZE, prot, flags) }.unwrap();
        assert_eq!(frames.open_more(256).len, 0);
        assert_eq!((frames.opened(), frames.len(), frames.are_few(4096)), (256, 256, false));
    }
}
