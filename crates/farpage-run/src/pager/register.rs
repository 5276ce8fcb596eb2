//! Adopting mappings that the program made: registering them, and finding out which of their pages are there.
//!
//! Runs on the pager thread. [`crate::mappings::discovery`] says where to look; what is there is asked again here,
//! because a mapping may have been replaced meanwhile, and must be registered whole.

use crate::mappings::manageable::{adoptable_parts, is_worth_managing};
use crate::pager::cx::Cx;
use crate::pager::let_go::LetGo;
use crate::pager::robust::lists::RobustLists;
use crate::pager::scans::Scans;
use crate::shared::lru::PageBatch;
use crate::shared::page_table::State;
use crate::shared::state::{Engine, give_up};
use crate::store;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::sys::maps::{Kind, Mapping};
use farpage_base::sys::message::fatal;
use farpage_base::sys::pagemap::PageKind;
use farpage_base::sys::uffd::UffdError;
use farpage_codec::page_hash::is_zero;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use farpage_swap::workingset::Rank;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Pages of the shared zero page taken out in one step.
const ZEROS_AT_ONCE: usize = 128;

/// Pages looked at per step of a scan, so that faults do not wait for it.
const SCAN_STEP: usize = 2048;

/// Pages `[first, last)` are there: those that nothing is known of go on probation. Pager only.
fn list_present(e: &Engine, first: Vpn, last: Vpn) {
    let mut batch = PageBatch::default();
    for vpn in first.up_to(last) {
        if let Some(node) = e.table.node_or_create(vpn)
            && e.table.state(node) == State::None
        {
            batch.map(&e.table, node, State::Mapped(None));
        }
    }
    if !batch.is_empty() {
        lock(&e.lru).map_batch(&e.table, &mut batch);
    }
}

/// What of the program's memory is to be managed: the pager's part.
pub(crate) struct Adoption {
    /// Registered ranges whose present pages are not on the lists yet.
    pub(crate) scans: Scans,
    /// Ranges (bytes) that were registered and still may have huge pages; empty in between.
    pub(super) unadvised: Vec<(usize, usize)>,
    /// Runs of the shared zero page that a scan found; empty in between.
    zeros: Vec<(Vpn, Vpn)>,
    /// Mappings heard of; empty in between.
    pub(crate) news: Vec<(usize, usize)>,
    /// Since when they wait for a moment in which no change is pending.
    pub(crate) put_off_since: Option<Instant>,
    /// There are notes that have been acted on, for which a thread may wait.
    pub(crate) noted: bool,
    /// What is not to be managed.
    pub(crate) let_go: LetGo,
}

impl Adoption {
    pub(crate) fn new() -> Adoption {
        Adoption {
            scans: Scans::default(),
            unadvised: Vec::new(),
            zeros: Vec::new(),
            news: Vec::new(),
            put_off_since: None,
            noted: false,
            let_go: LetGo::new(),
        }
    }

    /// Adopts the mappings in `[start, end)` as they are at this moment: what the monitor saw may have been replaced,
    /// and a mapping must be registered whole.
    pub(crate) fn adopt_mappings(&mut self, cx: &mut Cx, start: usize, end: usize) {
        let e = cx.e;
        if e.is_excluded() {
            return;
        }
        self.let_go.forget_refused();
        let mut at = start;
        let mut parts = Vec::new();
        while at < end {
            let mapping = match cx.mm.mapping_from(at) {
                Ok(Some(found)) if found.start < end => found,
                Ok(_) => return, // gone by now
                Err(_) => Mapping { start: at, end, kind: Kind::Plain },
            };
            let (from, to) = (mapping.start, mapping.end);
            parts.clear();
            let is_stack = mapping.kind == Kind::Stack;
            if mapping.adoptable() && (!is_stack || is_worth_managing(e, mapping)) {
                adoptable_parts(e, from, to, &mut parts);
            }
            for &(s, t) in &parts {
                if !self.let_go.is_refused(s, t) {
                    let room = match t == to {
                        true => cx.mm.free_until(to),
                        // All of it, because libc looks where its mapping starts (`pthread_getattr_np`). Its upper end
                        // stays.
                        false if is_stack => to,
                        false => t,
                    };
                    self.adopt(cx, s, t, room);
                }
            }
            if is_stack
                && !parts.is_empty()
                && let Ok(Some(grown)) = cx.mm.mapping_from(from - PAGE_SIZE)
                && grown.end == from
            {
                // Just before it was registered: two mappings until this one is, too.
                self.adopt(cx, grown.start, grown.end, grown.end);
            }
            at = to;
        }
    }

