//! What is held for which call.
//!
//! A call is known by its thread and by where on the stack it is. A signal handler's calls lie below the one that it
//! interrupted, and let go of their own only. What a call held that was left by `longjmp`, or by the end of its thread,
//! is let go of by the next call of that thread from as high on the stack, or when places or memory become scarce.
//!
//! Callers: [`crate::call`], [`crate::pieces`]; the engine after a fork. No lock, no allocation.

use crate::raw::raw;
use crate::signals::{self, Mask};
use crate::state::memory;
use rustix::thread::gettid;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Parts that can be held at a time, by all threads.
const PLACES: usize = 2048;
/// Set in a place's thread while it is being filled in.
const UNDER_WAY: u32 = 1 << 31;

#[derive(Debug)]
struct Place {
    /// Thread; 0: free.
    thread: AtomicU32,
    /// The call's frame.
    frame: AtomicUsize,
    addr: AtomicUsize,
    len: AtomicUsize,
}

static TABLE: [Place; PLACES] = [const {
    Place { thread: AtomicU32::new(0), frame: AtomicUsize::new(0), addr: AtomicUsize::new(0), len: AtomicUsize::new(0) }
}; PLACES];
/// Places that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn free(&self) {
        let (addr, len) = (self.addr.load(Relaxed), self.len.load(Relaxed));
        if let Some(memory) = memory() {
            memory.release(addr, len, &|| self.thread.store(0, Release));
        }
    }
}

fn used() -> &'static [Place] {
    &TABLE[..USED.load(Acquire)]
}

/// A call that may hold memory.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    thread: u32,
    frame: usize,
    /// The program's signal mask. All signals are blocked but in [`Call::make`].
    mask: Mask,
}

impl Call {
    /// A call whose frame is at this address, of a program whose signals were blocked meanwhile. Lets go of what was
    /// held for calls of this thread that are over.
    pub fn begin(frame: usize, mask: Mask) -> Call {
        let thread = gettid().as_raw_nonzero().get() as u32;
        let call = Call { thread, frame, mask };
        let mine = |place: &&Place| place.thread.load(Acquire) == thread;
        if used().iter().any(|place| mine(&place)) {
            let here = signal_stack();
            let is_over = |place: &&Place| {
                let there = place.frame.load(Relaxed);
                let same = here.contains(&frame) == here.contains(&there);
                // Off the signal stack again, there is none.
                if same { there <= frame } else { !here.contains(&frame) }
            };
            used().iter().filter(mine).filter(is_over).for_each(Place::free);
        }
        call
    }

    /// Brings in what it can of a part, from its beginning on, and holds it: how many bytes.
    pub fn hold(&self, addr: usize, len: usize, write: bool) -> usize {
        let Some(memory) = memory().filter(|_| len > 0) else { return 0 };
        let Some(place) = self.place() else { return 0 };
        place.frame.store(self.frame, Relaxed);
        place.addr.store(addr, Relaxed);
        let note = |held| {
            place.len.store(held, Relaxed);
            place.thread.store(self.thread, Release);
        };
        let mut held = memory.hold(addr, len, write, &note);
        if held == 0 && sweep() > 0 {
            held = memory.hold(addr, len, write, &note);
        }
        if held == 0 {
            place.thread.store(0, Release);
        }
        held
    }

    /// Makes the program's call, in which signals come as it wants them. A handler may leave it by `longjmp`.
    ///
    /// # Safety
    /// As for the call.
    pub unsafe fn make(&self, nr: u32, args: &[usize; 6]) -> isize {
        signals::restore(self.mask);
        // SAFETY: the caller's promise.
        let result = unsafe { raw(nr, args) };
        signals::block();
        result
    }

    /// Lets go of all that this call holds.
    pub fn end(&self) {
        let mine =
            |place: &&Place| place.thread.load(Acquire) == self.thread && place.frame.load(Relaxed) == self.frame;
        used().iter().filter(mine).for_each(Place::free);
    }

    fn place(&self) -> Option<&'static Place> {
        let take = |place: &&Place| place.thread.compare_exchange(0, self.thread | UNDER_WAY, AcqRel, Relaxed).is_ok();
        if let Some(place) = used().iter().find(take) {
            return Some(place);
        }
        let grow = |used: usize| (used < PLACES).then_some(used + 1);
        while let Ok(new) = USED.fetch_update(SeqCst, SeqCst, grow) {
            if let Some(place) = Some(&TABLE[new]).filter(take) {
                return Some(place);
            }
        }
        if sweep() > 0 { used().iter().find(take) } else { None }
    }
}

/// Where this thread's signal stack is, if it has one.
fn signal_stack() -> std::ops::Range<usize> {
    // SAFETY: zero bits are a value; the call only fills it.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        let asked = raw(linux_raw_sys::general::__NR_sigaltstack, &[0, &raw mut stack as usize, 0, 0, 0, 0]);
        if asked != 0 || stack.ss_flags & libc::SS_DISABLE != 0 {
            return 0..0;
        }
        stack.ss_sp as usize..stack.ss_sp as usize + stack.ss_size
    }
}

/// Lets go of what threads held that have ended; how many parts.
pub(crate) fn sweep() -> usize {
    let process = std::process::id() as usize;
    let has_ended = |place: &&Place| {
        let thread = place.thread.load(Acquire);
        // SAFETY: signal 0 only asks.
        let asked = || unsafe { raw(linux_raw_sys::general::__NR_tgkill, &[process, thread as usize, 0, 0, 0, 0]) };
        thread != 0 && thread & UNDER_WAY == 0 && asked() == -(libc::ESRCH as isize)
    };
    used().iter().filter(has_ended).map(Place::free).count()
}

/// To be called in a forked child, by its only thread, once the memory can be let go of: what the parent's threads hold
/// is not held here.
pub fn after_fork_in_child() {
    crate::sigbus::own_process();
    for place in used() {
        match place.thread.load(Acquire) {
            0 => {}
            thread if thread & UNDER_WAY != 0 => place.thread.store(0, Release),
            _ => place.free(),
        }
    }
}
