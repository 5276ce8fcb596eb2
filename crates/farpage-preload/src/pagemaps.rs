//! A program that opens its own pagemap (`/proc/self/pagemap`, for `PAGEMAP_SCAN` or to read it): pages that are
//! swapped out look there as if they had never been used. An allocator that clears only what has been used (wasmtime's
//! pool of instances) would hand out somebody's old data. So the memory of such a process is left alone
//! (`run/mappings/let_go.rs`), from before the call returns.
//!
//! All functions that open a file by name do what libc's do; then the last component of the name is looked at. What is
//! opened by a system call instruction of the program's own cannot be seen.

use crate::interpose::{found, next, no_such_function};
use farpage::internals::run::dormant::leave_alone;
use farpage::internals::sys::pagemap::is_of_this_process;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One of libc's functions, and its name.
struct Real(AtomicUsize, &'static CStr);

static OPEN: Real = Real::of(c"open");
static OPEN64: Real = Real::of(c"open64");
static OPEN_2: Real = Real::of(c"__open_2");
static OPEN64_2: Real = Real::of(c"__open64_2");
static OPENAT: Real = Real::of(c"openat");
static OPENAT64: Real = Real::of(c"openat64");
static OPENAT_2: Real = Real::of(c"__openat_2");
static OPENAT64_2: Real = Real::of(c"__openat64_2");
static FOPEN: Real = Real::of(c"fopen");
static FOPEN64: Real = Real::of(c"fopen64");
static FREOPEN: Real = Real::of(c"freopen");
static FREOPEN64: Real = Real::of(c"freopen64");

/// Looks the functions up. By the initialiser: later, a child of `vfork` or a signal handler may ask.
pub fn find() {
    for Real(place, name) in [
        &OPEN,
        &OPEN64,
        &OPEN_2,
        &OPEN64_2,
        &OPENAT,
        &OPENAT64,
        &OPENAT_2,
        &OPENAT64_2,
        &FOPEN,
        &FOPEN64,
        &FREOPEN,
        &FREOPEN64,
    ] {
        place.store(next(name), Relaxed);
    }
}

impl Real {
    const fn of(name: &'static CStr) -> Real {
        Real(AtomicUsize::new(0), name)
    }

    /// The function; `None`, with `errno` set: there is none.
    fn get(&self) -> Option<usize> {
        match found(&self.0, self.1) {
            0 => {
                no_such_function();
                None
            }
            at => Some(at),
        }
    }
}

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

/// # Safety
/// As libc's function in `real`: of a path, flags and a mode.
unsafe fn by_path(real: &Real, path: Path, flags: c_int, mode: c_uint) -> c_int {
    let Some(real) = real.get() else { return -1 };
    // SAFETY: libc's functions of these names have this type, or a shorter one, which makes no difference on x86-64.
    let real: unsafe extern "C" fn(Path, c_int, ...) -> c_int = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let fd = unsafe { real(path, flags, mode) };
    if fd >= 0 {
        // SAFETY: the kernel has read it.
        unsafe { opened(libc::AT_FDCWD, path) };
    }
    fd
}

/// # Safety
/// As libc's function in `real`: of a directory, a path, flags and a mode.
unsafe fn in_directory(real: &Real, dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int {
    let Some(real) = real.get() else { return -1 };
    // SAFETY: as in by_path.
    let real: unsafe extern "C" fn(c_int, Path, c_int, ...) -> c_int = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let fd = unsafe { real(dir, path, flags, mode) };
    if fd >= 0 {
        // SAFETY: the kernel has read it.
        unsafe { opened(dir, path) };
    }
    fd
}

/// As libc's; see the module header. (It is variadic there, which makes no difference to whoever is called on x86-64.)
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: Path, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: caller's promise.
    unsafe { by_path(&OPEN, path, flags, mode) }
}

/// As [`open`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: Path, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: caller's promise.
    unsafe { by_path(&OPEN64, path, flags, mode) }
}

/// As [`open`]; what `open` is in a program that was compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open_2(path: Path, flags: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { by_path(&OPEN_2, path, flags, 0) }
}

/// As [`__open_2`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: Path, flags: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { by_path(&OPEN64_2, path, flags, 0) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: caller's promise.
    unsafe { in_directory(&OPENAT, dir, path, flags, mode) }
}

/// As [`openat`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: caller's promise.
    unsafe { in_directory(&OPENAT64, dir, path, flags, mode) }
}

/// As [`openat`]; what it is in a program that was compiled with checks.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat_2(dir: c_int, path: Path, flags: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { in_directory(&OPENAT_2, dir, path, flags, 0) }
}

/// As [`__openat_2`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat64_2(dir: c_int, path: Path, flags: c_int) -> c_int {
    // SAFETY: caller's promise.
    unsafe { in_directory(&OPENAT64_2, dir, path, flags, 0) }
}

/// # Safety
/// As libc's function in `real`: of a path, a mode, and perhaps a stream.
unsafe fn stream(real: &Real, path: Path, mode: *const c_char, old: *mut libc::FILE) -> *mut libc::FILE {
    let Some(real) = real.get() else { return null_mut() };
    // SAFETY: libc's functions of these names have this type, or one without the last argument, which makes no
    // difference on x86-64.
    let real: unsafe extern "C" fn(Path, *const c_char, *mut libc::FILE) -> *mut libc::FILE =
        unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let file = unsafe { real(path, mode, old) };
    if !file.is_null() {
        // SAFETY: the kernel has read it, or it is null.
        unsafe { opened(libc::AT_FDCWD, path) };
    }
    file
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: Path, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: caller's promise.
    unsafe { stream(&FOPEN, path, mode, null_mut()) }
}

/// As [`fopen`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: Path, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: caller's promise.
    unsafe { stream(&FOPEN64, path, mode, null_mut()) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(path: Path, mode: *const c_char, old: *mut libc::FILE) -> *mut libc::FILE {
    // SAFETY: caller's promise.
    unsafe { stream(&FREOPEN, path, mode, old) }
}

/// As [`freopen`].
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen64(path: Path, mode: *const c_char, old: *mut libc::FILE) -> *mut libc::FILE {
    // SAFETY: caller's promise.
    unsafe { stream(&FREOPEN64, path, mode, old) }
}
