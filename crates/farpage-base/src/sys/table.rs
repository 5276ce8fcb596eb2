//! A descriptor table of a pager's own, and the thread that keeps it.
//!
//! The threads of a pager of regions share a table that the program's threads do not have. So a program that closes all
//! its descriptors (daemons do) closes neither the userfaultfd, without which swapped-out pages would read as zeros,
//! nor a swap file; and what a pager writes under a number never goes to a file that the program has opened under it
//! since.
//!
//! The program's threads serve faults, too. For them the program's table has *copies* of what they need, under the same
//! numbers. A copy is looked at before a file is read through it, and when the kernel refuses an ioctl; once one is not
//! what it was, their system calls are made by the *keeper*, a thread that has the table. That is slower, by two
//! switches of threads, and nothing else.
//!
//! The keeper is the pager's first thread: it gets its table by `unshare`, and starts the others, which share it. It
//! also is the last one: what has to be closed in the table is dropped by it.
//!
//! Locks: `copies`, a leaf; `turn`, by the thread that waits for the keeper, which takes none meanwhile. All may be
//! taken in a signal handler, with signals blocked.

use super::futex;
use super::mutex::Mutex;
use super::pthread::{self, Pthread};
use super::raw::{Errno, gettid, nr, syscall};
use super::thread::{ForkLock, close_all_but};
use rustix::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicUsize};

/// Threads that can have the table at the same time.
const MEMBERS_MAX: usize = 32;

/// What the keeper is asked.
const NOTHING: u32 = 0;
const CALL: u32 = 1;
const JOB: u32 = 2;
const END: u32 = 3;
const ANSWERED: u32 = 4;

/// Something the keeper runs once.
type KeeperJob = Box<dyn FnOnce() + Send>;

/// A descriptor, and the file that it was when it was opened.
#[derive(Debug, Clone, Copy)]
struct Copy {
    fd: RawFd,
    file: (u64, u64),
    /// The table has closed it.
    gone: bool,
}

impl Copy {
    fn of(fd: RawFd) -> Option<Copy> {
        file_of(fd).map(|file| Copy { fd, file, gone: false })
    }

    fn is_still_there(&self) -> bool {
        file_of(self.fd) == Some(self.file)
    }

    /// Closes it, unless the program has: the number may be another file's by now.
    fn close(&self) {
        if self.is_still_there() {
            // SAFETY: it is the pager's, and no thread uses it any more.
            unsafe { rustix::io::close(self.fd) };
        }
    }
}

/// Device and inode of what the calling thread's table has under a number.
fn file_of(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: only asked what it is, which does no harm to any owner.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// See the module header.
#[derive(Default)]
pub struct Table {
    /// Thread ids; 0: free. The keeper's is the first.
    members: [AtomicU32; MEMBERS_MAX],
    copies: Mutex<Vec<Copy>>,
    /// The program's table has not all copies any more.
    lost: AtomicBool,
    /// Held by the thread that asks the keeper.
    turn: ForkLock,
    /// [`NOTHING`] to [`ANSWERED`].
    asked: AtomicU32,
    /// A call: number and arguments.
    what: [AtomicUsize; 7],
    /// What the kernel said to it.
    answer: AtomicIsize,
    job: Mutex<Option<KeeperJob>>,
    keeper: Mutex<Option<Pthread>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("copies", &*self.copies.lock()).finish_non_exhaustive()
    }
}

impl Table {
    /// Starts the keeper, with `copies` and `moved` of the calling thread's table, and nothing else. `moved` are closed
    /// here.
    ///
    /// # Errors
    /// No thread, or no table for it. Then nothing has changed.
    pub fn start(self: &Arc<Table>, copies: &[RawFd], moved: &[RawFd]) -> Result<(), Errno> {
        let mut keep: Vec<RawFd> = copies.iter().chain(moved).copied().filter(|fd| *fd >= 0).collect();
        keep.sort_unstable();
        keep.dedup();
        let moved: Vec<Copy> = moved.iter().copied().filter_map(Copy::of).collect();
        *self.copies.lock() = copies.iter().copied().filter_map(Copy::of).collect();
        let table = self.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let keeper = pthread::start("farpage-keeper", move || {
            let own = take_table(&keep);
            if own.is_ok() {
                table.members[0].store(gettid(), SeqCst);
            }
            let _ = ready.send(own);
            if own.is_ok() {
                table.keep();
            }
        })?;
        let own = is_ready.recv().unwrap_or(Err(Errno::AGAIN));
        if own.is_err() {
            keeper.join();
            return own;
        }
        *self.keeper.lock() = Some(keeper);
        moved.iter().for_each(Copy::close);
        Ok(())
    }

