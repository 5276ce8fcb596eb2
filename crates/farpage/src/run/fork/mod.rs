//! Fork: the child gets the right bytes in every swapped-out page, whoever of the family dies first.
//!
//! The engine's whole state (words, frames, compressed pool, device tables) is ordinary private memory, so a fork
//! copies it like everything else. What has to be done is to make the copy a *good* one, and to start a new engine in
//! the child before the program can touch anything. Parent and child share nothing afterwards except swap files, whose
//! slots are frozen until the child is gone (a *lease*, [`crate::swap::file`]).
//!
//! ```text
//!  forking thread                      engine threads                 child
//!  reserve: a channel, threads ----->  monitor: what the child will need
//!  prepare: gates closed  ---------->  writer, monitor wait
//!           asks for a pause  ------>  pager applies all events, holds still
//!  libc takes its locks     (pages that it needs, or who holds a lock, are placed and noted)
//!  fork ------------------------------------------------------------> copy of a quiet engine
//!  parent: resume  ---------------->   lease; events that were pending = the verdict
//!          gates open                  verdict into the channel --->  child: new userfaultfd, mappings registered
//!                                                                     verdict applied, threads started, go on
//! ```
//! The *verdict* exists because another thread's munmap or mremap may have changed the mappings just before the copy
//! while its event was still unread: the child then compares its own mappings with what it inherited.
//!
//! No `UFFD_FEATURE_EVENT_FORK`: that needs CAP_SYS_PTRACE in the program itself, and the copy makes it unnecessary.
//! The price: a child made without libc knowing has no engine and reads zeros. What goes round `fork()` through another function of
//! libc is caught in the preload library.
//!
//! | file | what |
//! | --- | --- |
//! | `reserve` | what the child will need is had before, or the fork fails |
//! | `channel` | how the child's engine comes by descriptors of the parent's |
//! | `handlers` | what libc calls in the forking thread, before and after |
//! | `pause` | the pager's part: holding still, and helping the forking thread to get to the system call |
//! | `helped` | what it did to that end |
//! | `huge` | no huge pages in a child before its engine runs |
//! | `verdict` | changes of mappings that were pending at the copy |
//! | [`crate::run::fork::restart`] | the engine's second start |

mod channel;
mod handlers;
mod huge;
mod late_fills;
mod pause;
mod pending_events;
mod reserve;
pub mod restart;

pub use handlers::{child, child_of, parent, prepare, touch};
pub use late_fills::Helped;
pub use pending_events::Verdict;
pub use reserve::{release, reserve};

use crate::run::pager::Pager;
use crate::run::state::{Engine, lock};
use crate::sys::futex;
use crate::sys::limit::Raised;
use crate::sys::pass::receive_all;
use crate::sys::proc;
use crate::sys::raw::{Errno, fatal, nr, syscall};
use crate::sys::thread::ForkLock;
use channel::Channel;
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

const RUNNING: u32 = 0;
const PAUSE_WANTED: u32 = 1;
const PAUSED: u32 = 2;
const RESUME_WANTED: u32 = 3;

/// What the forking thread keeps until the handlers after the fork.
struct Errand {
    /// The child's end of the channel, in the program's table; -1: the child gets nothing.
    channel: RawFd,
    /// Memory is managed, so the child needs an engine; else it needs none ([`crate::run::dormant`]).
    active: bool,
    /// The number by which the threads stand by.
    standby: u32,
}

impl Errand {
    const NONE: Errand = Errand { channel: -1, active: false, standby: 0 };

    /// Closes the child's end, in the calling thread's table.
    fn lose_channel(&mut self) {
        if self.channel >= 0 {
            // SAFETY: made for the fork, and used by nobody else in this table.
            drop(unsafe { OwnedFd::from_raw_fd(self.channel) });
            self.channel = -1;
        }
    }
}

/// Descriptors that an engine opens at its start, besides those that it is given.
const OPENS: u64 = 32;

/// A limit on open files that the start of an engine fits into, which is given so many.
///
/// # Errors
/// `MFILE`: the limit is lower, and may not be raised.
pub fn room_for_start(given: usize) -> Result<Option<Raised>, Errno> {
    Raised::to_hold(OPENS + given as u64)
}

