//! A tracer under farpage whose tracee is under farpage, too: `PTRACE_PEEKDATA` and `PTRACE_POKEDATA` (and `..TEXT`,
//! which are the same).
//!
//! The kernel does not let these wait for a page that is swapped out, and says `EIO` (`tests/kernel/peek_userfault.c`).
//! It does let `process_vm_readv`, so that brings the page in, and the request is made again.
//!
//! Not if the tracer has stopped the tracee's engine along with the rest, as debuggers do, or the tracee in the middle
//! of a fork, for which its pager holds still: nobody would ever bring the page. And not `/proc/PID/mem`, which is read
//! by the same functions as all files.

use crate::forks::answer;
use crate::interpose::{found, next, no_such_function};
use farpage::run::pager::state::THREAD_NAME;
use farpage::sys::raw::{Errno, syscall};
use std::ffi::{c_int, c_long};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static REAL: AtomicUsize = AtomicUsize::new(0);

/// Requests for one word of the tracee's memory.
const OF_A_WORD: [c_int; 4] = [
    libc::PTRACE_PEEKTEXT as c_int,
    libc::PTRACE_PEEKDATA as c_int,
    libc::PTRACE_POKETEXT as c_int,
    libc::PTRACE_POKEDATA as c_int,
];

/// A page may be taken out again before the next request.
const TRIES: usize = 1000;

/// Looks the function up, by the initialiser.
pub fn find() {
    REAL.store(next(c"ptrace"), Relaxed);
}

/// As libc's; see the module header. (It is variadic there, which makes no difference to whoever is called on x86-64.)
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(request: c_int, pid: c_int, addr: usize, data: usize) -> c_long {
    let real = found(&REAL, c"ptrace");
    if real == 0 {
        no_such_function();
        return -1;
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(c_int, c_int, usize, usize) -> c_long = unsafe { std::mem::transmute(real) };
    for _ in 0..TRIES {
        // SAFETY: caller's promise.
        let result = unsafe { real(request, pid, addr, data) };
        // A word that is -1 comes with an errno of 0.
        // SAFETY: the calling thread's errno.
        if result != -1 || unsafe { *libc::__errno_location() } != libc::EIO || !OF_A_WORD.contains(&request) {
            return result;
        }
        if !bring_in(pid, addr) {
            break;
        }
    }
    answer(Err(Errno::IO))
}

/// Has the tracee's engine bring in the word at `addr`; false if that cannot be.
fn bring_in(pid: c_int, addr: usize) -> bool {
    let mut byte = 0u8;
    let here = [&raw mut byte as usize, 1];
    runs_engine(pid)
        && [addr, addr.saturating_add(size_of::<usize>() - 1)].into_iter().all(|at| {
            let there = [at, 1];
            let args = [pid as usize, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0];
            // SAFETY: writes one byte, at `byte`.
            let read = unsafe { syscall(libc::SYS_process_vm_readv as u32, args) };
            read == Ok(1)
        })
}

/// Whether process `pid` has a pager that is not stopped.
fn runs_engine(pid: c_int) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = fs::read(thread.path().join("stat")).unwrap_or_default();
        // "TID (NAME) STATE ...": another thread's name may contain anything, the pager's does not.
        let name = stat.splitn(3, |b| matches!(b, b'(' | b')')).nth(1);
        let state = stat.iter().position(|b| *b == b')').and_then(|end| stat.get(end + 2));
        name == Some(THREAD_NAME) && state.is_some_and(|state| !matches!(state, b't' | b'T' | b'Z' | b'X'))
    })
}
