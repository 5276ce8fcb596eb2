//! Why there is no engine.
//!
//! Made and written on engine threads, too: an errno is in words of our own ([`ErrnoText`]).

use crate::shared::page_table::State;
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
    /// In a forked child: its parent has told it nothing.
    #[error("its parent ended while it was forked")]
    ParentEnded,
    /// In a forked child of a process that root has given userfaultfds.
    #[error("it cannot receive its userfaultfds: {0}")]
    Receive(ErrnoText),
    /// The same: none of them is the child's.
    #[error("its parent has sent it no userfaultfd")]
    NothingSent,
    /// In a forked child: more than the pipe between parent and child holds.
    #[error("too many mapping changes in other threads at the moment of the fork")]
    TooManyChanges,
    /// In a forked child.
    #[error("cannot register inherited memory: {0:?}")]
    Inherited(UffdError),
    /// In a forked child: what is in its memory is not known.
    #[error("PAGEMAP_SCAN failed: {0}")]
    Scan(ErrnoText),
    /// In a forked child: a page read as zeros before the engine could start.
    #[error(
        "the page at {at:#x} ({state:?}) was touched before the engine of the child could start (stack at {stack:#x})"
    )]
    Touched {
        /// Where it is.
        at: usize,
        /// What it is.
        state: State,
        /// Where the stack of the forking thread ends.
        stack: usize,
    },
}
