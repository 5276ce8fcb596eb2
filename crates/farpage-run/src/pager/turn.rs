//! The pager's loop: messages, faults, one step of background work, or sleep.
//!
//! Caller: the pager's thread ([`crate::pager::start`]). Locks: `pinned` and `managed`, one at a time.

use crate::budget::turns::LATE;
use crate::mappings::event_order::When;
use crate::pager::state::{Fault, Outcome, Pager};
use crate::pager::trace::TraceKind;
use crate::shared::stacks::PAGER;
use crate::shared::state::give_up;
use crate::store;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::limit::with_room;
use farpage_base::sys::message::{fatal, warn};
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::{MESSAGES_MAX, Message};
use farpage_device::read_queue::FDS_MAX;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_ipc::tree;
use farpage_swap::PAGE_SIZE;
use farpage_swap::tuning::Controller;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long news wait for a moment without a change at most: the threads that gave them may wait.
const PUT_OFF_MAX: Duration = Duration::from_millis(20);

/// No fault should wait for longer.
const LONG: Duration = Duration::from_secs(5);

/// Between two looks at threads that have yet to tell a change.
const NAP: Duration = Duration::from_micros(50);

/// How long the pager sleeps at most: where a forking thread cannot kick it, that waits for so long...
const NAP_MAX: Duration = Duration::from_millis(20);
/// ... and after so many turns without anything to do, for [`REST`].
const IDLE_TURNS: u32 = 100;
const REST: Duration = Duration::from_secs(5);

impl Pager {
    /// One turn: messages, then faults, then one step of background work, or sleep.
    pub(crate) fn turn(&mut self) {
        self.forget_guarded();
        if self.e.fork.wanted() {
            self.pause_for_fork();
        }
        if self.e.is_behind(PAGER) {
            self.e.keep_up(PAGER);
            self.e.decompressor.wake();
        }
        let put_off = self.puts_off_news();
        if !put_off {
            self.adopt_news();
        }
        let got = self.read_messages();
        if !self.order.is_settled() {
            self.settle();
            if self.order.waits() {
                self.finish_notes();
                // Nothing can be placed or taken out as long as there is a change to come.
                if got == 0 {
                    self.sleep(Some(50_000));
                }
                return;
            }
        }
        let colocated = self.affinity.is_colocated();
        let mut worked = self.let_go_step() | self.come_back_step() | self.take_over_step();
        if colocated && !self.waiting.is_empty() {
            worked = self.balance();
        }
        self.serve_waiting();
        // Also while messages keep coming: a page that is not on a list cannot be reclaimed.
        worked |= self.scan_step();
        if !colocated || self.e.budget.over_limit() > 0 {
            worked |= self.balance();
        }
        self.finish_notes();
        self.wake_others(got > 0 || worked);
        if put_off && got == 0 {
            self.sleep(Some(NAP.as_nanos() as i64));
            return;
        }
        if got > 0 {
            if self.affinity.is_apart() {
                self.spin.served(&self.e.controls, Instant::now());
            }
            return;
        }
        if self.waiting.is_empty() {
            if !worked {
                if self.spin.again(Instant::now()) {
                    self.store_a_little();
                    return;
                }
                if let Some(trace) = &mut self.trace {
                    trace.flush();
                }
                if self.e.budget.over_limit() > 0 {
                    store::release_unused(self.e);
                }
                // A kick ends this; the time limit is for kernels where a forking thread cannot kick.
                let most = if self.idle_turns < IDLE_TURNS { NAP_MAX } else { REST };
                self.idle_turns = self.idle_turns.saturating_add(1);
                self.sleep(Some(self.cpu_latency.sleep(most).as_nanos() as i64));
                self.stay_awake(0, Instant::now());
            }
        } else {
            // Faults wait for an event to be finished by its thread, or for frames: both need somebody else to run.
            self.e.wakeups.pager_waits.store(true, Ordering::Release);
            let held = self.e.is_held();
            self.sleep(Some(if held { LATE.as_nanos() as i64 / 4 } else { 200_000 }));
            self.e.wakeups.pager_waits.store(false, Ordering::Release);
            self.stay_awake(0, Instant::now());
        }
    }

