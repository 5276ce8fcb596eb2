//! Stops of a traced thread: the requests of `ptrace` that are used, and what a thread has stopped for.
//!
//! Caller: [`super::tracee`]. No locks.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;

/// `PTRACE_EVENT_STOP` and `PTRACE_EVENT_EXEC`.
const EVENT_STOP: i32 = 128;
const EVENT_EXEC: i32 = 4;
/// `PTRACE_EVENT_CLONE`.
const EVENT_CLONE: i32 = 3;
/// A stop for a system call: `SIGTRAP` with this bit (`PTRACE_O_TRACESYSGOOD`).
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// A request that returns nothing.
///
/// # Errors
/// As ptrace.
pub fn ptrace(request: u32, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: acts on another process; what `data` points to, the callers name.
    match unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The registers of a stopped thread.
///
/// # Errors
/// As ptrace.
pub fn get_registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::uninit();
    ptrace(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr() as usize)?;
    // SAFETY: filled by the call.
    Ok(unsafe { registers.assume_init() })
}

/// The number of instructions of a seccomp filter, which are written to `to` if that is not null.
///
/// # Errors
/// As ptrace.
pub fn get_filter(tid: i32, index: usize, to: *mut libc::sock_filter) -> io::Result<usize> {
    const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
    // SAFETY: null, or room for as many as the filter has, which does not change.
    match unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index as *mut c_void, to.cast::<c_void>()) } {
        -1 => Err(io::Error::last_os_error()),
        length => Ok(length as usize),
    }
}

/// Signals that an instruction causes: all others are blocked, or cannot be.
const FORCED: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// What a wait said.
pub enum Stop {
    /// It enters a system call, or leaves it.
    Syscall,
    /// It was asked to stop.
    Event,
    /// The whole process is to stop, or has stopped.
    Group,
    /// It has become another program.
    Exec,
    /// It has made another one, of this number, which is traced, too.
    Clone(i32),
    /// The kernel has forced a signal upon it.
    Fatal,
    /// Another signal, under way to it.
    Signal(i32),
    /// It has ended.
    Gone,
}

/// Whether it has stopped; without waiting.
///
/// # Errors
/// As waitpid.
pub fn waited(tid: i32) -> io::Result<Option<Stop>> {
    let mut status = 0;
    // SAFETY: a number of ours.
    match unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) } {
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) => Ok(Some(Stop::Gone)),
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ if !libc::WIFSTOPPED(status) => Ok(Some(Stop::Gone)),
        _ => Ok(Some(match (libc::WSTOPSIG(status), status >> 16) {
            (SYSCALL_STOP, _) => Stop::Syscall,
            (libc::SIGTRAP, EVENT_STOP) => Stop::Event,
            (_, EVENT_STOP) => Stop::Group,
            (_, EVENT_EXEC) => Stop::Exec,
            (_, EVENT_CLONE) => {
                let mut number = 0usize;
                ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut number as usize)?;
                Stop::Clone(number as i32)
            }
            (signal, _) if FORCED.contains(&signal) => Stop::Fatal,
            (signal, _) => Stop::Signal(signal),
        })),
    }
}

/// Goes on with the signal for which it stopped.
///
/// # Errors
/// As ptrace.
pub fn deliver(tid: i32) -> io::Result<()> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    ptrace(libc::PTRACE_GETSIGINFO, tid, 0, info.as_mut_ptr() as usize)?;
    // SAFETY: all zero is valid, and the call has filled it.
    let signal = unsafe { info.assume_init() }.si_signo;
    ptrace(libc::PTRACE_CONT, tid, 0, signal as usize)
}
