//! The pager's part of a fork: it holds still while the process is copied, and serves what the forking thread needs.

use super::verdict::VERDICT_MAX;
use super::{PAUSED, RESUME_WANTED, RUNNING, Verdict};
use crate::PAGE_SIZE;
use crate::engine::lock;
use crate::pager::Pager;
use crate::sys::raw::message;
use crate::sys::thread::fetch_fd;
use crate::sys::uffd::Message;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Whether the thread sleeps in the futex system call. No allocation: called while the process may be being copied.
fn waits_for_lock(tid: u32) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    use std::io::Write;
    let mut path = [0u8; 64];
    let mut rest = &mut path[..];
    if write!(rest, "/proc/self/task/{tid}/syscall").is_err() {
        return false;
    }
    let len = 64 - rest.len();
    let mut text = [0u8; 8];
    let read = open(&path[..len], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|fd| rustix::io::read(&fd, &mut text));
    read.is_ok() && text.starts_with(b"202 ")
}

impl Pager {
    /// Holds still from the request of a forking thread until the process has been copied.
    pub(crate) fn pause_for_fork(&mut self) {
        let f = &self.e.fork;
        let mut held = Verdict::EMPTY;
        let mut removed: Vec<Message> = Vec::with_capacity(VERDICT_MAX);
        // Also for the control blocks of new threads, which the forking thread touches next.
        self.adopt_news();
        self.settle_changes();
        // From here on nothing may change that the child inherits: no allocation, no word, no list.
        f.set_pager(PAUSED);
        let forker = f.forker.load(SeqCst);
        while f.pager.load(SeqCst) != RESUME_WANTED {
            let mut one = [Message::Unmap { start: 0, end: 0 }; 1];
            let room = self.waiting.len() < self.waiting.capacity() && removed.len() < removed.capacity();
            let n = if room { self.uffd.read(&mut one).unwrap_or(0) } else { 0 };
            let mut settle = false;
            match one[0] {
                _ if n == 0 => {
                    self.sleep(Some(200_000));
                    // A thread that waits for a page may hold a lock that the forking thread waits for.
                    settle = !self.waiting.is_empty() && waits_for_lock(forker);
                }
                Message::Fault { tid, .. } => {
                    self.accept(one[0], Instant::now());
                    settle = tid == forker;
                }
                // A wake-up for notes, which are looked at after the fork.
                Message::Remove { start, .. } if self.e.arena.bell.contains(start) => {}
                event => {
                    held.note(event);
                    removed.push(event);
                }
            }
            if settle {
                // The forking thread has not reached the system call yet: everything may go on. It is woken last,
                // because it may reach the call at once then, and everything must be in order before the copy is made.
                f.settling.store(1, SeqCst);
                for event in removed.drain(..) {
                    self.accept(event, Instant::now());
                }
                held = Verdict::EMPTY;
                self.paused = true;
                self.settle_changes();
                self.paused = false;
                f.settling.store(0, SeqCst);
                for i in 0..self.unwoken.len() {
                    self.uffd.wake(self.unwoken[i], PAGE_SIZE);
                }
                self.unwoken.clear();
            }
        }
        // The copy is made (or failed). First the lease, so that nothing the child may need is reused.
        let lease = self.e.space.fork_parent();
        self.import_lease(lease);
        for event in removed {
            self.accept(event, Instant::now());
        }
        while self.changing() {
            let mut one = [Message::Unmap { start: 0, end: 0 }; 1];
            if self.uffd.read(&mut one).unwrap_or(0) == 1 {
                held.note(one[0]);
                self.accept(one[0], Instant::now());
            } else {
                self.sleep(Some(100_000));
            }
        }
        *lock(&self.e.fork.verdict) = held;
        self.e.fork.set_pager(RUNNING);
    }

    /// Applies events and serves faults until no change of mappings is pending and, during a pause, no fault is left:
    /// one of them is the forking thread's. (They all can be served then: the writer holds no page, and pages may be
    /// taken above the budget.)
    fn settle_changes(&mut self) {
        loop {
            while self.read_messages() > 0 {}
            self.serve_waiting();
            if !self.changing() && (!self.paused || self.waiting.is_empty()) {
                return;
            }
            self.sleep(Some(50_000));
        }
    }

    /// Takes over the read end of the lease pipe, which the forking thread has made.
    fn import_lease(&mut self, lease: u32) {
        let f = &self.e.fork;
        let theirs = lock(&f.errand).lease_read;
        if theirs < 0 {
            return;
        }
        match fetch_fd(f.forker.load(SeqCst), theirs) {
            Ok(fd) => {
                // SAFETY: just made; non-blocking so that the monitor can look without waiting.
                let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
                let _ = rustix::io::ioctl_fionbio(borrowed, true);
                lock(&f.leases).push((fd, lease));
            }
            Err(error) => {
                message(&format!("fork: cannot watch the child: {error}; its swap file slots are never reused"))
            }
        }
    }
}
