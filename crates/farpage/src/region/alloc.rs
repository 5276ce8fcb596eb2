//! Frames and room for pages that come in, and how a page gets from its frame to its place.
//!
//! ```text
//!   the budget has room      a frame is lent, the page copied in, the frame free again
//!   it has none              a free frame is moved in: its page becomes the region's
//!   nothing is free          the thread waits for reclaim, or gives way if that is stuck
//! ```
//! A move ends with an interrupt of every CPU that the process has run on, which costs as much as copying tens of
//! pages; so in signal mode pages are copied whenever they can be, in thread mode where they are few.
//!
//! Called by the thread that has the page busy: faults, readahead. Takes the frames' lock and no other.

use super::fault::RUN;
use super::pager_core::{PagerCore, count};
use super::word::{Access, PageState};
use farpage_base::mem::units::FrameNo;
use farpage_base::mem::zeros::ZERO_PAGES;
use farpage_base::sys::futex;
use farpage_base::sys::message::{fatal, fatal_fmt};
use farpage_base::sys::raw::discard;
use farpage_base::sys::uffd::UffdError;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How long a thread waits for a frame before it looks again by itself, nanoseconds.
const STALL_NS: u64 = 20_000_000;

/// Neighbouring frames, each with a page, that belong to the caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameGrant {
    /// The first.
    pub first: FrameNo,
    /// How many.
    pub len: usize,
    /// Room in the budget has been taken for as many pages besides: copy them in. Else move them.
    pub copies: bool,
}

impl PagerCore {
    /// Up to `want` frames to load pages into; `must`: waits until there is at least one.
    pub(super) fn alloc_frames(&self, want: usize, must: bool) -> Option<FrameGrant> {
        let mut stalled = false;
        loop {
            if (self.wp_sweeps || want < RUN)
                && let Some((first, len)) = self.frames_to_copy(want)
            {
                return Some(FrameGrant { first, len, copies: true });
            }
            if let Some((first, len)) = self.frames_to_move(want, must) {
                return Some(FrameGrant { first, len, copies: false });
            }
            if !must {
                return None;
            }
            self.stall(&mut stalled);
        }
    }

    /// Frames, and as much room in the budget, which is taken.
    fn frames_to_copy(&self, want: usize) -> Option<(FrameNo, usize)> {
        let room = self.room();
        if self.watermarks().begins(room - want as i64) {
            self.wake_reclaim(false);
        }
        let n = room.clamp(0, want as i64) as usize;
        // A whole window is worth a move.
        if n == 0 || n < want && self.frames.free_count() >= want {
            return None;
        }
        let few = self.frames.free_count() < self.watermarks().frames;
        // A new frame takes room itself.
        let new = n.min((room as usize / 2).max(1));
        let whole = self.frames.take_free_run(n).or_else(|| if few { self.new_frames(new) } else { None });
        let run = whole.or_else(|| self.frames.take_free(n))?;
        self.held.fetch_add(run.1 as i64, Relaxed);
        Some(run)
    }

    /// Up to `want` neighbouring frames with pages; `must`: above the budget, if reclaim is stuck.
    pub(super) fn frames_to_move(&self, want: usize, must: bool) -> Option<(FrameNo, usize)> {
        if let Some(run) = self.frames.take_free(want) {
            if self.level().is_few() {
                self.wake_reclaim(false);
            }
            return Some(run);
        }
        let room = self.room().max(0) as usize;
        let give_way = must && (self.wakeups.stuck.load(Relaxed) || self.workers.is_closed());
        if (room > 0 || give_way)
            && let Some(run) = self.new_frames(want.min(room.max(1)))
        {
            if room == 0 {
                count(&self.stat.over_budget, run.1);
                self.wake_reclaim(false);
            }
            return Some(run);
        }
        if !must {
            self.wake_reclaim(false);
        }
        None
    }

