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
//! | `entry` | from that code to Rust, and back |
//! | `call` | making a call: bring in, make, let go |
//! | `parts` | the parts of memory that a call is about |
//! | `pieces` | calls on more memory than may be held |
//! | `held` | what is held, by whom |
//!
//! Lock order: none of its own. What [`Memory`] takes is taken in the middle of any of the program's calls, also in
//! signal handlers.

mod call;
mod entry;
mod held;
mod parts;
mod patch;
mod pieces;
pub mod table;
mod text;

use patch::Shared;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

pub use held::after_fork_in_child;
pub use table::Access;

/// Memory that is brought in on demand.
pub trait Memory: Sync {
    /// Brings in what lies in `[addr, addr + len)` from its beginning on, and holds it: the kernel can read it and, if
    /// `write`, write it, until [`Memory::release`]. How many bytes, up to `len`, is told `note` and returned; 0: none
    /// of it is this memory's, or it cannot be had. Called in the middle of any of the program's calls: it must not
    /// allocate by libc, and must not take a lock that may be held where this memory is touched.
    ///
    /// A fork sees both, that it is held and that `note` was called, or neither; the same with [`Memory::release`].
    fn hold(&self, addr: usize, len: usize, write: bool, note: &dyn Fn(usize)) -> usize;

    /// Lets go of what [`Memory::hold`] said that it holds, and calls `note`.
    fn release(&self, addr: usize, len: usize, note: &dyn Fn());

    /// Whether an address is this memory's. Makes no system call by libc.
    fn contains(&self, addr: usize) -> bool;

    /// Bytes that one call may hold at once of the memory at `addr`.
    fn most(&self, addr: usize) -> usize;
}

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

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static MEMORY: OnceLock<&'static dyn Memory> = OnceLock::new();

/// Has libc's calls looked at from now on, for this memory, as far as [`cover`] says. Once in a process: what it
/// did, or why not, the first time.
///
/// # Errors
/// [`InstallError`]. Nothing has changed then.
pub fn install(memory: &'static dyn Memory) -> Result<Installed, InstallError> {
    static DONE: Mutex<Option<Result<Installed, InstallError>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    done.get_or_insert_with(|| {
        let _ = MEMORY.set(memory);
        if !entry::prepare() {
            return Err(InstallError::OldProcessor);
        }
        let texts = text::find()?;
        let (shared, left) = patch::patch(&texts).map_err(InstallError::Refused)?;
        SHARED.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
        Ok(Installed { sites: texts.iter().map(|text| text.sites.len()).sum(), left })
    })
    .clone()
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

/// No call is looked at any more, if there `is_none`, which is asked while nobody can cover anything.
pub fn cover_nothing(is_none: impl FnOnce() -> bool) {
    let _one = RANGE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = shared().filter(|_| is_none()) {
        shared.len.store(0, Ordering::SeqCst);
    }
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or what `patch` made, which stays.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

fn memory() -> Option<&'static dyn Memory> {
    MEMORY.get().copied()
}

#[cfg(test)]
mod tests;
