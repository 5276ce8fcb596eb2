//! The time.
//!
//! Callers: all. No locks.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of the monotonic clock; never 0.
pub fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000 + 1
}