    /// New kernel pages in frames.
    fn new_frames(&self, want: usize) -> Option<(FrameNo, usize)> {
        let (first, got) = self.frames.take_empty(want.min(ZERO_PAGES))?;
        let (done, result) = self.copy_zeros(self.frames.addr(first), got);
        self.frames.put_empty(first + done, got - done);
        if let (0, Err(UffdError::Other(Errno::NOMEM))) = (done, result) {
            self.no_memory();
        }
        (done > 0).then_some((first, done))
    }

    /// A thread that cannot go on waits for reclaim; counted once.
    pub(super) fn stall(&self, stalled: &mut bool) {
        if !std::mem::replace(stalled, true) {
            count(&self.stat.allocstall, 1);
        }
        self.wait_for_frames();
    }

    /// Waits for reclaim to free something.
    pub(super) fn wait_for_frames(&self) {
        let w = &self.wakeups;
        w.waiting.fetch_add(1, SeqCst);
        let seen = w.freed.load(SeqCst);
        self.wake_reclaim(true);
        let unused = self.frames.unused_count();
        let supplied = unused > 0 && self.room() > 0 || self.frames.free_count() > 0;
        let give_way = w.stuck.load(SeqCst) || self.workers.is_closed();
        if !supplied && (unused == 0 || !give_way) {
            futex::wait(&w.freed, seen, Some(STALL_NS));
        }
        w.waiting.fetch_sub(1, SeqCst);
    }

    /// There is work for reclaim; `all`: for every thread of it, because a faulting thread waits.
    pub fn wake_reclaim(&self, all: bool) {
        let w = &self.wakeups;
        if w.asleep.load(Relaxed) && w.asleep.swap(false, SeqCst) {
            w.work.fetch_add(1, SeqCst);
            futex::wake_one(&w.work);
        }
        if all {
            w.help.fetch_add(1, SeqCst);
            futex::wake_all(&w.help);
        }
    }

    /// Brings `n` pages from the caller's frames to `page` and up, as the grant says; the frames are the caller's no
    /// longer. All of them, unless the mapping is broken. `protect`: write-protected, if that can be had.
    pub(super) fn bring_in(&self, page: u32, first: FrameNo, n: usize, copies: bool, protect: bool) -> Access {
        if copies {
            self.copy_in(page, first, n, protect);
            return if protect { Access::Unwritten } else { Access::Writable };
        }
        self.move_in(page, first, n);
        // What is moved in can be written, and is by threads that need no fault for it. From here on a thread that
        // writes waits for the page's word.
        match protect && self.uffd.write_protect(self.space.addr(page), n * PAGE_SIZE, true).is_ok() {
            true => Access::Protected,
            false => Access::Writable,
        }
    }

    /// Copies `n` owned frames into new pages at `page`; the frames are free again. The new pages have been counted
    /// already.
    fn copy_in(&self, page: u32, first: FrameNo, n: usize, protect: bool) {
        let mut done = 0;
        while done < n {
            let (dst, src) = (self.space.addr(page) + done * PAGE_SIZE, self.frames.addr(first) + done * PAGE_SIZE);
            let len = (n - done) * PAGE_SIZE;
            // SAFETY: dst are absent pages that the caller has busy, src are the caller's frames. All pages of regions
            // that are protected are registered for that (signal mode).
            let (bytes, result) = unsafe {
                match protect {
                    true => self.uffd.copy_pages_protected(dst, src, len),
                    false => self.uffd.copy_pages(dst, src, len, true),
                }
            };
            done += bytes / PAGE_SIZE;
            match result {
                Ok(()) | Err(UffdError::Retry) => {}
                Err(_) if bytes > 0 => {}
                Err(UffdError::Other(Errno::NOMEM)) => self.no_memory(),
                Err(UffdError::Present) if self.unpoison(page + done as u32) => {}
                Err(other) => self.lost(page + done as u32, Some(other)),
            }
        }
        self.frames.put_free(first, n);
        if self.wakeups.waiting.load(SeqCst) > 0 {
            self.tell_waiters();
        }
    }

