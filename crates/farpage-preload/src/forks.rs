//! Forks that go round libc's `fork()`, so that its handlers do not run: `_Fork`, `clone` without shared memory, and
//! the system calls made through `syscall`. Their children are to see the right bytes too, so the handlers are called
//! here.
//!
//! And `fork()`, with what libc calls it for (`daemon`, `forkpty`): a handler cannot refuse it, so what the child will
//! need is had before ([`fork::reserve`]). Without that it fails with EAGAIN, as when the kernel has no room for
//! another process.
//!
//! And libc's handlers themselves: the engine's have to be the first ([`__register_atfork`]).
//!
//! What the program writes as a system call instruction of its own cannot be seen. Before the engine is active nothing
//! is swapped out and all pass through: their children have no engine then, and may do what a process with one thread
//! may (`unshare(CLONE_NEWUSER)`, `setns`). Of a process without an engine they are like any other child.

use crate::descriptors;
use crate::execs;
use crate::interpose::{self, found, next, no_such_function};
use crate::late::slots::take_over_new;
use crate::pagemaps;
use crate::privileges;
use farpage::PAGE_SIZE;
use farpage::internals::run::fork;
use farpage::internals::run::preload::follow_forks;
use farpage::internals::run::start;
use farpage::internals::run::state::engine;
use farpage::internals::sys::raw;
use farpage::internals::sys::thread::thread_pointer;
use std::arch::asm;
use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static REAL_FORK: AtomicUsize = AtomicUsize::new(0);
static REAL_LIBC_FORK: AtomicUsize = AtomicUsize::new(0);
static REAL_DAEMON: AtomicUsize = AtomicUsize::new(0);
static REAL_FORKPTY: AtomicUsize = AtomicUsize::new(0);
static REAL_CLONE: AtomicUsize = AtomicUsize::new(0);
static REAL_REGISTER: AtomicUsize = AtomicUsize::new(0);

/// Looks the functions up. By the initialiser: later, a signal handler may ask.
pub fn find() {
    REAL_FORK.store(next(c"_Fork"), Relaxed);
    REAL_LIBC_FORK.store(next(c"fork"), Relaxed);
    REAL_DAEMON.store(next(c"daemon"), Relaxed);
    REAL_FORKPTY.store(next(c"forkpty"), Relaxed);
    REAL_CLONE.store(next(c"clone"), Relaxed);
    REAL_REGISTER.store(next(c"__register_atfork"), Relaxed);
}

/// A child made with these has its own memory, or not: its parent's descriptors, or its own.
const SHARES: usize = (libc::CLONE_VM | libc::CLONE_FILES) as usize;
/// The parent would sleep until the child's exec, and the child waits for the parent. With memory of its own nothing
/// needs the former.
const VFORK: usize = libc::CLONE_VFORK as usize;

/// Whether a child with these flags is to have the engine. One that was made unseen has none, nor have its own
/// children.
fn followed(flags: usize) -> bool {
    flags & SHARES == 0 && engine().is_some_and(|e| e.is_active() && e.fork.is_home())
}

/// What the call that makes a child with these flags returns: in one with memory of its own, made before there was an
/// engine, that is all it needs.
fn unfollowed(flags: usize, result: Result<usize, raw::Errno>) -> Result<usize, raw::Errno> {
    result.inspect(|pid| {
        if *pid == 0 && flags & SHARES == 0 {
            start::fork_child();
        }
    })
}

/// What `syscall(2)` of libc returns; sets `errno`.
pub fn answer(result: Result<usize, raw::Errno>) -> c_long {
    match result {
        Ok(value) => value as c_long,
        Err(error) => {
            // SAFETY: the calling thread's errno.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            -1
        }
    }
}

