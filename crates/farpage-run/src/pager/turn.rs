//! The pager's loop: messages, faults, one step of background work, or sleep.
//!
//! Caller: the pager's thread ([`crate::pager::start`]). Locks: `pinned` and `managed`, one at a time.

use crate::budget::turns::LATE;
use crate::pager::cx::{Fault, Outcome};
use crate::pager::state::Pager;
use crate::pager::trace::TraceKind;
use crate::shared::stacks::PAGER;
use crate::store;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::message::{fatal, warn};
use farpage_base::sys::uffd::{MESSAGES_MAX, Message};
use farpage_ipc::stat::{EventKind, Stat};
use farpage_ipc::tree;
use farpage_swap::PAGE_SIZE;
use farpage_swap::tuning::Controller;
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
        self.cx.forget_guarded();
        if self.cx.e.fork.wanted() {
            self.pause_for_fork();
        }
        if self.cx.e.is_behind(PAGER) {
            self.cx.e.keep_up(PAGER);
            self.cx.e.decompressor.wake();
        }
        let put_off = self.puts_off_news();
        if !put_off {
            self.adopt_news();
        }
        let got = self.read_messages();
        if !self.cx.changes.order.is_settled() {
            self.settle();
            if self.cx.changes.order.waits() {
                self.finish_notes();
                // Nothing can be placed or taken out as long as there is a change to come.
                if got == 0 {
                    self.cx.sleep(Some(50_000));
                }
                return;
            }
        }
        let colocated = self.affinity.is_colocated();
        let mut worked = self.let_go_step() | self.come_back_step() | self.take_over_step();
        if colocated && !self.cx.waiting.is_empty() {
            worked = self.balance();
        }
        self.serve_waiting();
        // Also while messages keep coming: a page that is not on a list cannot be reclaimed.
        worked |= self.scan_step();
        if !colocated || self.cx.e.budget.over_limit() > 0 {
            worked |= self.balance();
        }
        self.finish_notes();
        self.wake_others(got > 0 || worked);
        if put_off && got == 0 {
            self.cx.sleep(Some(NAP.as_nanos() as i64));
            return;
        }
        if got > 0 {
            if self.affinity.is_apart() {
                self.spin.served(&self.cx.e.controls, Instant::now());
            }
            return;
        }
        if self.cx.waiting.is_empty() {
            if !worked {
                if self.spin.again(Instant::now()) {
                    self.store_a_little();
                    return;
                }
                if let Some(trace) = &mut self.cx.trace {
                    trace.flush();
                }
                if self.cx.e.budget.over_limit() > 0 {
                    store::release_unused(self.cx.e);
                }
                // A kick ends this; the time limit is for kernels where a forking thread cannot kick.
                let most = if self.idle_turns < IDLE_TURNS { NAP_MAX } else { REST };
                self.idle_turns = self.idle_turns.saturating_add(1);
                self.cx.sleep(Some(self.cpu_latency.sleep(most).as_nanos() as i64));
                self.stay_awake(0, Instant::now());
            }
        } else {
            // Faults wait for an event to be finished by its thread, or for frames: both need somebody else to run.
            self.cx.e.wakeups.pager_waits.store(true, Ordering::Release);
            let held = self.cx.e.is_held();
            self.cx.sleep(Some(if held { LATE.as_nanos() as i64 / 4 } else { 200_000 }));
            self.cx.e.wakeups.pager_waits.store(false, Ordering::Release);
            self.stay_awake(0, Instant::now());
        }
    }

    /// Whether news wait for another turn. What is looked at while a change is pending has to be looked at again, and
    /// each message after that is waited for ([`Pager::add_fresh`]). Mostly none is pending once those on the queue are
    /// read and their threads have run; where a thousand threads start and end, one always is.
    fn puts_off_news(&mut self) -> bool {
        let e = self.cx.e;
        let are_there = || e.notes.peek().is_some() || !self.news.is_empty() || !lock(&e.candidates).is_empty();
        if !self.cx.changes.order.is_settled() || !are_there() || !self.cx.changing() {
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
        let rests = &self.cx.e.wakeups.monitor_rests;
        if rests.load(Relaxed) && rests.swap(false, SeqCst) {
            self.cx.e.ring_monitor();
        }
    }

    /// `messages` have come by `now`: decides whether idle CPUs may sleep.
    fn stay_awake(&mut self, messages: usize, now: Instant) {
        let time = self.cpu_latency.count(&self.cx.e.controls, messages as u32, now);
        if !time.is_zero() {
            Stat::add(&self.cx.e.stat.idle_poll_ns, time.as_nanos() as u64);
        }
    }

    /// Reads and sorts one batch: events are applied, faults queued. Returns the number of messages.
    pub(crate) fn read_messages(&mut self) -> usize {
        let mut batch = [Message::Unmap { start: 0, end: 0 }; MESSAGES_MAX];
        // One by one when it matters which thread is told to go on.
        let most = if self.cx.changes.order.is_settled() { MESSAGES_MAX } else { 1 };
        let n = self.cx.changes.next_messages(self.cx.e, &*self.cx.mm, &mut batch[..most]);
        if n == 0 {
            return 0;
        }
        let since = Instant::now();
        if let Message::Fault { tid, .. } = batch[0] {
            let others = [self.cx.e.wakeups.writer_tid.load(Ordering::Relaxed), self.cx.e.decompressor.tid()];
            self.affinity.sample(&self.cx.e.controls, tid, others, self.cx.filled, since);
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
                if self.cx.e.arena.all.contains(addr) {
                    fatal(&format!(
                        "engine thread {tid} touched frame {addr:#x}, which has no page: this is a bug in farpage"
                    ));
                }
                if self.fault_threads.is_new(tid) {
                    Stat::add(&self.cx.e.stat.fault_threads, 1);
                }
                self.cx.prefetch.concurrency.fault(tid);
                self.cx.e.controls.decide(Controller::Crowd, self.cx.prefetch.concurrency.is_there());
                self.cx.waiting.push(Fault { addr, write, tid, since });
            }
            // Its thread has news. They are for the next turn: now its change is pending.
            Message::Remove { start, .. } if self.cx.e.arena.doorbell.contains(start) => {}
            change => {
                let e = self.cx.e;
                // Before it is applied: its thread goes on now, and what it maps at this place has to be told.
                if let Some((start, end)) = change.left() {
                    e.recent.cut(start, end);
                }
                if self.cx.changes.note(change, |start, end| e.is_known(start, end)) {
                    self.apply(change);
                }
            }
        }
    }

    /// If no change of mappings is pending: what waited for one is applied, and what was registered meanwhile is
    /// adopted.
    pub(crate) fn settle(&mut self) {
        if self.cx.changing() {
            return;
        }
        let e = self.cx.e;
        while let Some(change) = self.cx.changes.next_settled(&*self.cx.mm, |start, end| e.is_known(start, end)) {
            self.apply(change);
        }
        if self.cx.changes.order.waits() {
            return; // a change is pending again
        }
        for (start, end) in self.cx.changes.order.forget().iter() {
            self.adopt_mappings(start as usize, end as usize);
        }
    }

    /// For the last events: to addresses from `start` to `end`.
    fn note(&self, kind: EventKind, start: usize, end: usize) {
        self.cx.e.stat.events.note(kind, Vpn::of(start).number(), (end - start) / PAGE_SIZE);
    }

    /// For the record of what the program touches: to addresses from `start` to `end`.
    fn trace_change(&mut self, kind: TraceKind, start: usize, end: usize) {
        if let Some(trace) = &mut self.cx.trace {
            trace.note_range(kind, Vpn::of(start), Vpn::of(end));
        }
    }

    /// Applies a change of mappings.
    pub(crate) fn apply(&mut self, m: Message) {
        match m {
            Message::Fault { .. } => {}
            Message::Remove { start, end } => {
                Stat::add(&self.cx.e.stat.event_remove, 1);
                self.note(EventKind::Discard, start, end);
                self.trace_change(TraceKind::Free, start, end);
                self.cx.forget(start, end, false);
                self.cut_scans(Vpn::of(start), Vpn::of(end));
            }
            Message::Unmap { start, end } => {
                Stat::add(&self.cx.e.stat.event_unmap, 1);
                self.note(EventKind::Unmap, start, end);
                self.trace_change(TraceKind::Free, start, end);
                self.cx.forget(start, end, true);
                // What is mapped there from now on is not registered, and must not be taken for what was.
                self.cut_scans(Vpn::of(start), Vpn::of(end));
                lock(&self.cx.e.managed).remove(Vpn::of(start), Vpn::of(end));
            }
            Message::Remap { from, to, len } => {
                Stat::add(&self.cx.e.stat.event_remap, 1);
                self.note(EventKind::Remap, from, from + len);
                self.trace_change(TraceKind::Free, to, to + len);
                if let Some(trace) = &mut self.cx.trace {
                    trace.note_move(Vpn::of(from), Vpn::of(to), len / PAGE_SIZE);
                }
                self.follow_remap(from, to, len);
            }
        }
        // Another thread may have been given the place before this was told, and have found it known.
        if let Some((start, end)) = m.left() {
            lock(&self.cx.e.read_only).remove(Vpn::of(start), Vpn::of(end));
            lock(&self.cx.e.pinned).retain(|vpn| !(start..end).contains(&vpn.addr()));
            self.cx.e.recent.cut(start, end);
            if end - start >= self.cx.e.large() {
                self.news.push((start, end));
            }
        }
    }

    /// Serves what waits; what cannot be served yet stays.
    pub(crate) fn serve_waiting(&mut self) {
        let mut i = 0;
        let held = !self.cx.waiting.is_empty() && self.cx.e.is_held();
        let mut longest = Duration::ZERO;
        while i < self.cx.waiting.len() {
            let fault = self.cx.waiting[i];
            if held && fault.since.elapsed() < LATE {
                i += 1;
                continue;
            }
            match self.serve(fault) {
                Outcome::Served => {
                    self.cx.waiting.swap_remove(i);
                    let time = fault.since.elapsed();
                    longest = longest.max(time);
                    self.cx.e.stat.record_fault(time.as_nanos() as u64);
                    Stat::add(&self.cx.e.stat.pgfault, 1);
                }
                Outcome::Dropped => {
                    self.cx.waiting.swap_remove(i);
                }
                Outcome::Later => {
                    if !self.reported && fault.since.elapsed() > LONG {
                        self.report(fault);
                    }
                    // The kernel refuses all others, too, until that is read: a thousand would be tried in vain.
                    if self.cx.changing() {
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
        let node = self.cx.e.table.node(Vpn::of(fault.addr));
        let state = node.map(|n| self.cx.e.table.state(n));
        let (addr, changing) = (fault.addr, self.cx.changing());
        warn(&format!(
            "a thread has been waiting for the page at {addr:#x} for {LONG:?}: {state:?}, mapping change pending: {changing}"
        ));
    }
}
