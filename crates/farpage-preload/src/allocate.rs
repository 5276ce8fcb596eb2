//! Memory from libc's allocator (or from another that was preloaded). It maps it by system calls of its own, which do
//! not come through [`crate::mappings::mmap`], and its callers can fill some MiB before the engine hears of them. So
//! a thread that gets much from `malloc` and its like goes on when the engine has looked at it
//! (`run/shared/charge.rs`).
//!
//! Pieces that come to no other page cost a comparison, the others some nanoseconds: no engine thread calls these, so
//! they do not ask. `free` and the rest are left alone: the memory comes from the same allocator as ever.

use crate::call::{call, interposed};
use farpage_run::lifecycle::program::handed_out;
use std::ffi::{c_int, c_void};

const PAGE: usize = 4096;

/// `size` bytes at `at` may be new. Most small pieces do not come to another page.
#[inline]
fn announced(at: *mut c_void, size: usize) -> *mut c_void {
    if (at as usize % PAGE).saturating_add(size) >= PAGE && !at.is_null() {
        handed_out(at as usize, size, false);
    }
    at
}

interposed! {
    fn malloc(size: usize) -> *mut c_void = announced(call!(program malloc(size)), size);
    fn valloc(size: usize) -> *mut c_void = announced(call!(program valloc(size)), size);
    fn pvalloc(size: usize) -> *mut c_void = announced(call!(program pvalloc(size)), size);
    fn calloc(count: usize, size: usize) -> *mut c_void =
        announced(call!(program calloc(count, size)), count.saturating_mul(size));
    /// What grows in its place counts too: the end of the heap, behind a mapping that is registered, is a new one.
    /// (What is moved has been copied by the time that it is announced.)
    fn realloc(old: *mut c_void, size: usize) -> *mut c_void = announced(call!(program realloc(old, size)), size);
    fn memalign(align: usize, size: usize) -> *mut c_void = announced(call!(program memalign(align, size)), size);
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void =
        announced(call!(program aligned_alloc(align, size)), size);
    fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int = {
        let result = call!(program posix_memalign(place, align, size), libc::ENOMEM);
        if result == 0 {
            announced(*place, size);
        }
        result
    };
}
