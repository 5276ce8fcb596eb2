//! Lock statistics: acquisitions, waits and holds, per call site.
//!
//! Counters belong to a thread, so counting does not add contention; a thread of a measurement ends with [`take`].
//! The clock is the processor's time stamp counter.

use farpage_swap::lock::{Meter, SITES, Site};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What one site did. Times are in ticks of [`now`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Count {
    /// Acquisitions.
    pub acquired: u64,
    /// Of these, those that had to wait.
    pub contended: u64,
    /// Waiting: all, the longest.
    pub wait: u64,
    pub wait_max: u64,
    /// Holding the lock, all.
    pub held: u64,
}

/// All sites.
pub type Counts = [Count; SITES];

const NONE: Count = Count { acquired: 0, contended: 0, wait: 0, wait_max: 0, held: 0 };

thread_local! {
    static COUNTS: [Cell<Count>; SITES] = const { [const { Cell::new(NONE) }; SITES] };
}

/// Counts everything.
pub struct Counting;

impl Meter for Counting {
    const ON: bool = true;

    #[inline]
    fn now() -> u64 {
        ticks()
    }

    #[inline]
    fn acquired(site: &'static Site, waited: Option<u64>) {
        change(site, |count| {
            count.acquired += 1;
            if let Some(wait) = waited {
                count.contended += 1;
                count.wait += wait;
                count.wait_max = count.wait_max.max(wait);
            }
        });
    }

    #[inline]
    fn released(site: &'static Site, held: u64) {
        change(site, |count| count.held += held);
    }
}

#[inline]
fn change(site: &'static Site, f: impl FnOnce(&mut Count)) {
    COUNTS.with(|counts| {
        let mut count = counts[site.index].get();
        f(&mut count);
        counts[site.index].set(count);
    });
}

/// The calling thread's counters, which are 0 afterwards.
pub fn take() -> Counts {
    COUNTS.with(|counts| std::array::from_fn(|i| counts[i].replace(NONE)))
}

/// Adds `b` to `a`.
pub fn add(a: &mut Counts, b: &Counts) {
    for (a, b) in a.iter_mut().zip(b) {
        a.acquired += b.acquired;
        a.contended += b.contended;
        a.wait += b.wait;
        a.wait_max = a.wait_max.max(b.wait_max);
        a.held += b.held;
    }
}

#[inline]
fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter; every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Nanoseconds of a tick, measured against the system's clock; and what reading the clock twice costs, in nanoseconds.
pub fn calibrate() -> (f64, f64) {
    let (from, at) = (ticks(), Instant::now());
    while at.elapsed() < Duration::from_millis(50) {}
    let ns_per_tick = at.elapsed().as_nanos() as f64 / (ticks() - from) as f64;
    let mut costs: Vec<u64> = (0..1001)
        .map(|_| {
            let from = ticks();
            ticks() - from
        })
        .collect();
    costs.sort_unstable();
    (ns_per_tick, costs[500] as f64 * ns_per_tick)
}
