//! SIGBUS is the memory's: a fault on what is absent comes as one. The program's calls neither block it nor take its
//! handler away, and read back what they have set.
//!
//! | call | what becomes of it |
//! | --- | --- |
//! | `rt_sigprocmask` | made without SIGBUS in the set; that this thread wants it blocked is noted |
//! | `rt_sigaction` for SIGBUS | not made: the action is noted, and the memory's handler passes on what is not its own |
//! | `rt_sigaction` for others | made without SIGBUS in the handler's mask, which is noted |
//! | `ppoll`, `pselect6`, `epoll_pwait`, `epoll_pwait2`, `rt_sigsuspend` | made without SIGBUS in the set |
//!
//! Sets and actions are read where the program has them, as arrays of pointers are (`parts`). A child that shares the
//! memory (`vfork`, `posix_spawn`) is another process: its calls are made as they are.
//!
//! Callers: [`crate::entry`], [`crate::parts`], the memory. No lock, no allocation; all of it may run in signal
//! handlers.

use crate::parts::{is_user, read, write};
use crate::raw::raw;
use crate::signals::bit;
use crate::table::Special;
use linux_raw_sys::general as n;
use rustix::thread::gettid;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

const SIGBUS: usize = libc::SIGBUS as usize;
/// SIGBUS in a set of signals.
pub const BUS: u64 = bit(SIGBUS);
/// What can neither be blocked nor caught.
const NEVER: u64 = bit(libc::SIGKILL as usize) | bit(libc::SIGSTOP as usize);
const SIGNALS: usize = 64;
const SET: usize = size_of::<u64>();
const EFAULT: isize = -(libc::EFAULT as isize);

/// The kernel's `sigaction`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, `SIG_DFL` or `SIG_IGN`.
    pub handler: usize,
    /// `SA_...`.
    pub flags: usize,
    /// Where the handler returns to.
    pub restorer: usize,
    /// What is blocked while it runs.
    pub mask: u64,
}

/// Actions that are kept: a reader sees a whole one, unless as many are set while it reads.
const KEPT: usize = 64;
static ACTIONS: [[AtomicUsize; 4]; KEPT] = [const { [const { AtomicUsize::new(0) }; 4] }; KEPT];
/// Number of the next action.
static NEXT: AtomicUsize = AtomicUsize::new(1);
/// Number of the one that holds. The first is `SIG_DFL`.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
/// The memory's handler.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// The process whose calls are looked at.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Signals whose handlers want SIGBUS blocked.
static MASKED: AtomicU64 = AtomicU64::new(0);
/// Threads that want SIGBUS blocked, each at one place. One may push another out, which then reads back less.
static BLOCKED: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
/// How many of those places are taken.
static BLOCKED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// What the program wants done at a SIGBUS that is not the memory's, and a number for [`reset_program_action`].
pub fn program_action() -> (Action, usize) {
    loop {
        let number = CURRENT.load(SeqCst);
        let [handler, flags, restorer, mask] = ACTIONS[number % KEPT].each_ref().map(|word| word.load(SeqCst));
        if NEXT.load(SeqCst).wrapping_sub(number) < KEPT {
            return (Action { handler, flags, restorer, mask: mask as u64 }, number);
        }
    }
}

/// Notes what the program wants; what it wanted before. The memory's own handler is nothing that a program can want.
pub fn set_program_action(new: Action) -> Action {
    let before = program_action().0;
    if new.handler != HANDLER.load(SeqCst) {
        CURRENT.store(noted(new), SeqCst);
    }
    before
}

/// `SA_RESETHAND`: the default, if the action of this number still holds.
pub fn reset_program_action(number: usize) {
    let _ = CURRENT.compare_exchange(number, noted(Action::default()), SeqCst, SeqCst);
}

fn noted(action: Action) -> usize {
    let number = NEXT.fetch_add(1, SeqCst);
    let words = [action.handler, action.flags, action.restorer, action.mask as usize];
    ACTIONS[number % KEPT].iter().zip(words).for_each(|(to, word)| to.store(word, SeqCst));
    number
}

/// This is the memory's handler, in this process.
pub fn set_handler(handler: usize) {
    HANDLER.store(handler, SeqCst);
    own_process();
}

/// From now on this process's calls are looked at: the first, and a forked child.
pub fn own_process() {
    PROCESS.store(process(), SeqCst);
}

fn process() -> u32 {
    // SAFETY: only asks.
    unsafe { raw(n::__NR_getpid, &[0; 6]) as u32 }
}

/// Makes `rt_sigaction`, or asks with `None`: the action before, or the kernel's errno.
///
/// # Safety
/// As for the call.
pub unsafe fn kernel_action(signal: usize, new: Option<&Action>) -> Result<Action, isize> {
    let mut old = Action::default();
    let new = new.map_or(0, |new| std::ptr::from_ref(new) as usize);
    // SAFETY: both are the kernel's structure; the meaning is the caller's.
    match unsafe { raw(n::__NR_rt_sigaction, &[signal, new, &raw mut old as usize, SET, 0, 0]) } {
        0 => Ok(old),
        errno => Err(errno),
    }
}

/// Handlers that were there before: none blocks SIGBUS from now on.
pub fn unblock_in_handlers() {
    for signal in (1..=SIGNALS).filter(|signal| *signal != SIGBUS) {
        // SAFETY: only asks.
        let Ok(mut action) = (unsafe { kernel_action(signal, None) }) else { continue };
        if action.handler > libc::SIG_IGN && action.mask & BUS != 0 {
            action.mask &= !BUS;
            // SAFETY: the program's own action, with another mask.
            if unsafe { kernel_action(signal, Some(&action)) }.is_ok() {
                MASKED.fetch_or(bit(signal), SeqCst);
            }
        }
    }
}

