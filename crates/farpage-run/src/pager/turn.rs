//! The pager's loop: messages, faults, one step of background work, or sleep. Reclaim comes before the faults or after
//! them ([`Moment`]).
//!
//! Caller: the pager's thread ([`crate::pager::start`]). Locks: `pinned` and `managed`, one at a time.

use crate::budget::share;
use crate::budget::time_slices::LATE;
use crate::pager::reclaim::{Moment, store_a_little};
use crate::pager::state::Pager;
use crate::shared::stacks::{PAGER, stack};
use crate::store;
use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Between two looks at threads that have yet to tell a change.
const NAP: Duration = Duration::from_micros(50);

impl Pager {
    /// One turn: messages, then faults, then one step of background work, or sleep.
    pub(crate) fn turn(&mut self) {
        self.cx.forget_guarded();
        if self.cx.e.fork.wanted() {
            self.pause_for_fork();
        }
        if self.cx.e.is_behind(PAGER) {
            self.cx.e.keep_up(PAGER);
            self.cx.e.helpers.wake_all();
        }
        let news = self.adoption.has_news(&self.cx);
        let put_off = news && self.adoption.puts_off_news(&mut self.cx);
        if news && !put_off {
            self.adoption.adopt_news(&mut self.cx);
        }
        // What was read last was all that there was, and poll says if there is more.
        let got = if self.is_drained() { 0 } else { self.read_messages() };
        if !self.cx.changes.order.is_settled() {
            self.adoption.settle(&mut self.cx);
            if self.cx.changes.order.waits() {
                self.adoption.finish_notes(&self.cx);
                // Nothing can be placed or taken out as long as there is a change to come.
                if got == 0 {
                    self.cx.sleep(Some(50_000));
                }
                return;
            }
        }
        let moment = self.reclaim.moment(&self.cx, self.pace.is_colocated());
        let mut worked = self.adoption.let_go_step(&mut self.cx)
            | self.unpark.step(&mut self.cx)
            | self.adoption.take_over_step(&mut self.cx);
        if moment.is_before(self.cx.waiting.len()) {
            worked |= self.reclaim.balance(&mut self.cx, moment);
        }
        self.serve_waiting();
        // Also while messages keep coming: a page that is not on a list cannot be reclaimed.
        worked |= self.adoption.scan_step(&mut self.cx, &mut self.reclaim.robust);
        if moment != Moment::OneWaits || self.cx.e.budget.over_limit() > 0 {
            worked |= self.reclaim.balance(&mut self.cx, moment.after());
        }
        self.adoption.finish_notes(&self.cx);
        self.wake_others(got > 0 || worked);
        if put_off && got == 0 {
            self.cx.sleep(Some(NAP.as_nanos() as i64));
            return;
        }
        if got > 0 {
            self.pace.served(self.cx.e);
            return;
        }
        if self.cx.waiting.is_empty() {
            if !worked {
                if self.pace.looks_again() {
                    store_a_little(&self.cx);
                    return;
                }
                if let Some(trace) = &mut self.cx.trace {
                    trace.flush();
                }
                let begins_to_rest = self.pace.begins_to_rest();
                if self.cx.e.budget.over_limit() > 0 || begins_to_rest {
                    store::release_unused(self.cx.e);
                }
                if begins_to_rest {
                    self.cx.scratch.give_back();
                    stack(&self.cx.e.arena, PAGER).give_back_unused();
                }
                // A kick ends this; the time limit is for kernels where a forking thread cannot kick.
                let most = self.pace.idle();
                self.cx.sleep(Some(most.as_nanos() as i64));
                self.pace.stay_awake(self.cx.e, 0, Instant::now());
            }
        } else {
            // Faults wait for an event to be finished by its thread, or for frames: both need another thread to run.
            self.cx.e.wakeups.pager_waits.store(true, Ordering::Release);
            let held = share::is_held();
            self.cx.sleep(Some(if held { LATE.as_nanos() as i64 / 4 } else { 200_000 }));
            self.cx.e.wakeups.pager_waits.store(false, Ordering::Release);
            self.pace.stay_awake(self.cx.e, 0, Instant::now());
        }
    }

    /// After a turn: a process in which something happens is not idle.
    fn wake_others(&mut self, busy: bool) {
        if !busy {
            return;
        }
        self.pace.is_busy();
        let rests = &self.cx.e.wakeups.monitor_rests;
        if rests.load(Relaxed) && rests.swap(false, SeqCst) {
            self.cx.e.ring_monitor();
        }
    }
}
