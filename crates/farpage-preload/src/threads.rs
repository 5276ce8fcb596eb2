//! Functions of threads that this library stands in front of, and why:
//!
//! * `pthread_create`: the new thread's control block must stay in memory: kernel and libc write to it at moments when
//!   they cannot wait for a page (thread exit, fork). Also before the call returns
//!   ([`farpage_run::mappings::thread_starts`]); on a stack that the program has given, it is told before.
//! * `pthread_mutexattr_setrobust`, `.._np`: the kernel does not wait for a page either when it marks what a thread
//!   held that has ended.

use crate::call::{call, interposed};
use crate::late::slots::take_over_new;
use farpage_run::lifecycle::program::thread_started;
use farpage_run::mappings::thread_starts::ThreadStart;
use farpage_run::pager::robust;
use std::ffi::{c_int, c_void};

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    arg: *mut c_void,
) -> c_int {
    take_over_new();
    // SAFETY: caller's promise.
    let (stack, given_end) = unsafe { stack_of(attr) };
    let _starts = ThreadStart::begin();
    if given_end != 0 {
        thread_started(given_end.saturating_sub(BLOCK_BYTES), 0);
    }
    // SAFETY: caller's promise.
    let result = unsafe { call!(pthread_create(thread, attr, start, arg), libc::EAGAIN) };
    if result == 0 {
        // SAFETY: set by a successful call; with glibc the handle is the address of the control block.
        thread_started(unsafe { *thread } as usize, stack);
    }
    result
}

/// Of the control block, which libc puts at the end of a stack; glibc's has 2,304.
const BLOCK_BYTES: usize = 0x900;

/// Bytes of the stack of a thread that is started with these attributes (null: the usual ones), and the address of its
/// end; 0: libc maps it.
///
/// # Safety
/// As for `pthread_create`.
unsafe fn stack_of(attr: *const libc::pthread_attr_t) -> (usize, usize) {
    let (mut size, mut given, mut start) = (0, 0, std::ptr::null_mut());
    // SAFETY: caller's promise, or attributes that live as long as they are used, and that are zero first.
    unsafe {
        let mut usual: libc::pthread_attr_t = std::mem::zeroed();
        let attr = if attr.is_null() && libc::pthread_attr_init(&mut usual) == 0 { &raw const usual } else { attr };
        if !attr.is_null() {
            libc::pthread_attr_getstacksize(attr, &mut size);
            libc::pthread_attr_getstack(attr, &mut start, &mut given);
        }
    }
    (size, start.addr().wrapping_add(given))
}

type Attributes = *mut libc::pthread_mutexattr_t;

interposed! {
    fn pthread_mutexattr_setrobust(attr: Attributes, kind: c_int) -> c_int = {
        note_robust(kind);
        call!(pthread_mutexattr_setrobust(attr, kind), libc::ENOSYS)
    };
    /// By its older name.
    fn pthread_mutexattr_setrobust_np(attr: Attributes, kind: c_int) -> c_int = {
        note_robust(kind);
        call!(pthread_mutexattr_setrobust_np(attr, kind), libc::ENOSYS)
    };
}

/// There will be a mutex of this kind.
fn note_robust(kind: c_int) {
    if kind != libc::PTHREAD_MUTEX_STALLED {
        robust::robust_mutexes_seen();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_stack_is_known_if_the_program_has_given_it() {
        const BYTES: usize = 1 << 20;
        let place = 0x1000_0000_0000 as *mut c_void;
        // SAFETY: attributes on this stack, made before they are used; no thread is started.
        let (usual, sized, given) = unsafe {
            let mut attr: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&mut attr);
            libc::pthread_attr_setstacksize(&mut attr, BYTES);
            let sized = stack_of(&attr);
            assert_eq!(libc::pthread_attr_setstack(&mut attr, place, 2 * BYTES), 0);
            (stack_of(std::ptr::null()), sized, stack_of(&attr))
        };
        assert!(usual.0 > 0 && usual.1 == 0, "{usual:?}");
        assert_eq!((sized, given), ((BYTES, 0), (2 * BYTES, place.addr() + 2 * BYTES)));
    }
}
