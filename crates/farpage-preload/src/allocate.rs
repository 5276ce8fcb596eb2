//! Memory from libc's allocator (or from another that was preloaded). It maps it by system calls of its own, which do
//! not come through [`crate::interpose::mmap`], and its callers can fill some MiB before anybody hears of them. So
//! whoever gets much from `malloc` and its like goes on when somebody has looked at it
//! (`run/budget/charge.rs`).
//!
//! Pieces that come to no other page cost a comparison, the others some nanoseconds. `free` and the rest are left
//! alone: the memory comes from the same allocator as ever.

use crate::interpose::{found, next, no_such_function};
use farpage::internals::run::program::handed_out;
use farpage::internals::sys::thread::thread_pointer;
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const PAGE: usize = 4096;

/// One of the allocator's functions, and its name.
struct Real(AtomicUsize, &'static CStr);

static MALLOC: Real = Real::of(c"malloc");
static CALLOC: Real = Real::of(c"calloc");
static REALLOC: Real = Real::of(c"realloc");
static MEMALIGN: Real = Real::of(c"memalign");
static ALIGNED_ALLOC: Real = Real::of(c"aligned_alloc");
static POSIX_MEMALIGN: Real = Real::of(c"posix_memalign");
static VALLOC: Real = Real::of(c"valloc");
static PVALLOC: Real = Real::of(c"pvalloc");

/// Looks the functions up, by the initialiser.
pub fn find() {
    for Real(place, name) in [&MALLOC, &CALLOC, &REALLOC, &MEMALIGN, &ALIGNED_ALLOC, &POSIX_MEMALIGN, &VALLOC, &PVALLOC]
    {
        place.store(next(name), Relaxed);
    }
}

/// The thread that is looking a function up, by its thread pointer: before glibc 2.34 the first look-up of a thread
/// asks for memory itself, and does without if there is none.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

impl Real {
    const fn of(name: &'static CStr) -> Real {
        Real(AtomicUsize::new(0), name)
    }

    /// The function; `None` if there is none (with `errno` set), or while it is being looked up.
    fn get(&self) -> Option<usize> {
        let Real(place, name) = self;
        let at = place.load(Relaxed);
        if at != 0 {
            return Some(at);
        }
        let me = thread_pointer();
        if LOOKING.load(Relaxed) == me {
            return None;
        }
        LOOKING.store(me, Relaxed);
        let at = found(place, name);
        LOOKING.store(0, Relaxed);
        if at == 0 {
            no_such_function();
            return None;
        }
        // Initialisers of other libraries run before ours: each look-up takes the loader's lock and clears the thread's
        // `dlerror`.
        place.store(at, Relaxed);
        Some(at)
    }
}

/// `size` bytes at `at` may be new. Most small pieces do not come to another page.
#[inline]
fn announce(at: *mut c_void, size: usize) {
    if (at as usize % PAGE).saturating_add(size) >= PAGE && !at.is_null() {
        handed_out(at as usize, size, false);
    }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: caller's promise.
    unsafe { of_size(&MALLOC, size) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: caller's promise.
    unsafe { of_size(&VALLOC, size) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // SAFETY: caller's promise.
    unsafe { of_size(&PVALLOC, size) }
}

/// # Safety
/// As libc's function in `real`.
#[inline]
unsafe fn of_size(real: &Real, size: usize) -> *mut c_void {
    let Some(real) = real.get() else { return null_mut() };
    // SAFETY: the allocator's functions of these names have this type.
    let real: unsafe extern "C" fn(usize) -> *mut c_void = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let at = unsafe { real(size) };
    announce(at, size);
    at
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(real) = CALLOC.get() else { return null_mut() };
    // SAFETY: the allocator's function of this name has this type.
    let real: unsafe extern "C" fn(usize, usize) -> *mut c_void = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let at = unsafe { real(count, size) };
    announce(at, count.saturating_mul(size));
    at
}

/// As libc's; see the module header. What grows in its place counts too: the end of the heap, behind a mapping that is
/// registered, is a new one. (What is moved has been copied by the time that it is announced.)
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    let Some(real) = REALLOC.get() else { return null_mut() };
    // SAFETY: the allocator's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let at = unsafe { real(old, size) };
    announce(at, size);
    at
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: caller's promise.
    unsafe { aligned(&MEMALIGN, align, size) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: caller's promise.
    unsafe { aligned(&ALIGNED_ALLOC, align, size) }
}

/// # Safety
/// As libc's function in `real`.
unsafe fn aligned(real: &Real, align: usize, size: usize) -> *mut c_void {
    let Some(real) = real.get() else { return null_mut() };
    // SAFETY: the allocator's functions of these names have this type.
    let real: unsafe extern "C" fn(usize, usize) -> *mut c_void = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let at = unsafe { real(align, size) };
    announce(at, size);
    at
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let Some(real) = POSIX_MEMALIGN.get() else { return libc::ENOMEM };
    // SAFETY: the allocator's function of this name has this type.
    let real: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int = unsafe { transmute(real) };
    // SAFETY: caller's promise.
    let result = unsafe { real(place, align, size) };
    if result == 0 {
        // SAFETY: set by a successful call.
        announce(unsafe { *place }, size);
    }
    result
}
