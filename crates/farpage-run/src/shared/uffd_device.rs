//! The descriptor of `/dev/userfaultfd` from which this process's engine, and those of forked children, have their
//! userfaultfds.
//!
//! It lies in the engine's descriptor table: what becomes of the one that the program inherited is the program's
//! business.
//!
//! Callers: [`crate::monitor::build`] and the monitor, which owns the descriptor table; the code that opens
//! userfaultfds; `warn_once`. No locks.

use crate::probe::{is_misc_device, open_device};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// There is no engine.
const NO_ENGINE: RawFd = -2;

/// Its number in the engine's table, -1 if there is none, or [`NO_ENGINE`].
static NUMBER: AtomicI32 = AtomicI32::new(NO_ENGINE);

/// This process's engine has it as `number`, or has none (-1).
pub(crate) fn set_number(number: RawFd) {
    NUMBER.store(number, Relaxed);
}

/// This process has no engine.
pub(crate) fn forget() {
    NUMBER.store(NO_ENGINE, Relaxed);
}

/// Its number in the engine's table, or -1; `None`: there is no engine.
pub(crate) fn number() -> Option<RawFd> {
    Some(NUMBER.load(Relaxed)).filter(|number| *number != NO_ENGINE)
}

/// The device, if the engine has one. On engine threads.
pub(crate) fn device() -> Option<BorrowedFd<'static>> {
    let fd = number().filter(|fd| *fd >= 0);
    // SAFETY: the number stays open in the engine's table, which only the engine closes.
    fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Makes sure that [`device`] is the device: the program may have closed what was passed on, or put something
/// else in its place. Else it is opened, while this process may do that: children of one that gives its privileges up
/// may not. On the monitor thread, which owns the descriptor table.
pub(crate) fn hold() {
    if !device().is_some_and(is_misc_device) {
        set_number(open_device().map_or(-1, IntoRawFd::into_raw_fd));
    }
}

/// What the launcher says is the device; [`hold`] looks.
pub(crate) fn passed_on() -> i32 {
    farpage_ipc::conf::variable(farpage_ipc::conf::ENV_UFFD_FD).and_then(|v| v.parse().ok()).unwrap_or(-1)
}