/// Fork protocol of one engine.
pub struct Fork {
    /// One fork at a time.
    lock: ForkLock,
    /// Odd: writer and monitor wait at their gates. Counts what they are woken for.
    closed: AtomicU32,
    /// Held by the writer while it works.
    pub writer_gate: ForkLock,
    /// Held by the monitor while it works.
    pub monitor_gate: ForkLock,
    pager: AtomicU32,
    forker: AtomicU32,
    monitor_tid: AtomicU32,
    errand: Mutex<Errand>,
    /// What the forking thread asks of the monitor.
    asked: AtomicU32,
    channel: Mutex<Channel>,
    /// In a child: its end of the channel, in the program's table until the engine runs, and in the engine's.
    end: AtomicI32,
    /// Our ends of the channels to children, with their lease, in the engine's table.
    leases: Mutex<Vec<(RawFd, u32)>>,
    /// The ends of channels that this process was given by its ancestors, in the engine's table: they hold the leases.
    held: Mutex<Vec<RawFd>>,
    /// The thread (its control block) that has reserved what a fork needs; 0: none. Changes under `lock`.
    reserved: AtomicUsize,
    /// Threads that stand by for another number end.
    standby: AtomicU32,
    /// Those that stand by, also the last fork's that have not ended yet; 0: none.
    standing: [AtomicU32; reserve::STANDING],
    /// Held by the monitor at its gate while it looks after privileges ([`crate::run::privileges`]); by the forking
    /// thread from its handler before the copy on.
    pub oversight: ForkLock,
    /// In a child: the engine was active and has to be started again before the program goes on.
    child_starts: AtomicBool,
    child_ready: AtomicU32,
    /// The process that the engine's threads are in. A child that was made without the handlers is another one.
    home: AtomicU32,
    /// The thread (its control block) for which the handlers before the copy have run, so that those after it have something to
    /// do; 0: none. Changes under `lock`. In a child it is the same block.
    prepared: AtomicUsize,
    /// Signals that the forking thread had blocked before.
    mask: AtomicU64,
    /// Stack pointer of the forking thread in its handler before the fork: lower addresses hold nothing of worth.
    stack: AtomicUsize,
    /// What the program had said about huge pages, while they are off.
    huge_pages: AtomicU32,
    /// Non-zero while the pager changes during a pause what a child inherits, or holds locks: a copy made then is not good.
    settling: AtomicU32,
    /// Pages placed during the pause against their words.
    pub helped: Helped,
    pager_box: Mutex<Option<Box<Pager>>>,
}

impl Default for Fork {
    fn default() -> Fork {
        Fork {
            lock: ForkLock::default(),
            closed: AtomicU32::new(0),
            writer_gate: ForkLock::default(),
            monitor_gate: ForkLock::default(),
            pager: AtomicU32::new(RUNNING),
            forker: AtomicU32::new(0),
            monitor_tid: AtomicU32::new(0),
            errand: Mutex::new(Errand::NONE),
            asked: AtomicU32::new(channel::IDLE),
            channel: Mutex::new(Channel::default()),
            end: AtomicI32::new(-1),
            leases: Mutex::new(Vec::new()),
            held: Mutex::new(Vec::new()),
            reserved: AtomicUsize::new(0),
            standby: AtomicU32::new(0),
            standing: [const { AtomicU32::new(0) }; reserve::STANDING],
            oversight: ForkLock::default(),
            child_starts: AtomicBool::new(false),
            child_ready: AtomicU32::new(0),
            home: AtomicU32::new(0),
            prepared: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
            stack: AtomicUsize::new(0),
            huge_pages: AtomicU32::new(0),
            settling: AtomicU32::new(0),
            helped: Helped::default(),
            pager_box: Mutex::new(None),
        }
    }
}

impl Fork {
    /// Writer and monitor call this before they take their gates. `serve` is called whenever there may be something to do.
    pub fn pass_gate(&self, serve: impl Fn()) {
        loop {
            let closed = self.closed.load(SeqCst);
            serve();
            if closed.is_multiple_of(2) {
                return;
            }
            futex::wait(&self.closed, closed, None);
        }
    }

    /// Has writer and monitor, at their gates, look whether there is something to do.
    pub fn ring_gates(&self) {
        self.closed.fetch_add(2, SeqCst);
        futex::wake_all(&self.closed);
    }

    /// Writer and monitor go on.
    fn open_gates(&self) {
        self.writer_gate.unlock();
        self.open_monitor_gate();
    }

    /// Whether the engine is in this process. Without, memory is as the fork copied it, and nobody serves.
    pub fn is_home(&self) -> bool {
        self.home.load(SeqCst) == std::process::id()
    }

