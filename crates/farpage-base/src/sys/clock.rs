//! The time.
//!
//! Callers: all. No locks.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Milliseconds of the monotonic clock; never 0.
pub fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000 + 1
}

/// Microseconds of the clock that all processes share, and by which the kernel says when they began.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Most milliseconds for which the watched time goes on without a look at it.
const UNWATCHED_MAX: u32 = 500;
/// What of the time does not count is kept in units of so many milliseconds.
const UNIT: u32 = 64;
/// A thread may come with a time that is so much older than another thread's.
const BEHIND: u32 = 3_600_000;

/// When it was looked at last, milliseconds, and units that do not count: 32 bits each.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Milliseconds in which this process was there: [`now_ms`] without the time for which no thread looked, but for half a
/// second each time. A stopped process, or a virtual machine that was paused, does not find that an hour went by in
/// which a server has said nothing. For threads that look every few milliseconds while they wait.
pub fn watched_ms() -> i64 {
    let now = now_ms();
    let mut looked = LOOKED.load(Relaxed);
    loop {
        let (next, watched) = look(looked, now);
        match LOOKED.compare_exchange_weak(looked, next, Relaxed, Relaxed) {
            Ok(_) => return watched,
            Err(other) => looked = other,
        }
    }
}

/// What [`LOOKED`] becomes with a look now, and the watched time.
fn look(looked: u64, now: i64) -> (u64, i64) {
    let (last, mut units) = (looked as u32, (looked >> 32) as u32);
    let gap = (now as u32).wrapping_sub(last);
    // A thread may come with an older time than another one: it had to wait for its CPU meanwhile.
    if looked != 0 && gap > u32::MAX - BEHIND {
        return (looked, now + i64::from(gap.wrapping_neg()) - i64::from(units) * i64::from(UNIT));
    }
    units = units.wrapping_add(gap.saturating_sub(UNWATCHED_MAX) / UNIT);
    (u64::from(units) << 32 | u64::from(now as u32), now - i64::from(units) * i64::from(UNIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_no_thread_looked_hardly_counts() {
        let (mut looked, mut first) = look(0, 7_000_000_000);
        for (now, counts) in [(20, 20), (520, 500), (3_600_520, 500), (3_600_540, 20), (7_200_000, 500)] {
            let (next, watched) = look(looked, 7_000_000_000 + now);
            let more = watched - first;
            assert!((counts..counts + i64::from(UNIT)).contains(&more), "{now}: {more}");
            (looked, first) = (next, watched);
        }
    }

    #[test]
    fn the_first_look_counts_on_a_machine_that_is_up_for_long() {
        let looked = look(0, 3_000_000_000).0;
        assert_eq!(look(looked, 3_000_000_400).1 - look(looked, 3_000_000_000).1, 400);
        assert!(look(looked, 3_003_600_000).1 - look(looked, 3_000_000_000).1 < 600);
        let (days_26, looked) = (26 * 86_400_000, look(0, 7_000_000_000));
        assert!(look(looked.0, 7_000_000_000 + days_26).1 - looked.1 < 600);
    }

    #[test]
    fn a_look_that_comes_late_takes_nothing_back() {
        let (looked, watched) = look(look(0, 5_000_000_000).0, 5_000_000_100);
        assert_eq!(look(looked, 5_000_000_090), (looked, watched));
        assert_eq!(look(looked, 5_000_000_120).1, watched + 20);
        // The thread stood still for two minutes between its clock and its look.
        assert_eq!(look(looked, 5_000_000_100 - 120_000), (looked, watched));
    }
}
