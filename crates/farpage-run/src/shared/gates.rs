//! Where writer and monitor stand still while the process is forked.
//!
//! Callers: the forking thread; writer and monitor. They are the engine's outermost locks, inside of
//! [`crate::shared::protocol::Fork`]'s `lock`.

use farpage_base::sys::futex;
use farpage_base::sys::thread::ForkLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// See the module documentation.
#[derive(Default)]
pub struct Gates {
    /// Odd: writer and monitor wait at their gates. Counts what they are woken for.
    closed: AtomicU32,
    /// Held by the writer while it works.
    pub(crate) writer: ForkLock,
    /// Held by the monitor while it works.
    pub(crate) monitor: ForkLock,
}

impl Gates {
    /// Writer and monitor call this before they take their gates. `serve` is called whenever there may be something to
    /// do.
    pub fn pass(&self, serve: impl Fn()) {
        loop {
            let closed = self.closed.load(SeqCst);
            serve();
            if closed.is_multiple_of(2) {
                return;
            }
            futex::wait(&self.closed, closed, None);
        }
    }

    /// Has writer and monitor, at their gates, look whether there is something to do.
    pub fn ring(&self) {
        self.closed.fetch_add(2, SeqCst);
        futex::wake_all(&self.closed);
    }

    /// Closes the gates, and waits until the monitor stands at its own. The fork's lock is held.
    pub(crate) fn close(&self) {
        self.closed.fetch_add(1, SeqCst);
        self.monitor.lock();
    }

    /// Writer and monitor go on.
    pub(crate) fn open(&self) {
        self.writer.unlock();
        self.open_monitor();
    }

    /// Undoes [`Gates::close`], if the writer's gate was not taken.
    pub(crate) fn open_monitor(&self) {
        // First: the monitor would look for it without sleeping.
        self.monitor.unlock();
        self.closed.fetch_add(1, SeqCst);
        futex::wake_all(&self.closed);
    }
}
