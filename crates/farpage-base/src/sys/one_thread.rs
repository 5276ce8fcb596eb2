//! A lock that a fork leaves free: what one of a process's threads does at a time.
//!
//! Callers: `region`, on the program's threads. Outermost.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Between two looks at whether it is free.
const LOOK: Duration = Duration::from_micros(200);

/// Held by one thread of a process at a time. The thread is not in a child that is forked meanwhile: there it is free.
#[derive(Debug)]
pub struct OneThread(AtomicU32);

/// Gives [`OneThread`] back.
#[derive(Debug)]
pub struct OneThreadGuard<'a>(&'a OneThread);

impl OneThread {
    /// No thread has it.
    pub const fn new() -> OneThread {
        OneThread(AtomicU32::new(0))
    }

    /// Waits until the calling thread has it. Not in a signal handler.
    pub fn lock(&self) -> OneThreadGuard<'_> {
        let process = std::process::id();
        loop {
            let holder = self.0.load(SeqCst);
            if holder != process && self.0.compare_exchange(holder, process, SeqCst, SeqCst).is_ok() {
                return OneThreadGuard(self);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for OneThreadGuard<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, SeqCst);
    }
}
