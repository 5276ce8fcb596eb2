//! A program that registers memory with a userfaultfd of its own (to see what is written, for snapshots; to fill it
//! lazily). The kernel allows one for a mapping, and says that it is busy where ours was first: then ours lets go of it
//! (`run/pager/let_go.rs`), and the program's is registered. While it is, the memory is not managed.
//!
//! A request made by a system call instruction of the program's own fails as ever.

use farpage_run::shared::state::engine;
use std::ffi::{c_int, c_ulong};

/// `UFFDIO_REGISTER`. Callers pass it as an `int`, too.
const REGISTER: u32 = 0xc020_aa00;
/// Absent pages are told.
const MODE_MISSING: u64 = 1;
/// The engine may take the memory back before the program has registered it.
const TRIES: usize = 8;

/// What `UFFDIO_REGISTER` is about.
#[repr(C)]
struct Registration {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `request` was made, with this result: makes it `again` if it failed because of us.
///
/// # Safety
/// `argument` is what the request takes; `result` is -1 where `errno` says why.
#[inline]
pub unsafe fn registered(result: c_int, request: c_ulong, argument: usize, again: impl Fn() -> c_int) -> c_int {
    if result == 0 || request as u32 != REGISTER {
        return result;
    }
    // SAFETY: caller's promise.
    unsafe { ask_again(result, argument, again) }
}

/// # Safety
/// As [`registered`].
#[cold]
unsafe fn ask_again(mut result: c_int, argument: usize, again: impl Fn() -> c_int) -> c_int {
    let Some(engine) = engine() else { return result };
    for _ in 0..TRIES {
        // SAFETY: the calling thread's errno.
        if result == 0 || unsafe { *libc::__errno_location() } != libc::EBUSY || argument == 0 {
            break;
        }
        // SAFETY: the kernel has read it.
        let Registration { start, len, mode, .. } = unsafe { (argument as *const Registration).read_unaligned() };
        let end = start.saturating_add(len) as usize;
        if !engine.let_go(start as usize, end) {
            // SAFETY: the calling thread's errno.
            unsafe { *libc::__errno_location() = libc::EBUSY };
            break;
        }
        if mode & MODE_MISSING == 0 {
            // A write to a page that is not there cannot be told.
            engine.make_zeros(start as usize, end);
        }
        result = again();
    }
    result
}
