//! Waiting on a word, and the futex operation that is used to make a page exclusive.

use super::raw::{Errno, nr, syscall};
use std::sync::atomic::AtomicU32;

const WAIT: usize = PRIVATE;
const WAKE: usize = 1 | PRIVATE;
const WAKE_OP: usize = 5 | PRIVATE;
const PRIVATE: usize = 128;

/// Sleeps while `*word == seen`, at most `timeout_ns` nanoseconds if given. May wake without reason.
pub fn wait(word: &AtomicU32, seen: u32, timeout_ns: Option<u64>) {
    let ts = timeout_ns.map(|ns| [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64]);
    let ts_ptr = ts.as_ref().map_or(0, |t| t.as_ptr() as usize);
    // SAFETY: FUTEX_WAIT only reads the word and the timespec, both alive during the call. Every result (woken, value
    // changed, time-out, signal) means the same to callers: look again.
    let _ = unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, WAIT, seen as usize, ts_ptr, 0, 0]) };
}

/// One of the words that [`wait_any`] waits for (the kernel's `futex_waitv`).
#[repr(C)]
struct Waiter {
    seen: u64,
    word: u64,
    flags: u32,
    reserved: u32,
}

/// Sleeps while a word of this process and one that is shared with others are both as they were seen, at most
/// `timeout_ns` nanoseconds. May wake without reason.
pub fn wait_any(own: (&AtomicU32, u32), shared: (&AtomicU32, u32), timeout_ns: u64) {
    const SIZE_U32: u32 = 2;
    const MONOTONIC: usize = 1;
    let waiter = |(word, seen): (&AtomicU32, u32), flags| Waiter {
        seen: seen.into(),
        word: word.as_ptr() as u64,
        flags: SIZE_U32 | flags,
        reserved: 0,
    };
    let waiters = [waiter(own, PRIVATE as u32), waiter(shared, 0)];
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let until = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + timeout_ns;
    let until = [until / 1_000_000_000, until % 1_000_000_000];
    let args = [waiters.as_ptr() as usize, 2, 0, until.as_ptr() as usize, MONOTONIC, 0];
    // SAFETY: reads the words, the array and the time, all alive during the call. As for [`wait`].
    match unsafe { syscall(nr::FUTEX_WAITV, args) } {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        // An old kernel, or a filter that refuses it.
        Err(_) => wait(own.0, own.1, Some(timeout_ns)),
    }
}

/// Wakes the threads that wait for a word that is shared with other processes.
pub fn wake_shared(word: &AtomicU32) {
    // SAFETY: as in [`wake`].
    let _ = unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, WAKE & !PRIVATE, i32::MAX as usize, 0, 0, 0]) };
}

/// Wakes one waiter of `word`.
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all waiters of `word`; how many there were.
pub fn wake_all(word: &AtomicU32) -> usize {
    wake(word, i32::MAX)
}

/// Wakes up to `n` waiters of `word`; how many there were. (The kernel takes the count as a signed number and stops
/// after the first waiter if it is negative.)
pub fn wake(word: &AtomicU32, n: i32) -> usize {
    // SAFETY: FUTEX_WAKE uses the address only as a key; it cannot fail for a live aligned word.
    unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, WAKE, n as usize, 0, 0, 0]) }.unwrap_or(0)
}

/// Adds 0, atomically, to the first 4 bytes at page address `page`: a write that changes nothing, but makes a page that
/// is shared copy-on-write after a fork this process's own again, so that it can be moved.
///
/// The kernel does the add without ever waiting for a userfault: on a page that is not present the call fails
/// (`EFAULT`), where an ordinary write would block the calling engine thread on a fault that it should serve itself.
///
/// # Errors
/// `EFAULT`: not present, or not writable.
pub fn unshare_page(page: usize) -> Result<(), Errno> {
    static NO_WAITER: AtomicU32 = AtomicU32::new(0);
    // FUTEX_OP(ADD, oparg 0, CMP_EQ, cmparg 0x7ff): a waiter on the program's word may at worst be woken without
    // reason, which every futex user must expect.
    let op = (1usize << 28) | 0x7ff;
    let args = [NO_WAITER.as_ptr() as usize, WAKE_OP, 0, 0, page, op];
    // SAFETY: the operation writes back the value it read, in one atomic step; no safe code can observe it.
    unsafe { syscall(nr::FUTEX, args) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn all_waiters_are_woken_at_once() {
        static WORD: AtomicU32 = AtomicU32::new(1);
        let sleeper = || {
            while WORD.load(SeqCst) == 1 {
                wait(&WORD, 1, None);
            }
        };
        let sleepers: Vec<_> = (0..3).map(|_| std::thread::spawn(sleeper)).collect();
        // Until all three sleep, each wake-up finds fewer.
        while wake_all(&WORD) < 3 {
            std::thread::yield_now();
        }
        WORD.store(0, SeqCst);
        wake_all(&WORD);
        sleepers.into_iter().for_each(|s| s.join().unwrap());
    }
}
