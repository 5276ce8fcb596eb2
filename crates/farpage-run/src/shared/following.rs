//! How far each thread has come in following the program's privileges: data that the engine's threads share.
//!
//! Caller: [`crate::privileges`]; [`crate::shared::state`] has one. Locks: `asking`, then `model`, innermost.

use crate::shared::stacks::STACKS;
use farpage_base::sys::futex;
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::privilege::Privileges;
use farpage_base::sys::thread::ForkLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Instant;

/// `done` of a thread that has just been started, with what its maker holds.
pub(crate) const STARTED: u32 = 1;

/// Nothing was said about secure bits.
pub(crate) const NO_BITS: u64 = u64::MAX;

/// How far each thread has come. All numbers count what was asked for, from 1 on.
pub struct Following {
    /// One program thread asks at a time.
    pub(crate) asking: ForkLock,
    pub(crate) asked: AtomicU32,
    /// The thread that asked last.
    pub(crate) caller: AtomicU32,
    pub(crate) published: AtomicU32,
    /// What each engine thread (by its stack) has taken on; 0: there is no such thread.
    pub(crate) done: [AtomicU32; STACKS],
    /// The program confines itself.
    pub(crate) filtered: AtomicBool,
    pub(crate) securebits: AtomicU64,
    /// What the program's main thread holds. Changed by the monitor only, never while the process is copied, whole at
    /// every moment.
    pub(crate) model: Mutex<Option<Privileges>>,
    /// The monitor's last look, since `epoch`, in ms.
    pub(crate) looked: AtomicU64,
    pub(crate) epoch: Instant,
}

impl Default for Following {
    fn default() -> Following {
        Following {
            asking: ForkLock::new(),
            asked: AtomicU32::new(STARTED),
            caller: AtomicU32::new(0),
            published: AtomicU32::new(STARTED),
            done: [const { AtomicU32::new(0) }; STACKS],
            filtered: AtomicBool::new(false),
            securebits: AtomicU64::new(NO_BITS),
            model: Mutex::new(None),
            looked: AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }
}

impl Following {
    /// Thread `index` is about to be started.
    pub fn begin(&self, index: usize) {
        self.done[index].store(STARTED, SeqCst);
    }

    /// Thread `index` could not be started, or is about to end.
    pub fn end(&self, index: usize) {
        self.done[index].store(0, SeqCst);
        futex::wake_all(&self.done[index]);
    }

    /// In a forked child, where none of these threads is, and descriptors have other numbers.
    pub fn fork_child(&self) {
        self.asking.unlock();
        self.done.iter().for_each(|done| done.store(0, SeqCst));
        // Its filter is the program's.
        self.filtered.store(false, SeqCst);
        // SAFETY: the child has one thread yet; the value is whole at every moment.
        unsafe { self.model.free_in_child() };
        std::mem::forget(self.model.lock().take());
    }

    pub(crate) fn wait(&self, index: usize, number: u32) {
        let done = &self.done[index];
        loop {
            let now = done.load(SeqCst);
            if now == 0 || now.wrapping_sub(number) as i32 >= 0 {
                return;
            }
            futex::wait(done, now, Some(WAIT_NS));
        }
    }
}

/// A thread that waits for the engine's looks itself this often.
pub(crate) const WAIT_NS: u64 = 100_000_000;
