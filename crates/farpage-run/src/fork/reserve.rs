//! What a child's engine will need is had before the copy is made. So a fork that would not go well fails, as one does
//! that the kernel refuses, and no child dies of it.
//!
//! * The engine's descriptors wait in a socket ([`crate::shared::channel`]), of which the program's table gets one end;
//!   above its limit if all numbers below are taken.
//! * Room in the table of the child's engine: the limit allows what that opens, or can be raised for its start.
//! * Memory: a few pages of the tree's budget, waited for, for a while (`Segment::wait_for_room_of_child`).
//! * Threads: as many as the child's engine has stand by in the parent until the copy is made; then the child has a
//!   while to get its own.
//!
//! The threads that stand by hold what the forking thread does. When the program changes that, they end, and others are
//! made.
//!
//! While nothing is managed, a child needs no engine ([`crate::dormant`]), and nothing is reserved.
//!
//! Caller: the forking thread, before it asks for a pause, or sooner: where the preload library stands before `fork`.

use crate::shared::protocol::{Fork, ForkState, room_for_start};
use crate::shared::state::{Engine, engine};
use crate::shared::uffd_device;
use farpage_base::mem::lock::lock;
use farpage_base::sys::clock::now_us;
use farpage_base::sys::futex;
use farpage_base::sys::limit::with_room;
use farpage_base::sys::message::warn;
use farpage_base::sys::raw::{Errno, ErrnoText};
use farpage_base::sys::thread::{block_signals, restore_signals, thread_pointer};
use farpage_ipc::tree;
use rustix::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long a fork waits for what is missing where it cannot be refused.
const RESERVE_WAIT_MAX: Duration = Duration::from_secs(10);

/// After a wait for memory in vain no other fork waits for so long, microseconds.
const IN_VAIN_US: u64 = 2_000_000;

/// Forking thread, which has closed the gates: gets what the child of a process with managed memory will need.
fn prepare_fork_state(e: &'static Engine) -> Result<ForkState, Errno> {
    let f = &e.fork;
    // And one for what is shared from the first fork on.
    drop(room_for_start(given_to_children(e).len() + 1)?);
    let monitor = f.monitor_tid.load(SeqCst);
    let end = with_room(|| f.channel.open(monitor, || e.ring_monitor()))?;
    let mut fork_state = ForkState { active: true, channel: end.into_raw_fd(), standby: 0 };
    match f.standby.begin() {
        Ok(number) => fork_state.standby = number,
        Err(error) => {
            fork_state.lose_channel();
            return Err(error);
        }
    }
    Ok(fork_state)
}

/// The descriptors, in the engine's table, that a child's engine needs.
pub fn given_to_children(e: &Engine) -> Vec<RawFd> {
    let mut fds = e.space.fds();
    fds.extend(e.fork.descriptors());
    fds.extend(uffd_device::device().map(|fd| fd.as_raw_fd()));
    fds
}

impl Fork {
    /// The calling thread has reserved what it needs and has not forked yet, or not finished.
    fn is_reserved(&self) -> bool {
        self.reserved.load(SeqCst) == thread_pointer()
    }
}

/// Forking thread, in its handler before the copy: makes threads that stand by anew if they had to end since the
/// reservation, because they held what its thread has given up. There may be no room for them any more: then the
/// child has to wait for it.
pub(crate) fn stand_by_again(f: &Fork) {
    let mut fork_state = lock(&f.fork_state);
    let since = Instant::now();
    while fork_state.channel >= 0
        && fork_state.standby != f.standby.number.load(SeqCst)
        && since.elapsed() < RESERVE_WAIT_MAX
    {
        match f.standby.begin() {
            Ok(number) => fork_state.standby = number,
            Err(_) => futex::wait(&AtomicU32::new(0), 0, Some(1_000_000)),
        }
    }
}

/// Gets what the child of a fork will need that the calling thread is about to make. The engine's threads but the pager
/// stand still from here on until the handlers after the fork, or [`release`].
///
/// # Errors
/// `AGAIN`: there is not enough of something, and the child could not live.
pub fn reserve() -> Result<(), Errno> {
    match engine() {
        Some(e) if e.fork.is_home() => reserve_for(e, false),
        _ => Ok(()),
    }
}

/// [`reserve`], from where the fork cannot be refused any more: waits a while for what is missing, and the child has to
/// do without. False: the engine has ended and was forgotten.
pub(crate) fn reserve_anyway(e: &'static Engine) -> bool {
    let since = Instant::now();
    while reserve_for(e, since.elapsed() > RESERVE_WAIT_MAX).is_err() {
        futex::wait(&e.wakeups.never, 0, Some(1_000_000));
    }
    e.fork.is_reserved()
}

/// `anyway`: also without what is missing.
fn reserve_for(e: &'static Engine, anyway: bool) -> Result<(), Errno> {
    let f = &e.fork;
    // A handler of the program's, before a fork, may fork.
    if f.is_reserved() {
        return Ok(());
    }
    if e.is_active() {
        wait_for_room_of_child();
    }
    // A handler of a signal as well.
    let mask = block_signals();
    f.lock.lock();
    if !engine().is_some_and(|now| std::ptr::eq(now, e)) {
        // It has ended, and was forgotten: nothing is needed.
        f.lock.unlock();
        restore_signals(mask);
        return Ok(());
    }
    f.gates.close();
    // The monitor cannot activate the engine any more: from here on this does not change.
    let fork_state = match e.stage.active.load(SeqCst) {
        true => prepare_fork_state(e).or_else(|error| {
            let missing = ErrnoText(error);
            warn_once(&format!("fork is refused: there are no threads or descriptors for a child's engine: {missing}"));
            if anyway { Ok(ForkState { active: true, ..ForkState::NONE }) } else { Err(Errno::AGAIN) }
        }),
        false => Ok(ForkState::NONE),
    };
    let result = fork_state.map(|fork_state| {
        *lock(&f.fork_state) = fork_state;
        f.reserved.store(thread_pointer(), SeqCst);
    });
    if result.is_err() {
        f.gates.open_monitor();
        f.lock.unlock();
    }
    restore_signals(mask);
    result
}

/// Gives back what [`reserve`] got, if there was no fork, or no handler of ours around it.
pub fn release() {
    let Some(e) = engine().filter(|e| e.fork.is_home() && e.fork.is_reserved()) else { return };
    let f = &e.fork;
    f.standby.dismiss();
    lock(&f.fork_state).lose_channel();
    f.reserved.store(0, SeqCst);
    f.gates.open_monitor();
    f.lock.unlock();
}

/// Not again for a while if it was in vain: then no process has anything to give.
fn wait_for_room_of_child() {
    static NOT_BEFORE_US: AtomicU64 = AtomicU64::new(0);
    let (Some(segment), Some(mine)) = (tree::segment(), tree::place()) else { return };
    if now_us() >= NOT_BEFORE_US.load(SeqCst) && !segment.wait_for_room_of_child(mine) {
        NOT_BEFORE_US.store(now_us() + IN_VAIN_US, SeqCst);
    }
}

/// Says so once, also for the children.
fn warn_once(text: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, SeqCst) {
        warn(&format!("{text}; `farpage doctor` says more"));
    }
}
