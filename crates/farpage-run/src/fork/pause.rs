//! The pager's part of a fork: it holds still while the process is copied, and serves what the forking thread needs.

use crate::fork::pending_events::PendingEvents;
use crate::fork::reserve::given_to_children;
use crate::mappings::event_order::is_known_after;
use crate::pager::bring_in::found_present;
use crate::pager::cx::Outcome;
use crate::pager::state::{PAUSED_NAME, Pager, THREAD_NAME};
use crate::shared::given_uffds;
use crate::shared::late_fills::LATE_FILLS_MAX;
use crate::shared::page_table::State;
use crate::shared::protocol::{PAUSED, RESUME_WANTED, RUNNING};
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_base::mem::zeros::zero_pages;
use farpage_base::sys::proc::{cpu_time, waits_for_futex, waits_to_be_read};
use farpage_base::sys::thread::set_name;
use farpage_base::sys::uffd::{Message, UffdError};
use farpage_device::{Entry, LoadError};
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Events and pages that one pause has room for.
const PENDING_MAX: usize = LATE_FILLS_MAX;

/// What happened during a pause, in order: it becomes known to the words when the copy is made.
enum Pending {
    /// A change of mappings by another thread.
    Event(Message),
    /// A page that was absent is there (see [`Pager::help`]).
    LateFills(Vpn),
}

impl Pending {
    fn event(&self) -> Option<Message> {
        match *self {
            Pending::Event(event) => Some(event),
            Pending::LateFills(_) => None,
        }
    }
}

/// Where the content of an absent page is.
enum Source {
    Nowhere,
    Frame(FrameNo),
    Slot(Entry),
}

/// Whether something is mapped in `[start, end)` (bytes), after what is pending.
fn is_known_then(e: &Engine, pending: &[Pending], start: usize, end: usize) -> bool {
    let told = pending.iter().rev().filter_map(Pending::event);
    is_known_after((start, end), told, |start, end| e.is_known(start, end))
}

