//! Forks of a process that has pagers.
//!
//! A child does not have the regions (`MADV_DONTFORK`), unless the builder asked for it ([`super::Builder::inherit`]).
//! Then everything a pager knows is ordinary private memory, which the fork copies; what has to be done is to make the
//! copy a good one, and to give the child a userfaultfd and threads of its own before it goes on.
//!
//! ```text
//!  prepare   faults and calls of other threads wait at `faults`; when none is inside, reclaim waits at `workers`:
//!            no word is busy and no lock is held
//!            what the child needs of the pager's descriptor table is in the forking thread's, too
//!  parent    the files' slots that the child may need are frozen (a lease, see device/file); gates open
//!  child     new userfaultfd, frames and regions registered, words as the copy's page tables are,
//!            descriptor table and threads, gates open
//! ```
//! The forking thread itself may go on to fault between `prepare` and the copy (other libraries' handlers): it is let
//! through, and takes memory above the budget if need be, because reclaim stands still.
//!
//! Order: `FORKS`, then the gates of one pager after the other, `faults` before `workers`. A thread inside of a gate
//! takes neither.

use super::error::Error;
use super::gate::Inside;
use super::owner::{FAMILY, FORKS, Owner, own_process};
use super::pager_core::PagerCore;
use super::registry::{PAGERS, RegistryEntry};
use super::signal::Blocked;
use super::word::PageState;
use farpage_base::mem::lock::lock;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::message::message;
use farpage_base::sys::pagemap;
use farpage_base::sys::pass::{listening, send_to, take_from};
use farpage_base::sys::thread::fetch_fd;
use farpage_base::sys::uffd::{Uffd, UffdError};
use farpage_swap::PAGE_SIZE;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Once, Weak};

/// One of the interface's functions is running: no fork in between, and no signal handler of the program.
pub struct Entered<'a> {
    _gate: Inside<'a>,
    _blocked: Blocked,
}

impl PagerCore {
    /// To be held by functions of the interface; not twice in a thread.
    pub fn enter(&self) -> Entered<'_> {
        let blocked = Blocked::new();
        Entered { _gate: self.enter_fault(), _blocked: blocked }
    }

    /// To be held while a fault is served.
    pub fn enter_fault(&self) -> Inside<'_> {
        // A reclaim thread may fault on a page that the program has discarded, while a fork waits for that thread.
        if self.inherit { self.faults.enter(|| self.is_reclaimer()) } else { Inside(None) }
    }

    /// To be held by the pager's own threads while they work.
    pub fn enter_work(&self) -> Inside<'_> {
        if self.inherit { self.workers.enter(|| false) } else { Inside(None) }
    }
}

/// What the forking thread keeps from `prepare` on.
static HELD_PAGERS: Mutex<Option<HeldPagers>> = Mutex::new(None);

struct HeldPagers {
    pagers: Vec<Held>,
    _blocked: Blocked,
}

// SAFETY: made and dropped by the forking thread (in the child: by its copy), which the lock FORKS sees to.
unsafe impl Send for HeldPagers {}

/// A pager that stands still.
struct Held {
    owner: Arc<Owner>,
    /// A pipe whose end says that the child is gone.
    lease: Option<LeasePipe>,
    /// What the child needs and the program's table had not: the number in the pager's table, and a copy.
    fetched: Vec<(RawFd, OwnedFd)>,
}

/// The read end is one of the pager's table, the write end one of the program's.
struct LeasePipe {
    read: RawFd,
    write: OwnedFd,
}

impl PagerCore {
    /// The number of a descriptor that children need: files and directories of devices, ends of pipes.
    fn descriptors_for_children(&self) -> Vec<RawFd> {
        let mut fds = self.swap.fds();
        fds.extend(lock(&self.ancestors).iter().map(AsRawFd::as_raw_fd));
        fds
    }

    /// A copy of a descriptor of the pager's table in the caller's.
    fn copy_here(&self, fd: RawFd) -> Option<OwnedFd> {
        let over_a_socket = || {
            let (socket, address) = listening()?;
            let send = move || {
                // SAFETY: the caller knows it to be open in the pager's table.
                send_to(&address, unsafe { BorrowedFd::borrow_raw(fd) })
            };
            self.table.run(send).unwrap_or(Err(Errno::SRCH))?;
            take_from(&socket)
        };
        fetch_fd(self.table.keeper(), fd).or_else(|_| over_a_socket()).ok()
    }