    /// To be called by a thread that the keeper has started.
    pub fn join(&self) {
        let me = gettid();
        // More than there is room for ask the keeper.
        let _ = self.members.iter().find(|m| m.compare_exchange(0, me, SeqCst, Relaxed).is_ok());
    }

    /// To be called by such a thread before it ends.
    pub fn leave(&self) {
        let me = gettid();
        self.members.iter().filter(|m| m.load(Relaxed) == me).for_each(|m| m.store(0, SeqCst));
    }

    fn has_keeper(&self) -> bool {
        self.members[0].load(SeqCst) != 0
    }

    /// The keeper's thread id; 0: there is none.
    pub fn keeper(&self) -> u32 {
        self.members[0].load(SeqCst)
    }

    /// Whether the calling thread has the table.
    pub fn is_member(&self) -> bool {
        let me = gettid();
        self.members.iter().any(|m| m.load(Relaxed) == me)
    }

    /// Whether the calling thread's table, which is not this one, has a good copy of a descriptor.
    pub fn is_copied(&self, fd: RawFd) -> bool {
        let mut copies = self.copies.lock();
        if copies.iter().any(|copy| copy.gone) {
            copies.extract_if(.., |copy| copy.gone).for_each(|copy| copy.close());
        }
        let Some(copy) = copies.iter().find(|copy| copy.fd == fd) else { return false };
        let there = copy.is_still_there();
        if !there {
            self.lost.store(true, Relaxed);
        }
        there
    }

    /// Makes a system call on a descriptor of the table (the first argument) that does nothing to a file of another
    /// kind: an ioctl.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// As for [`syscall`].
    pub unsafe fn call(&self, nr: u32, args: [usize; 6]) -> Result<usize, Errno> {
        let lost = self.lost.load(Relaxed);
        if lost && !self.is_member() {
            // SAFETY: caller's promise.
            return unsafe { self.ask(nr, args) };
        }
        // SAFETY: as above.
        let result = unsafe { syscall(nr, args) };
        match result {
            // What only a userfaultfd says.
            Ok(_) | Err(Errno::AGAIN | Errno::EXIST | Errno::NOENT | Errno::BUSY | Errno::NOMEM | Errno::SRCH) => {
                result
            }
            Err(_) if lost || self.is_member() || self.is_copied(args[0] as RawFd) => result,
            // SAFETY: as above.
            Err(_) => unsafe { self.ask(nr, args) },
        }
    }

    /// The same for a call that must not be made on another file, or would bring something else: the copy is looked at
    /// before.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// As for [`syscall`].
    pub unsafe fn transfer(&self, nr: u32, args: [usize; 6]) -> Result<usize, Errno> {
        let here = self.is_member() || !self.lost.load(Relaxed) && self.is_copied(args[0] as RawFd);
        // SAFETY: caller's promise.
        unsafe { if here { syscall(nr, args) } else { self.ask(nr, args) } }
    }

