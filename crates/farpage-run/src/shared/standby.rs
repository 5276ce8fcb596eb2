//! Threads that stand by while the process is forked, as many as the child's engine has: so there is room for those.
//!
//! Callers: the forking thread ([`crate::fork::reserve`]); the monitor, when the program gives up privileges. No locks.

use farpage_base::sys::futex;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::thread::spawn_standby;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Threads of a child's engine without which it cannot go on: monitor, pager, writer.
const THREADS: usize = 3;

/// Threads that stand by, or are about to end, at most.
const STANDING: usize = 4 * THREADS;

/// See the module documentation.
#[derive(Default)]
pub struct Standby {
    /// Threads that stand by for another number end.
    pub(crate) number: AtomicU32,
    /// Those that stand by, also the last fork's that have not ended yet; 0: none.
    standing: [AtomicU32; STANDING],
}

impl Standby {
    /// Threads stand by from now on for a number, the result.
    pub(crate) fn begin(&self) -> Result<u32, Errno> {
        let number = self.number.load(SeqCst);
        for _ in 0..THREADS {
            let there = loop {
                match self.standing.iter().find(|there| there.load(SeqCst) == 0) {
                    Some(there) => break there,
                    // Many forks, one right after the other.
                    None => futex::wait(&self.number, number, Some(100_000)),
                }
            };
            // SAFETY: part of an engine, which is never freed.
            let (word, there) = unsafe { (&*std::ptr::from_ref(&self.number), &*std::ptr::from_ref(there)) };
            match spawn_standby(word, number, there) {
                Ok(()) => {}
                // The children's pid namespace is another one: this process gets no threads, and they will.
                Err(Errno::INVAL) => break,
                Err(error) => {
                    self.dismiss();
                    return Err(error);
                }
            }
        }
        Ok(number)
    }

    /// The threads that stand by end.
    pub(crate) fn dismiss(&self) {
        self.number.fetch_add(1, SeqCst);
        futex::wake_all(&self.number);
    }

    /// The same; returns when they have. The forking thread makes others (`stand_by_again`).
    pub fn dismiss_now(&self) {
        if self.standing.iter().all(|there| there.load(SeqCst) == 0) {
            return;
        }
        self.dismiss();
        while self.standing.iter().any(|there| there.load(SeqCst) != 0) {
            futex::wait(&AtomicU32::new(0), 0, Some(100_000));
        }
    }

    /// In a child, which has none of them.
    pub(crate) fn forget(&self) {
        self.standing.iter().for_each(|there| there.store(0, SeqCst));
    }
}
