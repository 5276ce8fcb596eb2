//! Building a pager, and what can go wrong.

use super::Pager;
use super::ahead::{self, Ahead};
use super::fork::{self, Gate};
use super::inner::{Inner, RECLAIMERS_MAX, Wakeups, lock};
use super::lists::Shared;
use super::readahead::Readahead;
use super::space::{Mapping, Slot, Space};
use super::stat::PagerStat;
use super::{reclaim, signal, thread_mode};
use crate::PAGE_SIZE;
use crate::conf::SwapSpec;
use crate::mem::frame::Frames;
use crate::mm::page_hash::ContentKey;
use crate::run::pager::reclaim::CleanBalance;
use crate::stat::PAGER_THREAD_NAME;
use crate::swap::space::build::{check_memory, memory_most};
use crate::swap::{DeviceError, Entry, LoadError, SwapSpace};
use crate::sys::fd::Fd;
use crate::sys::pagemap;
use crate::sys::uffd::{FEATURES_QUIET, OpenError, Uffd};
use farpage_swap::readahead::{Streams, Tuning};
use farpage_swap::splice::Linking;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::mem::ManuallyDrop;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;

/// Smallest budget of a pager, bytes.
pub const BUDGET_MIN: u64 = 4 << 20;
/// Largest budget: what frame numbers and counters are made for.
pub const BUDGET_MAX: u64 = 1 << 44;
/// Windows of readahead have at most this share of the budget.
const READAHEAD_SHARE: usize = 64;
/// Frames at least: moves, swap cache and store need some at any budget.
const FRAMES_MIN: usize = 1024;

/// Entries that wait to be freed by reclaim, at most.
const TO_FREE: usize = 4096;

/// Who serves a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultMode {
    /// The thread that has it, in a SIGBUS handler: fastest, works without privilege. A system call on memory that is
    /// not present fails with EFAULT: see [`crate::region::Region::pin`].
    #[default]
    Signal,
    /// A thread of the pager: system calls simply work. Needs a full userfaultfd (`farpage doctor`).
    Thread,
}

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The budget is outside of what a pager can work with.
    #[error("a budget of {0} bytes is not between {BUDGET_MIN} and {BUDGET_MAX}")]
    Budget(u64),
    /// A region of no bytes.
    #[error("a region must have at least one byte")]
    ZeroSize,
    /// The region does not fit into what is left of the pager's address space.
    #[error("a region of {0} bytes does not fit into the pager's address space")]
    TooLarge(usize),
    /// The range does not lie in the region.
    #[error("the range {start}..{end} does not lie in a region of {len} bytes")]
    Range {
        /// First byte.
        start: usize,
        /// First byte behind.
        end: usize,
        /// Bytes of the region.
        len: usize,
    },
    /// More would be pinned than three quarters of the budget, or a page more often than 127 times.
    #[error("pinning {0} bytes would leave no memory for the rest")]
    PinLimit(usize),
    /// The pager belongs to another process: regions are not inherited by a forked child.
    #[error("the pager was built by another process; a forked child cannot use it")]
    Forked,
    /// In [`FaultMode::Thread`] a forked child cannot have the regions.
    #[error("a pager in fault mode thread cannot be inherited by forked children")]
    InheritThread,
    /// There are 64 pagers already.
    #[error("a process can have 64 pagers")]
    TooManyPagers,
    /// No userfaultfd.
    #[error("{0}")]
    Userfaultfd(OpenError),
    /// A swap device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A page of the range cannot be read back from its device. It stays there: a later try may succeed, discarding it
    /// gives it up.
    #[error("the page at byte {offset} of the region cannot be read back: {why}")]
    Unreadable {
        /// Where it begins, bytes from the region's beginning.
        offset: usize,
        /// What the device said.
        why: LoadError,
    },
    /// A system call failed.
    #[error("{what}: {errno}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// How a pager shall be. Made by [`Pager::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    budget: u64,
    swap: Vec<SwapSpec>,
    mode: FaultMode,
    readahead: Tuning,
    seek_us: u32,
    threads: usize,
    inherit: bool,
    linking: Linking,
}

