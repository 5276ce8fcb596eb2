//! The program may lock (`mlock`) half of its budget: memory that is locked cannot be swapped out, and a program that
//! locks more than the budget would wait for ever for room that cannot be made.
//!
//! The kernel enforces it, so that it holds for `mlock`, `mlockall`, `MAP_LOCKED` and bare system calls alike: what is
//! too much fails with ENOMEM (`mmap`: EAGAIN), as for any program without privileges. `CAP_IPC_LOCK`, with which there
//! is no limit, is given up.

use crate::failure::{Failure, Result, why};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// Sets the limit for this process and all that it starts. Called after any change of user.
///
/// # Errors
/// The kernel does not let the capability go.
pub fn apply(ram_bytes: u64) -> Result<()> {
    let fail =
        |e: Errno| Failure::new(format!("cannot limit how much memory the program may lock: {}", why(&e.into())));
    let most = Some(ram_bytes / 2);
    let old = getrlimit(Resource::Memlock);
    let lower = |old: Option<u64>| old.min(most).or(most);
    let lowered = Rlimit { current: lower(old.current), maximum: lower(old.maximum) };
    let mut own = capabilities(None).map_err(fail)?;
    if !(own.permitted | own.inheritable).contains(CapabilitySet::IPC_LOCK) {
        return setrlimit(Resource::Memlock, lowered).map_err(fail);
    }
    // For this program there was no limit, whatever the number said. It may take another capability to raise it.
    setrlimit(Resource::Memlock, Rlimit { current: most, maximum: most })
        .or_else(|_| setrlimit(Resource::Memlock, lowered))
        .map_err(fail)?;
    // Root gets back at exec what its bounding set has.
    remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).map_err(fail)?;
    own.effective.remove(CapabilitySet::IPC_LOCK);
    own.permitted.remove(CapabilitySet::IPC_LOCK);
    own.inheritable.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, own).map_err(fail)
}