impl Pager {
    /// Holds still from the request of a forking thread until the process has been copied.
    pub(crate) fn pause_for_fork(&mut self) {
        let f = &self.cx.e.fork;
        let mut held = PendingEvents::new();
        let mut pending: Vec<Pending> = Vec::with_capacity(PENDING_MAX);
        // Also for the control blocks of new threads, which the forking thread touches next.
        self.adoption.adopt_news(&mut self.cx);
        self.settle_changes();
        self.adoption.finish_notes(&self.cx);
        // A child can use nothing of what is on its way, and its frames would never be free there.
        self.cx.prefetch.land_all(self.cx.e);
        f.late_fills.clear();
        self.cx.e.space.share_with_child();
        f.channel.fill(&given_to_children(self.cx.e), &self.cx.e.space.own_files());
        self.cx.changes.forks.keep();
        let is_told = given_uffds::are_forks_told();
        // From here on nothing may change that the child inherits: no allocation, no word, no list. (But see `help`.)
        set_name(PAUSED_NAME);
        f.set_pager(PAUSED);
        let forker = f.forking.tid.load(SeqCst);
        let (mut forker_faults, mut had) = (false, None);
        let e = self.cx.e;
        let hold = |event, held: &mut PendingEvents, pending: &mut Vec<Pending>| {
            held.note(event);
            f.late_fills.event();
            pending.push(Pending::Event(event));
        };
        while f.pager.load(SeqCst) != RESUME_WANTED {
            let mut one = [Message::Unmap { start: 0, end: 0 }; 1];
            let more = self.cx.changes.order.len() + 1;
            let room = self.cx.waiting.len() < self.cx.waiting.capacity()
                && pending.len() + more <= PENDING_MAX
                && !held.is_full(more)
                && self.cx.changes.order.has_room();
            // The fork waits until its own message is read, which comes behind those of other threads: for these there
            // is room left until then.
            let reads = if is_told { room && !held.is_half_full() || self.waits_to_be_heard(forker) } else { room };
            // Beyond the room, something may be allocated. The copy is made then, or in a moment in which it is not
            // good.
            f.copy_unsafe.store(u32::from(reads && !room), SeqCst);
            let n = if reads { self.cx.changes.next_messages(self.cx.e, &*self.cx.mm, &mut one) } else { 0 };
            self.cx.changes.hear_forks(self.cx.e, None);
            if n == 0 {
                f.copy_unsafe.store(0, SeqCst);
            }
            match one[0] {
                _ if n == 0 && self.cx.changes.order.waits() && !self.cx.changing() => {
                    while let Some(event) =
                        self.cx.changes.next_settled(&*self.cx.mm, |start, end| is_known_then(e, &pending, start, end))
                    {
                        hold(event, &mut held, &mut pending);
                    }
                }
                _ if n == 0 => {
                    // What is awaited comes with a message, but for locks and where a change waits for another.
                    let is_told_of = self.cx.waiting.is_empty() && !self.cx.changes.order.waits() && !is_told;
                    self.cx.sleep(Some(if is_told_of { 2_000_000 } else { 200_000 }));
                }
                Message::Fault { tid, .. } => {
                    self.dispatch(one[0], Instant::now());
                    forker_faults |= tid == forker;
                    if !forker_faults {
                        continue;
                    }
                }
                // A wake-up for notes, which are looked at after the fork.
                Message::Remove { start, .. } if self.cx.e.arena.doorbell.contains(start) => {}
                event => {
                    if self.cx.changes.note(event, |start, end| is_known_then(e, &pending, start, end)) {
                        hold(event, &mut held, &mut pending);
                    }
                    continue;
                }
            }
            // The forking thread has not reached the system call yet: it waits for a page, or for a lock that a thread
            // may hold that waits for one.
            if !self.cx.waiting.is_empty() && (forker_faults || self.waits_for_lock(forker, &mut had)) {
                self.help(&mut pending);
                forker_faults &= !self.cx.waiting.is_empty();
                if pending.len() + self.cx.changes.order.len() >= PENDING_MAX || held.is_half_full() {
                    // Other threads have done much since. A copy that is made just now is not good.
                    f.copy_unsafe.store(1, SeqCst);
                    self.apply_pending(&mut pending);
                    held.clear();
                    f.late_fills.clear();
                    f.copy_unsafe.store(0, SeqCst);
                }
            }
        }
        f.copy_unsafe.store(0, SeqCst);
        // The copy is made (or failed). First the lease, so that nothing the child may need is reused.
        let lease = self.cx.e.space.fork_parent();
        self.cx.e.fork.standby.dismiss();
        let channel = self.keep_channel(lease);
        if is_told {
            // SAFETY: as below.
            let to = channel.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
            let managed = lock(&self.cx.e.memory.managed).clone();
            self.cx.changes.forks.send(to, managed.iter().map(|(start, end)| (start.addr(), end.addr())));
        }
        self.apply_pending(&mut pending);
        // Until all is told; a change that was made just now may be in the copy.
        while self.cx.changing() || self.cx.changes.order.waits() {
            let mut one = [Message::Unmap { start: 0, end: 0 }; 1];
            let read = self.cx.changes.next_messages(self.cx.e, &*self.cx.mm, &mut one) == 1;
            match one[0] {
                _ if !read && !self.cx.changing() => {
                    while let Some(event) =
                        self.cx.changes.next_settled(&*self.cx.mm, |start, end| e.is_known(start, end))
                    {
                        held.note(event);
                        self.adoption.apply(&mut self.cx, event);
                    }
                }
                _ if !read => self.cx.await_change(100_000),
                Message::Fault { .. } => self.dispatch(one[0], Instant::now()),
                Message::Remove { start, .. } if self.cx.e.arena.doorbell.contains(start) => {}
                event => {
                    if self.cx.changes.note(event, |start, end| e.is_known(start, end)) {
                        held.note(event);
                        self.adoption.apply(&mut self.cx, event);
                    }
                }
            }
        }
        if let Some(fd) = channel {
            // SAFETY: it stays open until the monitor finds the child gone, and the monitor waits for the fork.
            held.send(unsafe { BorrowedFd::borrow_raw(fd) });
        }
        self.cx.e.fork.set_pager(RUNNING);
        set_name(THREAD_NAME);
    }

    /// Whether the forking thread may have made the copy, and wait until the pager has read that.
    fn waits_to_be_heard(&self, forker: u32) -> bool {
        waits_to_be_read(self.cx.changes.grace_period.proc(), forker).unwrap_or(true)
    }

    /// Whether the forking thread sleeps on a futex. Where `/proc` does not say (files of a process that must not be
    /// dumped are root's): whether it had no CPU time since the last look, which `had` is from; to help it for nothing
    /// does no harm.
    fn waits_for_lock(&self, forker: u32, had: &mut Option<Duration>) -> bool {
        waits_for_futex(self.cx.changes.grace_period.proc(), forker).unwrap_or_else(|| {
            let time = cpu_time(forker);
            std::mem::replace(had, time) == time
        })
    }

    /// Applies events and serves faults until no change of mappings is pending.
    fn settle_changes(&mut self) {
        loop {
            while self.read_messages() > 0 {}
            self.adoption.settle(&mut self.cx);
            if !self.cx.changes.order.waits() {
                self.serve_waiting();
            }
            match self.cx.changing() {
                false if self.cx.changes.order.is_settled() => return,
                false => self.cx.sleep(Some(50_000)),
                true => self.cx.await_change(50_000),
            }
        }
    }