impl Default for Builder {
    fn default() -> Builder {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
        Builder {
            budget: 1 << 30,
            swap: SwapSpec::defaults(),
            mode: FaultMode::Signal,
            readahead: Tuning::default(),
            seek_us: 0,
            threads,
            inherit: false,
            linking: Linking::Spliced,
        }
    }
}

impl Builder {
    /// RAM for everything: pages of regions, frames, compressed pool, tables. Bytes; default 1 GiB, at least
    /// [`BUDGET_MIN`].
    pub fn budget(mut self, bytes: u64) -> Builder {
        self.budget = bytes;
        self
    }

    /// Swap devices in order; default: compressed RAM, then a file in `/var/tmp`.
    pub fn swap(mut self, devices: impl IntoIterator<Item = SwapSpec>) -> Builder {
        self.swap = devices.into_iter().collect();
        self
    }

    /// Who serves faults; default: the thread that has them.
    pub fn fault_mode(mut self, mode: FaultMode) -> Builder {
        self.mode = mode;
        self
    }

    /// Pages read ahead at most (taken as a power of two up to 512), when accesses are in order. Default 128, but a
    /// sixty-fourth of the budget at most; 1: none.
    pub fn readahead(mut self, pages: u32) -> Builder {
        self.readahead.page_cluster = Some(pages.clamp(1, 512).ilog2());
        self
    }

    /// How pages are read ahead in regions that do not say otherwise ([`crate::region::Region::set_readahead`]).
    pub fn readahead_tuning(mut self, tuning: Tuning) -> Builder {
        self.readahead = tuning;
        self
    }

    /// Files behave like a disk whose head takes this long to move, microseconds: for measurements. 0: as they are.
    pub fn simulate_seeks(mut self, us: u32) -> Builder {
        self.seek_us = us;
        self
    }

    /// Threads for reclaim; default: one per CPU, at most 4. All but one work only while threads wait for memory.
    pub fn reclaim_threads(mut self, threads: usize) -> Builder {
        self.threads = threads.clamp(1, RECLAIMERS_MAX);
        self
    }

    /// Whether a forked child has the pager and its regions too; default: no, and touching a region there is a SIGSEGV.
    /// If so, the child gets a copy, as of all other memory: what it writes the parent does not see, and it has a budget
    /// of its own of the same size. Only for children of `fork` in libc, and not in [`FaultMode::Thread`].
    ///
    /// During the fork other threads that touch a region wait. So the forking process stops for ever if a fork handler
    /// (`pthread_atfork`) that was there before the first pager waits for a lock whose holder touches a region.
    pub fn inherit(mut self, inherit: bool) -> Builder {
        self.inherit = inherit;
        self
    }

    /// How pages that come in together are put on the pager's lists, for measurements. Default: spliced.
    pub fn linking(mut self, how: Linking) -> Builder {
        self.linking = how;
        self
    }