    /// Moves `n` owned frames to `page` and up; those that were moved become empty, the others free.
    pub(super) fn move_in(&self, page: u32, first: FrameNo, n: usize) {
        let mut done = 0;
        while done < n {
            let dst = self.space.addr(page) + done * PAGE_SIZE;
            let src = self.frames.addr(first) + done * PAGE_SIZE;
            // SAFETY: dst are absent pages that the caller has busy, src are the caller's frames; no references there.
            let (bytes, result) = unsafe { self.uffd.move_pages(dst, src, (n - done) * PAGE_SIZE, true) };
            let moved = bytes / PAGE_SIZE;
            self.frames.put_empty(first + done, moved);
            done += moved;
            match result {
                Ok(()) | Err(UffdError::Retry) => {}
                Err(UffdError::Busy | UffdError::Incompatible) if moved == 0 => {
                    // The kernel looks at the frame for a moment (compaction), or the program has changed the mapping's
                    // access rights: a copy works then.
                    // SAFETY: as above.
                    let (bytes, result) = unsafe { self.uffd.copy_pages(dst, src, PAGE_SIZE, true) };
                    if bytes == 0 && result != Err(UffdError::Retry) {
                        self.lost(page + done as u32, result.err());
                    }
                    if bytes > 0 {
                        self.held.fetch_add(1, Relaxed);
                        self.copied_instead(first + done);
                        done += 1;
                    }
                }
                Err(_) if moved > 0 => {}
                Err(UffdError::Present) if self.unpoison(page + done as u32) => {}
                Err(other) => self.lost(page + done as u32, Some(other)),
            }
        }
    }

    /// A frame that was to be moved was copied. It goes back to the kernel if its page may have been a region's, or if
    /// the budget has no room for both: the next fault would find it free, and so on, without end where nothing can be
    /// moved (a region that the program has locked).
    fn copied_instead(&self, f: FrameNo) {
        if self.room() < 0 || !self.wp_sweeps {
            self.release(&[f]);
        } else {
            self.frames.put_free(f, 1);
        }
    }

    /// A page that threads wait for cannot be read back: those that touch it get SIGBUS, until it is discarded or can
    /// be read again. In thread mode.
    pub(super) fn poison(&self, addr: usize) {
        let Some(page) = self.space.page_at(addr) else { return };
        let look = self.space.word(page).load();
        if !matches!(look.state(), PageState::Swapped(_)) {
            return;
        }
        let Some(seen) = self.space.word(page).try_lock_if(look) else { return }; // another thread brings it in
        let mut result = self.uffd.poison(self.space.addr(page), true);
        while result == Err(UffdError::Retry) {
            result = self.uffd.poison(self.space.addr(page), true);
        }
        self.poisoned.fetch_add(u32::from(result.is_ok()), Relaxed);
        self.space.word(page).unlock(seen, seen.state());
        match result {
            Ok(()) | Err(UffdError::Present) => {}
            Err(why) => {
                fatal_fmt(format_args!("the page at {addr:#x} can neither be read back nor be poisoned: {why:?}"))
            }
        }
    }

    /// Makes a page absent that is poisoned perhaps, and busy; `false`: none is.
    pub(super) fn unpoison(&self, page: u32) -> bool {
        if self.poisoned.load(Relaxed) == 0 {
            return false;
        }
        // Only a marker can be there: the page is on a device, and the caller has it busy.
        let addr = self.space.addr(page) as *mut std::ffi::c_void;
        // SAFETY: a page of a region without content.
        unsafe { discard(addr, PAGE_SIZE) }.is_ok()
    }

    pub(super) fn no_memory(&self) -> ! {
        fatal("the kernel has no memory for a page of a region")
    }

    pub(super) fn lost(&self, page: u32, why: Option<UffdError>) -> ! {
        let addr = self.space.addr(page);
        fatal_fmt(format_args!(
            "cannot put the page at {addr:#x} into its region ({why:?}): was it unmapped by the program?"
        ));
    }
}
