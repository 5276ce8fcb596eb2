//! SIGBUS: the faulting thread serves its own fault.
//!
//! Installed when a pager is built, and again where another handler is found to be there. What is not ours goes to the
//! program's handler, as the kernel would call it: with its mask, on its stack. So does the fault of a page that cannot
//! be read back. With [`super::Builder::system_calls`] a program's `sigaction` changes only what [`chain`] does.
//!
//! While a fault is served, all other asynchronous signals are blocked in this thread, so no code of the program runs
//! in between, and it takes only locks that are never held where region memory is touched (the engine's own, which its
//! functions hold with signals blocked, see [`Blocked`]). It allocates nothing and makes system calls directly, only
//! such that may be made in a handler (ioctl, futex, pread, preadv, madvise, gettid).

use super::fault::Served;
use super::registry::PAGERS;
use farpage_base::sys::one_thread::OneThread;
use farpage_base::sys::raw::{nr, syscall};
use farpage_base::sys::thread::FAULT_SIGNALS;
use farpage_syscalls::sigbus::{self, Action};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;

const SIGBUS: usize = libc::SIGBUS as usize;
/// Our action as the kernel has it; `None`: it has another one, whose handler passes signals on to ours.
static OURS: OnceLock<Option<Action>> = OnceLock::new();
/// Page fault error code, bit 0: there is a page, which does not allow the access.
const PROTECTION: i64 = 1;
/// Bit 1: the access was a write.
const WRITE: i64 = 2;

/// Installs the handler, if it is not there.
///
/// # Errors
/// The kernel refused it (a sandbox).
pub(super) fn install() -> io::Result<()> {
    static ONE: OneThread = OneThread::new();
    let _one = ONE.lock();
    if OURS.get().is_some() {
        take_back();
        return Ok(());
    }
    sigbus::set_handler(handler as *const () as usize);
    // Known before ours can be called.
    sigbus::set_program_action(kernel_action(None)?);
    // SAFETY: plain data; the handler has the type that SA_SIGINFO asks for.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        for signal in FAULT_SIGNALS {
            libc::sigdelset(&mut action.sa_mask, signal);
        }
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) == 0
    };
    if !done {
        return Err(io::Error::last_os_error());
    }
    let installed = kernel_action(None)?;
    let _ = OURS.set(Some(installed).filter(|action| action.handler == handler as *const () as usize));
    Ok(())
}

/// Where another handler has taken our place, ours takes it back, and passes on to that one. With
/// [`super::Builder::system_calls`] only system calls that libc does not make can do that.
pub(super) fn take_back() {
    let Some(ours) = ours() else { return };
    let Ok(now) = kernel_action(None) else { return };
    if now.handler != ours.handler {
        sigbus::set_program_action(now);
        let _ = kernel_action(Some(&ours));
    }
}

/// Our action as the kernel has it.
pub(super) fn ours() -> Option<Action> {
    OURS.get().copied().flatten()
}

fn kernel_action(new: Option<&Action>) -> io::Result<Action> {
    // SAFETY: only asks, or installs our handler.
    unsafe { sigbus::kernel_action(SIGBUS, new) }.map_err(|errno| io::Error::from_raw_os_error(-errno as i32))
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers (SA_SIGINFO).
    if !unsafe { handle(info, context) } {
        // SAFETY: as above.
        unsafe { chain(signal, info, context) };
    }
}

