//! A program that opens its own pagemap (`/proc/self/pagemap`, for `PAGEMAP_SCAN` or to read it): pages that are
//! swapped out look there as if they had never been used. An allocator that clears only what has been used (wasmtime's
//! pool of instances) would hand out old data. So the memory of such a process is left alone
//! (`run/mappings/requests.rs`), from before the call returns.
//!
//! All functions that open a file by name do what libc's do; then the last component of the name is looked at. What is
//! opened by a system call instruction of the program's own cannot be seen.

use crate::call::{call, interposed};
use farpage_base::sys::pagemap::is_of_this_process;
use farpage_run::dormant::leave_alone;
use libc::{AT_FDCWD, FILE};
use std::ffi::{CStr, c_char, c_int, c_uint};

/// A file was opened by this name.
///
/// # Safety
/// `path` is a string, or null.
pub unsafe fn opened(dir: c_int, path: *const c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    if path.to_bytes().ends_with(b"pagemap") && is_of_this_process(dir, path) {
        leave_alone();
    }
}

type Path = *const c_char;

/// What opening it by this name came to.
///
/// # Safety
/// The kernel has read the path, if that is a descriptor.
unsafe fn file(fd: c_int, dir: c_int, path: Path) -> c_int {
    if fd >= 0 {
        // SAFETY: caller's promise.
        unsafe { opened(dir, path) };
    }
    fd
}

/// The same of a stream.
///
/// # Safety
/// The kernel has read the path, if there is a stream, or it is null.
unsafe fn stream(stream: *mut FILE, path: Path) -> *mut FILE {
    if !stream.is_null() {
        // SAFETY: caller's promise.
        unsafe { opened(AT_FDCWD, path) };
    }
    stream
}

// Those that are variadic in C take what was passed, or not, where it would be: on x86-64 that makes no difference.
interposed! {
    fn open(path: Path, flags: c_int, mode: c_uint) -> c_int = file(call!(open(path, flags, mode)), AT_FDCWD, path);
    fn open64(path: Path, flags: c_int, mode: c_uint) -> c_int = file(call!(open64(path, flags, mode)), AT_FDCWD, path);
    /// What `open` is in a program that was compiled with checks.
    fn __open_2(path: Path, flags: c_int) -> c_int = file(call!(__open_2(path, flags)), AT_FDCWD, path);
    fn __open64_2(path: Path, flags: c_int) -> c_int = file(call!(__open64_2(path, flags)), AT_FDCWD, path);
    fn openat(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int =
        file(call!(openat(dir, path, flags, mode)), dir, path);
    fn openat64(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int =
        file(call!(openat64(dir, path, flags, mode)), dir, path);
    fn __openat_2(dir: c_int, path: Path, flags: c_int) -> c_int =
        file(call!(__openat_2(dir, path, flags)), dir, path);
    fn __openat64_2(dir: c_int, path: Path, flags: c_int) -> c_int =
        file(call!(__openat64_2(dir, path, flags)), dir, path);
    fn fopen(path: Path, mode: *const c_char) -> *mut FILE = stream(call!(fopen(path, mode)), path);
    fn fopen64(path: Path, mode: *const c_char) -> *mut FILE = stream(call!(fopen64(path, mode)), path);
    fn freopen(path: Path, mode: *const c_char, old: *mut FILE) -> *mut FILE =
        stream(call!(freopen(path, mode, old)), path);
    fn freopen64(path: Path, mode: *const c_char, old: *mut FILE) -> *mut FILE =
        stream(call!(freopen64(path, mode, old)), path);
}
