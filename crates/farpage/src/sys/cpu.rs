//! Which CPU runs the caller, for whatever is spread over CPUs. An answer may be old when it is used.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of the CPU that runs the caller. From the kernel's shared page, without a system call or thread-local storage.
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// CPUs that this process may use, at least 1. (The numbers of [`current`] may be larger.)
pub fn count() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let known = COUNT.load(Relaxed);
    if known > 0 {
        return known;
    }
    let set = rustix::thread::sched_getaffinity(None);
    let count = set.map_or(1, |set| set.count() as usize).max(1);
    COUNT.store(count, Relaxed);
    count
}
