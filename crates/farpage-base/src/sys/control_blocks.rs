//! Where the control blocks of threads are: what libc and the kernel write to when a thread ends, and libc in a forked
//! child, before anything else can run there. Neither can wait for a page then.
//!
//! Callers: the monitor and the pager, for threads that live; a late start, for those that have ended. No locks.

use super::maps::{Kind, mappings};
use super::proc::{Proc, Thread, threads};
use super::raw::{Errno, nr, syscall};
use rustix::io::pread;

/// Calls `each` with an address in the control block of every thread, found through the kernel's record of its robust
/// futex list.
///
/// # Errors
/// As [`threads`].
pub fn of_threads(proc: &Proc, mut each: impl FnMut(usize)) -> Result<(), Errno> {
    threads(proc, |Thread { tid, .. }| {
        let (mut head, mut len) = (0usize, 0usize);
        let args =
            [tid as usize, std::ptr::from_mut(&mut head) as usize, std::ptr::from_mut(&mut len) as usize, 0, 0, 0];
        // SAFETY: the call fills the two words.
        if unsafe { syscall(nr::GET_ROBUST_LIST, args) }.is_ok() && head != 0 {
            each(head);
        }
    })
}

/// Calls `each` with the address of every control block at the upper end of a mapping, where libc puts it above a
/// stack: also those of threads that have ended, whose stacks libc keeps. A block names itself twice (`tcb` and
/// `self`). Where stacks are one mapping with the next one (glibc from 2.42 on, whose guards are no mappings), only the
/// uppermost is found.
///
/// # Errors
/// As opening and reading `/proc/self/maps` and `/proc/self/mem`.
pub fn above_stacks(proc: &Proc, mut each: impl FnMut(usize)) -> Result<(), Errno> {
    /// The upper end of a stack that is looked at: a block takes 2,304 bytes, and what is above it is less than a line.
    const END: usize = 4096;
    const LINE: usize = 64;
    const SELF: usize = 16;
    let (maps, memory) = (proc.file("thread-self/maps")?, proc.private_file("thread-self/mem")?);
    let mut buffer = vec![0u8; 32 * 1024];
    mappings(&maps, &mut buffer, |m, _| {
        let mut page = [0u8; END];
        let from = m.end.saturating_sub(END).max(m.start);
        let end = &mut page[..m.end - from];
        // Or unmapped by now.
        if m.kind != Kind::Plain || !pread(&memory, &mut *end, from as u64).is_ok_and(|n| n == end.len()) {
            return;
        }
        let word = |at: usize| end.get(at..at + 8).map(|b| usize::from_le_bytes(b.try_into().unwrap_or_default()));
        let names_itself = |at: &usize| [*at, at + SELF].into_iter().all(|word_at| word(word_at) == Some(from + at));
        (0..end.len()).step_by(LINE).filter(names_itself).for_each(|at| each(from + at));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thread_that_has_ended() {
        let proc = Proc::open().unwrap();
        // SAFETY: says who the caller is.
        let own = || unsafe { libc::pthread_self() } as usize;
        let ended = std::thread::spawn(own).join().unwrap();
        let (mut kept, mut living) = (Vec::new(), 0);
        above_stacks(&proc, |block| kept.push(block)).unwrap();
        of_threads(&proc, |_| living += 1).unwrap();
        assert!(kept.contains(&ended) && kept.iter().all(|block| block % 64 == 0), "{ended:#x} of {kept:x?}");
        assert!(living >= 1);
    }
}
