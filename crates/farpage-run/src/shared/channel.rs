//! How a child comes by descriptors of the engine.
//!
//! Engine threads have a descriptor table of their own, and a child inherits the program's. So before a fork the engine
//! puts what the child will need into a socket, and the program's table has that socket's other end until the copy is
//! made: one number, whatever the child needs. The child's engine takes the rest out, in a table of its own.
//!
//! ```text
//!   forking thread (program's table)       monitor (engine's table)           child's monitor (table of its own)
//!   OPEN  ------------------------------>  socket pair
//!   pidfd_getfd, or where that is refused:
//!   SEND, listening  ------------------->  the end is sent to it
//!   asks for a pause  ----------------->  the pager: its copy of the end is closed; descriptors into it, once nothing
//!                                         changes any more
//!   the copy is made ------------------------------------------------------->  descriptors, pending events
//!   closes the end                         its end stays: the *lease*          keeps the end as long as it lives
//! ```
//! When all copies of the child's end are closed, the child and all its descendants are gone: the lease is over.
//!
//! `pidfd_getfd` is refused by kernels before 6.9 (which have no descriptors of threads) and by seccomp filters, those
//! of container runtimes among them. Then the end goes over a connection between two sockets of the abstract namespace,
//! each of which makes sure that the other one belongs to this process.
//!
//! Callers: the forking thread and the monitor, as above. One lock, that of the ends, held by one of them at a time.

use crate::shared::given_uffds;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_base::mem::lock::lock;
use farpage_base::sys::futex;
use farpage_base::sys::limit::with_room;
use farpage_base::sys::pass::{Address, listening, pair, send_all, send_to, take_from};
use farpage_base::sys::proc::for_reading;
use farpage_base::sys::raw::{Errno, ErrnoText};
use farpage_base::sys::thread::fetch_fd;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::FileType;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// What the forking thread asks of the monitor, and how that answers.
const IDLE: u32 = 0;
const OPEN: u32 = 1;
const SEND: u32 = 2;
const ANSWERED: u32 = 3;
const REFUSED: u32 = 4;

/// Whether a descriptor of the calling thread's table is a block device.
fn is_block_device(number: RawFd) -> bool {
    // SAFETY: only asked what it is.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) });
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
}

/// The channel of one fork after the other.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    /// What the forking thread asks of the monitor.
    asked: AtomicU32,
    ends: Mutex<Ends>,
}

/// The monitor's side of a channel.
#[derive(Debug, Default)]
struct Ends {
    /// The end that stays here.
    here: Option<OwnedFd>,
    /// The child's.
    there: Option<OwnedFd>,
    /// Where the forking thread listens.
    address: Option<Address>,
    why: Option<Errno>,
    /// What the child needs is in it.
    filled: bool,
    /// Room in the engine's table for what the pager gets with the messages of the fork.
    spare: Option<(OwnedFd, OwnedFd)>,
}

const _: () = assert!(IDLE == 0);

impl Channel {
    /// Forking thread: has the monitor do something, and waits for it.
    fn ask(&self, what: u32, ring: impl Fn()) -> Result<(), Errno> {
        self.asked.store(what, SeqCst);
        ring();
        loop {
            match self.asked.load(SeqCst) {
                ANSWERED => break,
                REFUSED => {
                    self.asked.store(IDLE, SeqCst);
                    return Err(lock(&self.ends).why.unwrap_or(Errno::IO));
                }
                asked => futex::wait(&self.asked, asked, None),
            }
        }
        self.asked.store(IDLE, SeqCst);
        Ok(())
    }

    /// Forking thread: the child's end of a new channel. `ring` wakes the monitor.
    pub(crate) fn open(&self, monitor: u32, ring: impl Fn()) -> Result<OwnedFd, Errno> {
        self.ask(OPEN, &ring)?;
        let number = lock(&self.ends).there.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        fetch_fd(monitor, number).or_else(|error| match error {
            // There is no number free, whichever way.
            Errno::MFILE | Errno::NFILE => Err(error),
            _ => self.be_sent(&ring),
        })
    }

    fn be_sent(&self, ring: impl Fn()) -> Result<OwnedFd, Errno> {
        let (socket, address) = listening()?;
        lock(&self.ends).address = Some(address);
        self.ask(SEND, ring)?;
        take_from(&socket)
    }

    /// Pager: puts in what the child will need, descriptors `fds` of the engine's table, which stay what they are until
    /// the copy is made. Of those in `own` it gets one for reading: it may have less rights, and must not change what
    /// this process has there.
    pub(crate) fn fill(&self, fds: &[RawFd], own: &[RawFd]) {
        let mut channel = lock(&self.ends);
        channel.there = None;
        let Some(here) = &channel.here else { return };
        let once_more = |fd: &RawFd| match with_room(|| for_reading(*fd)) {
            Ok(opened) => Some((*fd, opened)),
            Err(_) if is_block_device(*fd) => None,
            Err(error) => {
                warn_once_in_tree(
                    WarningKind::SwapFileInChild,
                    &format!(
                        "a forked child can write to the swap file of its parent: it cannot be opened for reading: {}",
                        ErrnoText(error)
                    ),
                );
                None
            }
        };
        let read_only: Vec<_> = own.iter().filter_map(once_more).collect();
        let given =
            |fd: &RawFd| (*fd, read_only.iter().find(|(own, _)| own == fd).map_or(*fd, |(_, fd)| fd.as_raw_fd()));
        let fds: Vec<_> = fds.iter().map(given).collect();
        channel.filled = send_all(here.as_fd(), &fds).is_ok();
    }

    /// Pager: there is no descriptor left for what a message brings. Now there may be.
    pub(crate) fn make_room(&self) {
        lock(&self.ends).spare = None;
    }

    /// The end that stays here, for the thread that looks whether the child is gone.
    pub(crate) fn take_end(&self) -> Option<OwnedFd> {
        lock(&self.ends).here.take()
    }

    /// In a child, where the numbers mean nothing: forgets them, without closing any.
    pub(crate) fn forget(&self) {
        std::mem::forget(std::mem::take(&mut *lock(&self.ends)));
    }

    /// Whether the child will find what it needs.
    pub(crate) fn is_filled(&self) -> bool {
        lock(&self.ends).filled
    }

    /// Monitor: whether the forking thread waits for it.
    pub fn is_asked(&self) -> bool {
        matches!(self.asked.load(SeqCst), OPEN | SEND)
    }

    /// Monitor: does what the forking thread has asked for.
    pub fn serve(&self) {
        let asked = self.asked.load(SeqCst);
        // Not even the lock, which the copy of a process must not have.
        if asked != OPEN && asked != SEND {
            return;
        }
        let mut channel = lock(&self.ends);
        let done = match asked {
            OPEN => pair().and_then(|(here, there)| {
                // The monitor looks whether its end is closed without waiting.
                rustix::io::ioctl_fionbio(&here, true)?;
                let spare = if given_uffds::are_forks_told() { Some(pair()?) } else { None };
                *channel = Ends { here: Some(here), there: Some(there), spare, ..Ends::default() };
                Ok(())
            }),
            _ => match (channel.address.take(), &channel.there) {
                (Some(address), Some(there)) => send_to(&address, there.as_fd()),
                _ => Err(Errno::INVAL),
            },
        };
        channel.why = done.err();
        drop(channel);
        self.asked.store(if done.is_ok() { ANSWERED } else { REFUSED }, SeqCst);
        futex::wake_all(&self.asked);
    }
}
