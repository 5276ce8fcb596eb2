//! Reservations that become usable memory in steps.
//!
//! Address space that is only reserved (`PROT_NONE`, or `PROT_READ` where zeros are read) costs nothing anywhere. As
//! writable memory it counts in full, touched or not: as commit where the kernel never overcommits
//! (`vm.overcommit_memory=2`, for which `MAP_NORESERVE` is nothing), and for `RLIMIT_DATA`. So heap, page table, pool
//! and frames are opened when they are needed.

use crate::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes that are opened at a time.
pub const STEP: usize = 1 << 20;

/// Makes every page that has one of these `len` bytes readable and writable.
///
/// # Safety
/// The pages are a reservation of the caller's own.
///
/// # Errors
/// `ENOMEM`: the kernel's limit on commit, or this process's on data.
pub unsafe fn open(at: usize, len: usize) -> Result<(), Errno> {
    let first = at & !(PAGE_SIZE - 1);
    let end = (at + len).next_multiple_of(PAGE_SIZE);
    // SAFETY: the caller's own memory, which nothing else than the caller uses; its content stays.
    unsafe { mprotect(first as *mut c_void, end - first, MprotectFlags::READ | MprotectFlags::WRITE) }
}

/// A reservation that is opened from its beginning on.
#[derive(Debug)]
pub struct Opening {
    /// The first byte that is closed. Only grows.
    closed: AtomicUsize,
    end: usize,
}

impl Opening {
    /// Of `base..end`, of which what lies below `closed` is open.
    ///
    /// # Safety
    /// The range is a reservation of the caller's own, and stays mapped as long as this is used.
    pub const unsafe fn new(closed: usize, end: usize) -> Opening {
        Opening { closed: AtomicUsize::new(closed), end }
    }

    /// Whether everything below `to` can be written now: opens it if need be, by whole steps. Any thread.
    #[inline]
    pub fn reach(&self, to: usize) -> bool {
        to <= self.closed.load(Relaxed) || self.grow(to)
    }

    #[cold]
    fn grow(&self, to: usize) -> bool {
        let from = self.closed.load(Relaxed);
        if to <= from {
            return true;
        }
        // A whole step if it can be had.
        for end in [to.next_multiple_of(STEP).min(self.end), to] {
            // Two threads may open the same pages: the second changes nothing.
            // SAFETY: inside the reservation (promised to `new`).
            if to <= self.end && unsafe { open(from, end - from) }.is_ok() {
                self.closed.fetch_max(end, Relaxed);
                return true;
            }
        }
        false
    }
}

/// A reservation that is opened here and there, of at most `64 * WORDS` steps.
#[derive(Debug)]
pub struct Scattered<const WORDS: usize> {
    base: usize,
    len: usize,
    /// A bit for each step that is open.
    steps: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Scattered<WORDS> {
    /// Of `len` bytes at `base`, all closed.
    ///
    /// # Safety
    /// The range is a reservation of the caller's own, and stays mapped as long as this is used.
    pub const unsafe fn new(base: usize, len: usize) -> Scattered<WORDS> {
        Scattered { base, len, steps: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// Whether the byte `at` bytes behind the beginning can be written now: opens its step if need be. Any thread.
    #[inline]
    pub fn reach(&self, at: usize) -> bool {
        let step = at / STEP;
        let Some(word) = self.steps.get(step / 64) else { return false };
        let bit = 1 << (step % 64);
        word.load(Relaxed) & bit != 0 || self.open_step(step * STEP, word, bit)
    }

    #[cold]
    fn open_step(&self, from: usize, word: &AtomicU64, bit: u64) -> bool {
        // SAFETY: inside the reservation (promised to `new`). Two threads may open the same step.
        let done = from < self.len && unsafe { open(self.base + from, STEP.min(self.len - from)) }.is_ok();
        if done {
            word.fetch_or(bit, Relaxed);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn what_is_reached_can_be_written_and_the_rest_is_closed() {
        let len = 4 * STEP;
        // SAFETY: new memory.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE) }.unwrap();
        let at = base as usize;
        // SAFETY: the memory above.
        let opening = unsafe { Opening::new(at, at + len) };
        let protection = |addr: usize| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let line = maps.lines().find(|line| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let number = |s| usize::from_str_radix(s, 16).unwrap();
                (number(start)..number(end)).contains(&addr)
            });
            line.unwrap().split(' ').nth(1).unwrap().to_owned()
        };
        assert!(opening.reach(at + 1));
        // SAFETY: reached.
        unsafe { *(at as *mut u8) = 1 };
        assert_eq!(protection(at + 2 * STEP), "---p");
        assert!(opening.reach(at + 3 * STEP) && opening.reach(at + STEP));
        assert_eq!(protection(at + 3 * STEP - 1), "rw-p");
        assert!(opening.reach(at + len) && !opening.reach(at + len + 1));
        // SAFETY: as above; a step of it is closed again.
        unsafe { mprotect(base, len, MprotectFlags::empty()) }.unwrap();
        // SAFETY: as above.
        let scattered = unsafe { Scattered::<1>::new(at, len) };
        assert!(scattered.reach(2 * STEP) && scattered.reach(3 * STEP - 1) && !scattered.reach(4 * STEP));
        assert_eq!([0, 2, 3].map(|step| protection(at + step * STEP)), ["---p", "rw-p", "---p"]);
        // SAFETY: mapped above.
        unsafe { munmap(base, len) }.unwrap();
    }
}
