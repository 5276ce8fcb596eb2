//! What the processes of a tree have counted, all of them together, also those that have ended; and for how long any of
//! them waited for memory. For what is said at the end of a run, and for metrics.
//!
//! Each process adds what it has counted since it last did: its monitor at its looks, and its end. One that is killed
//! leaves out what came after the last look.
//!
//! Callers: monitors, pagers, program threads that waited, the end of a process; the report. No locks.

use crate::stat::{Stat, VALUES, Waiting};
use farpage_base::sys::clock::now_us;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What this process has added.
static ADDED: [AtomicU64; VALUES] = [const { AtomicU64::new(0) }; VALUES];

/// See the module header.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Sums {
    /// As many as there are counters; the rest is unused.
    of: [AtomicU64; VALUES],
    waited: Waited,
}

/// For how long any process waited.
#[repr(C, align(64))]
#[derive(Debug)]
struct Waited {
    ns: AtomicU64,
    /// The end of what is counted.
    until_ns: AtomicU64,
    /// When the period began that is looked at, microseconds, and what there was by then.
    period_us: AtomicU64,
    before_ns: AtomicU64,
}

/// The counters of this process begin here: it has an engine, which counts on what is there.
pub fn begin(stat: &Stat) {
    stat.counters().zip(&ADDED).for_each(|(count, added)| added.store(count.load(Relaxed), Relaxed));
}

impl Sums {
    /// Adds what this process has counted meanwhile.
    pub fn add(&self, stat: &Stat) {
        for ((count, added), sum) in stat.counters().zip(&ADDED).zip(&self.of) {
            let now = count.load(Relaxed);
            let more = now.saturating_sub(added.fetch_max(now, Relaxed));
            if more > 0 {
                sum.fetch_add(more, Relaxed);
            }
        }
    }

    /// A thread has waited for so long, up to now. What others waited at the same time counts once.
    pub fn note_waited(&self, time: Duration) {
        self.note_waited_until(now_us(), time);
    }

    fn note_waited_until(&self, now_us: u64, time: Duration) {
        let now = now_us.saturating_mul(1000);
        let since = now.saturating_sub(time.as_nanos() as u64);
        let before = self.waited.until_ns.fetch_max(now, Relaxed);
        let more = now.saturating_sub(since.max(before));
        if more > 0 {
            self.waited.ns.fetch_add(more, Relaxed);
        }
    }

    /// For how long at least one thread waited.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.ns.load(Relaxed))
    }

    /// What all waited in a run that took so long.
    pub fn waiting(&self, wall: Duration) -> Waiting {
        self.page().waiting(wall).of_any(self.waited(), wall)
    }

    /// The same of the last period of such a length or more, where one has just ended, and how long it was. One process
    /// is told, the others not. The first begins with the first call.
    pub fn waiting_of_period(&self, now_us: u64, length: Duration) -> Option<(Waiting, Duration)> {
        let Waited { ns, period_us, before_ns, .. } = &self.waited;
        let begun = period_us.load(Relaxed);
        let long = Duration::from_micros(now_us.saturating_sub(begun));
        if begun > 0 && long < length || period_us.compare_exchange(begun, now_us, Relaxed, Relaxed).is_err() {
            return None;
        }
        let now = ns.load(Relaxed);
        let waited = Duration::from_nanos(now.saturating_sub(before_ns.swap(now, Relaxed)));
        (begun > 0).then(|| (self.page().waiting(long).of_any(waited, long), long))
    }

    /// The sums in a page of their own: all else is 0.
    pub fn page(&self) -> Box<Stat> {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        stat.counters().zip(&self.of).for_each(|(count, sum)| count.store(sum.load(Relaxed), Relaxed));
        let was_managed = stat.pgfault.load(Relaxed) > 0 || stat.pswpout.load(Relaxed) > 0;
        stat.active.store(was_managed.into(), Relaxed);
        stat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums() -> Box<Sums> {
        // SAFETY: atomics only: all-zero is a valid value.
        Box::new(unsafe { std::mem::zeroed() })
    }

    #[test]
    fn each_count_is_added_once() {
        let (sums, stat) = (sums(), sums().page());
        assert_eq!(stat.active.load(Relaxed), 0);
        stat.pgfault.store(7, Relaxed);
        // What was there before is nothing of this tree's.
        begin(&stat);
        for (faults, sum) in [(7, 0), (10, 3), (10, 3), (25, 18)] {
            stat.pgfault.store(faults, Relaxed);
            stat.verified.store(faults, Relaxed);
            sums.add(&stat);
            let page = sums.page();
            assert_eq!((page.pgfault.load(Relaxed), page.verified.load(Relaxed)), (sum, faults));
        }
        assert_eq!(sums.page().active.load(Relaxed), 1);
    }

    #[test]
    fn time_in_which_several_wait_counts_once() {
        let sums = sums();
        for (until, us, sum) in [(100, 50, 50), (120, 60, 70), (120, 10, 70), (110, 10, 70), (300, 10, 80)] {
            sums.note_waited_until(until, Duration::from_micros(us));
            assert_eq!(sums.waited(), Duration::from_micros(sum), "{until}");
        }
        assert!((sums.waiting(Duration::from_micros(160)).share - 0.5).abs() < 1e-9);
        assert_eq!(sums.waiting(Duration::from_micros(1)).share, 1.0);
    }

    #[test]
    fn a_period_is_told_to_one_when_it_has_ended() {
        let (sums, length) = (sums(), Duration::from_micros(100));
        sums.note_waited_until(1_000, Duration::from_micros(900));
        let share = |now| sums.waiting_of_period(now, length).map(|(waiting, _)| waiting.share);
        // What was before the first call counts in none.
        assert_eq!((share(1_000), share(1_099)), (None, None));
        sums.note_waited_until(1_080, Duration::from_micros(75));
        let first = share(1_100).unwrap();
        assert!((first - 0.75).abs() < 1e-9, "{first}");
        assert_eq!((share(1_100), share(1_199), share(1_200)), (None, None, Some(0.0)));
        // Nothing was swapped out, so nothing is said of waiting.
        sums.note_waited_until(1_300, length);
        let words = |now| sums.waiting_of_period(now, length).and_then(|(waiting, _)| waiting.advice("the time"));
        assert_eq!(words(1_300), None);
        let stat = sums.page();
        stat.pswpout.store(1, Relaxed);
        sums.add(&stat);
        sums.note_waited_until(1_400, length);
        let said = "for 100% of the time at least one thread waited for memory: give it more --ram";
        assert_eq!(words(1_400).as_deref(), Some(said));
    }
}
