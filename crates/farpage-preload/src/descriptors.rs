//! The descriptor of `/dev/userfaultfd` that root has passed on (`--user`) has to last until the program's children exec: they may
//! not open the device themselves. Programs that start others often close everything first (Python's `subprocess`, daemons,
//! Java), so the functions that close are interposed and leave this one open. They say that it was closed; whoever
//! puts another descriptor in its place (`dup2`) has the number.
//!
//! Without such a descriptor, and for all others, they are libc's. No locks, no allocation: called between `vfork` and exec.

use crate::interpose::{found, next, no_such_function};
use farpage::probe::{inherited_device, is_misc_device};
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

static REAL_CLOSE: AtomicUsize = AtomicUsize::new(0);
static REAL_CLOSE_RANGE: AtomicUsize = AtomicUsize::new(0);

/// The descriptor that stays open; [`NONE`]: none.
static KEPT: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;

/// Looks the functions up. By the initialiser: later, a child of `vfork` may ask.
pub fn find() {
    let device = inherited_device().and_then(|fd| u32::try_from(fd.as_raw_fd()).ok());
    KEPT.store(device.unwrap_or(NONE), Relaxed);
    REAL_CLOSE.store(next(c"close"), Relaxed);
    REAL_CLOSE_RANGE.store(next(c"close_range"), Relaxed);
}

/// The descriptor that stays open, if it is one of these and still the device: the program may have put another there.
fn kept(first: c_uint, last: c_uint) -> Option<c_uint> {
    let kept = Some(KEPT.load(Relaxed)).filter(|kept| *kept != NONE && (first..=last).contains(kept))?;
    // SAFETY: a positive number, only asked what it is; if it is not open, the answer is no.
    is_misc_device(unsafe { BorrowedFd::borrow_raw(kept as i32) }).then_some(kept)
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    let number = fd as c_uint; // a negative one is larger than any
    if kept(number, number).is_some() {
        return 0;
    }
    let real = found(&REAL_CLOSE, c"close");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(c_int) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { real(fd) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let real = found(&REAL_CLOSE_RANGE, c"close_range");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise, for parts of its range.
    let close = |first, last| unsafe { real(first, last, flags) };
    match kept(first, last) {
        None => close(first, last),
        Some(kept) => {
            let below = if first < kept { close(first, kept - 1) } else { 0 };
            let above = if kept < last { close(kept + 1, last) } else { 0 };
            below.min(above)
        }
    }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(low: c_int) {
    // SAFETY: caller's promise. The kernels that farpage needs have this call, so it fails for no descriptor.
    unsafe { close_range(low.max(0) as c_uint, c_uint::MAX, 0) };
}
