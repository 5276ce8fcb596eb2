//! Functions of threads that this library stands in front of, and why:
//!
//! * `pthread_create`: the new thread's control block must stay in memory: kernel and libc write to it at moments when
//!   they cannot wait for a page (thread exit, fork). Also before the call returns
//!   ([`farpage_run::mappings::thread_starts`]).
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
    let stack = unsafe { stack_bytes(attr) };
    let _start = ThreadStart::begin(thread.addr());
    // SAFETY: caller's promise.
    let result = unsafe { call!(pthread_create(thread, attr, start, arg), libc::EAGAIN) };
    if result == 0 {
        // SAFETY: set by a successful call; with glibc the handle is the address of the control block.
        thread_started(unsafe { *thread } as usize, stack);
    }
    result
}

/// Bytes of the stack of a thread that is started with these attributes; null: the usual ones.
///
/// # Safety
/// As for `pthread_create`.
unsafe fn stack_bytes(attr: *const libc::pthread_attr_t) -> usize {
    let mut size = 0;
    // SAFETY: caller's promise, or attributes that live as long as they are used, and that are zero first.
    unsafe {
        let mut usual: libc::pthread_attr_t = std::mem::zeroed();
        let attr = if attr.is_null() && libc::pthread_attr_init(&mut usual) == 0 { &raw const usual } else { attr };
        if !attr.is_null() {
            libc::pthread_attr_getstacksize(attr, &mut size);
        }
    }
    size
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
