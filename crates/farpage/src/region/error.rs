//! What can go wrong with pagers and regions, and between which limits a budget lies.
//!
//! Callers: all of `region`. Types only.

use farpage_base::sys::uffd::{OpenError, UffdError};
use farpage_device::{DeviceError, LoadError};
use rustix::io::Errno;

/// Smallest budget of a pager, bytes.
pub const BUDGET_MIN: u64 = 4 << 20;

/// Largest budget: what frame numbers and counters are made for.
pub const BUDGET_MAX: u64 = 1 << 44;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The budget is outside of what a pager can work with.
    #[error("a budget of {0} bytes is not between {BUDGET_MIN} and {BUDGET_MAX}")]
    Budget(u64),
    /// A region of no bytes.
    #[error("a region must have at least one byte")]
    ZeroSize,
    /// The region does not fit into what is left of the pager's address space.
    #[error("a region of {0} bytes does not fit into the pager's address space")]
    TooLarge(usize),
    /// The range does not lie in the region.
    #[error("the range {start}..{end} does not lie in a region of {len} bytes")]
    Range {
        /// First byte.
        start: usize,
        /// First byte behind.
        end: usize,
        /// Bytes of the region.
        len: usize,
    },
    /// More would be pinned than three quarters of the budget, or a page more often than 127 times.
    #[error("pinning {0} bytes would leave no memory for the rest")]
    PinLimit(usize),
    /// The pager belongs to another process: regions are not inherited by a forked child.
    #[error("the pager was built by another process; a forked child cannot use it")]
    Forked,
    /// In [`FaultMode::Thread`](super::FaultMode::Thread) a forked child cannot have the regions.
    #[error("a pager in fault mode thread cannot be inherited by forked children")]
    InheritThread,
    /// Libc's system calls cannot be looked at ([`Builder::system_calls`](super::Builder::system_calls)).
    #[error("system calls on regions cannot be served: {0}")]
    SystemCalls(#[from] farpage_syscalls::InstallError),
    /// There are 64 pagers already.
    #[error("a process can have 64 pagers")]
    TooManyPagers,
    /// No userfaultfd.
    #[error("{0}")]
    Userfaultfd(OpenError),
    /// A swap device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A page of the range cannot be read back from its device. It stays there: a later try may succeed, discarding it
    /// gives it up.
    #[error("the page at byte {offset} of the region cannot be read back: {why}")]
    Unreadable {
        /// Where it begins, bytes from the region's beginning.
        offset: usize,
        /// What the device said.
        why: LoadError,
    },
    /// A system call failed.
    #[error("{what}: {errno}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// The kernel's answer behind a refusal.
pub(super) fn errno_of(refused: UffdError) -> Errno {
    if let UffdError::Other(errno) = refused { errno } else { Errno::FAULT }
}