    /// Registers the mapping `[start, end)` (bytes), and queues it for scanning. What is mapped from `end` to `room` is
    /// to be registered, too, and not to be managed. Mostly that was nothing a moment ago: if the mapping grows there
    /// just now, the new part has to be registered in the same step. Otherwise one mapping of the program would be two
    /// for the kernel, which then refuses to move or grow it.
    pub(crate) fn adopt(&mut self, cx: &mut Cx, start: usize, end: usize, room: usize) {
        let (first, last) = (Vpn::of(start), Vpn::of(end));
        let new: Vec<(Vpn, Vpn)> = lock(&cx.e.memory.managed).gaps(first, last).collect();
        // What is known of this place may be of what was there before, if that is being told just now.
        if new != [(first, last)] || cx.changes.order.names(start, end) {
            if cx.changing() {
                cx.changes.add_fresh(start, end);
                return;
            }
            if new.is_empty() {
                return; // heard of twice, or a change of access rights
            }
        }
        // The same for the room: what is there by then may have taken the place of something that has yet to be told
        // of.
        let room = if cx.e.is_known(end, room) || cx.changes.order.names(end, room) { end } else { room };
        let whole = cx.mm.register(start, room - start);
        let (room, result) = match whole {
            Err(UffdError::Incompatible) => (end, cx.mm.register(start, end - start)), // something else is there now
            other => (room, other),
        };
        match result {
            Ok(()) => {}
            // Not anonymous any more, gone, or of another userfaultfd: left alone.
            Err(UffdError::Busy) => {
                self.let_go.refuse(start, end);
                return;
            }
            Err(_) => return,
        }
        // Not later: advice for a part of what the program has given other advice since makes it several mappings,
        // which mremap refuses.
        self.unadvised.push((start, room));
        // A part that was unmapped between the look at the mapping and its registration went without an event, and what
        // is mapped there next is not registered: it must not be taken for managed. (glibc's malloc maps twice what an
        // arena takes, unmaps what is too much, and puts the next arena there.) That is two mappings then, since only
        // one of them is registered.
        let is_whole = match cx.mm.mapping_from(start) {
            Ok(found) => found.is_some_and(|found| found.start <= start && end <= found.end),
            Err(_) => true, // not to be asked by this kernel
        };
        // Asked after the mapping was looked at: if no change is pending now, none was then.
        if !is_whole || cx.changing() {
            cx.changes.add_fresh(start, end);
            return;
        }
        // Only what was not managed before may have pages that are on no list.
        self.scans.0.extend(new);
        lock(&cx.e.memory.managed).insert(first, last);
        Stat::add(&cx.e.stat.adopted_ranges, 1);
    }

    /// Switches huge pages off in what was registered since the last call: the kernel would make one ready at each
    /// fault, before it asks us. Not along with registering: each of the two may have to wait for the lock of the
    /// address space, and meanwhile the program fills what is not registered (45 ms and 200 MiB were seen, with 16
    /// threads).
    pub(crate) fn advise_adopted(&mut self, cx: &Cx) {
        for (start, end) in self.unadvised.drain(..) {
            cx.mm.no_huge_pages(start, end);
        }
    }