fn place(thread: u32) -> &'static AtomicU32 {
    &BLOCKED[thread as usize % BLOCKED.len()]
}

/// Whether a thread wants SIGBUS blocked.
fn is_blocked(thread: u32) -> bool {
    place(thread).load(SeqCst) == thread
}

/// Notes whether a thread wants SIGBUS blocked.
pub fn note_blocked(thread: u32, blocked: bool) {
    let before = place(thread).load(SeqCst);
    if blocked && place(thread).swap(thread, SeqCst) == 0 {
        BLOCKED_COUNT.fetch_add(1, SeqCst);
    } else if !blocked && before == thread && place(thread).compare_exchange(thread, 0, SeqCst, SeqCst).is_ok() {
        BLOCKED_COUNT.fetch_sub(1, SeqCst);
    }
}

/// Whether `rt_sigprocmask` with these arguments is more than the kernel's business.
pub fn matters(args: &[usize; 6]) -> bool {
    BLOCKED_COUNT.load(SeqCst) > 0 || has_bus(args[1])
}

/// Whether the set at an address has SIGBUS.
pub fn has_bus(set: usize) -> bool {
    // SAFETY: a set of signals, as the call takes it.
    unsafe { read::<u64>(set) }.is_some_and(|set| set & BUS != 0)
}

/// Makes a call that sets a mask or an action; `None`: it is to be made as all others.
pub fn make(special: Option<Special>, args: &[usize; 6]) -> Option<isize> {
    let ours = || args[3] == SET && PROCESS.load(SeqCst) == process();
    match special {
        Some(Special::Mask) if ours() => mask(args[0], args[1], args[2]),
        Some(Special::Action) if ours() => action(args[0], args[1], args[2]),
        _ => None,
    }
}

/// `rt_sigprocmask`.
fn mask(how: usize, set: usize, old: usize) -> Option<isize> {
    // SAFETY: a set of signals, as the call takes it.
    let new = if set == 0 { None } else { Some(unsafe { read::<u64>(set) }?) };
    let without = new.map(|set| set & !BUS);
    let mut before = 0u64;
    let at = without.as_ref().map_or(0, |set| std::ptr::from_ref(set) as usize);
    // SAFETY: both are sets.
    let result = unsafe { raw(n::__NR_rt_sigprocmask, &[how, at, &raw mut before as usize, SET, 0, 0]) };
    if result != 0 {
        return Some(result);
    }
    let thread = gettid().as_raw_nonzero().get() as u32;
    if is_blocked(thread) {
        before |= BUS;
    }
    match (how as i32, new.map(|set| set & BUS != 0)) {
        (libc::SIG_SETMASK, Some(blocked)) => note_blocked(thread, blocked),
        (libc::SIG_BLOCK, Some(true)) => note_blocked(thread, true),
        (libc::SIG_UNBLOCK, Some(true)) => note_blocked(thread, false),
        _ => {}
    }
    Some(answer(old, before))
}

/// `rt_sigaction`.
fn action(signal: usize, new: usize, old: usize) -> Option<isize> {
    // SAFETY: an action, as the call takes it.
    let new = if new == 0 { None } else { Some(unsafe { read::<Action>(new) }?) };
    if signal == SIGBUS {
        let wanted = new.map(|new| Action { mask: new.mask & !NEVER, ..new });
        return Some(answer(old, wanted.map_or_else(|| program_action().0, set_program_action)));
    }
    let without = new.map(|new| Action { mask: new.mask & !BUS, ..new });
    // SAFETY: the program's own action, with another mask.
    let mut before = match unsafe { kernel_action(signal, without.as_ref()) } {
        Ok(before) => before,
        Err(errno) => return Some(errno),
    };
    let was = match new {
        Some(new) if new.mask & BUS != 0 => MASKED.fetch_or(bit(signal), SeqCst),
        Some(_) => MASKED.fetch_and(!bit(signal), SeqCst),
        None => MASKED.load(SeqCst),
    };
    if was & bit(signal) != 0 {
        before.mask |= BUS;
    }
    Some(answer(old, before))
}

/// Puts what was there before where the program wants it.
fn answer<T: Copy>(at: usize, before: T) -> isize {
    if is_user(at) {
        // SAFETY: what the call writes.
        unsafe { write(at, before) };
    }
    if at == 0 || is_user(at) { 0 } else { EFAULT }
}

/// A set of signals without SIGBUS, for a call that waits with it.
#[derive(Debug, Default)]
pub struct Waiting {
    set: u64,
    /// As `pselect6` takes it.
    pair: [usize; 2],
}

impl Waiting {
    /// The arguments of a call that waits with SIGBUS blocked, without that; `None`: it does not.
    pub fn arguments(&mut self, special: Option<Special>, args: &[usize; 6]) -> Option<[usize; 6]> {
        let mut args = *args;
        let (arg, pair) = match special {
            Some(Special::Waits(arg)) => (usize::from(arg), None),
            // SAFETY: a pointer and a length, as the call takes it.
            Some(Special::Pselect) => (5, Some(unsafe { read::<[usize; 2]>(args[5]) }?)),
            _ => return None,
        };
        let at = pair.map_or(args[arg], |pair| pair[0]);
        // SAFETY: a set of signals, as the call takes it.
        self.set = unsafe { read::<u64>(at) }.filter(|set| set & BUS != 0)? & !BUS;
        args[arg] = &raw const self.set as usize;
        if let Some(pair) = pair {
            self.pair = [args[arg], pair[1]];
            args[arg] = &raw const self.pair as usize;
        }
        Some(args)
    }
}
