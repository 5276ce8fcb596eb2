//! What a descriptor is of, and copies that stay open across exec.
//!
//! Callers: code that hands one on to another program. No locks.

use super::raw::Errno;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::fstat;
use rustix::process::{Resource, getrlimit};

/// Which file a descriptor is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The device that has it.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

impl FileId {
    /// Of a descriptor that is open.
    ///
    /// # Errors
    /// As fstat.
    pub fn of(fd: BorrowedFd<'_>) -> Result<FileId, Errno> {
        fstat(fd).map(|stat| FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether this number still is a descriptor of it. One system call; nothing is allocated.
    pub fn is_at(self, fd: RawFd) -> bool {
        // SAFETY: only asked what it is; if it is not open, the answer is no.
        fd >= 0 && FileId::of(unsafe { BorrowedFd::borrow_raw(fd) }) == Ok(self)
    }
}

/// Descriptors meant for the program get numbers from here on, out of the way of the ones it opens.
const HIGH_FD: i32 = 457;

/// A copy of a descriptor with a high number that stays open across exec.
///
/// # Errors
/// As `F_DUPFD`.
pub fn keep_across_exec(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = i32::try_from(limit.saturating_sub(8)).map_or(HIGH_FD, |most| most.clamp(3, HIGH_FD));
    // SAFETY: F_DUPFD makes a new descriptor and changes nothing else.
    let copy =
        unsafe { super::raw::syscall(libc::SYS_fcntl as u32, [fd.as_raw_fd() as usize, 0, lowest as usize, 0, 0, 0]) }?;
    // SAFETY: the kernel has just given us this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}
