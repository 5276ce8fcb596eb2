//! Why there is no engine.
//!
//! Made and written on engine threads, too: an errno is in words of our own ([`ErrnoText`]).

use farpage_base::sys::raw::ErrnoText;
use farpage_base::sys::uffd::{OpenError, UffdError};
use farpage_device::error::DeviceError;
use std::path::PathBuf;

/// `Display` is one line that says what failed, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program has put itself under a filter.
    #[error("the program has given itself a seccomp filter, under which no engine can be started")]
    Filtered,
    /// It runs under valgrind.
    #[error("valgrind runs this program, and cannot run the engine's threads")]
    Valgrind,
    /// None is left.
    #[error("no address space for the engine: {0}; is there a limit (ulimit -v, -d)?")]
    AddressSpace(ErrnoText),
    /// It was not reserved.
    #[error("the engine was started without its address space")]
    NoArena,
    /// None is left.
    #[error("no memory for the engine's heap")]
    Heap,
    /// None is left.
    #[error("no memory for the engine's frames; is there a limit (ulimit -v, -d)?")]
    Frames,
    /// `clone` failed.
    #[error("cannot start an engine thread: {0}")]
    Thread(ErrnoText),
    /// It would hold more than the program.
    #[error("an engine thread cannot give up privileges: {0}")]
    Privileges(ErrnoText),
    /// A file of `/proc`, or `/proc`: what was to be done with it.
    #[error("cannot {0}: {1}")]
    Proc(&'static str, ErrnoText),
    /// No swap device would be left.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel gives none.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// The kernel does not let them be.
    #[error("cannot register the engine's frames: {0:?}")]
    Register(UffdError),
    /// Of those that a process may have.
    #[error("no descriptor is left: {0}")]
    Descriptor(ErrnoText),
    /// What wakes the pager.
    #[error("cannot make an eventfd: {0}")]
    Eventfd(ErrnoText),
    /// A file of `--trace`.
    #[error("cannot record faults in {path}: {why}", path = .0.display(), why = .1)]
    Trace(PathBuf, ErrnoText),
}

/// For a caller that adds to the words, in a forked child.
impl From<StartError> for String {
    fn from(error: StartError) -> String {
        error.to_string()
    }
}