    /// A new pipe between the pager's table and a child. Without one the pager never learns that the child is gone: its
    /// slots are never used again.
    fn lease(&self) -> Option<LeasePipe> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok();
        let (read, write) = self.table.run(pipe)??;
        let here = self.copy_here(write.as_raw_fd());
        let (read, write) = (read.into_raw_fd(), write.into_raw_fd());
        self.table.close(write);
        if here.is_none() {
            self.table.close(read);
        }
        here.map(|write| LeasePipe { read, write })
    }
}

/// Has forks followed, once per process.
pub fn follow_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of the right type that live as long as the process (or library, which is not unloaded).
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

extern "C" fn prepare() {
    let blocked = Blocked::new();
    FORKS.lock();
    let owners: Vec<_> = lock(&FAMILY).iter().filter_map(Weak::upgrade).collect();
    let hold = |owner: Arc<Owner>| {
        let e = &owner.core;
        e.faults.close();
        e.workers.close();
        let lease = if e.swap.is_shared_with_children() { e.lease() } else { None };
        let missing = e.descriptors_for_children().into_iter().filter(|fd| !e.table.is_copied(*fd));
        let fetched = missing.filter_map(|fd| Some((fd, e.copy_here(fd)?))).collect();
        Held { owner, lease, fetched }
    };
    let pagers = owners.into_iter().map(hold).collect();
    *lock(&HELD_PAGERS) = Some(HeldPagers { pagers, _blocked: blocked });
}

extern "C" fn parent() {
    let held = lock(&HELD_PAGERS).take();
    go_on(held, |owner, lease, _| {
        let number = owner.core.swap.fork_parent();
        if let Some(lease) = lease {
            owner.core.leases.add(lease.read, number);
        }
    });
}

/// After the fork, in parent and child: `each` pager that was held is made ready, and its gates are opened.
fn go_on(held: Option<HeldPagers>, mut each: impl FnMut(&Owner, Option<LeasePipe>, Vec<(RawFd, OwnedFd)>)) {
    let mut owners = Vec::new();
    let mut blocked = None;
    if let Some(HeldPagers { pagers, _blocked }) = held {
        for Held { owner, lease, fetched } in pagers {
            each(&owner, lease, fetched);
            owner.core.workers.open();
            owner.core.faults.open();
            owners.push(owner);
        }
        blocked = Some(_blocked);
    }
    FORKS.unlock();
    // The last owner may be one of these: its drop takes FORKS.
    drop(owners);
    drop(blocked);
}

extern "C" fn child() {
    let held = lock(&HELD_PAGERS).take();
    let pagers = held.as_ref().map_or(&[][..], |e| &e.pagers);
    // Threads that were looking are not here, nor are the pagers that are not inherited.
    let stays = |pager: *const PagerCore| pagers.iter().any(|held| std::ptr::eq(Arc::as_ptr(&held.owner.core), pager));
    PAGERS.iter().for_each(|entry| entry.after_fork(stays));
    go_on(held, |owner, lease, fetched| {
        owner.core.faults.after_fork();
        owner.core.workers.after_fork();
        if let Err(why) = restart(owner, lease.map(|lease| lease.write), fetched) {
            message(&format!("in a forked child, which cannot use its regions: {why}"));
            close_off(owner);
        }
    });
    // After the pagers, which have the parent's pins.
    farpage_syscalls::after_fork_in_child();
}