/// Serves the fault behind a SIGBUS, if it is one of a region: for programs that install a handler of their own after
/// the first pager was built, and pass on to this what they do not know. `false`: it is not ours.
///
/// # Safety
/// Arguments as a handler with `SA_SIGINFO` gets them, in that handler, with all signals blocked that may be handled by
/// code that touches regions.
pub unsafe fn handle(info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: caller's promise; SIGBUS fills si_addr.
    let (addr, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    if code <= 0 {
        return false; // sent by a process, not a fault
    }
    // SAFETY: caller's promise.
    let error_code = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    // SAFETY: the calling thread's errno, which the interrupted code may be about to look at.
    let errno = unsafe { &mut *libc::__errno_location() };
    let saved = *errno;
    let (write, protected) = (error_code & WRITE != 0, Some(error_code & PROTECTION != 0));
    let served =
        PAGERS.iter().any(|entry| entry.with(|pager| pager.on_fault(addr, write, protected)) == Some(Served::Done));
    *errno = saved;
    served
}

/// Passes a signal on to the program's handler.
///
/// # Safety
/// Arguments as a handler with `SA_SIGINFO` gets them, in that handler.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: info is valid (caller's promise).
    let sent = unsafe { (*info).si_code } <= 0;
    let (action, number) = sigbus::program_action();
    match action.handler {
        libc::SIG_IGN if sent => return,
        libc::SIG_DFL | libc::SIG_IGN => return default(sent),
        _ => {}
    }
    let has = |flag: c_int| action.flags & flag as u32 as usize != 0;
    if has(libc::SA_RESETHAND) {
        sigbus::reset_program_action(number);
    }
    // SAFETY: the kernel's set is the first word of libc's.
    let interrupted = unsafe { (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read() };
    let mask = (interrupted | action.mask) & !sigbus::BUS;
    // SAFETY: a set; this thread's mask, which the end of our handler sets back.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [libc::SIG_SETMASK as usize, &raw const mask as usize, 0, 8, 0, 0]) };
    let stack = if has(libc::SA_ONSTACK) { signal_stack() } else { None };
    // SAFETY: the program's handler; the kernel gives all three arguments to any.
    unsafe { call(action.handler, stack, signal, info, context) };
}

/// The default ends the process: a fault happens again on return; a signal that was sent is sent again.
fn default(sent: bool) {
    let _ = kernel_action(Some(&Action::default()));
    if sent {
        let (pid, thread) = (std::process::id() as usize, farpage_base::sys::raw::gettid() as usize);
        // SAFETY: a default disposition runs no handler.
        let _ = unsafe { syscall(nr::TGKILL, [pid, thread, SIGBUS, 0, 0, 0]) };
    }
}

/// The upper end of this thread's signal stack, unless there is none, or it is in use.
fn signal_stack() -> Option<usize> {
    // SAFETY: zero bits are a value; the call only fills it.
    let (stack, asked) = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        (syscall(nr::SIGALTSTACK, [0, &raw mut stack as usize, 0, 0, 0, 0]).is_ok(), stack)
    };
    (stack && asked.ss_flags & (libc::SS_DISABLE | libc::SS_ONSTACK) == 0)
        .then(|| (asked.ss_sp as usize + asked.ss_size) & !15)
}

/// Calls a handler, on a stack of its own if one is named.
///
/// # Safety
/// `handler` is one; nothing is on the stack that ends at `stack`.
pub(super) unsafe fn call(
    handler: usize,
    stack: Option<usize>,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let Some(stack) = stack else {
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: the caller's promise.
        return unsafe { std::mem::transmute::<usize, Handler>(handler) }(signal, info, context);
    };
    // SAFETY: the caller's promise; the register that keeps our stack is one that a function leaves as it is.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {stack}",
            "call {handler}",
            "mov rsp, r12",
            stack = in(reg) stack,
            handler = in(reg) handler,
            in("edi") signal,
            in("rsi") info,
            in("rdx") context,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Blocks all signals in this thread but those of faults, as long as it exists: a handler of the program that touches a
/// region would wait for a lock that the interrupted code holds. (Through libc, which leaves its own signals open: it
/// makes threads under this guard, and may be changing the user of all threads.)
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks.
    #[allow(clippy::new_without_default, reason = "a guard is not a value to be had by default")]
    pub fn new() -> Blocked {
        // SAFETY: plain data that the calls fill; affects this thread's mask only.
        unsafe {
            let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            for signal in FAULT_SIGNALS {
                libc::sigdelset(&mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut old);
            Blocked(old)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask that `new` found.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