    /// Closes a descriptor of the table, and its copy.
    pub fn close(&self, fd: RawFd) {
        if self.is_member() || !self.has_keeper() {
            // SAFETY: the caller owns it.
            unsafe { rustix::io::close(fd) };
            self.copies.lock().iter_mut().filter(|copy| copy.fd == fd).for_each(|copy| copy.gone = true);
            return;
        }
        // SAFETY: as above.
        let _ = unsafe { self.ask(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
        self.copies.lock().extract_if(.., |copy| copy.fd == fd).for_each(|copy| copy.close());
    }

    /// Has the keeper make a system call.
    ///
    /// # Safety
    /// As for [`syscall`].
    unsafe fn ask(&self, nr: u32, args: [usize; 6]) -> Result<usize, Errno> {
        if !self.has_keeper() {
            // It is being started, or has ended.
            // SAFETY: caller's promise.
            return unsafe { syscall(nr, args) };
        }
        self.turn.lock();
        self.what[0].store(nr as usize, Relaxed);
        self.what[1..].iter().zip(args).for_each(|(to, arg)| to.store(arg, Relaxed));
        self.wait_for(CALL);
        let answer = self.answer.load(Relaxed);
        self.turn.unlock();
        if answer < 0 { Err(Errno::from_raw_os_error(-answer as i32)) } else { Ok(answer as usize) }
    }

    /// Hands a request over and waits until it is done.
    fn wait_for(&self, request: u32) {
        self.asked.store(request, SeqCst);
        futex::wake_all(&self.asked);
        while self.asked.load(SeqCst) == request {
            futex::wait(&self.asked, request, None);
        }
        self.asked.store(NOTHING, SeqCst);
    }

    /// Has the keeper run `job`. `None`: there is no keeper. Allocates.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        if !self.has_keeper() {
            return None;
        }
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        self.turn.lock();
        *self.job.lock() = Some(Box::new(move || *place.lock() = Some(job())));
        self.wait_for(JOB);
        self.turn.unlock();
        result.lock().take()
    }

    /// Ends the keeper, after it has run `last` (here, if there is none), and closes the copies.
    pub fn end(&self, last: impl FnOnce() + Send + 'static) {
        match self.keeper.lock().take() {
            Some(keeper) => {
                self.turn.lock();
                *self.job.lock() = Some(Box::new(last));
                self.wait_for(END);
                self.turn.unlock();
                keeper.join();
            }
            None => last(),
        }
        self.copies.lock().drain(..).for_each(|copy| copy.close());
    }

    /// In a forked child, whose only thread has a table without the pager's: there is no keeper until the next
    /// [`Table::start`], and all copies are closed that `keep` does not name.
    pub fn after_fork(&self, keep: impl Fn(RawFd) -> bool) {
        self.forget_keeper();
        self.members.iter().for_each(|m| m.store(0, SeqCst));
        self.lost.store(false, SeqCst);
        self.copies.lock().drain(..).filter(|copy| !keep(copy.fd)).for_each(|copy| copy.close());
    }

    /// In a forked child: the keeper is the parent's.
    pub fn forget_keeper(&self) {
        *self.keeper.lock() = None;
    }

    /// The keeper's life.
    fn keep(&self) {
        loop {
            let asked = self.asked.load(SeqCst);
            match asked {
                CALL => {
                    let args = std::array::from_fn(|i| self.what[i + 1].load(Relaxed));
                    // SAFETY: the thread that asks promises that the call is right, and waits for it, as if it had made
                    // it.
                    let result = unsafe { syscall(self.what[0].load(Relaxed) as u32, args) };
                    let answer = result.map_or_else(|e| -(e.raw_os_error() as isize), |n| n as isize);
                    self.answer.store(answer, Relaxed);
                }
                JOB | END => {
                    let job = self.job.lock().take();
                    job.into_iter().for_each(|job| job());
                }
                _ => {
                    futex::wait(&self.asked, asked, None);
                    continue;
                }
            }
            if asked == END {
                self.members[0].store(0, SeqCst);
                // Now, because a thread is joined before the kernel has closed what it had, and a swap file may be
                // wanted again.
                close_all_but(&[]);
            }
            self.asked.store(ANSWERED, SeqCst);
            futex::wake_all(&self.asked);
            if asked == END {
                return;
            }
        }
    }
}

/// Gives the calling thread a table of its own: a copy, of which only `keep` (sorted, without duplicates) stays.
fn take_table(keep: &[RawFd]) -> Result<(), Errno> {
    const CLONE_FILES: usize = 0x400;
    // SAFETY: this thread uses none of the descriptors that its table has in common with other threads'.
    unsafe { syscall(nr::UNSHARE, [CLONE_FILES, 0, 0, 0, 0, 0]) }?;
    close_all_but(keep);
    // A message of the standard library's must not go to a swap file.
    let any = keep.first().copied().unwrap_or(-1);
    for standard in (0..3).filter(|fd| !keep.contains(fd)) {
        const CLOEXEC: usize = 0o2_000_000;
        // SAFETY: the table is this thread's alone, and the number free.
        let _ = unsafe { syscall(nr::DUP3, [any as usize, standard as usize, CLOEXEC, 0, 0, 0]) };
    }
    Ok(())
}
