//! SIGBUS: the faulting thread serves its own fault.
//!
//! Installed once per process, when the first pager is built. What is not ours goes to the handler that was there
//! before, and so does the fault of a page that cannot be read back. While it runs, all other asynchronous signals are
//! blocked in this thread, so no code of the program runs in between, and it takes only locks that are never held where
//! region memory is touched (the engine's own, which its functions hold with signals blocked, see [`Blocked`]). It
//! allocates nothing and makes system calls directly, only such that may be made in a handler (ioctl, futex, pread,
//! preadv, madvise, gettid).

use super::fault::Served;
use super::registry::PAGERS;
use crate::sys::thread::FAULT_SIGNALS;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the process did with SIGBUS before.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written once, before `INSTALLED` is set; read only after that.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Page fault error code, bit 0: there is a page, which does not allow the access.
const PROTECTION: i64 = 1;
/// Bit 1: the access was a write.
const WRITE: i64 = 2;

/// Installs the handler, once.
///
/// # Errors
/// The kernel refused it (a sandbox).
pub fn install() -> io::Result<()> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: plain data; the handler has the type that SA_SIGINFO asks for. PREVIOUS is written here only, and
        // the handler does not read it before INSTALLED is set.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigfillset(&mut action.sa_mask);
            for signal in FAULT_SIGNALS {
                libc::sigdelset(&mut action.sa_mask, signal);
            }
            // Known before ours can be called.
            let previous = (*PREVIOUS.0.get()).as_mut_ptr();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), previous) == 0 {
                INSTALLED.store(true, Ordering::Release);
                let refused = libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0;
                INSTALLED.store(!refused, Ordering::Release);
            }
        }
    });
    if INSTALLED.load(Ordering::Acquire) { Ok(()) } else { Err(io::Error::other("SIGBUS cannot be caught")) }
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
        return false; // sent by somebody, not a fault
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

/// Passes a signal on to the handler that was there before ours.
///
/// # Safety
/// Arguments as a handler with `SA_SIGINFO` gets them, in that handler.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if INSTALLED.load(Ordering::Acquire) {
        // SAFETY: written before INSTALLED was set.
        let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
        let action = previous.sa_sigaction;
        if action != libc::SIG_DFL && action != libc::SIG_IGN {
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                // SAFETY: the program installed it as a handler of this type.
                let f: WithInfo = unsafe { std::mem::transmute(action) };
                f(signal, info, context);
            } else {
                // SAFETY: as above.
                let f: extern "C" fn(c_int) = unsafe { std::mem::transmute(action) };
                f(signal);
            }
            return;
        }
        // SAFETY: info is valid (caller's promise).
        if action == libc::SIG_IGN && unsafe { (*info).si_code } <= 0 {
            return;
        }
    }
    // The default ends the process: a fault happens again on return; a signal that was sent is sent again.
    // SAFETY: a default disposition runs no handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
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
