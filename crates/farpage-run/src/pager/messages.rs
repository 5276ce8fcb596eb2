//! What has come for the pager: events are applied, faults are queued and served.
//!
//! Callers: the pager's loop, [`crate::fork`], on the pager's thread. Locks: those of what is done.

use crate::budget::share;
use crate::budget::time_slices::LATE;
use crate::pager::cx::{Fault, LotPage, Outcome};
use crate::pager::state::Pager;
use crate::shared::page_table::State;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::clock::watched_ms;
use farpage_base::sys::message::{fatal, warn};
use farpage_base::sys::uffd::{MESSAGES_MAX, Message};
use farpage_ipc::stat::Stat;
use farpage_ipc::tree;
use farpage_swap::tuning::Controller;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// No fault should wait for longer.
const LONG: Duration = Duration::from_secs(5);

impl Pager {
    /// Whether the last messages that were read were all that there were. Once: then they are read again.
    pub(crate) fn is_drained(&mut self) -> bool {
        std::mem::take(&mut self.drained)
    }

    /// Reads and sorts one batch: events are applied, faults queued. Returns the number of messages.
    pub(crate) fn read_messages(&mut self) -> usize {
        let mut batch = [Message::Unmap { start: 0, end: 0 }; MESSAGES_MAX];
        // One by one when it matters which thread is told to go on.
        let most = if self.cx.changes.order.is_settled() { MESSAGES_MAX } else { 1 };
        let n = self.cx.changes.next_messages(self.cx.e, &*self.cx.mm, &mut batch[..most]);
        if n == 0 {
            self.cx.e.discovery.recent.caught_up();
            return 0;
        }
        self.read_all = n < most;
        // Where several threads have faults, there mostly is another by then.
        self.drained = n < most && !self.cx.prefetch.concurrency.is_there();
        let since = Instant::now();
        if let Message::Fault { tid, .. } = batch[0] {
            let writer = self.cx.e.wakeups.writer_tid.load(Relaxed);
            let [a, b, c, d] = self.cx.e.helpers.tids();
            let others = [writer, a, b, c, d];
            self.pace.fault(self.cx.e, tid, others, self.cx.filled, since);
        }
        self.pace.stay_awake(self.cx.e, n, since);
        for m in &batch[..n] {
            self.dispatch(*m, since);
        }
        self.cx.e.discovery.recent.caught_up();
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
                self.cx.waiting.push(Fault { addr, write, tid, since, put_off_ms: None });
            }
            // Its thread has news. They are for the next turn: now its change is pending.
            Message::Remove { start, .. } if self.cx.e.arena.doorbell.contains(start) => {}
            change => {
                let e = self.cx.e;
                // Before it is applied: its thread goes on now, and what it maps at this place has to be told.
                if let Some((start, end)) = change.left() {
                    e.discovery.recent.cut(start, end);
                }
                if self.cx.changes.note(change, |start, end| e.is_known(start, end)) {
                    self.adoption.apply(&mut self.cx, change);
                }
            }
        }
    }

    /// Serves what waits; what cannot be served yet stays.
    pub(crate) fn serve_waiting(&mut self) {
        let mut i = 0;
        let held = !self.cx.waiting.is_empty() && share::is_held();
        let mut longest = Duration::ZERO;
        self.cx.open_lot();
        while i < self.cx.waiting.len() {
            let fault = self.cx.waiting[i];
            if held && fault.since.elapsed() < LATE {
                i += 1;
                continue;
            }
            if self.cx.lot_is_due() {
                longest = longest.max(self.serve_lot());
                if self.cx.changing() {
                    break;
                }
                self.cx.open_lot();
            }
            match self.serve(fault) {
                Outcome::Served => {
                    self.cx.waiting.swap_remove(i);
                    longest = longest.max(self.note_served(fault));
                }
                Outcome::Dropped | Outcome::InLot => {
                    self.cx.waiting.swap_remove(i);
                }
                Outcome::Later => {
                    self.cx.waiting[i] = self.put_off(fault);
                    // The kernel refuses all others, too, until that is read: a thousand would be tried in vain.
                    if self.cx.changing() {
                        break;
                    }
                    i += 1;
                }
            }
        }
        longest = longest.max(self.serve_lot());
        let cx = &mut self.cx;
        cx.waiting.append(&mut cx.lot.later);
        if longest > Duration::ZERO {
            tree::note_waited(longest);
        }
    }

    /// Serves what is in the lot, which is closed now. Returns the longest time that one of its faults has waited.
    fn serve_lot(&mut self) -> Duration {
        self.cx.lot.open = false;
        let mut longest = Duration::ZERO;
        if self.cx.lot.pages.is_empty() {
            return longest;
        }
        let e = self.cx.e;
        let mut lot = std::mem::take(&mut self.cx.lot.pages);
        // The kernel refuses all of them, or there may be guards since; or reclaim, or the window of another fault, has
        // changed some.
        let refused = self.cx.changing() || e.memory.marked.load(SeqCst);
        let is_same = |page: &LotPage| !refused && e.table.state(page.node) == State::Swapped(page.entry);
        let mut anew: Vec<LotPage> = lot.extract_if(.., |page| !is_same(page)).collect();
        let alone = self.read_all && self.cx.waiting.is_empty() && self.cx.lot.later.is_empty() && anew.is_empty();
        let failed = if lot.is_empty() { 0 } else { self.cx.load_lot(&lot, alone) };
        let mut at = 0..;
        // Why, is found out for each alone.
        anew.extend(lot.extract_if(.., |_| at.next().is_some_and(|at: u32| failed & 1 << at != 0)));
        self.cx.map_lot(&lot);
        for page in lot.drain(..) {
            longest = longest.max(self.note_served(page.fault));
            e.stat.note_readahead(page.mapping, 0, 1);
            if let Some(trace) = &mut self.cx.trace {
                trace.note(page.vpn, page.fault.write);
            }
        }
        self.cx.lot.pages = lot;
        for page in anew {
            match if self.cx.changing() { Outcome::Later } else { self.serve(page.fault) } {
                Outcome::Served => longest = longest.max(self.note_served(page.fault)),
                Outcome::Dropped => {}
                Outcome::Later | Outcome::InLot => {
                    let fault = self.put_off(page.fault);
                    self.cx.lot.later.push(fault);
                }
            }
        }
        longest
    }

    /// A fault has been served; how long it has waited.
    fn note_served(&self, fault: Fault) -> Duration {
        let time = fault.since.elapsed();
        self.cx.e.stat.record_fault(time.as_nanos() as u64);
        Stat::add(&self.cx.e.stat.pgfault, 1);
        time
    }

    /// A fault that could not be served now: what it is from now on.
    fn put_off(&mut self, mut fault: Fault) -> Fault {
        let now = watched_ms();
        let waits = now - *fault.put_off_ms.get_or_insert(now);
        if !self.reported && waits > LONG.as_millis() as i64 {
            self.report(fault);
        }
        fault
    }

    /// A thread must never hang in silence. Once: a thousand may wait.
    fn report(&mut self, fault: Fault) {
        self.reported = true;
        let node = self.cx.e.table.node(Vpn::of(fault.addr));
        let state = node.map(|n| self.cx.e.table.state(n));
        let (addr, changing) = (fault.addr, self.cx.changing());
        warn(&format!(
            "a thread has been waiting for the page at {addr:#x} for {LONG:?}: {state:?}, mapping change \
             pending: {changing}"
        ));
    }
}
