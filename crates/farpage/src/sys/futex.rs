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

/// Wakes one waiter of `word`.
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all waiters of `word`; how many there were.
pub fn wake_all(word: &AtomicU32) -> usize {
    wake(word, i32::MAX)
}

/// The kernel takes the count as a signed number and stops after the first waiter if it is negative.
fn wake(word: &AtomicU32, n: i32) -> usize {
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
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    // FUTEX_OP(ADD, oparg 0, CMP_EQ, cmparg 0x7ff): a waiter on the program's word may at worst be woken without
    // reason, which every futex user must expect.
    let op = (1usize << 28) | 0x7ff;
    let args = [NOBODY.as_ptr() as usize, WAKE_OP, 0, 0, page, op];
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
