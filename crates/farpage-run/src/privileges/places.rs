//! Directories that the engine's threads have open, when the program changes its root directory, its mounts or its
//! user.
//!
//! An attacker that takes the program over can fetch any descriptor of any thread, and a directory that lies outside is
//! a way out. So what the program cannot open by its path any more the engine does not have either. What it needs of it
//! was opened before: its swap file. `/proc` it cannot do without: where there is none in the new root directory, it
//! has one of its own, from which no way leads up.
//!
//! What is exchanged keeps its number, so its users need not know. Caller: the monitor, in the descriptor table
//! that all engine threads have. No locks.

use crate::shared::state::Engine;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_base::sys::proc::{Proc, replace};
use farpage_base::sys::raw::Errno;
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use std::ffi::CString;

/// What the program has changed of what its main thread holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Users, groups, capabilities.
    Rights,
    /// Its root directory or its mounts; or a filter is on its way, under which nothing can be got any more.
    Place,
}

/// What the program is about to leave.
pub(super) struct HeldDirectories {
    /// Directories by descriptor, and their paths as long as the program was there.
    directories: Vec<(RawFd, CString)>,
    change: Change,
}

/// The monitor holds yet what the program held before: what cannot be had afterwards.
pub(super) fn before(e: &Engine, proc: &Proc, change: Change) -> Option<HeldDirectories> {
    if change == Change::None {
        return None;
    }
    if change == Change::Place && !proc.is_top() {
        // A process that may change its root directory may mount, too, mostly.
        let _ = Proc::mount().and_then(|own| own.hold_instead());
    }
    let path = |fd| readlinkat(proc, format!("thread-self/fd/{fd}"), Vec::new()).unwrap_or_default();
    let directories = e.space.directories().into_iter().map(|fd| (fd, path(fd))).collect();
    Some(HeldDirectories { directories, change })
}

/// The monitor holds what the program does: directories are from now on what it finds by their paths, or nothing.
pub(super) fn leave(e: &Engine, proc: &Proc, places: Option<HeldDirectories>) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Some(HeldDirectories { directories, change }) = places else { return };
    for (number, path) in directories {
        // (Not `open`: another system call, which the engine's filter does not allow.)
        let there: Result<OwnedFd, Errno> = openat(CWD, path, flags, Mode::empty()).or_else(|_| {
            e.space.leave_directory(number);
            proc.file("thread-self/statm")
        });
        let _ = there.and_then(|fd| replace(number, fd.as_fd()));
    }
    if change != Change::Place || proc.is_top() {
        return;
    }
    let new = Proc::open().and_then(|new| if new.tells() { new.hold_instead() } else { Err(Errno::NOENT) });
    if new.is_err() {
        warn_once_in_tree(
            WarningKind::Proc,
            "the program has changed its root directory, and there is no /proc in the new one: farpage keeps the old \
             one open, by which whoever takes the program over can leave the new root directory; mount /proc there, \
             or allow the program to mount (CAP_SYS_ADMIN) until it has changed its root directory",
        );
    }
}
