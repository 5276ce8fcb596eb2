//! No signals while this crate or the memory is at work.
//!
//! A program's handler may leave by `longjmp`. It would leave behind what was begun: counts of threads that are inside,
//! a place that is half filled in. So handlers run only before, while the program's own call is in the kernel, and
//! after it. Four short system calls for each call that is about the memory; others pay nothing.
//!
//! Callers: [`crate::entry`], [`crate::held`]. No locks.

use crate::raw::raw;
use linux_raw_sys::general::__NR_rt_sigprocmask;

/// A set of signals.
#[derive(Debug, Clone, Copy)]
pub struct Mask(u64);

/// A signal in a set.
pub const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// Those that come of what a thread does itself. A fault of the memory's own code is served by one.
const OWN: [i32; 6] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Blocks all others in this thread; what was blocked before.
pub fn block() -> Mask {
    let all = !OWN.iter().fold(0, |set, signal| set | bit(*signal as usize));
    let mut before = 0u64;
    // SAFETY: reads and writes these two.
    unsafe {
        let args = [libc::SIG_BLOCK as usize, &raw const all as usize, &raw mut before as usize, 8, 0, 0];
        raw(__NR_rt_sigprocmask, &args);
    }
    Mask(before)
}

/// Blocks what was blocked before, and no more. Handlers of what came meanwhile run before this returns.
pub fn restore(before: Mask) {
    // SAFETY: reads this.
    unsafe {
        let args = [libc::SIG_SETMASK as usize, &raw const before.0 as usize, 0, 8, 0, 0];
        raw(__NR_rt_sigprocmask, &args);
    }
}
