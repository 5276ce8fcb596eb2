//! The descriptor of `/dev/userfaultfd` from which this process's engine, and those of forked children, have their userfaultfds.
//!
//! It lies in the engine's descriptor table: what becomes of the one that the program inherited is the program's business.

use crate::probe::{is_misc_device, open_device};
use crate::run::state::Engine;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

impl Engine {
    /// Its number, or -1.
    pub fn device_number(&self) -> &AtomicI32 {
        &self.uffd_device
    }

    /// The device, if there is one.
    pub fn device(&self) -> Option<BorrowedFd<'static>> {
        let fd: RawFd = self.uffd_device.load(Relaxed);
        // SAFETY: the number stays open in the engine's table, which only the engine closes.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Makes sure that [`Engine::device`] is the device: the program may have closed what was passed on, or put something
    /// else in its place. Else it is opened, while this process may do that: children of one that gives its privileges up
    /// may not. On the monitor thread, which owns the descriptor table.
    pub fn hold_device(&self) {
        if !self.device().is_some_and(is_misc_device) {
            let own = open_device().map_or(-1, IntoRawFd::into_raw_fd);
            self.uffd_device.store(own, Relaxed);
        }
    }
}

/// What the launcher says is the device; [`Engine::hold_device`] looks.
pub(crate) fn passed_on() -> i32 {
    std::env::var(crate::conf::ENV_UFFD_FD).ok().and_then(|v| v.parse().ok()).unwrap_or(-1)
}
