//! System calls on memory that is not there yet.
//!
//! The kernel cannot run a program's fault handler in the middle of a system call: a call that is given memory which a
//! handler in user space would bring in fails with EFAULT. [`install`] has libc's calls looked at before the kernel
//! sees them. If one is about memory of a [`Memory`], the parts that it reads or writes are brought in and held until
//! it returns. All others are made as before, some nanoseconds later.
//!
//! Nothing is needed for it but that a process may change its own text: no privilege, no filter, no tracer. Children
//! have what a fork copies; a program that is executed has nothing of it.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`table`] | what each call's arguments point to |
//! | `text` | where libc makes its calls |
//! | `patch` | the jumps in libc's text, and the code that they lead to |
//! | `entry` | from that code to Rust, and back; where the call is made |
//! | `pieces` | calls on more memory than may be held |
//! | `call` | making a call in one go: bring in, make, let go |
//! | `held` | what is held, by which call |
//! | `parts` | the parts of memory that a call is about |
//! | `state` | what the process has once: the memory, and what the code at the sites reads |
//! | [`sigbus`] | the signal that brings memory in: not blocked, its handler not replaced |
//! | `signals` | no handler in the middle of all this |
//! | `raw` | the call itself |
//!
//! Each uses only those below it.
//!
//! Lock order: none of its own. What [`Memory`] takes is taken in the middle of any of the program's calls, also in
//! signal handlers.

mod call;
mod entry;
mod held;
mod parts;
mod patch;
mod pieces;
mod raw;
pub mod sigbus;
mod signals;
mod state;
pub mod table;
mod text;

use state::shared;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

pub use held::after_fork_in_child;
pub use raw::raw;
pub use state::Memory;
pub use table::Access;

/// Why calls are not looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// Not glibc, or not one that is loaded by its name.
    #[error("the program's C library is not glibc's libc.so.6")]
    UnknownLibc,
    /// The library is not built as others are.
    #[error("{0}: its functions cannot be found")]
    UnknownText(String),
    /// No `xsave`.
    #[error("the processor cannot save its state (no xsave)")]
    OldProcessor,
    /// The kernel, or a security module, does not let a process change its text.
    #[error("the text of libc cannot be changed: {0}")]
    Refused(rustix::io::Errno),
}

/// What [`install`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Installed {
    /// System calls of libc and the loader.
    pub sites: usize,
    /// Those of them that stay as they were: about no memory, or without room for a jump.
    pub left: usize,
}

/// Has libc's calls looked at from now on, for this memory, as far as [`cover`] says. Once in a process: what it
/// did, or why not, the first time.
///
/// # Errors
/// [`InstallError`]. Nothing has changed then.
pub fn install(memory: &'static dyn Memory) -> Result<Installed, InstallError> {
    static DONE: Mutex<Option<Result<Installed, InstallError>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    done.get_or_insert_with(|| {
        state::set_memory(memory);
        sigbus::own_process();
        if !entry::prepare() {
            return Err(InstallError::OldProcessor);
        }
        let texts = text::find()?;
        let (shared, left) = patch::patch(&texts).map_err(InstallError::Refused)?;
        state::set_shared(shared);
        Ok(Installed { sites: texts.iter().map(|text| text.sites.len()).sum(), left })
    })
    .clone()
}

/// Whether libc's calls are looked at.
pub fn is_installed() -> bool {
    shared().is_some()
}

static RANGE: Mutex<()> = Mutex::new(());

/// There is memory in `[start, start + len)`, too: what lies between it and what was covered before is looked at as
/// well, and left alone where it is not the memory's own. Calls that other threads make meanwhile are not missed.
pub fn cover(start: usize, len: usize) {
    let _one = RANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(shared) = shared() else { return };
    let (low, old) = (shared.low.load(Ordering::SeqCst), shared.len.load(Ordering::SeqCst));
    if old == 0 {
        shared.low.store(start, Ordering::SeqCst);
        shared.len.store(len, Ordering::SeqCst);
        return;
    }
    let (first, end) = (low.min(start), (low + old).max(start + len));
    // The length first: with either beginning it covers what was covered.
    shared.len.store(end - first, Ordering::SeqCst);
    shared.low.store(first, Ordering::SeqCst);
}

/// No call is looked at any more, if there `is_none`, which is asked while nothing can be covered.
pub fn cover_nothing(is_none: impl FnOnce() -> bool) {
    let _one = RANGE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = shared().filter(|_| is_none()) {
        shared.len.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
