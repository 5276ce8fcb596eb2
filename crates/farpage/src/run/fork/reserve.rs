//! What a child's engine will need is had before the copy is made. So a fork that would not go well fails, as one does that the
//! kernel refuses, and no child dies of it.
//!
//! | what | how |
//! | --- | --- |
//! | the engine's descriptors | they wait in a socket ([`super::channel`]), of which the program's table gets one end; above its limit if all numbers below are taken |
//! | room in the table of the child's engine | the limit allows what that opens, or can be raised for its start |
//! | threads | as many as the child's engine has stand by in the parent until the copy is made; then the child has a while to get its own |
//!
//! While nothing is managed, a child needs no engine ([`crate::run::dormant`]), and nothing is reserved.
//!
//! Caller: the forking thread, before it asks for a pause, or sooner: where the preload library stands before `fork`.

use super::{Errand, Fork, room_for_start};
use crate::run::state::{Engine, engine, lock};
use crate::sys::futex;
use crate::sys::limit::with_room;
use crate::sys::raw::{Errno, ErrnoText, warn};
use crate::sys::thread::{block_signals, restore_signals, spawn_standby, thread_pointer};
use rustix::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Threads of a child's engine without which it cannot go on: monitor, pager, writer.
const THREADS: usize = 3;
/// How long a fork waits for what is missing where it cannot be refused.
const PATIENCE: Duration = Duration::from_secs(10);

impl Engine {
    /// Forking thread, which has closed the gates: gets what the child of a process with managed memory will need.
    fn prepare_errand(&'static self) -> Result<Errand, Errno> {
        let f = &self.fork;
        drop(room_for_start(self.given_to_children().len())?);
        let monitor = f.monitor_tid.load(SeqCst);
        let end = with_room(|| f.open_channel(monitor, || self.ring_monitor()))?;
        let mut errand = Errand { active: true, channel: end.into_raw_fd() };
        f.standby.store(0, SeqCst);
        for _ in 0..THREADS {
            match spawn_standby(&f.standby) {
                Ok(()) => {}
                // The children's pid namespace is another one: this process gets no threads, and they will.
                Err(Errno::INVAL) => break,
                Err(error) => {
                    f.dismiss();
                    errand.lose_channel();
                    return Err(error);
                }
            }
        }
        Ok(errand)
    }

    /// The descriptors, in the engine's table, that a child's engine needs.
    pub fn given_to_children(&self) -> Vec<RawFd> {
        let mut fds = self.space.fds();
        fds.extend(self.fork.descriptors());
        fds.extend(self.device().map(|fd| fd.as_raw_fd()));
        fds
    }

    /// Wakes the monitor, wherever it waits.
    fn ring_monitor(&self) {
        self.fork.closed.fetch_add(2, SeqCst);
        futex::wake_all(&self.fork.closed);
        self.wakeups.monitor.fetch_add(1, SeqCst);
        futex::wake_all(&self.wakeups.monitor);
    }
}

impl Fork {
    /// The threads that stand by end.
    pub(super) fn dismiss(&self) {
        self.standby.store(1, SeqCst);
        futex::wake_all(&self.standby);
    }

    /// Closes the gates, and waits until the monitor stands at its own. The fork's lock is held.
    fn close_gates(&self) {
        self.closed.fetch_add(1, SeqCst);
        self.monitor_gate.lock();
    }

    /// Undoes that, if the writer's gate was not taken.
    pub(super) fn open_monitor_gate(&self) {
        // First: the monitor would look for it without sleeping.
        self.monitor_gate.unlock();
        self.closed.fetch_add(1, SeqCst);
        futex::wake_all(&self.closed);
    }

    /// The calling thread has reserved what it needs and has not forked yet, or not finished.
    fn is_reserved(&self) -> bool {
        self.reserved.load(SeqCst) == thread_pointer()
    }
}

/// Gets what the child of a fork will need that the calling thread is about to make. The engine's threads but the pager stand still from
/// here on until the handlers after the fork, or [`release`].
///
/// # Errors
/// `AGAIN`: there is not enough of something, and the child could not live.
pub fn reserve() -> Result<(), Errno> {
    match engine() {
        Some(e) if e.fork.is_home() => e.reserve(false),
        _ => Ok(()),
    }
}

/// [`reserve`], from where the fork cannot be refused any more: waits a while for what is missing, and the child has to do without.
pub(super) fn reserve_anyway(e: &'static Engine) {
    let since = Instant::now();
    while e.reserve(since.elapsed() > PATIENCE).is_err() {
        futex::wait(&e.wakeups.never, 0, Some(1_000_000));
    }
}

impl Engine {
    /// `anyway`: also without what is missing.
    fn reserve(&'static self, anyway: bool) -> Result<(), Errno> {
        let f = &self.fork;
        // A handler of the program's, before a fork, may fork.
        if f.is_reserved() {
            return Ok(());
        }
        // A handler of a signal as well.
        let mask = block_signals();
        f.lock.lock();
        f.close_gates();
        // The monitor cannot activate the engine any more: from here on this does not change.
        let errand = match self.active.load(SeqCst) {
            true => self.prepare_errand().or_else(|error| {
                let missing = ErrnoText(error);
                warn_once(&format!(
                    "fork is refused: there are no threads or descriptors for a child's engine: {missing}"
                ));
                if anyway { Ok(Errand { active: true, ..Errand::NONE }) } else { Err(Errno::AGAIN) }
            }),
            false => Ok(Errand::NONE),
        };
        let result = errand.map(|errand| {
            *lock(&f.errand) = errand;
            f.reserved.store(thread_pointer(), SeqCst);
        });
        if result.is_err() {
            f.open_monitor_gate();
            f.lock.unlock();
        }
        restore_signals(mask);
        result
    }
}

/// Gives back what [`reserve`] got, if there was no fork, or no handler of ours around it.
pub fn release() {
    let Some(e) = engine().filter(|e| e.fork.is_home() && e.fork.is_reserved()) else { return };
    let f = &e.fork;
    f.dismiss();
    lock(&f.errand).lose_channel();
    f.wait_idle();
    f.reserved.store(0, SeqCst);
    f.open_monitor_gate();
    f.lock.unlock();
}

/// Says so once, also for the children.
fn warn_once(text: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, SeqCst) {
        warn(&format!("{text}; `farpage doctor` says more"));
    }
}
