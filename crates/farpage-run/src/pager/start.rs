//! How the pager begins: what it opens, and the start of its thread and the writer's.
//!
//! Callers: the monitor, when the budget is near; in a child [`crate::fork::restart`]; both on the monitor's
//! thread. Locks: that of `discard_area`.

use crate::mappings::event_order::Order;
use crate::mappings::grace_period::GracePeriod;
use crate::pager::changes::Changes;
use crate::pager::cx::{Cx, Lot};
use crate::pager::fault_threads::FaultThreads;
use crate::pager::first_touch::FirstTouch;
use crate::pager::pace::Pace;
use crate::pager::prefetch::windows::Prefetch;
use crate::pager::readahead::Readahead;
use crate::pager::reclaim::Reclaim;
use crate::pager::register::Adoption;
use crate::pager::robust::lists::RobustLists;
use crate::pager::state::{Pager, THREAD_NAME};
use crate::pager::trace::Recorder;
use crate::pager::unpark::Unpark;
use crate::shared::address_space::{AddressSpace, Kernel};
use crate::shared::given_uffds::{self, Forks};
use crate::shared::stacks::{PAGER, WRITER};
use crate::shared::start_error::StartError;
use crate::shared::state::Engine;
use crate::shared::uffd_device;
use crate::threads::writer;
use farpage_base::mem::lock::lock;
use farpage_base::sys::message::warn;
use farpage_base::sys::proc::Proc;
use farpage_base::sys::raw::{Errno, ErrnoText};
use farpage_base::sys::thread::{Start, begin_thread, exit_thread};
use farpage_base::sys::uffd::{FEATURES, FEATURES_QUIET, Uffd};
use farpage_swap::PAGE_SIZE;
use farpage_swap::readahead::{Rule, Tuning};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use rustix::time::Timespec;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frames at the start, bytes.
pub(crate) const FRAMES_BYTES_MIN: usize = 2048 * PAGE_SIZE;

/// What a pager needs of the system.
pub struct PagerParts {
    mm: Box<dyn AddressSpace>,
    discard_area: Box<dyn AddressSpace>,
    kick: OwnedFd,
    /// `/proc/self/mem`.
    memory: Result<OwnedFd, Errno>,
    forks: Forks,
}

impl PagerParts {
    pub(crate) fn mm(&self) -> &dyn AddressSpace {
        &*self.mm
    }

    /// The pager need not be there before there is something for it to do: no forks are told, and nothing is opened
    /// that the program might soon not be allowed to.
    pub(crate) fn may_wait(&self, e: &Engine) -> bool {
        self.forks.descriptor().is_none() && e.conf.trace.is_none()
    }

    /// Waits until there is something to be read, at most for so long.
    pub(crate) fn wait(&self, most: Duration) {
        let Some(messages) = self.mm.descriptor() else { return };
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::from_borrowed_fd(messages, PollFlags::IN)], Some(&most));
    }
}

/// Memory is managed from now on: opens the userfaultfds if `opened` does not have them, starts pager and writer.
/// Called on the monitor thread, which owns the descriptor table.
///
/// # Errors
/// One line: why memory cannot be managed.
pub fn activate(e: &'static Engine, proc: &'static Proc, opened: Option<PagerParts>) -> Result<(), StartError> {
    let opened = opened.map_or_else(|| open(e, proc), Ok)?;
    let mut pager = make_pager(e, opened, proc)?;
    // Before anything is registered: a thread that finds memory busy asks for it.
    e.stage.active.store(true, Ordering::SeqCst);
    // Before the threads are started, which have to wait for a CPU if the program's threads keep all of them busy:
    // what is registered makes those wait instead.
    pager.adoption.adopt_news(&mut pager.cx);
    run_pager(e, pager)
}

/// Opens what the pager needs and registers the arena's parts; the program's memory stays as it is.
///
/// # Errors
/// One line: what is not allowed, or failed.
pub(crate) fn open(e: &Engine, proc: &Proc) -> Result<PagerParts, StartError> {
    let failed = |what| move |e: Errno| StartError::Proc(what, e.into());
    let pagemap = || proc.private_file("thread-self/pagemap").map_err(failed("open /proc/self/pagemap"));
    let new = |features| Ok::<_, StartError>(Uffd::open(uffd_device::device(), features, pagemap()?)?);
    let (uffd, discard_area, forks) = match given_uffds::take() {
        Some([main, other]) => {
            let forks = Forks::of(other.as_fd()).map_err(|e| StartError::Descriptor(ErrnoText(e)))?;
            (Uffd::given(main, pagemap()?), Uffd::given(other, pagemap()?), forks)
        }
        None => (new(FEATURES)?, new(FEATURES_QUIET)?, Forks::NONE),
    };
    if e.frames.opened() == 0 {
        e.frames.add_opened(e.frames.open_more(FRAMES_BYTES_MIN / PAGE_SIZE));
    }
    let frames = e.frames.open_part();
    if frames.len == 0 {
        return Err(StartError::Frames);
    }
    uffd.register(frames.base, frames.len).map_err(StartError::Register)?;
    discard_area.register(e.arena.discard_area.base, e.arena.discard_area.len).map_err(StartError::Register)?;
    uffd.register(e.arena.doorbell.base, e.arena.doorbell.len).map_err(StartError::Register)?;
    let maps = proc.file("thread-self/maps").map_err(failed("open /proc/self/maps"))?;
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| StartError::Eventfd(e.into()))?;
    let again = rustix::io::fcntl_dupfd_cloexec(&maps, 0);
    let for_discard_area = again.map_err(failed("keep /proc/self/maps open"))?;
    let mm = Box::new(Kernel::new(uffd, maps));
    let memory = proc.private_file("thread-self/mem");
    let discard_area = Box::new(Kernel::new(discard_area, for_discard_area));
    Ok(PagerParts { mm, discard_area, kick, memory, forks })
}

