//! A descriptor as a number that can be exchanged for another: a forked child must be able to do that.
//!
//! The number is one of the engine's table, or of a pager's ([`super::table`]). Code that may run in a thread of the
//! program, which has another table, uses [`Fd::call`]. No locks.

use super::raw::{Errno, syscall};
use super::table::Table;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// See the module header. Closed on drop.
#[derive(Debug)]
pub struct Fd {
    raw: AtomicI32,
    table: OnceLock<Arc<Table>>,
}

impl Fd {
    /// Takes a descriptor over.
    pub fn new(fd: OwnedFd) -> Fd {
        Fd { raw: AtomicI32::new(fd.into_raw_fd()), table: OnceLock::new() }
    }

    /// None, and there never will be one.
    pub fn none() -> Fd {
        Fd { raw: AtomicI32::new(-1), table: OnceLock::new() }
    }

    /// From now on it is one of this table. Not to be changed again.
    pub fn set_fd_table(&self, table: &Arc<Table>) {
        let _ = self.table.set(table.clone());
    }

    /// The number; `None`: gone (a child that got no copy).
    pub fn raw(&self) -> Option<RawFd> {
        Some(self.raw.load(Relaxed)).filter(|&fd| fd >= 0)
    }

    /// For threads that have the table.
    ///
    /// # Errors
    /// It is gone.
    pub fn borrow(&self) -> Result<BorrowedFd<'_>, Errno> {
        let raw = self.raw().ok_or(Errno::BADF)?;
        // SAFETY: the number is an open descriptor owned by this value; numbers are only exchanged while no thread uses
        // them (contract of `replace`, `exchange`), so it stays open during the borrow.
        Ok(unsafe { BorrowedFd::borrow_raw(raw) })
    }

    /// Makes a system call whose first argument is this descriptor, in the table that has it.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// As for [`syscall`].
    pub unsafe fn call(&self, nr: u32, rest: [usize; 5]) -> Result<usize, Errno> {
        let args = self.with(rest)?;
        match self.table.get() {
            // SAFETY: caller's promise.
            Some(table) => unsafe { table.call(nr, args) },
            // SAFETY: as above.
            None => unsafe { syscall(nr, args) },
        }
    }

    /// The same for calls that are no ioctls of a userfaultfd; see [`Table::transfer`].
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// As for [`syscall`].
    pub unsafe fn transfer(&self, nr: u32, rest: [usize; 5]) -> Result<usize, Errno> {
        let args = self.with(rest)?;
        match self.table.get() {
            // SAFETY: caller's promise.
            Some(table) => unsafe { table.transfer(nr, args) },
            // SAFETY: as above.
            None => unsafe { syscall(nr, args) },
        }
    }

    fn with(&self, rest: [usize; 5]) -> Result<[usize; 6], Errno> {
        let fd = self.raw().ok_or(Errno::BADF)?;
        let [a, b, c, d, e] = rest;
        Ok([fd as usize, a, b, c, d, e])
    }

    /// Uses the number that `map` gives for the present one, without closing that. If there is none: keeps it, or with
    /// `or_lose` forgets it. No thread uses it meanwhile.
    pub fn replace(&self, map: &[(RawFd, RawFd)], or_lose: bool) {
        let Some(old) = self.raw() else { return };
        match map.iter().find(|pair| pair.0 == old) {
            Some(pair) => self.raw.store(pair.1, Relaxed),
            None if or_lose => self.raw.store(-1, Relaxed),
            None => {}
        }
    }

    /// Takes the descriptor of `other`; the old number is not closed. No thread uses it meanwhile.
    pub fn exchange_for(&self, other: &Fd) {
        self.raw.store(other.raw.swap(-1, Relaxed), Relaxed);
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let Some(raw) = self.raw() else { return };
        match self.table.get() {
            Some(table) => table.close(raw),
            // SAFETY: this value owns the descriptor, and it cannot be borrowed any more.
            None => unsafe { rustix::io::close(raw) },
        }
    }
}
