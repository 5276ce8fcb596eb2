//! How much the process does, and so how soon the monitor must look again. The monitor's; no locks.

use crate::budget::park::{self, IdleTimer};
use crate::budget::share::TreeShare;
use crate::monitor::member::Membership;
use crate::shared::state::Engine;
use farpage_base::sys::cpu;
use farpage_base::sys::proc::minor_faults;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// A managed process in which nothing has changed for so long is idle: it is looked at every [`REST`], or when it has a
/// fault.
const IDLE: Duration = Duration::from_secs(2);
pub(super) const REST: Duration = Duration::from_secs(1);

/// While memory is short, it is looked at so soon again; less soon, down to the last, while it is what was expected.
const SOON: Duration = Duration::from_millis(1);
const EXPECTED: Duration = Duration::from_millis(4);

/// What the process did up to the last look.
pub(super) struct Activity {
    /// Resident pages.
    rss: i64,
    /// Faults so far.
    faults: u64,
    /// When something last changed.
    moved: Instant,
    /// How soon to look again, as things stand.
    pause: Duration,
    /// The program's CPU time, between these two, at the last look while it rested.
    program: [Duration; 2],
    /// Since when it has been idle, for [`Activity::parks_itself`].
    idle: IdleTimer,
}

impl Activity {
    pub(super) fn new(now: Instant) -> Activity {
        Activity { rss: 0, faults: 0, moved: now, pause: SOON, program: [Duration::ZERO; 2], idle: IdleTimer::new(now) }
    }

    /// Whether something has changed since then: a thread that begins has faults.
    pub(super) fn has_moved_since(&self, then: Instant) -> bool {
        self.moved >= then
    }

    /// How long to sleep while memory is managed, with `rss` resident pages, `more` than expected.
    pub(super) fn pause(&mut self, e: &Engine, member: &Membership, gives: bool, rss: i64, more: i64) -> Duration {
        let now = Instant::now();
        // A process that grows by memory which is not managed yet has faults, too.
        let faults = minor_faults() + e.stat.pgfault.load(Relaxed);
        let moved = gives || (rss - self.rss).abs() > 16;
        if moved || faults != self.faults {
            self.moved = now;
        }
        (self.rss, self.faults) = (rss, faults);
        let quiet = now - self.moved;
        let rests = quiet > IDLE;
        e.wakeups.monitor_rests.store(rests, SeqCst);
        if rests {
            return member.begin_to_rest(REST);
        }
        let room = e.budget.room().max(0) as u64;
        let news = gives || e.budget.surprises(more);
        self.pause = next_pause(self.pause, news);
        Duration::from_micros(room * 7 / 10).clamp(self.pause, Duration::from_millis(20))
    }

    /// Whether the process rests, and its program has not run since the last look, as far as its CPU time says.
    pub(super) fn still_rests(&mut self, e: &Engine) -> bool {
        if !e.wakeups.monitor_rests.load(SeqCst) {
            return false;
        }
        let Some([least, most]) = program_time(e) else { return false };
        let [at_least, at_most] = std::mem::replace(&mut self.program, [least, most]);
        least <= at_most && most >= at_least
    }

    /// Where that is wanted: asks to be parked when the program has been idle for so long. Whether it has just done so.
    pub(super) fn parks_itself(&mut self, e: &Engine, tree: Option<&TreeShare>) -> bool {
        let (Some(after), Some(tree), now) = (e.conf.idle, tree, Instant::now()) else { return false };
        let park = &tree.mine.park;
        if !self.idle.is_due(now) {
            return false;
        }
        let Some([_, most]) = program_time(e) else { return false };
        let parks = self.idle.look(now, most) >= after && park.load(SeqCst) == 0;
        if parks {
            self.idle.begin(now);
            park.store(park::ASKED, SeqCst);
        }
        parks
    }
}

/// How soon to look again after `pause`: soon if there was `news`, else twice as late.
fn next_pause(pause: Duration, news: bool) -> Duration {
    if news { SOON } else { (pause * 2).min(EXPECTED) }
}

/// CPU time of the program's threads, between these two.
fn program_time(e: &Engine) -> Option<[Duration; 2]> {
    let [pager, writer] = [&e.wakeups.pager_tid, &e.wakeups.writer_tid].map(|tid| tid.load(Relaxed));
    let [a, b, c, d] = e.helpers.tids();
    cpu::time_without(&[pager, writer, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_expected_is_looked_at_less_often_until_it_is_not() {
        let mut pause = SOON;
        let seen = [false, false, false, true, false].map(|news| {
            pause = next_pause(pause, news);
            pause.as_millis()
        });
        assert_eq!(seen, [2, 4, 4, 1, 2]);
    }
}
