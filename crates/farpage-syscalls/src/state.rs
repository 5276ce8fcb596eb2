//! What the process has once: the memory, and what the code at the sites reads.
//!
//! Set by [`crate::install`]; read by all of this crate. No lock: what is set stays.

use crate::table::CLASSES;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

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

/// What the code of the sites reads. It lies before the code, so that every site reaches it.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Shared {
    /// Where memory of ours begins.
    pub low: AtomicUsize,
    /// Its length; 0: there is none.
    pub len: AtomicUsize,
    /// `entry::direct`, `entry::nested`.
    pub entries: [AtomicUsize; 2],
    /// [`crate::table::Class`] of each number, as bits.
    pub classes: [u8; CLASSES],
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static MEMORY: OnceLock<&'static dyn Memory> = OnceLock::new();

/// The first one is the process's.
pub fn set_memory(memory: &'static dyn Memory) {
    let _ = MEMORY.set(memory);
}

/// From now on there is one.
pub fn set_shared(shared: &'static Shared) {
    SHARED.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
}

/// What the code at the sites reads; `None`: there is no such code.
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or what `patch` made, which stays.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// The memory whose pages are brought in.
pub fn memory() -> Option<&'static dyn Memory> {
    MEMORY.get().copied()
}
