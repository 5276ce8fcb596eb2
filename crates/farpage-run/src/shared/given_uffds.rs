//! The userfaultfds that root has made for a process whose own user may have none ([`farpage_base::sys::uffd::given`]).
//!
//! They serve this process and, by the kernel's messages, its forked children, if it manages memory: the pager reads a
//! fork's from both ([`Forks`]), ends what the child has inherited of the registrations, which a child's engine does
//! anew, and sends them after the other descriptors. Nothing is registered before memory is managed: a fork would wait
//! for a pager that is not there yet. A child of that time has none, and no engine: its memory counts.
//!
//! In a process that was attached to, the preload library gives their numbers ([`give`]), and the engine takes them
//! when memory is managed. In one that was forked, its monitor receives them ([`receive`]).
//!
//! Callers: as above; [`crate::fork`]. No locks.

use crate::shared::start_error::StartError;
use farpage_base::mem::arena::Arena;
use farpage_base::mem::zeros::zero_pages;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::message::warn;
use farpage_base::sys::pass::{receive_all, send_all};
use farpage_base::sys::raw::{Errno, ErrnoText};
use farpage_base::sys::uffd::given::{KINDS, is_of_this_process, is_userfaultfd, read_child, unregister_child};
use farpage_swap::PAGE_SIZE;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{Advice, madvise};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

/// The process that they belong to; 0: there are none.
static HOME: AtomicU32 = AtomicU32::new(0);
/// Their numbers, until they are taken.
static NUMBERS: [AtomicI32; KINDS] = [const { AtomicI32::new(-1) }; KINDS];
/// This process's engine has some, or its parent's had, if the child has one.
static TOLD: AtomicBool = AtomicBool::new(false);

/// This process's are these, in the table of the thread that starts its engine, or in the engine's.
pub fn give(numbers: [RawFd; KINDS]) {
    for (place, number) in NUMBERS.iter().zip(numbers) {
        place.store(number, SeqCst);
    }
    HOME.store(std::process::id(), SeqCst);
}

/// Their numbers, if they are there and were not taken yet.
pub(crate) fn numbers() -> Option<[RawFd; KINDS]> {
    (HOME.load(SeqCst) == std::process::id()).then(|| NUMBERS.each_ref().map(|number| number.load(SeqCst)))
}

/// The start has failed: the caller that has given them closes them.
pub fn forget() {
    HOME.store(0, SeqCst);
}

/// Their numbers, if they are what they were in the calling thread's table. Where the start was put off, they may have
/// been closed, and be others.
pub(crate) fn still_there() -> Option<[RawFd; KINDS]> {
    let there = numbers().filter(|numbers| numbers.iter().all(|number| is_userfaultfd(*number)));
    if there.is_none() {
        forget();
    }
    there
}

/// Takes them, for good.
pub(crate) fn take() -> Option<[OwnedFd; KINDS]> {
    let numbers = numbers();
    TOLD.store(numbers.is_some(), SeqCst);
    HOME.store(0, SeqCst);
    // SAFETY: given for this process's engine, in whose table they are, and taken once.
    Some(numbers?.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}

/// The kernel tells the engine of forks, and children have theirs by that. Does not change once memory is managed.
pub(crate) fn are_forks_told() -> bool {
    TOLD.load(SeqCst)
}

/// Children that one pause has room for; more than one only if another thread makes one behind libc's back.
const CHILDREN_MAX: usize = 8;

/// The pager's part: the userfaultfds of children.
pub(crate) struct Forks {
    /// That of the engine's own memory, which has messages of forks only. `None`: forks are not told.
    other: Option<OwnedFd>,
    /// Those of the children of a pause. `None`: there is none, and children are left alone.
    kept: Option<[Vec<OwnedFd>; KINDS]>,
}

impl Forks {
    /// Without any.
    pub(crate) const NONE: Forks = Forks { other: None, kept: None };

    /// `other` is the engine's own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn of(other: BorrowedFd<'_>) -> Result<Forks, Errno> {
        Ok(Forks { other: Some(fcntl_dupfd_cloexec(other, 0)?), kept: None })
    }

    /// Where messages come, besides the program's.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.other.as_ref().map(AsFd::as_fd)
    }

    /// A pause begins: from here on children are kept. Nothing is allocated from now on.
    pub(crate) fn keep(&mut self) {
        if self.other.is_some() {
            self.kept = Some([(); KINDS].map(|()| Vec::with_capacity(CHILDREN_MAX)));
        }
    }

    /// Reads a message of the engine's own: the userfaultfd of a child.
    ///
    /// # Errors
    /// `AGAIN`: there is none. `MFILE`, `NFILE`: no descriptor is left, and the fork goes on waiting.
    pub(crate) fn read(&self) -> Result<OwnedFd, Errno> {
        self.other.as_ref().map_or(Err(Errno::AGAIN), |other| read_child(other.as_fd()))
    }

    /// Keeps a child's that was read, in a pause; closes it otherwise.
    pub(crate) fn keep_one(&mut self, kind: usize, child: Option<OwnedFd>) {
        let kept = self.kept.as_mut().map(|kept| &mut kept[kind]).filter(|kept| kept.len() < CHILDREN_MAX);
        if let Some(kept) = kept {
            kept.extend(child);
        }
    }

    /// The copy is made: ends the registrations of `managed` (bytes) that the child has inherited, and sends it what is
    /// its own, if there is a way.
    pub(crate) fn send(&mut self, to: Option<BorrowedFd<'_>>, managed: impl Iterator<Item = (usize, usize)>) {
        let (Some(kept), Some(to)) = (self.kept.take(), to) else { return };
        for (start, end) in managed {
            kept[0].iter().for_each(|child| unregister_child(child.as_fd(), start, end - start));
        }
        for children in &kept {
            let numbers: Vec<_> = children.iter().map(|child| (child.as_raw_fd(), child.as_raw_fd())).collect();
            if let Err(error) = send_all(to, &numbers) {
                let why = ErrnoText(error);
                warn(&format!("a forked child cannot go on: its userfaultfds cannot be sent to it: {why}"));
                // It waits for a message.
                let _ = send_all(to, &[]);
            }
        }
    }
}

/// In a child, on its monitor thread: waits for its own, which [`Forks::send`] has sent. `pagemap` is this process's.
///
/// # Errors
/// It was sent none.
pub(crate) fn receive(from: BorrowedFd<'_>, arena: &Arena, pagemap: OwnedFd) -> Result<(), StartError> {
    let pagemap = Fd::new(pagemap);
    let pages = [arena.doorbell.base, arena.discard_area.base];
    let mut own = [-1; KINDS];
    for (own, page) in own.iter_mut().zip(pages) {
        let sent = receive_all(from).map_err(|error| match error {
            Errno::PIPE => StartError::ParentEnded,
            error => StartError::Receive(ErrnoText(error)),
        })?;
        // SAFETY: just received.
        let sent = sent.into_iter().map(|(_, number)| unsafe { OwnedFd::from_raw_fd(number) });
        let sent: Vec<OwnedFd> = sent.collect();
        // SAFETY: no thread uses these parts of the arena before there is a pager.
        let is_own = |fd: &OwnedFd| unsafe { is_of_this_process(fd.as_fd(), &pagemap, page, zero_pages()) };
        let found = sent.into_iter().find(is_own).ok_or(StartError::NothingSent)?;
        *own = found.into_raw_fd();
    }
    // SAFETY: as above; its userfaultfd has no events of that. (The doorbell's page goes with the first ring.)
    let _ = unsafe { madvise(pages[1] as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) };
    give(own);
    Ok(())
}
