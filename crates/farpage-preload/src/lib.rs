//! The LD_PRELOAD library: an initialiser, a private heap, and one interposed function, `pthread_create`, that notes
//! where thread control blocks are.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use farpage::heap::Heap;

/// Memory for what is allocated before the engine has reserved its address space.
const EARLY: usize = 256 * 1024;

#[repr(align(4096))]
struct Early(#[allow(dead_code)] [u8; EARLY]);

static mut EARLY_MEMORY: Early = Early([0; EARLY]);

#[global_allocator]
static HEAP: Heap = Heap::empty();

extern "C" fn init() {
    let part = farpage::arena::Part { base: std::ptr::addr_of!(EARLY_MEMORY) as usize, len: EARLY };
    // SAFETY: zeroed static memory that nothing else names; given once, because initialisers run once.
    unsafe { HEAP.give(part) };
    // SAFETY: the dynamic linker runs initialisers once, on the only thread.
    unsafe { farpage::preload::start(&HEAP) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

/// libc's function, found at the first call.
static REAL: AtomicUsize = AtomicUsize::new(0);

/// As libc's; the new thread's control block is never swapped out, because kernel and libc write to it at moments when
/// they cannot wait for a page (thread exit, fork).
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
    let mut real = REAL.load(Relaxed);
    if real == 0 {
        // SAFETY: a lookup by name.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) } as usize;
        REAL.store(real, Relaxed);
    }
    if real == 0 {
        return libc::EAGAIN;
    }
    // SAFETY: libc's function of this name has this type.
    let real: PthreadCreate = unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    let result = unsafe { real(thread, attr, start, arg) };
    if result == 0
        && let Some(engine) = farpage::engine::engine()
    {
        // SAFETY: set by a successful call; with glibc the handle is the address of the control block.
        engine.pin_thread(unsafe { *thread } as usize);
    }
    result
}
