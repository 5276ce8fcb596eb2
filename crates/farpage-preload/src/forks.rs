//! Forks that go round libc's `fork()`, so that its handlers do not run: `_Fork`, `clone` without shared memory, and the
//! system calls made through `syscall`. Their children are to see the right bytes too, so the handlers are called here.
//!
//! What the program writes as a system call instruction of its own cannot be seen. Before the engine is active nothing is
//! swapped out and all pass through: their children have no engine then, and may do what a process with one thread may
//! (`unshare(CLONE_NEWUSER)`, `setns`).

use crate::interpose::{found, next, no_such_function};
use farpage::engine::{Engine, engine};
use farpage::fork;
use farpage::sys::raw;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static REAL_FORK: AtomicUsize = AtomicUsize::new(0);
static REAL_CLONE: AtomicUsize = AtomicUsize::new(0);

/// Looks the functions up. By the initialiser: later, a signal handler may ask.
pub fn find() {
    REAL_FORK.store(next(c"_Fork"), Relaxed);
    REAL_CLONE.store(next(c"clone"), Relaxed);
}

/// A child made with these has its own memory, or not: its parent's descriptors, or its own.
const SHARES: usize = (libc::CLONE_VM | libc::CLONE_FILES) as usize;
/// The parent would sleep until the child's exec, and the child waits for the parent. With memory of its own nothing needs the former.
const VFORK: usize = libc::CLONE_VFORK as usize;

fn followed(flags: usize) -> bool {
    flags & SHARES == 0 && engine().is_some_and(Engine::is_active)
}

/// What `syscall(2)` of libc returns; sets `errno`.
fn answer(result: Result<usize, raw::Errno>) -> c_long {
    match result {
        Ok(value) => value as c_long,
        Err(error) => {
            // SAFETY: the calling thread's errno.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            -1
        }
    }
}

/// Makes a child that goes on at the same place as this thread, with libc's handlers around it.
fn around(copy: impl FnOnce() -> Result<usize, raw::Errno>) -> Result<usize, raw::Errno> {
    fork::prepare();
    let result = copy();
    if result == Ok(0) {
        fork::child();
    } else {
        fork::parent();
    }
    result
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's, and as for the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let mut args = [a, b, c, d, e, f];
    // SAFETY: caller's promise.
    let call = |args| unsafe { raw::syscall(number as u32, args) };
    // A child with a stack of its own would return to nowhere: whoever asks for one does not come through a function.
    let follow = match number {
        libc::SYS_fork => followed(0),
        libc::SYS_clone => {
            let follow = b == 0 && followed(a);
            args[0] &= if follow { !VFORK } else { !0 };
            follow
        }
        libc::SYS_clone3 => return clone3(args, call),
        _ => false,
    };
    answer(if follow { around(|| call(args)) } else { call(args) })
}

/// The arguments of `clone3` are in memory, in a structure that may grow: the part that matters here.
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneArgs {
    flags: u64,
    /// `pidfd`, `child_tid`, `parent_tid`, `exit_signal`.
    others: [u64; 4],
    stack: u64,
    /// `stack_size`, `tls`, `set_tid`, `set_tid_size`, `cgroup`.
    more: [u64; 5],
}

fn clone3(args: [usize; 6], call: impl Fn([usize; 6]) -> Result<usize, raw::Errno>) -> c_long {
    let size = args[1];
    // Smaller than the first version, or larger than what is known here: the kernel's business.
    if args[0] == 0 || !(64..=size_of::<CloneArgs>()).contains(&size) {
        return answer(call(args));
    }
    let mut own = CloneArgs { flags: 0, others: [0; 4], stack: 0, more: [0; 5] };
    // SAFETY: the caller says that so much is there; `own` is at least as large.
    unsafe { std::ptr::copy_nonoverlapping(args[0] as *const u8, (&raw mut own).cast::<u8>(), size) };
    if own.stack != 0 || !followed(own.flags as usize) {
        return answer(call(args));
    }
    own.flags &= !(VFORK as u64);
    answer(around(|| call([&raw const own as usize, size, 0, 0, 0, 0])))
}

/// As libc's; see the module header.
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> libc::pid_t {
    let real = found(&REAL_FORK, c"_Fork");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: extern "C" fn() -> libc::pid_t = unsafe { std::mem::transmute(real) };
    if !followed(0) {
        return real();
    }
    fork::prepare();
    let pid = real();
    if pid == 0 {
        fork::child();
    } else {
        parent_keeping_errno();
    }
    pid
}

fn parent_keeping_errno() {
    // SAFETY: the calling thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    fork::parent();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

type Start = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    Start,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut libc::pid_t,
    *mut c_void,
    *mut libc::pid_t,
) -> c_int;

/// What a child of [`clone`] is to run.
struct Errand {
    start: Start,
    arg: *mut c_void,
}

/// The first function of a child of [`clone`].
extern "C" fn started(errand: *mut c_void) -> c_int {
    // SAFETY: `clone` passed its own, of which this process has a copy.
    let errand = unsafe { &*errand.cast::<Errand>() };
    fork::child();
    let status = (errand.start)(errand.arg);
    // libc would end this thread only, and with it, had it no engine, the process.
    // SAFETY: ends the process, as the end of its only thread would have.
    unsafe { libc::_exit(status) }
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    start: Start,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent_tid: *mut libc::pid_t,
    tls: *mut c_void,
    child_tid: *mut libc::pid_t,
) -> c_int {
    let real = found(&REAL_CLONE, c"clone");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: Clone = unsafe { std::mem::transmute(real) };
    if stack.is_null() || !followed(flags as usize) {
        // SAFETY: caller's promise.
        return unsafe { real(start, stack, flags, arg, parent_tid, tls, child_tid) };
    }
    let mut errand = Errand { start, arg };
    let errand = (&raw mut errand).cast::<c_void>();
    fork::prepare();
    fork::child_runs_on(stack as usize);
    // SAFETY: caller's promise; the child has memory of its own, and in it the errand.
    let pid = unsafe { real(started, stack, flags & !libc::CLONE_VFORK, errand, parent_tid, tls, child_tid) };
    parent_keeping_errno();
    pid
}