/// Why a forked child cannot use its regions.
#[derive(Debug, thiserror::Error)]
enum ChildError {
    #[error("cannot register {0}: {1:?}")]
    Register(&'static str, UffdError),
    #[error("the page at {0:#x} was touched by another library's handler before it could be read")]
    Touched(usize),
    #[error(transparent)]
    Other(#[from] Error),
}

/// Makes a pager of the child out of the copy of its parent's.
fn restart(owner: &Owner, lease: Option<OwnedFd>, mut fetched: Vec<(RawFd, OwnedFd)>) -> Result<(), ChildError> {
    let failed = |what| move |errno| Error::Os { what, errno };
    let e = &*owner.core;
    e.forget_threads();
    owner.forget_threads();
    // Numbers are those of the parent's pager. They are replaced or forgotten, not closed.
    e.leases.forget();
    let ancestors: Vec<_> = std::mem::take(&mut *lock(&e.ancestors)).into_iter().map(OwnedFd::into_raw_fd).collect();
    let pipes = fetched.extract_if(.., |(old, _)| ancestors.contains(old)).map(|(_, here)| here);
    lock(&e.ancestors).extend(pipes.chain(lease));
    let copied: Vec<_> = e.swap.fds().into_iter().filter(|fd| e.table.is_copied(*fd)).collect();
    e.table.after_fork(|fd| copied.contains(&fd));
    let fetched = fetched.into_iter().map(|(old, here)| (old, here.into_raw_fd()));
    let here: Vec<_> = fetched.chain(copied.iter().map(|fd| (*fd, *fd))).collect();
    e.swap.fork_child(&here);
    // What is behind the numbers that the devices do not use any more goes with the process.
    // Before anything is counted: until then the page is the parent's.
    e.stat.renew().map_err(failed("cannot map a statistics page"))?;
    e.readahead.forget_counts();
    lock(&e.share).forget_counts();
    // Counted from zero again; and nothing is write-protected any more.
    e.gone_at_wp_sweep.store(u64::MAX, SeqCst);
    e.full_warned.store(false, SeqCst);
    let maps = pagemap::own().map_err(failed("cannot open /proc/self/pagemap"))?;
    let new = Uffd::open_signal(maps).map_err(Error::Userfaultfd)?;
    e.uffd.exchange(new);
    let pidfd = own_process().map_err(failed("cannot open the process"))?;
    e.pidfd.exchange_for(&Fd::new(pidfd));
    e.swap.create_files();
    let refused = |what| move |why| ChildError::Register(what, why);
    e.uffd.register(e.frame_memory.0.base, e.frame_memory.0.len).map_err(refused("frames"))?;
    for place in e.space.places.each() {
        let (start, len) = (e.space.addr(place.first), place.pages as usize * PAGE_SIZE);
        e.uffd.register_protectable(start, len).map_err(refused("a region"))?;
        // A fork does not copy the write protection.
        for page in e.space.places.with_words(place.first..place.end()).flat_map(|(_, pages)| pages) {
            let word = e.space.word(page);
            let seen = word.load();
            if let PageState::Mapped(_) = seen.state() {
                let seen = word.lock();
                word.unlock(seen.writable(), seen.state());
            }
        }
        let mut touched = None;
        let look = |start, end| {
            for page in (start..end).step_by(PAGE_SIZE).filter_map(|at| e.space.page_at(at)) {
                e.space.touch(page);
                match e.space.word(page).load().state() {
                    PageState::Mapped(_) => {}
                    PageState::None => e.found(page),
                    _ => touched = Some(page),
                }
            }
            touched.is_none()
        };
        pagemap::present_runs(e.uffd.pagemap(), start, start + len, look).map_err(failed("PAGEMAP_SCAN failed"))?;
        if let Some(page) = touched {
            return Err(ChildError::Touched(e.space.addr(page)));
        }
    }
    e.pid.store(std::process::id(), SeqCst);
    owner.start_threads()?;
    e.update_overhead();
    e.stat.announce_again();
    Ok(())
}

/// Touching the regions is a SIGSEGV from here on, and the functions of the interface say that it is the parent's.
fn close_off(owner: &Owner) {
    owner.core.pid.store(0, SeqCst);
    let pager = Arc::as_ptr(&owner.core);
    PAGERS.iter().for_each(|entry: &RegistryEntry| entry.after_fork(|shown| !std::ptr::eq(shown, pager)));
    for place in owner.core.space.places.each() {
        if let Err(errno) = owner.core.space.forbid(place) {
            farpage_base::sys::message::fatal(&format!(
                "in a forked child: regions can neither be used nor closed: {errno}"
            ));
        }
    }
}
