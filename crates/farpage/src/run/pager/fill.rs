//! Putting pages into the program: where they come from, and what a refusal means.
//!
//! Pages for new content come from, in this order: new pages of the kernel while the budget has room, free frames.
//! A fault begins with [`Pager::reserve`], which sees to it that there is one of either, and reclaims if there is not.
//! If nothing can be reclaimed (every device full) the budget gives way by a page, with a warning, not the program.
//! Everything else in this file takes what there is, and never reclaims.
//!
//! *Copy or move.* A `UFFDIO_MOVE` makes the kernel interrupt every CPU that has run a thread of the process since it
//! last did, even one that sleeps; a `UFFDIO_COPY` interrupts nobody, but takes a page from the kernel and leaves its
//! source where it is. In the virtual machine where this was measured an interrupt costs 10 us and more, a page moved
//! beyond that 0.2 us, and a page copied 1 us. So short runs are copied.
//!
//! Callers: `fault`, `swap_in`, `ahead`, on the pager's thread. Locks: those of `frame`.

use crate::PAGE_SIZE;
use crate::mem::units::{FrameNo, Vpn};
use crate::mem::zeros::{ZERO_PAGES, zero_pages};
use crate::run::page_table::State;
use crate::run::pager::fault::ZERO_MAX_TIGHT;
use crate::run::pager::scratch::COPY_MAX;
use crate::run::pager::state::Outcome;
use crate::run::pager::state::Pager;
use crate::run::store;
use crate::sys::message::fatal;
use crate::sys::raw::ErrnoText;
use crate::sys::uffd::UffdError;

/// Where swapped pages are loaded on their way to the program: neighbouring pages of engine memory.
#[derive(Clone, Copy)]
pub(crate) enum LoadBuffer {
    /// [`Scratch`]: to be copied.
    Scratch,
    /// Frames from this one on, owned: to be moved.
    Frames(FrameNo),
}

/// Memory for zero pages that are to be placed.
pub(crate) struct ZeroGrant {
    /// Frames from this one on, owned; `None`: new pages of the kernel.
    frames: Option<FrameNo>,
    /// Pages.
    n: usize,
}

/// Result of putting a run of frames into place.
pub(crate) struct Filled {
    /// Pages that are there now.
    pub done: usize,
    /// Why it stopped early.
    pub stop: Option<UffdError>,
}

impl Pager {
    /// The first step of a fault: sees to it that there is a frame, or room for a new page, if the page at `vpn` needs
    /// one, and as many as were zero-filled for the last first touch, if this is one. May reclaim, and so may change
    /// the state of any page; nothing after it in a fault does.
    ///
    /// What was reserved is not kept from others. If somebody else takes it, the fault waits, and is reserved for anew.
    pub(crate) fn reserve(&mut self, vpn: Vpn) {
        let e = self.e;
        self.gives_way = false;
        let state = e.table.node(vpn).map_or(State::None, |node| e.table.state(node));
        let want = match state {
            State::Cached(_) | State::Writeback(_) => return, // it has a frame
            State::None => self.zero_window.clamp(1, ZERO_MAX_TIGHT) as usize,
            State::Swapped(_) if self.prefetch.has(vpn) => return,
            State::Mapped(_) | State::Swapped(_) => 1,
        };
        let there = || e.frames.free_count() + e.budget.room().max(0) as usize;
        if there() < want && e.conf.debug_evict_all && !matches!(state, State::Swapped(_)) {
            self.evict_all();
        }
        // Each time makes some room.
        for _ in 0..want {
            if there() >= want {
                return;
            }
            if !self.reclaim_now() {
                self.gives_way = there() == 0;
                return;
            }
        }
    }

    /// How many new pages may be taken from the kernel for a fault: what the budget has room for. One, if nothing could
    /// be reclaimed for it.
    fn new_pages(&mut self) -> usize {
        let room = self.e.budget.room().max(0) as usize;
        if room == 0 && std::mem::take(&mut self.gives_way) { 1 } else { room }
    }

    /// Memory for up to `n` zero pages; `None`: there is none just now.
    pub(crate) fn take_zeros(&mut self, n: usize) -> Option<ZeroGrant> {
        if self.e.budget.room() < n as i64
            && let Some((first, n)) = self.e.frames.take_free(n)
        {
            return Some(ZeroGrant { frames: Some(first), n });
        }
        let n = n.min(self.new_pages());
        (n > 0).then_some(ZeroGrant { frames: None, n })
    }

    /// Puts zero pages at `vpn`, as many as there are.
    pub(crate) fn fill_zeros(&mut self, vpn: Vpn, ZeroGrant { frames, n }: ZeroGrant) -> Filled {
        let e = self.e;
        let Some(first) = frames else { return self.copy_in(vpn, zero_pages(), n) };
        for f in first.run(n) {
            // SAFETY: taken from the free frames, so it has a page and is ours.
            unsafe { e.frames.page_mut(f) }.fill(0);
        }
        self.fill_frames(vpn, first, n)
    }

    /// Copies `n` pages from engine memory at `src` into new kernel pages at `vpn`.
    pub(crate) fn copy_in(&mut self, vpn: Vpn, src: usize, n: usize) -> Filled {
        // SAFETY: vpn is a registered page of the program, where no reference of ours points; src is engine memory.
        let (bytes, result) = unsafe { self.mm.copy_pages(vpn.addr(), src, n * PAGE_SIZE, false) };
        let done = bytes / PAGE_SIZE;
        self.e.budget.add(done as i64);
        self.filled += done as u64;
        Filled { done, stop: result.err() }
    }

