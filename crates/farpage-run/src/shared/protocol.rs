//! What forking thread, pager, writer and monitor tell each other around a fork, and in the child: data, below all of
//! them.
//!
//! Callers: `handlers` and `reserve` on the forking thread, `pause` on the pager's, the loops of
//! [`crate::threads`] at their gates. Locks: `lock` and the gates are the engine's outermost; `leases` is outside
//! of the devices', `fork_state` and `held` are leaves.

use super::channel::Channel;
use super::gates::Gates;
use super::late_fills::LateFills;
use super::standby::Standby;
use farpage_base::mem::lock::lock;
use farpage_base::sys::limit::Raised;
use farpage_base::sys::raw::{Errno, nr, syscall};
use farpage_base::sys::thread::ForkLock;
use farpage_base::sys::{futex, proc};
use farpage_device::leases::Leases;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

pub(crate) const RUNNING: u32 = 0;
pub(crate) const PAUSE_WANTED: u32 = 1;
pub(crate) const PAUSED: u32 = 2;
pub(crate) const RESUME_WANTED: u32 = 3;

/// What the forking thread keeps until the handlers after the fork.
pub(crate) struct ForkState {
    /// The child's end of the channel, in the program's table; -1: the child gets nothing.
    pub(crate) channel: RawFd,
    /// Memory is managed, so the child needs an engine; else it needs none ([`crate::dormant`]).
    pub(crate) active: bool,
    /// The number by which the threads stand by.
    pub(crate) standby: u32,
}

impl ForkState {
    pub(crate) const NONE: ForkState = ForkState { channel: -1, active: false, standby: 0 };

    /// Closes the child's end, in the calling thread's table.
    pub(crate) fn lose_channel(&mut self) {
        if self.channel >= 0 {
            // SAFETY: made for the fork, and used by no other code in this table.
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

/// What the forking thread keeps for its handlers after the fork.
#[derive(Default)]
pub(crate) struct Forking {
    /// Its thread id.
    pub(crate) tid: AtomicU32,
    /// The thread (its control block) for which the handlers before the copy have run, so that those after it have
    /// something to do; 0: none. Changes under `lock`. In a child it is the same block.
    pub(crate) prepared: AtomicUsize,
    /// Signals that the forking thread had blocked before.
    pub(crate) mask: AtomicU64,
    /// Stack pointer of the forking thread in its handler before the fork: lower addresses hold nothing of worth.
    pub(crate) stack: AtomicUsize,
    /// What the program had said about huge pages, while they are off.
    pub(crate) huge_pages: AtomicU32,
}

/// Of a process that was forked.
#[derive(Default)]
pub(crate) struct ForkedChild {
    /// Its end of the channel, in the program's table until the engine runs, and in the engine's.
    pub(crate) end: AtomicI32,
    /// The parent's engine was active and has to be started again before the program goes on.
    pub(crate) starts: AtomicBool,
    /// It has been.
    pub(crate) ready: AtomicU32,
    /// Its monitor waits for something to be told before it starts the pager: it does not look at its own word.
    pub(crate) is_late: AtomicBool,
}

/// Fork protocol of one engine.
pub struct Fork {
    /// One fork at a time.
    pub(crate) lock: ForkLock,
    /// Where writer and monitor stand still.
    pub gates: Gates,
    /// Held by the monitor at its gate while it looks after privileges ([`crate::privileges`]); by the forking
    /// thread from its handler before the copy on.
    pub oversight: ForkLock,
    /// Threads that stand by for a child.
    pub standby: Standby,
    pub(crate) forking: Forking,
    pub(crate) child: ForkedChild,
    pub(crate) pager: AtomicU32,
    pub(crate) monitor_tid: AtomicU32,
    pub(crate) fork_state: Mutex<ForkState>,
    /// How the child comes by descriptors.
    pub(crate) channel: Channel,
    /// Our ends of the channels to children, with their lease, in the engine's table.
    pub(crate) leases: Leases,
    /// The ends of channels that this process was given by its ancestors, in the engine's table: they hold the leases.
    pub(crate) held: Mutex<Vec<RawFd>>,
    /// The thread (its control block) that has reserved what a fork needs; 0: none. Changes under `lock`.
    pub(crate) reserved: AtomicUsize,
    /// The process that the engine's threads are in. A child that was made without the handlers is another one.
    pub(crate) owner_pid: AtomicU32,
    /// Non-zero while the pager changes during a pause what a child inherits, or holds locks: a copy made then is not
    /// good.
    pub(crate) copy_unsafe: AtomicU32,
    /// Pages placed during the pause against their words.
    pub late_fills: LateFills,
}

impl Default for Fork {
    fn default() -> Fork {
        Fork {
            lock: ForkLock::default(),
            gates: Gates::default(),
            oversight: ForkLock::default(),
            standby: Standby::default(),
            forking: Forking::default(),
            child: ForkedChild { end: AtomicI32::new(-1), ..ForkedChild::default() },
            pager: AtomicU32::new(RUNNING),
            monitor_tid: AtomicU32::new(0),
            fork_state: Mutex::new(ForkState::NONE),
            channel: Channel::default(),
            leases: Leases::new(),
            held: Mutex::new(Vec::new()),
            reserved: AtomicUsize::new(0),
            owner_pid: AtomicU32::new(0),
            copy_unsafe: AtomicU32::new(0),
            late_fills: LateFills::default(),
        }
    }
}

impl Fork {
    /// Whether the engine is in this process. Without, memory is as the fork copied it, and no thread serves.
    pub fn is_home(&self) -> bool {
        self.owner_pid.load(SeqCst) == std::process::id()
    }

    /// The engine starts in this process.
    pub fn own_here(&self) {
        self.owner_pid.store(std::process::id(), SeqCst);
    }

    /// A fork waits for the pager to hold still.
    pub fn wanted(&self) -> bool {
        self.pager.load(SeqCst) == PAUSE_WANTED
    }

    /// Address below which the stack of a child's thread holds nothing of worth.
    pub fn child_stack(&self) -> usize {
        self.forking.stack.load(SeqCst)
    }

    /// Descriptors that the engine's table must keep for the fork protocol.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut keep = lock(&self.held).clone();
        keep.push(proc::held_number());
        keep.retain(|fd| *fd >= 0);
        keep
    }

    /// The monitor's thread id: its descriptor table is the engine's.
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
        self.child.end.load(SeqCst)
    }

    /// In a child: whether the process is gone that gave it what it has.
    pub fn is_orphaned(&self) -> bool {
        let end = self.inherited_end();
        // SAFETY: open in this table; only looked at.
        let end = (end >= 0).then(|| unsafe { BorrowedFd::borrow_raw(end) });
        end.is_some_and(|end| {
            let mut end = [PollFd::new(&end, PollFlags::empty())];
            poll(&mut end, Some(&Timespec::default())).is_ok() && end[0].revents().contains(PollFlags::HUP)
        })
    }

    /// This is a child's engine that has not started yet.
    pub fn is_restart(&self) -> bool {
        self.child.starts.load(SeqCst)
    }

    pub(crate) fn set_pager(&self, to: u32) {
        self.pager.store(to, SeqCst);
        futex::wake_all(&self.pager);
    }

    pub(crate) fn wait_pager(&self, until: u32) {
        loop {
            let now = self.pager.load(SeqCst);
            if now == until {
                return;
            }
            futex::wait(&self.pager, now, None);
        }
    }
}
