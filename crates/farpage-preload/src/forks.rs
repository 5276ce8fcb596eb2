//! Forks that go round libc's `fork()`, so that its handlers do not run: `_Fork`, `clone` without shared memory, and
//! the system calls made through `syscall`. Their children are to see the right bytes too, and have a part of the
//! budget, so the handlers are called here, whatever the parent has: an engine that manages memory, one that only
//! watches, or none.
//!
//! And `fork()`, with what libc calls it for (`daemon`, `forkpty`): a handler cannot refuse it, so what the child will
//! need is had before ([`fork::reserve`]). Without that it fails with EAGAIN, as when the kernel has no room for
//! another process.
//!
//! And libc's handlers themselves: the engine's have to be the first ([`__register_atfork`]).
//!
//! What the program writes as a system call instruction of its own cannot be seen. Before the engine is active nothing
//! is swapped out: a child has no engine then, and may do what a process with one thread may
//! (`unshare(CLONE_NEWUSER)`, `setns`).

use crate::call::{call, interposed};
use crate::late::slots::take_over_new;
use crate::own::{Answer, answer};
use farpage::PAGE_SIZE;
use farpage_base::sys::raw;
use farpage_base::sys::thread::thread_pointer;
use farpage_run::fork;
use farpage_run::lifecycle::fork_handlers;
use farpage_run::lifecycle::preload::follow_forks;
use farpage_run::shared::state::engine;
use std::arch::asm;
use std::ffi::{c_char, c_int, c_void};

/// A child made with these has its own memory, or not: its parent's descriptors, or its own.
const SHARES: usize = (libc::CLONE_VM | libc::CLONE_FILES) as usize;
/// With this the parent sleeps until the child's exec.
const VFORK: usize = libc::CLONE_VFORK as usize;

/// Flags of a call, where there is an engine without that sleep: the child's engine waits for the parent. With memory
/// of its own the child does not need it.
pub fn without_wait(flags: usize) -> usize {
    if engine().is_some() { flags & !VFORK } else { flags }
}

/// Whether the handlers are called around a call with these flags.
pub fn followed(flags: usize) -> bool {
    flags & SHARES == 0
}

/// Makes a child that goes on at the same place as this thread, with libc's handlers around it. `places`: where the
/// kernel or the child's thread-local storage is, which must be there before the child's engine is.
pub fn around(places: &[usize], copy: impl FnOnce() -> Answer) -> Answer {
    fork::reserve()?;
    let forker = thread_pointer();
    fork_handlers::prepare();
    // Without an engine all of it is there.
    for at in places.iter().filter(|at| **at != 0 && engine().is_some()) {
        fork_handlers::touch(*at);
    }
    let result = copy();
    if result == Ok(0) {
        fork_handlers::child_of(forker);
    } else {
        fork_handlers::parent();
    }
    result
}

/// The arguments of `clone3` are in memory, in a structure that may grow: this many words of it are read.
const CLONE3_WORDS: usize = 64;
/// Words of it: `flags`, `child_tid`, `stack`, `tls`.
const FLAGS: usize = 0;
const CHILD_TID: usize = 2;
const STACK: usize = 5;
const TLS: usize = 7;

/// Makes `clone3` with these arguments, by `call`.
pub fn clone3(args: [usize; 6], call: impl Fn([usize; 6]) -> Answer) -> Answer {
    let mut own = [0usize; CLONE3_WORDS];
    let size = args[1];
    // Smaller than the first version, or larger than any yet, or not there: the kernel's business.
    if !(64..=size_of_val(&own)).contains(&size) || !read_own(args[0], &raw mut own as usize, size) {
        return call(args);
    }
    if own[STACK] != 0 || !followed(own[FLAGS]) {
        return call(args);
    }
    own[FLAGS] = without_wait(own[FLAGS]);
    around(&[own[CHILD_TID], own[TLS]], || call([&raw const own as usize, size, 0, 0, 0, 0]))
}

/// Copies `len` bytes of this process; false where they are not memory.
fn read_own(from: usize, to: usize, len: usize) -> bool {
    let Some(end) = from.checked_add(len) else { return false };
    let pages = (from & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
    if !pages.fold(true, |all, page| all & fork_handlers::touch(page)) {
        return false;
    }
    // SAFETY: all of it could be read a moment ago; `to` is the caller's own.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
    true
}

/// Calls what forks by libc's `fork()`, with what the child will need.
fn reserved(fork: impl FnOnce() -> c_int) -> c_int {
    take_over_new();
    if let Err(error) = fork::reserve() {
        return answer(Err(error)) as c_int;
    }
    let result = fork();
    fork::release();
    result
}

interposed! {
    fn fork() -> libc::pid_t = reserved(|| call!(fork()));
    /// Its other name.
    fn __fork() -> libc::pid_t = fork();
    fn daemon(stay: c_int, keep: c_int) -> c_int = reserved(|| call!(daemon(stay, keep)));
    fn forkpty(
        controller: *mut c_int, name: *mut c_char, settings: *const libc::termios, size: *const libc::winsize
    ) -> libc::pid_t = reserved(|| call!(forkpty(controller, name, settings, size)));
    fn _Fork() -> libc::pid_t = {
        let copy = || match call!(_Fork()) {
            -1 => Err(raw::Errno::from_raw_os_error(*libc::__errno_location())),
            pid => Ok(pid as usize),
        };
        answer(around(&[], copy)) as libc::pid_t
    };
    /// `pthread_atfork` calls it, that part of it being in each program; the engine's handlers come before the first.
    /// May be called before the initialiser, by what is initialised earlier.
    fn __register_atfork(before: Handler, parent: Handler, child: Handler, dso: *mut c_void) -> c_int = {
        follow_forks();
        call!(__register_atfork(before, parent, child, dso), libc::ENOMEM)
    };
}

type Handler = Option<unsafe extern "C" fn()>;

type Start = extern "C" fn(*mut c_void) -> c_int;

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
        // SAFETY: caller's promise.
        return unsafe { call!(clone(start, stack, flags, arg, parent_tid, tls, child_tid)) };
    }
    // Pointers that the flags do not ask for may be anything.
    let asked = |flag: c_int, at: usize| if flags & flag != 0 { at } else { 0 };
    let places = [asked(libc::CLONE_CHILD_SETTID, child_tid as usize), asked(libc::CLONE_SETTLS, tls as usize)];
    let args = [without_wait(flags as usize), 0, parent_tid as usize, child_tid as usize, tls as usize, 0];
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
/// `stack` is the aligned upper end of memory that no other thread uses.
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
