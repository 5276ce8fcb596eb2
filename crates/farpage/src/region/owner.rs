//! A pager's threads: their start and their end; and which pagers children inherit.
//!
//! Callers: the builder, the drop of the last handle, [`super::fork`]. `FORKS` is the outermost lock of regions, and
//! guards `FAMILY`; the list of threads is a leaf.

use super::error::Error;
use super::pager_core::PagerCore;
use super::registry::RegistryEntry;
use super::signal::{self, Blocked};
use super::{prefetch, reclaim, syscalls, thread_mode};
use farpage_base::mem::lock::lock;
use farpage_base::sys::pthread::{self, Pthread};
use farpage_base::sys::thread::ForkLock;
use farpage_ipc::stat::PAGER_THREAD_NAME;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// Which thread serves a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultMode {
    /// The thread that has it, in a SIGBUS handler: fastest, works without privilege. A system call on memory that is
    /// not present fails with EFAULT: see [`crate::region::Region::pin`].
    #[default]
    Signal,
    /// A thread of the pager: system calls simply work. Needs a full userfaultfd (`farpage doctor`).
    Thread,
}

/// One fork at a time; guards [`FAMILY`] and what a forking thread keeps.
pub(super) static FORKS: ForkLock = ForkLock::new();

/// The pagers that children inherit.
pub(super) static FAMILY: Mutex<Vec<Weak<Owner>>> = Mutex::new(Vec::new());

/// A descriptor of this process.
pub fn own_process() -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())
}

impl PagerCore {
    /// All descriptors are ones of the pager's table from now on.
    pub(super) fn set_fd_table(&self) {
        self.uffd.set_fd_table(&self.table);
        self.pidfd.set_fd_table(&self.table);
        self.swap.set_fd_table(&self.table);
    }

    /// Gives the table its keeper, with what is open now in the caller's. What no thread of the program uses is closed
    /// there.
    fn start_keeper(&self) -> Result<(), Errno> {
        let mut copies = self.uffd.fds().to_vec();
        copies.extend(self.swap.fds());
        let mut moved: Vec<_> = self.pidfd.raw().into_iter().chain(self.stat.fd()).collect();
        moved.extend(lock(&self.ancestors).iter().map(AsRawFd::as_raw_fd));
        self.table.start(&copies, &moved)
    }
}

/// A pager's threads and its place in the handler's table. Lives as long as the pager or a region of it.
#[derive(Debug)]
pub struct Owner {
    /// Dropped by the keeper of its table.
    pub(super) core: ManuallyDrop<Arc<PagerCore>>,
    entry: Option<&'static RegistryEntry>,
    setting: Threads,
    threads: Mutex<Vec<Pthread>>,
}

/// Which threads a pager has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Threads {
    pub(super) reclaim: usize,
    pub(super) mode: FaultMode,
}

impl Owner {
    /// Without threads yet.
    pub(super) fn new(core: Arc<PagerCore>, entry: Option<&'static RegistryEntry>, setting: Threads) -> Owner {
        Owner { core: ManuallyDrop::new(core), entry, setting, threads: Mutex::default() }
    }

    /// Starts the pager's threads, in a descriptor table of their own.
    ///
    /// # Errors
    /// [`Error::Os`]; those that run are ended when the owner is dropped.
    pub(super) fn start_threads(&self) -> Result<(), Error> {
        // The threads inherit the mask: signals of the program are for the program's threads.
        let _blocked = signal::Blocked::new();
        let no_table =
            |errno| Error::Os { what: "cannot give the pager's threads a descriptor table of their own", errno };
        self.core.start_keeper().map_err(no_table)?;
        let (core, setting) = (Arc::clone(&self.core), self.setting);
        let started = self.core.table.run(move || {
            let mut threads = Vec::new();
            let result = start_all(&core, setting, &mut threads);
            (threads, result)
        });
        let Some((threads, result)) = started else { return Err(no_table(Errno::AGAIN)) };
        lock(&self.threads).extend(threads);
        result
    }

    /// In a forked child: the threads are the parent's.
    pub(super) fn forget_threads(&self) {
        lock(&self.threads).clear();
        self.core.table.forget_keeper();
    }
}

/// Starts all threads; those that have started are in `threads`. In the keeper, whose table they get.
fn start_all(core: &Arc<PagerCore>, setting: Threads, threads: &mut Vec<Pthread>) -> Result<(), Error> {
    for i in 0..setting.reclaim {
        threads.push(start(core, PAGER_THREAD_NAME, move |core| reclaim::main(core, i))?);
    }
    threads.push(start(core, "farpage-ahead", prefetch::main)?);
    if setting.mode == FaultMode::Thread {
        for _ in 0..setting.reclaim {
            threads.push(start(core, "farpage-fault", thread_mode::main)?);
        }
    }
    Ok(())
}

fn start(core: &Arc<PagerCore>, name: &str, f: impl Fn(&PagerCore) + Send + 'static) -> Result<Pthread, Error> {
    let core = core.clone();
    let main = move || {
        core.table.join();
        f(&core);
        core.table.leave();
    };
    pthread::start(name, main).map_err(|errno| Error::Os { what: "cannot start a thread", errno })
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.core.is_here() {
            // A forked child: the addresses and descriptors may have other owners by now. So nothing is dropped.
            self.forget_threads();
            return;
        }
        if self.core.inherit {
            forget_dropped();
        }
        let w = &self.core.wakeups;
        w.stop.store(true, Ordering::SeqCst);
        for word in [&w.work, &w.help, &self.core.prefetch_posts.word] {
            word.fetch_add(1, Ordering::SeqCst);
            farpage_base::sys::futex::wake_all(word);
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            thread.join();
        }
        if let Some(entry) = self.entry {
            entry.release();
            syscalls::uncover();
        }
        // SAFETY: it is not used after this; self is being dropped.
        let core = unsafe { ManuallyDrop::take(&mut self.core) };
        let table = core.table.clone();
        table.end(move || drop(core));
    }
}

/// Children inherit this pager from now on.
pub fn adopt(owner: &Arc<Owner>) {
    let _blocked = Blocked::new();
    FORKS.lock();
    lock(&FAMILY).push(Arc::downgrade(owner));
    FORKS.unlock();
}

/// Takes pagers that are being dropped off the list. Waits for a fork that is under way.
pub fn forget_dropped() {
    let _blocked = Blocked::new();
    FORKS.lock();
    lock(&FAMILY).retain(|owner| owner.strong_count() > 0);
    FORKS.unlock();
}