    /// The engine starts in this process.
    pub fn settle_here(&self) {
        self.home.store(std::process::id(), SeqCst);
    }

    /// A fork waits for the pager to hold still.
    pub fn wanted(&self) -> bool {
        self.pager.load(SeqCst) == PAUSE_WANTED
    }

    /// Leaves the pager's state for its thread.
    pub fn hand_over(&self, pager: Box<Pager>) {
        *lock(&self.pager_box) = Some(pager);
    }

    /// Address below which the stack of a child's thread holds nothing of worth.
    pub fn child_stack(&self) -> usize {
        self.stack.load(SeqCst)
    }

    /// Takes it.
    pub fn take_over(&self) -> Option<Box<Pager>> {
        lock(&self.pager_box).take()
    }

    /// Descriptors that the engine's table must keep for the fork protocol.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut keep = lock(&self.held).clone();
        keep.push(proc::held_number());
        keep.retain(|fd| *fd >= 0);
        keep
    }

    /// The monitor's thread id: whose descriptor table is the engine's.
    pub fn set_monitor(&self, tid: u32) {
        self.monitor_tid.store(tid, SeqCst);
    }

    /// Whether the kernel still knows the monitor's thread.
    pub(crate) fn monitor_is_there(&self) -> bool {
        let (pid, tid) = (std::process::id() as usize, self.monitor_tid.load(SeqCst) as usize);
        // SAFETY: signal 0 is none.
        tid != 0 && unsafe { syscall(nr::TGKILL, [pid, tid, 0, 0, 0, 0]) }.is_ok()
    }

    /// In a child: its end of the channel, or -1.
    pub fn inherited_end(&self) -> RawFd {
        self.end.load(SeqCst)
    }

    /// This is a child's engine that has not started yet.
    pub fn is_restart(&self) -> bool {
        self.child_starts.load(SeqCst)
    }

    /// Ends the leases of children that are gone. Monitor only.
    pub fn collect_leases(&self, e: &Engine) {
        lock(&self.leases).retain(|&(fd, lease)| {
            // SAFETY: open until closed below.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            let mut byte = [0u8; 1];
            // Nobody ever writes: end of file means that no process holds the other end any more.
            if rustix::io::read(borrowed, &mut byte) != Ok(0) {
                return true;
            }
            // SAFETY: ours, and forgotten here.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            e.space.end_lease(lease);
            false
        });
    }

    fn set_pager(&self, to: u32) {
        self.pager.store(to, SeqCst);
        futex::wake_all(&self.pager);
    }

    fn wait_pager(&self, until: u32) {
        loop {
            let now = self.pager.load(SeqCst);
            if now == until {
                return;
            }
            futex::wait(&self.pager, now, None);
        }
    }
}

impl Fork {
    /// In a child, on its monitor thread, before anything else: takes over what the parent's engine has given, by the numbers that
    /// it has here.
    ///
    /// # Errors
    /// `MFILE`: the limit on open files is too low. `BADF`: nothing was given.
    pub fn inherit(&self, e: &Engine) -> Result<(), Errno> {
        let end = self.inherited_end();
        if end < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: open in this table, which is the engine's own.
        let given = receive_all(unsafe { BorrowedFd::borrow_raw(end) })?;
        let here = |fd: RawFd| given.iter().find(|(old, _)| *old == fd).map_or(-1, |(_, new)| *new);
        e.space.fork_child(&given);
        let device = e.device_number();
        device.store(here(device.load(SeqCst)), SeqCst);
        proc::hold(here(proc::held_number()));
        let mut held = lock(&self.held);
        held.iter_mut().for_each(|fd| *fd = here(*fd));
        held.push(end);
        held.retain(|fd| *fd >= 0);
        Ok(())
    }

    /// In a child, on its monitor thread: makes the inherited state work again.
    pub fn child_start(&self, proc: &proc::Proc, e: &'static Engine) {
        // SAFETY: open in this table since `inherit`.
        let verdict = Verdict::receive(unsafe { BorrowedFd::borrow_raw(self.inherited_end()) });
        if let Err(why) = e.activate_child(proc, &verdict) {
            fatal(&format!("in a forked child, whose swapped-out memory would be lost: {why}"));
        }
        self.child_starts.store(false, SeqCst);
        self.child_ready.store(1, SeqCst);
        futex::wake_all(&self.child_ready);
    }
}