/// Makes a child that goes on at the same place as this thread, with libc's handlers around it. `places`: where the
/// kernel or the child's thread-local storage is, which must be there before the child's engine is.
fn around(places: &[usize], copy: impl FnOnce() -> Result<usize, raw::Errno>) -> Result<usize, raw::Errno> {
    fork::reserve()?;
    let forker = thread_pointer();
    fork::prepare();
    for at in places.iter().filter(|at| **at != 0) {
        fork::touch(*at);
    }
    let result = copy();
    if result == Ok(0) {
        fork::child_of(forker);
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
    // SAFETY: caller's promise.
    let call = |args| unsafe { raw::syscall(number as u32, args) };
    let args = [a, b, c, d, e, f];
    // A child with a stack of its own would return to nowhere: whoever asks for one does not come through a function.
    answer(match number {
        libc::SYS_fork if followed(0) => around(&[], || call(args)),
        libc::SYS_fork => unfollowed(0, call(args)),
        libc::SYS_clone if b == 0 && followed(a) => around(&[d, e], || call([a & !VFORK, b, c, d, e, f])),
        libc::SYS_clone if b == 0 => unfollowed(a, call(args)),
        libc::SYS_clone3 => clone3(args, call),
        // These set errno themselves.
        // SAFETY: caller's promise.
        libc::SYS_close => return unsafe { descriptors::close(a as c_int) }.into(),
        // SAFETY: caller's promise.
        libc::SYS_fcntl => return unsafe { descriptors::fcntl(a as c_int, b as c_int, c) }.into(),
        // SAFETY: caller's promise.
        libc::SYS_ioctl => return unsafe { descriptors::ioctl(a as c_int, b as c_ulong, c) }.into(),
        // SAFETY: caller's promise.
        libc::SYS_madvise => return unsafe { interpose::madvise(a as *mut c_void, b, c as c_int) }.into(),
        // SAFETY: caller's promise.
        libc::SYS_process_madvise => unsafe { interpose::advise_ranges(args, || call(args)) },
        libc::SYS_close_range => {
            // SAFETY: caller's promise.
            return unsafe { descriptors::close_range(a as c_uint, b as c_uint, c as c_int) }.into();
        }
        libc::SYS_execve => {
            // SAFETY: caller's promise.
            return unsafe { execs::execve(a as *const c_char, b as *const _, c as *const _) }.into();
        }
        libc::SYS_execveat => {
            // SAFETY: caller's promise.
            let result =
                unsafe { execs::execveat(a as c_int, b as *const c_char, c as *const _, d as *const _, e as c_int) };
            return result.into();
        }
        libc::SYS_open => opened(call(args), libc::AT_FDCWD, a),
        libc::SYS_openat | libc::SYS_openat2 => opened(call(args), a as c_int, b),
        // Not by the functions of these names, which may be somebody's who calls this one.
        libc::SYS_mmap if d & libc::MAP_PRIVATE as usize != 0 && c & libc::PROT_WRITE as usize != 0 => {
            grows(b, call(args))
        }
        libc::SYS_mremap => grows(c.saturating_sub(b), call(args)),
        libc::SYS_mprotect if c & libc::PROT_WRITE as usize != 0 => grows(b, call(args)),
        libc::SYS_brk => call(args).inspect(|_| start::grown()),
        _ => privileges::follow_call(number, args, call),
    })
}

/// What became of a call that opens the file with its name at `path`.
fn opened(result: Result<usize, raw::Errno>, dir: c_int, path: usize) -> Result<usize, raw::Errno> {
    if result.is_ok() {
        // SAFETY: the kernel has read it.
        unsafe { pagemaps::opened(dir, path as *const c_char) };
    }
    result
}

/// `bytes` more may have become writable, if that was the `result`.
fn grows(bytes: usize, result: Result<usize, raw::Errno>) -> Result<usize, raw::Errno> {
    result.inspect(|_| start::handed_out(bytes))
}

/// The arguments of `clone3` are in memory, in a structure that may grow: this many words of it are read.
const CLONE3_WORDS: usize = 64;
/// Words of it: `flags`, `child_tid`, `stack`, `tls`.
const FLAGS: usize = 0;
const CHILD_TID: usize = 2;
const STACK: usize = 5;
const TLS: usize = 7;

fn clone3(args: [usize; 6], call: impl Fn([usize; 6]) -> Result<usize, raw::Errno>) -> Result<usize, raw::Errno> {
    let mut own = [0usize; CLONE3_WORDS];
    let size = args[1];
    // Smaller than the first version, or larger than any yet, or not there: the kernel's business.
    if !(64..=size_of_val(&own)).contains(&size) || !read_own(args[0], &raw mut own as usize, size) {
        return call(args);
    }
    if own[STACK] != 0 {
        return call(args);
    }
    if !followed(own[FLAGS]) {
        return unfollowed(own[FLAGS], call(args));
    }
    own[FLAGS] &= !VFORK;
    around(&[own[CHILD_TID], own[TLS]], || call([&raw const own as usize, size, 0, 0, 0, 0]))
}

/// Copies `len` bytes of this process; false where they are not memory.
fn read_own(from: usize, to: usize, len: usize) -> bool {
    let Some(end) = from.checked_add(len) else { return false };
    let pages = (from & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
    if !pages.fold(true, |all, page| all & fork::touch(page)) {
        return false;
    }
    // SAFETY: all of it could be read a moment ago; `to` is the caller's own.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
    true
}

/// Calls what forks by libc's `fork()`, with what the child will need.
fn reserved(fork: impl FnOnce() -> c_int) -> c_int {
    take_over_new();
    if !followed(0) {
        return fork();
    }
    if let Err(error) = fork::reserve() {
        return answer(Err(error)) as c_int;
    }
    let result = fork();
    fork::release();
    result
}

/// As libc's; see the module header.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> libc::pid_t {
    let real = found(&REAL_LIBC_FORK, c"fork");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: extern "C" fn() -> libc::pid_t = unsafe { std::mem::transmute(real) };
    reserved(|| real())
}

/// As libc's: its other name for it.
#[unsafe(no_mangle)]
pub extern "C" fn __fork() -> libc::pid_t {
    fork()
}

/// As libc's; see the module header.
#[unsafe(no_mangle)]
pub extern "C" fn daemon(stay: c_int, keep: c_int) -> c_int {
    let real = found(&REAL_DAEMON, c"daemon");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: extern "C" fn(c_int, c_int) -> c_int = unsafe { std::mem::transmute(real) };
    reserved(|| real(stay, keep))
}

/// As libc's; see the module header.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    controller: *mut c_int,
    name: *mut c_char,
    settings: *const libc::termios,
    size: *const libc::winsize,
) -> libc::pid_t {
    let real = found(&REAL_FORKPTY, c"forkpty");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(*mut c_int, *mut c_char, *const libc::termios, *const libc::winsize) -> libc::pid_t =
        unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    reserved(|| unsafe { real(controller, name, settings, size) })
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
        let pid = real();
        if pid == 0 {
            start::fork_child();
        }
        return pid;
    }
    answer(around(&[], || match real() {
        // SAFETY: the calling thread's errno.
        -1 => Err(raw::Errno::from_raw_os_error(unsafe { *libc::__errno_location() })),
        pid => Ok(pid as usize),
    })) as libc::pid_t
}

