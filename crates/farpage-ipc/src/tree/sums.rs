//! What the processes of a tree have counted, all of them together, also those that have ended; and for how long any of
//! them waited for memory. For what is said at the end of a run.
//!
//! Each process adds what it has counted since it last did: its monitor at its looks, and its end. One that is killed
//! leaves out what came after the last look.
//!
//! Callers: monitors, pagers, program threads that waited, the end of a process; the report. No locks.

use crate::stat::{Stat, Waiting};
use farpage_base::sys::clock::now_us;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The counters that are summed up.
const SUMMED: [fn(&Stat) -> &AtomicU64; 14] = [
    |stat| &stat.pgmajfault,
    |stat| &stat.pgmajfault_file,
    |stat| &stat.pgfault,
    |stat| &stat.fault_wait_ns,
    |stat| &stat.alloc_wait_ns,
    |stat| &stat.fault_threads,
    |stat| &stat.pswpin,
    |stat| &stat.pswpout,
    |stat| &stat.swpout_zero,
    |stat| &stat.workingset_refault_cached,
    |stat| &stat.file_read_bytes,
    |stat| &stat.file_write_bytes,
    |stat| &stat.pool_writeback,
    |stat| &stat.swap_full,
];
/// What this process has added.
static ADDED: [AtomicU64; SUMMED.len()] = [const { AtomicU64::new(0) }; SUMMED.len()];
/// When that was.
static ADDED_US: AtomicU64 = AtomicU64::new(0);

/// See the module header.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Sums {
    of: [AtomicU64; SUMMED.len()],
    /// The time of all threads that had faults.
    threads_us: AtomicU64,
    waited: Waited,
}

/// For how long any process waited.
#[repr(C, align(64))]
#[derive(Debug)]
struct Waited {
    us: AtomicU64,
    /// The end of what is counted.
    until_us: AtomicU64,
}

/// The counters of this process begin here: it has an engine, which counts on what is there.
pub fn begin(stat: &Stat) {
    ADDED_US.store(now_us(), Relaxed);
    SUMMED.iter().zip(&ADDED).for_each(|(of, added)| added.store(of(stat).load(Relaxed), Relaxed));
}

impl Sums {
    /// Adds what this process has counted meanwhile.
    pub fn add(&self, stat: &Stat) {
        let now = now_us();
        let us = now.saturating_sub(ADDED_US.fetch_max(now, Relaxed));
        self.threads_us.fetch_add(us.saturating_mul(stat.fault_threads.load(Relaxed)), Relaxed);
        for ((of, added), sum) in SUMMED.iter().zip(&ADDED).zip(&self.of) {
            let now = of(stat).load(Relaxed);
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

    fn note_waited_until(&self, now: u64, time: Duration) {
        let since = now.saturating_sub(time.as_micros() as u64);
        let before = self.waited.until_us.fetch_max(now, Relaxed);
        let more = now.saturating_sub(since.max(before));
        if more > 0 {
            self.waited.us.fetch_add(more, Relaxed);
        }
    }

    /// For how long at least one thread waited.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.waited.us.load(Relaxed))
    }

    /// What all waited in a run that took so long.
    pub fn waiting(&self, wall: Duration) -> Waiting {
        let threads = Duration::from_micros(self.threads_us.load(Relaxed));
        self.page().waiting(wall).of_several(self.waited(), wall, threads)
    }

    /// Faults that read a device.
    pub fn major(&self) -> &AtomicU64 {
        &self.of[0]
    }

    /// The sums in a page of their own: all else is 0.
    pub fn page(&self) -> Box<Stat> {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        SUMMED.iter().zip(&self.of).for_each(|(of, sum)| of(&stat).store(sum.load(Relaxed), Relaxed));
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
            stat.pgmajfault.store(faults, Relaxed);
            sums.add(&stat);
            assert_eq!((sums.page().pgfault.load(Relaxed), sums.major().load(Relaxed)), (sum, faults));
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
        let share = || sums.waiting(Duration::from_micros(160)).share;
        assert_eq!(share(), 0.0);
        for (ns, us, part) in [(80_000, 80, 0.5), (80_000, 200, 0.4)] {
            sums.of[3].store(ns, Relaxed);
            sums.threads_us.store(us, Relaxed);
            assert!((share() - part).abs() < 1e-9, "{part}: {}", share());
        }
    }
}