    /// Builds the pager and starts its threads.
    ///
    /// # Errors
    /// [`Error::Budget`], [`Error::Userfaultfd`], [`Error::Device`], [`Error::TooManyPagers`], or the kernel's.
    pub fn build(self) -> Result<Pager, Error> {
        if !(BUDGET_MIN..=BUDGET_MAX).contains(&self.budget) {
            return Err(Error::Budget(self.budget));
        }
        if self.inherit && self.mode == FaultMode::Thread {
            return Err(Error::InheritThread);
        }
        check_memory(&self.swap, self.budget)?;
        let os = |what: &'static str| move |errno| Error::Os { what, errno };
        let pagemap = pagemap::own().map_err(os("cannot open /proc/self/pagemap"))?;
        let uffd = match self.mode {
            FaultMode::Signal => Uffd::open_signal(pagemap),
            FaultMode::Thread => Uffd::open(None, FEATURES_QUIET, pagemap),
        }
        .map_err(Error::Userfaultfd)?;
        let space = Space::reserve(self.inherit).map_err(os("cannot reserve address space"))?;
        let pages = (self.budget / PAGE_SIZE as u64) as usize;
        let frames_len = (pages / 8).max(FRAMES_MIN) * PAGE_SIZE;
        let frame_memory =
            Mapping::new(frames_len, ProtFlags::READ | ProtFlags::WRITE).map_err(os("cannot reserve frames"))?;
        let keep = |memory: &Mapping| if self.inherit { Ok(()) } else { memory.not_in_children() };
        keep(&frame_memory).map_err(os("cannot reserve frames"))?;
        uffd.register(frame_memory.0.base, frames_len)
            .map_err(|_| Error::Os { what: "cannot register frames", errno: Errno::NOMEM })?;
        // The budget may grow; what is not used of this costs nothing.
        let pool_len = (self.budget as usize * 4).max(256 << 20);
        let pool_memory =
            Mapping::new(pool_len, ProtFlags::empty()).map_err(os("cannot reserve the compressed pool"))?;
        keep(&pool_memory).map_err(os("cannot reserve the compressed pool"))?;
        let base = pool_memory.0.base as *mut u8;
        // SAFETY: the mapping is for the pool only and is dropped after the devices (order of Inner's fields).
        let swap = unsafe { SwapSpace::build(&self.swap, base, pool_len, memory_most(self.budget)) }?;
        swap.warm();
        swap.simulate_seeks(self.seek_us);
        let key = ContentKey::random();
        swap.check_contents(key);
        let frames = Frames::new(frame_memory.0);
        swap.create_files();
        let pidfd = own_process().map_err(os("cannot open the process"))?;
        let rotational = (0..self.swap.len()).any(|i| {
            let first = u8::try_from(i).ok().and_then(|i| Entry::new(i, 1));
            first.is_some_and(|entry| swap.is_rotational(entry))
        });
        let readahead = Readahead::new(self.readahead, (pages / READAHEAD_SHARE) as u32, rotational)
            .map_err(os("cannot reserve address space"))?;
        let inner = Arc::new(Inner {
            space,
            uffd,
            frame_entry: (0..frames.len()).map(|_| AtomicU64::new(0)).collect(),
            frames,
            frame_memory,
            lists: Shared::new(self.mode == FaultMode::Signal, self.linking),
            readahead,
            zero_streams: Mutex::new(Streams::new()),
            swap,
            pool_memory,
            key,
            ahead: Ahead::default(),
            to_free: Mutex::new(Vec::with_capacity(TO_FREE)),
            copies_hand: AtomicU64::new(0),
            clean: CleanBalance::default(),
            protecting: RwLock::new(()),
            gone_at_sweep: AtomicU64::new(u64::MAX),
            passed: AtomicU64::new(0),
            surprises: AtomicU64::new(0),
            sweeps: self.mode == FaultMode::Signal,
            pidfd: Fd::new(pidfd),
            table: Arc::default(),
            reclaimers: Default::default(),
            stat: PagerStat::new().map_err(os("cannot reserve address space"))?,
            sweeps_done: AtomicU64::new(0),
            wakeups: Wakeups::default(),
            places: Mutex::new(Vec::new()),
            pid: AtomicU32::new(std::process::id()),
            inherit: self.inherit,
            faults: Gate::default(),
            workers: Gate::default(),
            leases: Mutex::default(),
            ancestors: Mutex::default(),
            limit: AtomicI64::new(pages as i64),
            held: AtomicI64::new(0),
            overhead: AtomicI64::new(0),
            swapped: AtomicI64::new(0),
            poisoned: AtomicU32::new(0),
            pinned: AtomicI64::new(0),
            full_warned: AtomicBool::new(false),
        });
        if self.mode == FaultMode::Signal {
            let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::INVAL);
            signal::install().map_err(|e| Error::Os { what: "cannot catch SIGBUS", errno: errno(e) })?;
        }
        let slot = match self.mode {
            FaultMode::Signal => Some(Slot::take(Arc::as_ptr(&inner)).ok_or(Error::TooManyPagers)?),
            FaultMode::Thread => None,
        };
        fork::follow_forks();
        let setting = Threads { reclaim: self.threads, mode: self.mode };
        let owner = Arc::new(Owner { inner: ManuallyDrop::new(inner), slot, setting, threads: Mutex::default() });
        owner.inner.belongs_to_table();
        owner.start_threads()?;
        owner.inner.look_at_overhead();
        owner.inner.stat.announce();
        if self.inherit {
            fork::adopt(&owner);
        }
        Ok(Pager { owner })
    }
}

