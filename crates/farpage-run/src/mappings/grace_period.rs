//! Threads that may have changed a mapping and not told it yet.
//!
//! The kernel lets a thread tell of a change after it has given up the lock of the address space. If the thread loses
//! its CPU between the two, others may build on the change and tell of that first. One message of theirs that is read
//! too early can be put right ([`crate::mappings::event_order`]); but a thread that was told to go on builds
//! further. So when a message is found to be missing, none is read before every thread that was able to run then has
//! slept, or run for long enough to have told its change.
//!
//! Caller: the pager. No locks.

use farpage_base::sys::proc::{Proc, Thread, cpu_time, is_running, threads};
use farpage_base::sys::raw::gettid;
use std::time::{Duration, Instant};

/// CPU time in which a thread comes from the end of its change to its message, many times over (it takes about 2 us).
const ON_ITS_WAY: Duration = Duration::from_micros(200);

/// A thread that gets no CPU for so long is not waited for: faults wait meanwhile. Long, because a pager that does not
/// wait may take memory for what it is not; on a machine that is busy to this point the program stands still anyway.
const GRACE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Threads that are noted at most.
const THREADS: usize = 512;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct GracePeriod {
    proc: &'static Proc,
    /// Thread, and the CPU time at which it has told all that it did before.
    threads: Vec<(Thread, Duration)>,
    /// A message is missing, and the threads that run have yet to be noted.
    begins: bool,
    since: Instant,
}

impl GracePeriod {
    /// None so far.
    pub(crate) fn new(proc: &'static Proc) -> GracePeriod {
        GracePeriod { proc, threads: Vec::with_capacity(THREADS), begins: false, since: Instant::now() }
    }

    /// `/proc`, as the pager keeps it.
    pub(crate) fn proc(&self) -> &Proc {
        self.proc
    }

    /// A message is missing: the threads that run when the next one is wanted are waited for. All those that were able
    /// to run now are, or have slept by then. So a thousand mappings that are looked at in one turn take one look at
    /// the threads.
    pub(crate) fn begin(&mut self) {
        self.begins = true;
    }

    /// Notes the threads that run.
    fn note_threads(&mut self) {
        self.begins = false;
        self.threads.clear();
        self.since = Instant::now();
        let (proc, own, noted) = (self.proc, gettid(), &mut self.threads);
        let all = threads(proc, |thread| {
            if thread.tid != own && noted.len() < THREADS && is_running(proc, thread.listed) {
                noted.extend(cpu_time(thread.tid).map(|time| (thread, time + ON_ITS_WAY)));
            }
        });
        // Without /proc no thread is waited for.
        if all.is_err() {
            self.threads.clear();
        }
    }

    /// All has been told.
    pub(crate) fn end(&mut self) {
        self.begins = false;
        self.threads.clear();
    }

    /// Whether a change may still be on its way that was made before [`GracePeriod::begin`].
    pub(crate) fn is_pending(&mut self) -> bool {
        if self.begins {
            self.note_threads();
        }
        if self.threads.is_empty() {
            return false;
        }
        let proc = self.proc;
        self.threads.retain(|(thread, end)| {
            cpu_time(thread.tid).is_some_and(|time| time < *end) && is_running(proc, thread.listed)
        });
        if self.since.elapsed() > GRACE_WAIT_MAX {
            self.threads.clear();
        }
        !self.threads.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    #[test]
    fn who_sleeps_or_has_run_is_not_waited_for() {
        let (stop, spinner) = (AtomicBool::new(false), AtomicU32::new(0));
        let asleep = std::sync::Mutex::new(());
        let mut grace_period = GracePeriod::new(Box::leak(Box::new(Proc::open().unwrap())));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                spinner.store(gettid(), Relaxed);
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
                drop(asleep.lock());
            });
            let keep = asleep.lock();
            let find = |s: &GracePeriod| s.threads.iter().find(|(t, _)| t.tid == spinner.load(Relaxed)).copied();
            let (thread, time) = loop {
                grace_period.note_threads();
                if let Some(found) = find(&grace_period) {
                    break found;
                }
            };
            assert!(!grace_period.threads.iter().any(|(t, _)| t.tid == gettid()), "the caller runs");
            while find(&grace_period).is_some() {
                grace_period.is_pending();
            }
            assert!(cpu_time(thread.tid).unwrap() >= time || grace_period.since.elapsed() > GRACE_WAIT_MAX);
            stop.store(true, Relaxed);
            // It goes to sleep some time.
            while {
                grace_period.note_threads();
                find(&grace_period).is_some()
            } {}
            drop(keep);
        });
        grace_period.end();
        assert!(!grace_period.is_pending());
    }
}