    /// Puts the present pages of a newly adopted range on the lists, a bounded step at a time. What the scan sees is a
    /// hint only: a page that is gone by the time it is moved is noticed then.
    pub(crate) fn scan_step(&mut self, cx: &mut Cx, robust: &mut RobustLists) -> bool {
        let Some((first, last)) = self.scans.0.pop() else { return false };
        let e = cx.e;
        let mut seen = 0;
        let mut next = last;
        let mut zeros = std::mem::take(&mut self.zeros);
        let mut trace = cx.trace.take();
        let result = cx.mm.runs_by_kind(first.addr(), last.addr(), &mut |start, end, kind| {
            let (start, end) = (Vpn::of(start), Vpn::of(end));
            let stop = end.min(start + (SCAN_STEP - seen));
            match kind {
                PageKind::Guard => e.memory.marked.store(true, SeqCst),
                PageKind::Zero => zeros.push((start, stop)),
                PageKind::Page => {
                    list_present(e, start, stop);
                    if let Some(trace) = &mut trace {
                        (0..stop - start).for_each(|i| trace.note(start + i, true));
                    }
                }
            }
            seen += stop - start;
            if seen == SCAN_STEP {
                next = stop;
            }
            seen < SCAN_STEP
        });
        cx.trace = trace;
        if let Err(error) = result {
            give_up("PAGEMAP_SCAN failed", error);
        }
        if next < last {
            self.scans.0.push((next, last));
        }
        for (first, last) in zeros.drain(..) {
            take_out_zeros(cx, robust, first, last);
        }
        self.zeros = zeros;
        true
    }
}

/// Takes pages out that have no memory behind them but the kernel's shared zero page: a program that has read much
/// memory and then writes it would grow without a fault that the pager sees. They read as zeros afterwards as before.
/// A page that was written meanwhile has its content in the frame, and goes to the swap cache.
fn take_out_zeros(cx: &mut Cx, robust: &mut RobustLists, first: Vpn, last: Vpn) {
    let e = cx.e;
    let mut at = first;
    while at < last {
        let known = |vpn: Vpn| e.table.node(vpn).is_some_and(|node| e.table.state(node) != State::None);
        let run = at.up_to(last).take(ZEROS_AT_ONCE).take_while(|vpn| !known(*vpn)).count();
        if run == 0 {
            at += 1;
            continue;
        }
        if !e.table.has_room(at, at + (run - 1)) {
            break;
        }
        let Some((frame, got)) = cx.empty_frames(run) else { break };
        // SAFETY: frames just taken are empty arena pages without references; the source is the program's memory,
        // into which the engine holds no reference.
        let (bytes, result) = unsafe { cx.mm.move_pages(e.frames.addr(frame), at.addr(), got * PAGE_SIZE, true) };
        let done = bytes / PAGE_SIZE;
        e.frames.put_empty(frame + done, got - done);
        sort_out(cx.e, at, frame, done);
        at += done;
        match result {
            Ok(()) => {}
            // A change of mappings is pending: not now.
            Err(UffdError::Retry) if done == 0 => break,
            Err(UffdError::Retry) => {}
            Err(_) => at += usize::from(done == 0),
        }
    }
    // What could not be taken out is like any other page.
    list_present(e, at, last);
    let _ = robust.held_pages(cx);
}

/// `n` pages from `first` on were moved into frames: zero ones are dropped, the others are in the swap cache now.
fn sort_out(e: &Engine, first: Vpn, frame: FrameNo, n: usize) {
    let mut zeros = 0;
    for i in 0..n {
        let f = frame + i;
        // SAFETY: the frame is owned here and has a page.
        if is_zero(unsafe { e.frames.page(f) }) {
            zeros += 1;
            continue;
        }
        store::release_run(e, f - zeros, zeros, 0);
        zeros = 0;
        let Some(node) = e.table.node_or_create(first + i) else {
            fatal("the page table is full: the program uses more than 4 TiB of memory");
        };
        e.slots.frame_entries.set(f, None);
        let mut lru = lock(&e.lru);
        lru.map(&e.table, node, State::Mapped(None), Rank::NEW);
        lru.cache(&e.table, node, State::Cached(f));
    }
    store::release_run(e, frame + n - zeros, zeros, 0);
}