pub(crate) fn make_pager(
    e: &'static Engine,
    opened: PagerParts,
    proc: &'static Proc,
) -> Result<Box<Pager>, StartError> {
    let PagerParts { mm, discard_area, kick, memory, forks } = opened;
    // What comes in without a fault is not recorded.
    let none = Tuning { rule: Rule::None, ..e.conf.readahead };
    let readahead = if e.records() { none } else { e.conf.readahead };
    let trace = recorder(e)?;
    // Nothing fails from here on: what is in the engine stays there.
    e.wakeups.kick_fd.store(kick.as_raw_fd(), Ordering::Release);
    *lock(&e.discard_area) = Some(discard_area);
    Ok(Box::new(Pager {
        cx: Cx {
            e,
            mm,
            kick,
            filled: 0,
            granted: 0,
            serving: None,
            guards: Vec::new(),
            // SAFETY: zero bytes are a valid array of bytes. (It is too large for the stack.)
            scratch: unsafe { Box::new_zeroed().assume_init() },
            waiting: Vec::with_capacity(1024),
            lot: Lot::default(),
            changes: Changes { order: Order::default(), grace_period: GracePeriod::new(proc), forks },
            pending_frees: Vec::new(),
            readahead: Readahead::new(readahead, e.conf.ram),
            prefetch: Prefetch::default(),
            trace,
        },
        adoption: Adoption::new(),
        reclaim: Reclaim::new(RobustLists::new(proc, memory)),
        first_touch: FirstTouch::new(),
        unpark: Unpark::default(),
        pace: Pace::new(e, proc),
        fault_threads: FaultThreads::default(),
        drained: false,
        read_all: false,
        reported: false,
    }))
}

/// The record of faults, if one is wanted. A child, whose program may have another root or no permission, goes on
/// without.
fn recorder(e: &Engine) -> Result<Option<Recorder>, StartError> {
    match e.conf.trace.as_deref().map(Recorder::create).transpose() {
        Err(why) if e.fork.is_restart() => {
            warn(&format!("in a forked child: {why}"));
            Ok(None)
        }
        other => other,
    }
}

/// For tests: a pager of another address space, without threads.
#[cfg(test)]
pub(crate) fn pager_for_test(
    e: &'static Engine,
    mm: Box<dyn AddressSpace>,
    discard_area: Box<dyn AddressSpace>,
) -> Box<Pager> {
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    // No threads are to be waited for, or to be bound to CPUs: a directory without any.
    let nobody = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    // The test's own memory, where handles of threads are.
    let memory = Proc::open().unwrap().private_file("thread-self/mem");
    let parts = PagerParts { mm, discard_area, kick, memory, forks: Forks::NONE };
    let pager = make_pager(e, parts, Box::leak(Box::new(Proc::from_fd(nobody)))).unwrap();
    e.stage.active.store(true, Ordering::SeqCst);
    pager
}

/// Starts pager and writer.
pub(crate) fn run_pager(e: &'static Engine, pager: Box<Pager>) -> Result<(), StartError> {
    let pager = Box::into_raw(pager);
    e.discovery.charges.allow(e.large() as u64);
    e.stage.active.store(true, Ordering::SeqCst);
    let spawn = |index, entry, arg, name| e.spawn_patiently(index, &Start { entry, arg, name, share_files: true });
    // The writer first: without one, no thread would free slots.
    let started = spawn(WRITER, writer::main, e.address(), writer::NAME).and_then(|writer| {
        e.wakeups.writer_tid.store(writer, Ordering::Relaxed);
        spawn(PAGER, main, pager as usize, THREAD_NAME)
    });
    e.wakeups.pager_tid.store(*started.as_ref().unwrap_or(&0), Ordering::Relaxed);
    if let Err(error) = started {
        // With the userfaultfds the registrations go, and no thread waits for a page, or a fork for its message to be
        // read.
        e.stage.active.store(false, Ordering::SeqCst);
        e.wakeups.kick_fd.store(-1, Ordering::Release);
        // SAFETY: made just now from a box, which the thread that was not started does not have.
        drop(unsafe { Box::from_raw(pager) });
        *lock(&e.discard_area) = None;
        e.wakeups.writer_tid.store(0, Ordering::Relaxed);
        e.wake_writer();
        return Err(StartError::Thread(error.into()));
    }
    Ok(())
}

extern "C" fn main(pager: usize) -> ! {
    begin_thread(THREAD_NAME);
    // SAFETY: `run_pager` passed a box's pointer, and keeps none.
    let mut pager = unsafe { Box::from_raw(pager as *mut Pager) };
    let e = pager.cx.e;
    while !e.stage.detached.load(Ordering::SeqCst) {
        pager.turn();
    }
    let _ = end(*pager).into_raw_fd();
    e.following.end(PAGER);
    exit_thread()
}

/// With the userfaultfd the registrations go. The eventfd stays until no thread kicks any more.
fn end(pager: Pager) -> OwnedFd {
    pager.cx.kick
}
