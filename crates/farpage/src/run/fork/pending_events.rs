//! The verdict of a fork: which changes of mappings were pending when the process was copied, and its way through a pipe
//! from the parent's forking thread to the child's.

use crate::sys::raw::Errno;
use crate::sys::uffd::Message;
use rustix::fd::{BorrowedFd, RawFd};

/// Events a verdict can hold: one for each thread that changes mappings during the few hundred microseconds of a fork.
const VERDICT_MAX: usize = 128;

/// Changes of mappings that were pending when the process was copied.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    events: [[usize; 4]; VERDICT_MAX],
    n: usize,
    overflow: bool,
}

impl Verdict {
    pub(super) const EMPTY: Verdict = Verdict { events: [[0; 4]; VERDICT_MAX], n: 0, overflow: false };

    /// Notes an event; faults are none.
    pub(super) fn note(&mut self, m: Message) {
        let record = match m {
            Message::Unmap { start, end } => [1, start, end, 0],
            Message::Remap { from, to, len } => [2, from, to, len],
            Message::Remove { start, end } => [3, start, end, 0],
            Message::Fault { .. } => return,
        };
        match self.events.get_mut(self.n) {
            Some(slot) => {
                *slot = record;
                self.n += 1;
            }
            None => self.overflow = true,
        }
    }

    /// Half of the room is taken.
    pub(super) fn is_half_full(&self) -> bool {
        self.n >= VERDICT_MAX / 2
    }

    /// There is no room for so many more.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.n + more > VERDICT_MAX
    }

    /// More was pending than could be noted.
    pub fn overflowed(&self) -> bool {
        self.overflow
    }

    /// The pending events in order.
    pub fn events(&self) -> impl Iterator<Item = Message> + '_ {
        self.events[..self.n].iter().map(|r| match r[0] {
            1 => Message::Unmap { start: r[1], end: r[2] },
            3 => Message::Remove { start: r[1], end: r[2] },
            _ => Message::Remap { from: r[1], to: r[2], len: r[3] },
        })
    }
}

/// Sends a verdict through a pipe, from the parent.
pub(super) fn send_verdict(fd: RawFd, verdict: &Verdict) {
    // SAFETY: a plain structure of integers, viewed as its bytes; the padding behind the flag is never read back.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(verdict).cast::<u8>(), size_of::<Verdict>()) };
    // SAFETY: open until the caller closes it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // Smaller than a pipe's buffer: written at once. If the child is gone already, nobody needs it; the signal that
    // this would raise must not reach the program.
    let _ = without_sigpipe(|| rustix::io::write(fd, bytes));
}

/// Runs `f` with SIGPIPE blocked and takes back one that `f` raised.
fn without_sigpipe<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: signal mask calls on local sets; the mask is restored.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut old);
        let result = f();
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if libc::sigismember(&old, libc::SIGPIPE) == 0 {
            libc::sigtimedwait(&set, std::ptr::null_mut(), &zero);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        result
    }
}

/// Receives it in the child; `None`: the parent is dead, or there is no pipe.
pub(super) fn receive_verdict(fd: RawFd) -> Option<Verdict> {
    if fd < 0 {
        return None;
    }
    let mut bytes = [0u8; size_of::<Verdict>()];
    // SAFETY: ours until closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut n = 0;
    while n < bytes.len() {
        match rustix::io::read(fd, &mut bytes[n..]) {
            Ok(0) => return None, // the parent died: there was no verdict to wait for
            Ok(got) => n += got,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let word = |i: usize| usize::from_ne_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
    let mut verdict = Verdict::EMPTY;
    for (i, event) in verdict.events.iter_mut().enumerate() {
        *event = std::array::from_fn(|k| word(i * 4 + k));
    }
    verdict.n = word(VERDICT_MAX * 4).min(VERDICT_MAX);
    verdict.overflow = bytes[(VERDICT_MAX * 4 + 1) * 8] != 0;
    Some(verdict)
}

const _: () =
    assert!(std::mem::offset_of!(Verdict, events) == 0 && std::mem::offset_of!(Verdict, n) == VERDICT_MAX * 32);
const _: () = assert!(std::mem::offset_of!(Verdict, overflow) == VERDICT_MAX * 32 + 8);