    /// Fills the pages that threads wait for, in a way that the process may be copied at any moment: a page is copied
    /// to its place, and its word, its frame, its slot stay as they are. That it may be there is noted before. What the
    /// pager writes while the process is being copied the child sees up to some point and not beyond (a write to a page
    /// that the kernel has gone past waits until the copy is complete), and so it is with the pages placed. So each
    /// page that is there in the child against its word is noted in the child, and has the right content.
    fn help(&mut self, pending: &mut Vec<Pending>) {
        let mut i = 0;
        // While a change waits for another, nothing can be placed.
        while !self.cx.changes.order.waits() && i < self.cx.waiting.len() && pending.len() < PENDING_MAX {
            let vpn = Vpn::of(self.cx.waiting[i].addr);
            if self.help_one(vpn, pending) {
                self.cx.waiting.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// Whether the thread that waits for the page can go on.
    fn help_one(&mut self, vpn: Vpn, pending: &mut Vec<Pending>) -> bool {
        let e = self.cx.e;
        let Some((at, source)) = self.source(vpn, pending) else { return false };
        let src = match source {
            Source::Nowhere => zero_pages(),
            Source::Frame(f) => e.frames.addr(f),
            Source::Slot(entry) => {
                // The locks that this takes, a child frees.
                if let Err(error) = e.space.load(entry, &mut self.cx.scratch.0[0]) {
                    return at == vpn && self.help_lost(vpn, entry, &error);
                }
                e.verify(at, entry, &self.cx.scratch.0[0]);
                Stat::add(&e.stat.pgmajfault, 1);
                Stat::add(&e.stat.pswpin, 1);
                std::ptr::from_ref(&self.cx.scratch.0[0]) as usize
            }
        };
        if !e.fork.late_fills.page(vpn) {
            return false;
        }
        // SAFETY: vpn is a registered page of the program, where no reference of ours points; src is engine memory.
        match unsafe { self.cx.mm.copy_pages(vpn.addr(), src, PAGE_SIZE, false) }.1 {
            Ok(()) => {
                e.budget.add(1);
                pending.push(Pending::LateFills(vpn));
                true
            }
            Err(stop) => {
                e.fork.late_fills.take_back();
                self.cx.resolve_refusal(vpn, Some(stop)) == Outcome::Dropped
            }
        }
    }

    /// As [`Pager::help_one`], for a page that no device can read back.
    fn help_lost(&mut self, vpn: Vpn, entry: Entry, error: &LoadError) -> bool {
        // The word and the slot change here: a copy made meanwhile is not good.
        self.cx.e.fork.copy_unsafe.store(1, SeqCst);
        let lost = self.cx.poison(vpn, entry, error) == Some(UffdError::Present);
        self.cx.e.fork.copy_unsafe.store(0, SeqCst);
        if lost {
            self.cx.mm.wake(vpn.addr(), PAGE_SIZE);
        }
        lost
    }

    /// Under which page number the words know the absent page `vpn`, and where its content is, with the changes that
    /// the words do not know of yet. `None`: this cannot be said now.
    fn source(&self, vpn: Vpn, pending: &[Pending]) -> Option<(Vpn, Source)> {
        let mut at = vpn;
        for event in pending.iter().rev() {
            let addr = at.addr();
            match *event {
                Pending::Event(Message::Unmap { start, end } | Message::Remove { start, end })
                    if (start..end).contains(&addr) =>
                {
                    return Some((at, Source::Nowhere));
                }
                Pending::Event(Message::Remap { from, to, len }) => {
                    if (to..to + len).contains(&addr) {
                        at = Vpn::of(addr - to + from);
                    } else if (from..from + len).contains(&addr) {
                        return None;
                    }
                }
                _ => {}
            }
        }
        let state = self.cx.e.table.node(at).map_or(State::None, |node| self.cx.e.table.state(node));
        let source = match state {
            State::None | State::Mapped(_) => Source::Nowhere,
            State::Cached(f) => Source::Frame(f),
            State::Swapped(entry) => Source::Slot(entry),
            State::Writeback(_) => return None,
        };
        Some((at, source))
    }

    /// The words learn what happened during the pause.
    fn apply_pending(&mut self, pending: &mut Vec<Pending>) {
        for what in pending.drain(..) {
            match what {
                Pending::Event(event) => self.adoption.apply(&mut self.cx, event),
                Pending::LateFills(vpn) => {
                    Stat::add(&self.cx.e.stat.pgfault, 1);
                    found_present(self.cx.e, vpn);
                }
            }
        }
    }

    /// Our end of the channel to the child stays open as long as the lease lasts. `None`: there is none; the child
    /// cannot go on.
    fn keep_channel(&mut self, lease: u32) -> Option<RawFd> {
        let f = &self.cx.e.fork;
        match f.channel.take_end() {
            Some(here) => {
                let fd = here.into_raw_fd();
                f.leases.add(fd, lease);
                Some(fd)
            }
            None => {
                self.cx.e.space.end_lease(lease);
                None
            }
        }
    }
}
