//! The time.
//!
//! Callers: all. No locks.

use rustix::time::{ClockId, clock_gettime};

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