/// A descriptor of this process.
pub fn own_process() -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())
}

impl Inner {
    /// All descriptors are ones of the pager's table from now on.
    fn belongs_to_table(&self) {
        self.uffd.belongs_to(&self.table);
        self.pidfd.belongs_to(&self.table);
        self.swap.belongs_to(&self.table);
    }

    /// Gives the table its keeper, with what is open now in the caller's. What no thread of the program uses is closed there.
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
    pub(super) inner: ManuallyDrop<Arc<Inner>>,
    slot: Option<&'static Slot>,
    setting: Threads,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Which threads a pager has.
#[derive(Debug, Clone, Copy)]
struct Threads {
    reclaim: usize,
    mode: FaultMode,
}

impl Owner {
    /// Starts the pager's threads, in a descriptor table of their own.
    ///
    /// # Errors
    /// [`Error::Os`]; those that run are ended when the owner is dropped.
    pub(super) fn start_threads(&self) -> Result<(), Error> {
        // The threads inherit the mask: signals of the program are for the program's threads.
        let _blocked = signal::Blocked::new();
        let no_table =
            |errno| Error::Os { what: "cannot give the pager's threads a descriptor table of their own", errno };
        self.inner.start_keeper().map_err(no_table)?;
        let (inner, setting) = (Arc::clone(&self.inner), self.setting);
        let started = self.inner.table.run(move || {
            let mut threads = Vec::new();
            let result = start_all(&inner, setting, &mut threads);
            (threads, result)
        });
        let Some((threads, result)) = started else { return Err(no_table(Errno::AGAIN)) };
        lock(&self.threads).extend(threads);
        result
    }

    /// In a forked child: the threads are the parent's. Their handles must not be used, not even to be dropped.
    pub(super) fn forget_threads(&self) {
        std::mem::take(&mut *lock(&self.threads)).into_iter().for_each(std::mem::forget);
        self.inner.table.forget_keeper();
    }
}

/// Starts all threads; those that have started are in `threads`. In the keeper, whose table they get.
fn start_all(inner: &Arc<Inner>, setting: Threads, threads: &mut Vec<JoinHandle<()>>) -> Result<(), Error> {
    for i in 0..setting.reclaim {
        threads.push(start(inner, PAGER_THREAD_NAME, move |inner| reclaim::main(inner, i))?);
    }
    threads.push(start(inner, "farpage-ahead", ahead::main)?);
    if setting.mode == FaultMode::Thread {
        for _ in 0..setting.reclaim {
            threads.push(start(inner, "farpage-fault", thread_mode::main)?);
        }
    }
    Ok(())
}

fn start(inner: &Arc<Inner>, name: &str, f: impl Fn(&Inner) + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let inner = inner.clone();
    let main = move || {
        inner.table.join();
        f(&inner);
        inner.table.leave();
    };
    let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
    let thread = std::thread::Builder::new().name(name.into()).spawn(main);
    let thread = thread.map_err(|e| Error::Os { what: "cannot start a thread", errno: errno(e) })?;
    // It names itself when it first runs. `farpage stat` finds a pager by the name, and may look before that.
    if let Ok(name) = std::ffi::CString::new(name) {
        // SAFETY: the handle is held, so the thread is known to libc; the name is a string that ends with 0.
        let _ = unsafe { libc::pthread_setname_np(thread.as_pthread_t(), name.as_ptr()) };
    }
    Ok(thread)
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.inner.is_here() {
            // A forked child: the addresses and descriptors may be somebody else's by now. So nothing is dropped.
            self.forget_threads();
            return;
        }
        if self.inner.inherit {
            fork::forget_dropped();
        }
        let w = &self.inner.wakeups;
        w.stop.store(true, Ordering::SeqCst);
        for word in [&w.work, &w.help, &self.inner.ahead.word] {
            word.fetch_add(1, Ordering::SeqCst);
            crate::sys::futex::wake_all(word);
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
        if let Some(slot) = self.slot {
            slot.release();
        }
        // SAFETY: nobody uses it after this; self is being dropped.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        let table = inner.table.clone();
        table.end(move || drop(inner));
    }
}