    /// Whether a run of `n` pages should be copied.
    pub(crate) fn should_copy(&self, n: usize) -> bool {
        n <= COPY_MAX && self.e.budget.room() >= n as i64
    }

    /// Memory for up to `n` pages that are to be loaded, and for how many. `wanted`: a thread waits for the first one.
    pub(crate) fn take_buffer(&mut self, n: usize, wanted: bool) -> Option<(LoadBuffer, usize)> {
        if self.should_copy(n) {
            return Some((LoadBuffer::Scratch, n));
        }
        let frames = if wanted { self.frames_or_new(n) } else { self.e.frames.take_free(n) };
        frames.map(|(first, got)| (LoadBuffer::Frames(first), got))
    }

    /// Address of the first page of a buffer.
    pub(crate) fn buffer_addr(&mut self, buffer: LoadBuffer) -> usize {
        match buffer {
            LoadBuffer::Scratch => self.scratch.0.as_mut_ptr() as usize,
            LoadBuffer::Frames(first) => self.e.frames.addr(first),
        }
    }

    /// Pages `[from, to)` of a buffer are not needed.
    pub(crate) fn release_buffer(&self, buffer: LoadBuffer, from: usize, to: usize) {
        if let LoadBuffer::Frames(first) = buffer {
            self.e.frames.put_free(first + from, to - from);
        }
    }

    /// Puts `n` pages of a buffer, from page `from` on, to `vpn`.
    pub(crate) fn fill_from(&mut self, vpn: Vpn, buffer: LoadBuffer, from: usize, n: usize) -> Filled {
        match buffer {
            LoadBuffer::Scratch => {
                let src = self.buffer_addr(buffer) + from * PAGE_SIZE;
                self.copy_in(vpn, src, n)
            }
            LoadBuffer::Frames(first) => self.fill_frames(vpn, first + from, n),
        }
    }

    /// Moves `n` owned frames to `vpn`. Moved frames become empty, the others free.
    pub(crate) fn fill_frames(&mut self, vpn: Vpn, first: FrameNo, n: usize) -> Filled {
        let e = self.e;
        let mut done = 0;
        let mut stop = None;
        let mut unshared = usize::MAX;
        while done < n {
            let dst = (vpn + done).addr();
            let src = e.frames.addr(first) + done * PAGE_SIZE;
            // SAFETY: dst as in copy_in; src are frames the caller owns and holds no reference into.
            let (bytes, result) = unsafe { self.mm.move_pages(dst, src, (n - done) * PAGE_SIZE, false) };
            done += bytes / PAGE_SIZE;
            match result {
                Ok(()) => break,
                Err(_) if bytes > 0 => {} // what stopped it shows at the next try
                Err(UffdError::Busy) if unshared != done => {
                    // Shared with a forked child: one write makes the frame ours alone.
                    unshared = done;
                    // SAFETY: the frame is owned here and has a page.
                    unsafe { e.frames.unshare(first + done) };
                }
                Err(UffdError::Incompatible | UffdError::Busy) => {
                    // The mapping's access rights differ from the arena's (mprotect): copying works everywhere.
                    // SAFETY: as above.
                    let (bytes, result) = unsafe { self.mm.copy_pages(dst, src, PAGE_SIZE, false) };
                    if bytes == 0 {
                        stop = result.err();
                        break;
                    }
                    e.budget.add(1);
                    // Kept, the frame would serve the next such page, and one after the other would be added.
                    if e.budget.over_limit() > 0 {
                        store::release_run(e, first + done, 1, 1);
                    } else {
                        e.frames.put_free(first + done, 1);
                    }
                    // The frame copied from stays ours; frames before it have been moved.
                    let moved_end = done;
                    done += 1;
                    let rest = self.fill_frames_after_copy(vpn, first, done, n);
                    e.frames.put_empty(first, moved_end);
                    return rest;
                }
                Err(other) => {
                    stop = Some(other);
                    break;
                }
            }
        }
        e.frames.put_empty(first, done);
        e.frames.put_free(first + done, n - done);
        self.filled += done as u64;
        Filled { done, stop }
    }

    /// The rest of a run whose frame before `from` was copied: placed as a run of its own.
    fn fill_frames_after_copy(&mut self, vpn: Vpn, first: FrameNo, from: usize, n: usize) -> Filled {
        if from == n {
            return Filled { done: n, stop: None };
        }
        let rest = self.fill_frames(vpn + from, first + from, n - from);
        Filled { done: from + rest.done, stop: rest.stop }
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

    /// Up to `n` free frames, or new ones; `None`: there are none just now.
    pub(crate) fn frames_or_new(&mut self, n: usize) -> Option<(FrameNo, usize)> {
        let e = self.e;
        if let Some(run) = e.frames.take_free(n) {
            return Some(run);
        }
        let (first, got) = e.frames.take_empty(n.min(self.new_pages()).min(ZERO_PAGES))?;
        // SAFETY: empty frames of the arena, taken; the zeros are engine memory.
        let (bytes, _) = unsafe { self.mm.copy_pages(e.frames.addr(first), zero_pages(), got * PAGE_SIZE, true) };
        let done = bytes / PAGE_SIZE;
        e.budget.add(done as i64);
        e.frames.put_empty(first + done, got - done);
        (done > 0).then_some((first, done))
    }
}
