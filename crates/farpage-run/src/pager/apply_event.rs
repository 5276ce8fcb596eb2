//! Following the program's changes of its mappings: what was discarded or unmapped is forgotten, what was moved is
//! moved.
//!
//! Runs on the pager thread, while the program thread that made the change waits for its event to be read (a discard
//! has not happened yet then; an unmap or a move has). The races around this: `docs/dev/events.md`.

use crate::pager::cx::Cx;
use crate::pager::register::Adoption;
use crate::pager::trace::TraceKind;
use crate::shared::page_table::{State, leaf_start};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::message::fatal;
use farpage_base::sys::uffd::Message;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::PAGE_SIZE;
use farpage_swap::workingset::Rank;

impl Adoption {
    /// Applies a change of mappings.
    pub(crate) fn apply(&mut self, cx: &mut Cx, m: Message) {
        match m {
            Message::Fault { .. } => {}
            Message::Remove { start, end } => {
                Stat::add(&cx.e.stat.event_remove, 1);
                note(cx, EventKind::Discard, start, end);
                trace_change(cx, TraceKind::Free, start, end);
                cx.forget(start, end, false);
                self.scans.cut(Vpn::of(start), Vpn::of(end));
            }
            Message::Unmap { start, end } => {
                Stat::add(&cx.e.stat.event_unmap, 1);
                note(cx, EventKind::Unmap, start, end);
                trace_change(cx, TraceKind::Free, start, end);
                cx.forget(start, end, true);
                // What is mapped there from now on is not registered, and must not be taken for what was.
                self.scans.cut(Vpn::of(start), Vpn::of(end));
                lock(&cx.e.memory.managed).remove(Vpn::of(start), Vpn::of(end));
            }
            Message::Remap { from, to, len } => {
                Stat::add(&cx.e.stat.event_remap, 1);
                note(cx, EventKind::Remap, from, from + len);
                trace_change(cx, TraceKind::Free, to, to + len);
                if let Some(trace) = &mut cx.trace {
                    trace.note_move(Vpn::of(from), Vpn::of(to), len / PAGE_SIZE);
                }
                self.follow_remap(cx, from, to, len);
            }
        }
        // Another thread may have been given the place before this was told, and have found it known.
        if let Some((start, end)) = m.left() {
            lock(&cx.e.memory.read_only).remove(Vpn::of(start), Vpn::of(end));
            lock(&cx.e.memory.pinned).retain(|vpn| !(start..end).contains(&vpn.addr()));
            cx.e.discovery.recent.cut(start, end);
            if end - start >= cx.e.large() {
                self.news.push((start, end));
            }
        }
    }

    /// mremap moved `len` bytes: the words follow.
    pub(crate) fn follow_remap(&mut self, cx: &mut Cx, from: usize, to: usize, len: usize) {
        let e = cx.e;
        let (first, last) = (Vpn::of(from), Vpn::of(from + len));
        let shift = Vpn::of(to);
        {
            let mut managed = lock(&e.memory.managed);
            let known = managed.overlaps(first, last);
            managed.remove(first, last);
            known.iter().for_each(|(s, t)| managed.insert(shift + (*s - first), shift + (*t - first)));
            if known != [(first, last)] {
                cx.changes.add_fresh(to, to + len); // the rest has yet to be looked at
            }
        }
        // Nothing of the old content of `to` may survive there.
        cx.forget(to, to + len, true);
        let moved = self.scans.cut(first, last);
        self.scans.0.extend(moved.iter().map(|(s, t)| (shift + (*s - first), shift + (*t - first))));
        e.table.for_each(first, last, |vpn, old| {
            // What the leaf before had is elsewhere: it is the next one that is taken.
            if vpn == leaf_start(vpn) && vpn > first {
                e.table.drop_empty_leaves(vpn - 1, vpn);
            }
            let mut lru = lock(&e.lru);
            let mut state = e.table.state(old);
            // A page that is being written keeps its node until the writer is done (microseconds; a file: a write).
            while let State::Writeback(_) = state {
                drop(lru);
                rustix::thread::sched_yield();
                lru = lock(&e.lru);
                state = e.table.state(old);
            }
            let mut rank = Rank::NEW;
            match state {
                State::None => return,
                State::Mapped(_) => rank = lru.unmap(&e.table, old, State::None),
                State::Cached(_) => {
                    lru.uncache(&e.table, old, state, State::None);
                }
                _ => e.table.set(old, State::None),
            }
            let Some(new) = e.table.node_or_create(shift + (vpn - first)) else {
                fatal("the page table is full: the program uses more than 4 TiB of memory");
            };
            match state {
                State::Mapped(_) => lru.map(&e.table, new, state, rank),
                State::Cached(_) => {
                    e.table.set(new, state);
                    lru.recache(&e.table, new, false);
                }
                _ => {
                    e.table.set_shadow(new, e.table.shadow(old));
                    e.table.set(new, state);
                }
            }
        });
        e.table.drop_empty_leaves(first, last);
    }
}

/// For the last events: to addresses from `start` to `end`.
fn note(cx: &Cx, kind: EventKind, start: usize, end: usize) {
    cx.e.stat.events.note(kind, Vpn::of(start).number(), (end - start) / PAGE_SIZE);
}

/// For the record of what the program touches: to addresses from `start` to `end`.
fn trace_change(cx: &mut Cx, kind: TraceKind, start: usize, end: usize) {
    if let Some(trace) = &mut cx.trace {
        trace.note_range(kind, Vpn::of(start), Vpn::of(end));
    }
}