    /// Whether news wait for another turn. What is looked at while a change is pending has to be looked at again, and
    /// each message after that is waited for ([`Pager::add_fresh`]). Mostly none is pending once those on the queue are
    /// read and their threads have run; where a thousand threads start and end, one always is.
    fn puts_off_news(&mut self) -> bool {
        let e = self.e;
        let are_there = || e.notes.peek().is_some() || !self.news.is_empty() || !lock(&e.candidates).is_empty();
        if !self.order.is_settled() || !are_there() || !self.changing() {
            self.put_off_since = None;
            return false;
        }
        self.put_off_since.get_or_insert_with(Instant::now).elapsed() < PUT_OFF_MAX
    }

    /// After a turn: a process in which something happens is not idle.
    fn wake_others(&mut self, busy: bool) {
        if !busy {
            return;
        }
        self.idle_turns = 0;
        let rests = &self.e.wakeups.monitor_rests;
        if rests.load(Relaxed) && rests.swap(false, SeqCst) {
            self.e.ring_monitor();
        }
    }

    /// Waits for a message, a kick or a read, at most `timeout_ns`.
    pub(crate) fn sleep(&mut self, timeout_ns: Option<i64>) {
        // Where nothing would wake it, it only looks.
        let timeout_ns = if self.mm.descriptor().is_some() { timeout_ns } else { Some(0) };
        let messages = self.mm.descriptor().unwrap_or(self.kick.as_fd());
        let (mut fds, mut count) = ([messages; 3 + FDS_MAX], 3);
        fds[1] = self.kick.as_fd();
        fds[2] = self.forks.descriptor().unwrap_or(messages);
        for (place, fd) in fds[3..].iter_mut().zip(self.prefetch.queue.fds()) {
            (*place, count) = (fd, count + 1);
        }
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout =
            timeout_ns.map(|ns| rustix::time::Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 });
        let woken = poll(&mut fds[..count], timeout.as_ref()).is_ok();
        let has_come = |fd: &PollFd<'_>| woken && !fd.revents().is_empty();
        let (kicked, read) = (has_come(&fds[1]), fds[3..count].iter().any(has_come));
        if kicked {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(self.kick.as_fd(), &mut count);
        }
        if read {
            self.reap();
        }
    }

    /// `messages` have come by `now`: decides whether idle CPUs may sleep.
    fn stay_awake(&mut self, messages: usize, now: Instant) {
        let time = self.cpu_latency.count(&self.e.controls, messages as u32, now);
        if !time.is_zero() {
            Stat::add(&self.e.stat.idle_poll_ns, time.as_nanos() as u64);
        }
    }

    /// Reads messages, unless one is waited for that comes before them.
    pub(crate) fn next_messages(&mut self, batch: &mut [Message]) -> usize {
        if self.grace_period.is_pending() {
            if self.changing() {
                std::thread::sleep(NAP);
                return 0;
            }
            self.grace_period.end();
        }
        let n = match self.read_with_room(|pager| pager.mm.read(batch)) {
            Ok(n) => n,
            // The message of a fork, which waits until there is a descriptor again.
            Err(Errno::MFILE | Errno::NFILE) => {
                std::thread::sleep(NAP);
                0
            }
            Err(e) => give_up("reading the userfaultfd failed", e),
        };
        let child = self.mm.take_child();
        self.hear_forks(child);
        n
    }

    /// A message of the program's was read, `child` with it, if it is one of a fork. Reads those of the engine's own.
    pub(crate) fn hear_forks(&mut self, child: Option<OwnedFd>) {
        self.forks.keep_one(0, child);
        while let Ok(child) = self.read_with_room(|pager| pager.forks.read()) {
            self.forks.keep_one(1, Some(child));
        }
    }

    /// Reads messages, of which each of a fork brings a descriptor. Where there is none left, what was put by is used.
    fn read_with_room<T>(&mut self, mut read: impl FnMut(&mut Pager) -> Result<T, Errno>) -> Result<T, Errno> {
        match read(self) {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.e.fork.channel.make_room();
                with_room(|| read(self))
            }
            other => other,
        }
    }

    /// Notes a change that was read; whether it is to be applied now. `is_known` as in [`Order::push`].
    ///
    /// [`Order::push`]: crate::mappings::event_order::Order::push
    pub(crate) fn note_change(&mut self, change: Message, is_known: impl Fn(usize, usize) -> bool) -> bool {
        let when = self.order.push(change, is_known);
        if when == When::Later {
            self.grace_period.begin();
        }
        when == When::Now
    }

    /// The next change that has waited, if none is pending. `is_known` as in [`Pager::note_change`].
    pub(crate) fn next_settled(&mut self, is_known: impl Fn(usize, usize) -> bool) -> Option<Message> {
        self.order.next_settled(is_known, |page| self.mm.is_registered(page))
    }

    /// `[start, end)` (bytes) was looked at while a change was pending.
    pub(crate) fn add_fresh(&mut self, start: usize, end: usize) {
        self.order.add_fresh(start, end);
        self.grace_period.begin();
    }

    /// Reads and sorts one batch: events are applied, faults queued. Returns the number of messages.
    pub(crate) fn read_messages(&mut self) -> usize {
        let mut batch = [Message::Unmap { start: 0, end: 0 }; MESSAGES_MAX];
        // One by one when it matters which thread is told to go on.
        let most = if self.order.is_settled() { MESSAGES_MAX } else { 1 };
        let n = self.next_messages(&mut batch[..most]);
        if n == 0 {
            return 0;
        }
        let since = Instant::now();
        if let Message::Fault { tid, .. } = batch[0] {
            let others = [self.e.wakeups.writer_tid.load(Ordering::Relaxed), self.e.decompressor.tid()];
            self.affinity.sample(&self.e.controls, tid, others, self.filled, since);
            self.spin.fault();
        }
        self.stay_awake(n, since);
        for m in &batch[..n] {
            self.dispatch(*m, since);
        }
        n
    }

    /// Applies an event, queues a fault.
    pub(crate) fn dispatch(&mut self, m: Message, since: Instant) {
        match m {
            Message::Fault { addr, write, tid } => {
                if self.e.arena.all.contains(addr) {
                    fatal(&format!(
                        "engine thread {tid} touched frame {addr:#x}, which has no page: this is a bug in farpage"
                    ));
                }
                if self.fault_threads.is_new(tid) {
                    Stat::add(&self.e.stat.fault_threads, 1);
                }
                self.prefetch.concurrency.fault(tid);
                self.e.controls.decide(Controller::Crowd, self.prefetch.concurrency.is_there());
                self.waiting.push(Fault { addr, write, tid, since });
            }
            // Its thread has news. They are for the next turn: now its change is pending.
            Message::Remove { start, .. } if self.e.arena.doorbell.contains(start) => {}
            change => {
                let e = self.e;
                // Before it is applied: its thread goes on now, and what it maps at this place has to be told.
                if let Some((start, end)) = change.left() {
                    e.recent.cut(start, end);
                }
                if self.note_change(change, |start, end| e.is_known(start, end)) {
                    self.apply(change);
                }
            }
        }
    }

    /// If no change of mappings is pending: what waited for one is applied, and what was registered meanwhile is
    /// adopted.
    pub(crate) fn settle(&mut self) {
        if self.changing() {
            return;
        }
        let e = self.e;
        while let Some(change) = self.next_settled(|start, end| e.is_known(start, end)) {
            self.apply(change);
        }
        if self.order.waits() {
            return; // a change is pending again
        }
        for (start, end) in self.order.forget().iter() {
            self.adopt_mappings(start as usize, end as usize);
        }
    }

    /// For the last events: to addresses from `start` to `end`.
    fn note(&self, kind: EventKind, start: usize, end: usize) {
        self.e.stat.events.note(kind, Vpn::of(start).number(), (end - start) / PAGE_SIZE);
    }

    /// For the record of what the program touches: to addresses from `start` to `end`.
    fn trace_change(&mut self, kind: TraceKind, start: usize, end: usize) {
        if let Some(trace) = &mut self.trace {
            trace.note_range(kind, Vpn::of(start), Vpn::of(end));
        }
    }

    /// Applies a change of mappings.
    pub(crate) fn apply(&mut self, m: Message) {
        match m {
            Message::Fault { .. } => {}
            Message::Remove { start, end } => {
                Stat::add(&self.e.stat.event_remove, 1);
                self.note(EventKind::Discard, start, end);
                self.trace_change(TraceKind::Free, start, end);
                self.forget(start, end, false);
                self.cut_scans(Vpn::of(start), Vpn::of(end));
            }
            Message::Unmap { start, end } => {
                Stat::add(&self.e.stat.event_unmap, 1);
                self.note(EventKind::Unmap, start, end);
                self.trace_change(TraceKind::Free, start, end);
                self.forget(start, end, true);
                // What is mapped there from now on is not registered, and must not be taken for what was.
                self.cut_scans(Vpn::of(start), Vpn::of(end));
                lock(&self.e.managed).remove(Vpn::of(start), Vpn::of(end));
            }
            Message::Remap { from, to, len } => {
                Stat::add(&self.e.stat.event_remap, 1);
                self.note(EventKind::Remap, from, from + len);
                self.trace_change(TraceKind::Free, to, to + len);
                if let Some(trace) = &mut self.trace {
                    trace.note_move(Vpn::of(from), Vpn::of(to), len / PAGE_SIZE);
                }
                self.follow_remap(from, to, len);
            }
        }
        // Another thread may have been given the place before this was told, and have found it known.
        if let Some((start, end)) = m.left() {
            lock(&self.e.read_only).remove(Vpn::of(start), Vpn::of(end));
            lock(&self.e.pinned).retain(|vpn| !(start..end).contains(&vpn.addr()));
            self.e.recent.cut(start, end);
            if end - start >= self.e.large() {
                self.news.push((start, end));
            }
        }
    }

    /// Serves what waits; what cannot be served yet stays.
    pub(crate) fn serve_waiting(&mut self) {
        let mut i = 0;
        let held = !self.waiting.is_empty() && self.e.is_held();
        let mut longest = Duration::ZERO;
        while i < self.waiting.len() {
            let fault = self.waiting[i];
            if held && fault.since.elapsed() < LATE {
                i += 1;
                continue;
            }
            match self.serve(fault) {
                Outcome::Served => {
                    self.waiting.swap_remove(i);
                    let time = fault.since.elapsed();
                    longest = longest.max(time);
                    self.e.stat.record_fault(time.as_nanos() as u64);
                    Stat::add(&self.e.stat.pgfault, 1);
                }
                Outcome::Dropped => {
                    self.waiting.swap_remove(i);
                }
                Outcome::Later => {
                    if !self.reported && fault.since.elapsed() > LONG {
                        self.report(fault);
                    }
                    // The kernel refuses all others, too, until that is read: a thousand would be tried in vain.
                    if self.changing() {
                        break;
                    }
                    i += 1;
                }
            }
        }
        if longest > Duration::ZERO {
            tree::note_waited(longest);
        }
    }

    /// A thread must never hang in silence. Once: a thousand may wait.
    fn report(&mut self, fault: Fault) {
        self.reported = true;
        let node = self.e.table.node(Vpn::of(fault.addr));
        let state = node.map(|n| self.e.table.state(n));
        let (addr, changing) = (fault.addr, self.changing());
        warn(&format!(
            "a thread has been waiting for the page at {addr:#x} for {LONG:?}: {state:?}, mapping change pending: {changing}"
        ));
    }

    /// Whether a change of mappings is pending whose event was not read yet.
    pub(crate) fn changing(&self) -> bool {
        self.mm.is_changing(self.e.arena.frames.base)
    }
}
