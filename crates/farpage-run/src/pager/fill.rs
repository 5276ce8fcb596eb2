//! Putting pages into the program, and what a refusal means.
//!
//! Every page that comes in is a new one of the kernel, into which its content is copied. (Without room for that, a
//! page of the swap cache goes back as it is: [`Pager::refault`].) A fault begins with [`Pager::reserve`], which sees
//! to it that the budget has room for a page, and reclaims if it has not. If nothing can be reclaimed (every device
//! full) the budget gives way by a page, with a warning, not the program. Everything else in this file takes what there
//! is, and never reclaims.
//!
//! *Why no page is used twice.* A page that was the program's may be in a pipe or a socket, too, and must not be
//! written by us ([`farpage_base::mem::frame`]). And to move one into the program interrupts every CPU that has run a thread
//! of the process since the last time; a copy interrupts nobody.
//!
//! Callers: `fault`, `swap_in`, `prefetch`, `let_go`, on the pager's thread. Locks: that of the frames; `discard_area`,
//! and that of the frames in it.

use crate::pager::fault::ZERO_MAX_TIGHT;
use crate::pager::state::Outcome;
use crate::pager::state::Pager;
use crate::shared::page_table::State;
use crate::store;
use farpage_base::mem::open::STEP;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::mem::zeros::{ZERO_PAGES, zero_pages};
use farpage_base::sys::message::fatal;
use farpage_base::sys::raw::ErrnoText;
use farpage_base::sys::uffd::UffdError;
use farpage_swap::PAGE_SIZE;

/// Rounds of reclaim for one fault; each of them makes some room, mostly enough.
const ROUNDS_MAX: usize = 64;
/// Frames that are given back for what is wanted next, at least.
const RELEASE_MIN: usize = 16;

/// Result of putting a run of pages into place.
pub(crate) struct Filled {
    /// Pages that are there now.
    pub done: usize,
    /// Why it stopped early.
    pub stop: Option<UffdError>,
}

impl Pager {
    /// The first step of a fault: sees to it that there is room for a new page, if the page at `vpn` needs one, and for
    /// as many as were zero-filled for the last first touch, if this is one. May reclaim, and so may change the state
    /// of any page; nothing after it in a fault does.
    ///
    /// What was reserved is not kept from others. If somebody else takes it, the fault waits, and is reserved for anew.
    pub(crate) fn reserve(&mut self, vpn: Vpn) {
        let e = self.e;
        self.granted = 0;
        self.reap();
        let state = e.table.node(vpn).map_or(State::None, |node| e.table.state(node));
        let want = match state {
            State::Cached(_) | State::Writeback(_) => return, // it has a frame
            State::Swapped(_) if self.prefetch.is_on_its_way(vpn) => return, // it will be reserved for when it is here
            State::None => self.zero_window.clamp(1, ZERO_MAX_TIGHT) as usize,
            State::Mapped(_) | State::Swapped(_) => 1,
        };
        if self.room() < want && e.conf.debug_evict_all && !matches!(state, State::Swapped(_)) {
            self.evict_all();
        }
        for _ in 0..ROUNDS_MAX {
            let before = self.room();
            if before >= want || self.granted > 0 {
                return;
            }
            if !self.reclaim_now(vpn, want) {
                if !self.gives_back(1) {
                    self.granted = 1;
                }
                return;
            }
            if self.room() <= before && before > 0 {
                return; // no more is to be had
            }
        }
    }

    /// Pages that the budget has room for.
    pub(crate) fn room(&self) -> usize {
        self.e.budget.room().max(0) as usize
    }

    /// Pages that the budget has room for. If that is less than `n`, and there are enough frames that nobody needs,
    /// they are given back first.
    pub(crate) fn room_for(&self, n: usize) -> usize {
        let missing = n.saturating_sub(self.room());
        // A few pages are not worth two system calls.
        if missing > 0 && self.e.frames.worthless_count() >= missing.min(RELEASE_MIN) {
            store::release_unused(self.e);
        }
        self.room()
    }

    /// How many of `n` new pages may be taken from the kernel for a fault: what the budget has room for. Above it, what
    /// has been given back for the fault, or one, if nothing could be reclaimed for it.
    pub(crate) fn new_pages(&mut self, n: usize) -> usize {
        let room = self.room_for(n);
        n.min(if room == 0 { std::mem::take(&mut self.granted) } else { room })
    }