type Handler = Option<unsafe extern "C" fn()>;

/// As libc's, which `pthread_atfork` calls, that part of it being in each program; the engine's handlers come before
/// the first. May be called before the initialiser, by what is initialised earlier.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: Handler,
    parent: Handler,
    child: Handler,
    dso: *mut c_void,
) -> c_int {
    follow_forks();
    let real = found(&REAL_REGISTER, c"__register_atfork");
    if real == 0 {
        return libc::ENOMEM;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int =
        unsafe { std::mem::transmute(real) };
    // SAFETY: caller's promise.
    unsafe { real(before, parent, child, dso) }
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
    if stack.is_null() || !followed(flags as usize) {
        let real = found(&REAL_CLONE, c"clone");
        if real == 0 {
            no_such_function();
            return -1;
        }
        // SAFETY: libc's function of this name has this type.
        let real: Clone = unsafe { std::mem::transmute(real) };
        // SAFETY: caller's promise.
        return unsafe { real(start, stack, flags, arg, parent_tid, tls, child_tid) };
    }
    // Pointers that the flags do not ask for may be anything.
    let asked = |flag: c_int, at: usize| if flags & flag != 0 { at } else { 0 };
    let places = [asked(libc::CLONE_CHILD_SETTID, child_tid as usize), asked(libc::CLONE_SETTLS, tls as usize)];
    let args = [flags as usize & !VFORK, 0, parent_tid as usize, child_tid as usize, tls as usize, 0];
    // The child goes on here, on its copy of this stack, until its engine runs: its own may be small.
    // SAFETY: caller's promise; without a stack of its own the child returns like this thread.
    let result = around(&places, || unsafe { raw::syscall(libc::SYS_clone as u32, args) });
    if result == Ok(0) {
        // SAFETY: caller's promise; nothing of this stack is used again in the child.
        unsafe { run_on(stack as usize & !15, start, arg) };
    }
    answer(result) as c_int
}

/// Calls `start` on another stack; its result is the status of the process. (libc ends the calling thread, and with it
/// a process that has no other; this one has its engine's.)
///
/// # Safety
/// `stack` is the aligned upper end of memory that nobody else uses.
unsafe fn run_on(stack: usize, start: Start, arg: *mut c_void) -> ! {
    // SAFETY: caller's promise; nothing returns.
    unsafe {
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {start}",
            "mov edi, eax",
            "mov eax, {exit_group}",
            "syscall",
            "ud2",
            stack = in(reg) stack,
            start = in(reg) start,
            exit_group = const libc::SYS_exit_group,
            in("rdi") arg,
            options(noreturn)
        )
    }
}
