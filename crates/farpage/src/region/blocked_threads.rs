//! Threads that block SIGBUS before a pager can see to it: a fault of theirs would end the process.
//!
//! Only a thread itself can change its mask, and such threads mostly block all signals. But libc takes two of its own
//! out of every set that a program blocks. One of them, with which `setuid` reaches all threads, asks them to unblock
//! SIGBUS: it comes with a code that libc's handler leaves alone, and what is not ours goes to that handler. Threads
//! that block it, too, are not libc's: the kernel's workers for io_uring, which have no faults of their own.
//!
//! Callers: [`super::builder`]; [`super::handle`] where libc's calls are not looked at. Any of the program's threads.

use super::signal;
use farpage_base::sys::clock::now_us;
use farpage_base::sys::message::warn;
use farpage_base::sys::one_thread::OneThread;
use farpage_base::sys::raw::{gettid, nr, syscall};
use farpage_base::sys::thread;
use farpage_syscalls::sigbus::{self, Action, BUS};
use std::ffi::{c_int, c_void};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// libc's SIGSETXID.
const ASK: usize = 33;
const ASK_BIT: u64 = 1 << (ASK - 1);
/// Signals that our handler does not block.
const FAULTS: u64 = thread::FAULT_SET;
/// So long a thread may take to answer: it may wait for a child of `vfork`.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_micros(200);
/// Between two looks at all threads where the pager does not hear of what they do, microseconds.
const AGAIN_US: u64 = 20_000;
/// libc's handler.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
/// Says what is ours, by its address.
static MARK: AtomicBool = AtomicBool::new(false);

/// As [`unblock`], but at most every [`AGAIN_US`]: a program that makes many regions would look all the time.
pub(super) fn unblock_again() {
    static LOOKED_US: AtomicU64 = AtomicU64::new(0);
    let now = now_us();
    if now.saturating_sub(LOOKED_US.load(SeqCst)) > AGAIN_US {
        LOOKED_US.store(now, SeqCst);
        unblock();
    }
}

/// No thread of the process blocks SIGBUS when this returns, but those that a message names.
pub(super) fn unblock() {
    static ONE: OneThread = OneThread::new();
    let _one = ONE.lock();
    let Some(ours) = signal::ours() else { return };
    let (mut others, own) = (threads(), gettid());
    if others.contains(&own) {
        sigbus::note_blocked(own, true);
        let set = BUS;
        let args = [libc::SIG_UNBLOCK as usize, &raw const set as usize, 0, 8, 0, 0];
        // SAFETY: a set; this thread's mask.
        let _ = unsafe { syscall(nr::RT_SIGPROCMASK, args) };
        others.retain(|thread| *thread != own);
    }
    if others.is_empty() {
        return;
    }
    let flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    let flags = ours.flags | flags as usize;
    let asking = Action { handler: on_asked as *const () as usize, flags, restorer: ours.restorer, mask: u64::MAX };
    // SAFETY: only asks; then a handler of the type that SA_SIGINFO asks for, which passes on what is not for it.
    let Ok(before) = (unsafe { sigbus::kernel_action(ASK, None) }) else { return };
    BEFORE.store(before.handler, SeqCst);
    // SAFETY: as above.
    if unsafe { sigbus::kernel_action(ASK, Some(&asking)) }.is_err() {
        return;
    }
    for thread in &others {
        sigbus::note_blocked(*thread, true);
        let info = [ASK, libc::SI_QUEUE as u32 as usize, 0, MARK.as_ptr() as usize, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let args = [std::process::id() as usize, *thread as usize, ASK, info.as_ptr() as usize, 0, 0];
        // SAFETY: the kernel's structure, whole. Its handler is the one above.
        let _ = unsafe { syscall(nr::RT_TGSIGQUEUEINFO, args) };
    }
    let begin = Instant::now();
    while !others.is_empty() && begin.elapsed() < WAIT_MAX {
        std::thread::sleep(LOOK);
        others.retain(|thread| blocks(*thread));
    }
    // SAFETY: what was there.
    let _ = unsafe { sigbus::kernel_action(ASK, Some(&before)) };
    for thread in others {
        let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
        warn(&format!(
            "thread {thread} ({}) blocks SIGBUS and does not answer: it must not touch memory of a pager, the process \
             would end by a bus error. Unblock SIGBUS there, or use the other fault mode",
            name.trim_end()
        ));
    }
}

/// The program's threads that block SIGBUS and can be asked.
fn threads() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|thread| blocks(*thread)).collect()
}

fn blocks(thread: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/self/task/{thread}/status")) else { return false };
    let set = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let Some(set) = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()) else { return false };
    // In our handler the kernel blocks SIGBUS, and all that the handler wants blocked.
    let serves = |ours: Action| set & (FAULTS | ours.mask) == BUS | ours.mask;
    set & (BUS | ASK_BIT) == BUS && !signal::ours().is_some_and(serves)
}

extern "C" fn on_asked(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers (SA_SIGINFO); this code comes with a value.
    let is_ours = unsafe {
        (*info).si_code == libc::SI_QUEUE
            && (*info).si_value().sival_ptr.cast_const() == MARK.as_ptr().cast_const().cast()
    };
    if is_ours {
        // SAFETY: the kernel's set is the first word of libc's; it is this thread's from the end of this handler on.
        unsafe { *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() &= !BUS };
        return;
    }
    let before = BEFORE.load(SeqCst);
    if before > libc::SIG_IGN {
        // SAFETY: libc's handler, with the arguments that it expects.
        unsafe { signal::call(before, None, number, info, context) };
    }
}
