//! Putting pages into the program, and what a refusal means.
//!
//! Every page that comes in is a new one of the kernel, into which its content is copied. (Without room for that, a
//! page of the swap cache goes back as it is: [`Cx::refault`].) A fault begins with `Reclaim::reserve`, which sees
//! to it that the budget has room for a page, and reclaims if it has not. If nothing can be reclaimed (every device
//! full) the budget gives way by a page, with a warning, not the program. All of this file takes what there is, and
//! never reclaims.
//!
//! *Why no page is used twice.* A page that was the program's may be in a pipe or a socket, too, and must not be
//! written by us ([`farpage_base::mem::frame`]). And to move one into the program interrupts every CPU that has run a
//! thread of the process since the last time; a copy interrupts none.
//!
//! Callers: `fault`, `swap_in`, `lot`, `prefetch`, `bring_in`, on the pager's thread. Locks: `lru`; that of the frames;
//! `discard_area`, and that of the frames in it.

use crate::pager::cx::{Cx, Outcome};
use crate::shared::lru::PageBatch;
use crate::shared::page_table::{Node, State};
use crate::store;
use farpage_base::mem::lock::lock;
use farpage_base::mem::open::STEP;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::mem::zeros::{ZERO_PAGES, zero_pages};
use farpage_base::sys::message::fatal;
use farpage_base::sys::raw::ErrnoText;
use farpage_base::sys::uffd::UffdError;
use farpage_device::Entry;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::PAGE_SIZE;
use farpage_swap::readahead::READAHEAD_MAX;

/// Frames that are given back for what is wanted next, at least.
const RELEASE_MIN: usize = 16;

/// Result of putting a run of pages into place.
pub(crate) struct Filled {
    /// Pages that are there now.
    pub done: usize,
    /// Why it stopped early.
    pub stop: Option<UffdError>,
}

impl Cx {
    /// Pages that the budget has room for.
    pub(crate) fn room(&self) -> usize {
        (self.e.budget.room().max(0) as usize).saturating_sub(self.lot.pages.len())
    }

    /// Pages that the budget has room for. If that is less than `n`, and there are enough frames that are not needed,
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

    /// Up to `n` neighbouring frames to load pages into that no thread waits for, if there is room for `spare` pages
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

    /// A page that no thread has asked for stays in its frame until it is touched.
    pub(crate) fn add_to_swap_cache(&self, vpn: Vpn, f: FrameNo, entry: Entry) {
        let e = self.e;
        let Some(node) = e.table.node(vpn) else {
            e.frames.put_free(f, 1);
            return;
        };
        e.slots.frame_entries.set(f, Some(entry));
        lock(&e.lru).cache_ahead(&e.table, node, f);
        Stat::add(&e.stat.pswpin, 1);
    }

    /// The pages from `vpn` on are in the program now. `wanted`: a thread waits for the first one.
    pub(crate) fn map_swapped_in(&mut self, vpn: Vpn, entries: &[Entry], wanted: bool) {
        let e = self.e;
        let pages = entries.iter().enumerate();
        let pages = pages.filter_map(|(i, entry)| e.table.node(vpn + i).map(|node| (node, *entry)));
        self.map_all(vpn, pages, usize::from(wanted));
    }

    /// Pages that were swapped out are in the program now, the first at `vpn`: words, lists, slots. Threads wait for
    /// the first `touched` of them.
    pub(crate) fn map_all(&self, vpn: Vpn, pages: impl Iterator<Item = (Node, Entry)> + Clone, touched: usize) {
        let e = self.e;
        let others = || pages.clone().skip(touched);
        // For a page alone, the fault is what costs. A copy in the pool takes memory in which other pages could stay,
        // and spares only that it is compressed again.
        let may_cost = pages.clone().nth(touched.max(1)).is_some();
        let (mut kept, mut n) = ([None; READAHEAD_MAX as usize], 0);
        for (kept, (_, entry)) in kept.iter_mut().zip(pages.clone()) {
            *kept = self.keeps(entry, may_cost).then_some(entry);
            n += 1;
        }
        // One lot for all: what is read in one go stays or leaves in one go.
        let mut batch = PageBatch::default();
        if n > touched {
            let (first, others) = (pages.clone().next(), others().map(|(node, _)| node));
            batch = PageBatch::ranked(lock(&e.lru).rank_together(&e.table, first.map(|(node, _)| node), others));
        }
        for ((node, _), kept) in others().zip(kept.iter().skip(touched)) {
            batch.map(&e.table, node, State::Mapped(*kept));
        }
        let mut lru = lock(&e.lru);
        lru.map_batch(&e.table, &mut batch);
        for ((node, _), kept) in pages.clone().zip(kept).take(touched) {
            lru.map_refaulted(&e.table, node, State::Mapped(kept));
        }
        drop(lru);
        for ((_, entry), _) in pages.zip(kept).filter(|(_, kept)| kept.is_none()) {
            e.free_entry(Some(entry));
        }
        Stat::add(&e.stat.pswpin, n as u64);
        e.stat.events.note(EventKind::Load, vpn.number(), n);
    }

    /// Whether the slot of a page that has come in stays, as a clean copy; `may_cost`: also one that takes memory.
    pub(crate) fn keeps(&self, entry: Entry, may_cost: bool) -> bool {
        self.e.slots.clean.keep(&self.e.controls) && self.e.space.keep(entry, may_cost)
    }
}