    /// Puts up to `n` zero pages at `vpn`, as far as there is room.
    pub(crate) fn fill_zeros(&mut self, vpn: Vpn, n: usize) -> Filled {
        let n = self.new_pages(n);
        self.copy_in(vpn, zero_pages(), n)
    }

    /// Copies `n` pages from engine memory at `src` into new kernel pages at `vpn`.
    pub(crate) fn copy_in(&mut self, vpn: Vpn, src: usize, n: usize) -> Filled {
        if n == 0 {
            return Filled { done: 0, stop: None };
        }
        let n = match self.unmarked(vpn, n) {
            Ok(n) => n,
            Err(why) => return Filled { done: 0, stop: Some(why) },
        };
        // SAFETY: vpn is a registered page of the program, where no reference of ours points; src is engine memory.
        let copy = |n| unsafe { self.mm.copy_pages(vpn.addr(), src, n * PAGE_SIZE, false) };
        let (bytes, result) = match copy(n) {
            (0, Err(UffdError::Absent)) if n > 1 => copy(self.in_one_mapping(vpn, n)),
            result => result,
        };
        let done = bytes / PAGE_SIZE;
        self.e.budget.add(done as i64);
        self.filled += done as u64;
        Filled { done, stop: result.err() }
    }

    /// How many of the `n` pages from `vpn` on are in one mapping, at least one: the kernel copies and moves no more at
    /// once. (What lies side by side and differs, in a name or in advice, is several.)
    pub(crate) fn in_one_mapping(&self, vpn: Vpn, n: usize) -> usize {
        let end = match self.mm.mapping_from(vpn.addr()) {
            Ok(Some(found)) => Vpn::of(found.end),
            _ => vpn + n,
        };
        (end.max(vpn + 1) - vpn).min(n)
    }

    /// What a refusal means for the fault at `vpn`.
    pub(crate) fn resolve_refusal(&mut self, vpn: Vpn, stop: Option<UffdError>) -> Outcome {
        let page = vpn.addr();
        match stop {
            None | Some(UffdError::Retry) => Outcome::Later,
            // There already, or not a registered mapping any more: the thread looks for itself.
            Some(UffdError::Present | UffdError::Absent | UffdError::Incompatible | UffdError::Busy) => {
                self.mm.wake(page, PAGE_SIZE);
                Outcome::Dropped
            }
            Some(UffdError::Other(rustix::io::Errno::NOMEM)) => Outcome::Later,
            Some(UffdError::Other(error)) => {
                fatal(&format!("serving the page at {page:#x} failed: {}", ErrnoText(error)))
            }
        }
    }

    /// Up to `want` neighbouring frames without pages. Where there are few, more are opened.
    pub(crate) fn empty_frames(&self, want: usize) -> Option<(FrameNo, usize)> {
        let frames = &self.e.frames;
        if frames.are_few(want) {
            // A quarter of what there is, in whole steps of memory.
            let new = frames.open_more((frames.opened() / 4).max(want).next_multiple_of(STEP / PAGE_SIZE));
            match self.mm.register(new.base, new.len) {
                _ if new.len == 0 => {}
                Ok(()) => frames.add_opened(new),
                Err(_) => frames.no_more(),
            }
        }
        frames.take_empty(want)
    }

    /// Up to `n` neighbouring frames to load pages into that nobody waits for, if there is room for `spare` pages
    /// besides: free ones, or new ones; `None`: there are none just now.
    pub(crate) fn buffer_frames(&mut self, n: usize, spare: usize) -> Option<(FrameNo, usize)> {
        let e = self.e;
        if self.room_for(spare) < spare {
            return None;
        }
        if let Some(run) = e.frames.take_free_run(n) {
            return Some(run);
        }
        if self.room_for(n + spare) < n + spare {
            return e.frames.take_free(n);
        }
        let (first, got) = self.empty_frames(n.min(ZERO_PAGES))?;
        // SAFETY: empty frames of the arena, taken; the zeros are engine memory.
        let (bytes, _) = unsafe { self.mm.copy_pages(e.frames.addr(first), zero_pages(), got * PAGE_SIZE, true) };
        let done = bytes / PAGE_SIZE;
        e.budget.add(done as i64);
        e.frames.put_empty(first + done, got - done);
        (done > 0).then_some((first, done))
    }
}
