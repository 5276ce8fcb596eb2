//! Building a pager.
//!
//! Caller: the program, any thread. No other thread has the pager yet; the lock of [`super::owner`]'s family is taken
//! at the end.

use super::error::{BUDGET_MAX, BUDGET_MIN, Error};
use super::gate::Gate;
use super::handle::Pager;
use super::lists::PageLists;
use super::owner::{self, FaultMode, Owner, Threads, own_process};
use super::pager_core::{PagerCore, RECLAIMERS_MAX, ReclaimWakeups};
use super::prefetch::posts::PrefetchPosts;
use super::readahead::RegionReadahead;
use super::registry::RegistryEntry;
use super::space::{OwnMapping, Space};
use super::stat::PagerStat;
use super::{blocked_threads, division, fork, signal, syscalls};
use farpage_base::mem::frame::Frames;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::message::begin_messages;
use farpage_base::sys::pagemap;
use farpage_base::sys::uffd::{FEATURES_QUIET, Uffd};
use farpage_codec::page_hash::ContentKey;
use farpage_device::frame_entries::FrameEntries;
use farpage_device::leases::Leases;
use farpage_device::space::build::{check_memory, memory_most, resolve};
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{DeviceKind, SwapSpec};
use farpage_server::nbd::space::leave_at_exit;
use farpage_swap::PAGE_SIZE;
use farpage_swap::clean_slots::CleanSlotPolicy;
use farpage_swap::pool_share::LoadTimes;
use farpage_swap::readahead::{BUDGET_PART, Streams, Tuning};
use farpage_swap::tuning::{Controls, Pins};
use farpage_syscalls::sigbus;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

/// Frames at least: moves, swap cache and store need some at any budget.
const FRAMES_MIN: usize = 1024;

/// Entries that wait to be freed by reclaim, at most.
const TO_FREE: usize = 4096;

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
    verify: bool,
    system_calls: bool,
}

impl Pager {
    /// How the pager shall be.
    pub fn builder() -> Builder {
        Builder::default()
    }
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
            verify: false,
            system_calls: false,
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

    /// Which thread serves faults; default: the one that has them.
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
    #[doc(hidden)]
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
    /// If so, the child gets a copy, as of all other memory: what it writes the parent does not see, and it has a
    /// budget of its own of the same size. Only for children of `fork` in libc, and not in [`FaultMode::Thread`].
    ///
    /// During the fork other threads that touch a region wait. So the forking process stops for ever if a fork handler
    /// (`pthread_atfork`) that was there before the first pager waits for a lock whose holder touches a region.
    pub fn inherit(mut self, inherit: bool) -> Builder {
        self.inherit = inherit;
        self
    }

    /// Whether the bytes that come back are compared with those that left, by a checksum of each page; a difference
    /// ends the process with a message. Costs some hundred nanoseconds a page. Default: no; pages that come from a file
    /// are compared in any case, and one that differs cannot be read.
    pub fn verify(mut self, verify: bool) -> Builder {
        self.verify = verify;
        self
    }

    /// Whether the system calls of libc work on region memory that is not present, as on all other memory: libc's text
    /// is changed in this process, once, so that its calls are looked at before the kernel sees them
    /// (`farpage_syscalls`). A call that is not about a region takes some nanoseconds more. And SIGBUS stays open in
    /// all threads, its handler the pagers', whatever the program does by libc. Default: no. In [`FaultMode::Thread`]
    /// calls work in any case.
    ///
    /// Not for what a device does after the call has returned (O_DIRECT with asynchronous I/O, io_uring, MSG_ZEROCOPY,
    /// vmsplice): that needs a [`Pin`](super::Pin).
    pub fn system_calls(mut self, work: bool) -> Builder {
        self.system_calls = work;
        self
    }

    /// Builds the pager and starts its threads.
    ///
    /// # Errors
    /// [`Error::Budget`], [`Error::Userfaultfd`], [`Error::Device`], [`Error::TooManyPagers`], [`Error::SystemCalls`],
    /// or the kernel's.
    pub fn build(mut self) -> Result<Pager, Error> {
        begin_messages(false, |_| {});
        if !(BUDGET_MIN..=BUDGET_MAX).contains(&self.budget) {
            return Err(Error::Budget(self.budget));
        }
        if self.inherit && self.mode == FaultMode::Thread {
            return Err(Error::InheritThread);
        }
        check_memory(&self.swap, self.budget)?;
        self.swap.iter_mut().try_for_each(|spec| resolve(spec, None))?;
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
            OwnMapping::new(frames_len, ProtFlags::READ | ProtFlags::WRITE).map_err(os("cannot reserve frames"))?;
        let keep = |memory: &OwnMapping| if self.inherit { Ok(()) } else { memory.not_in_children() };
        keep(&frame_memory).map_err(os("cannot reserve frames"))?;
        uffd.register(frame_memory.0.base, frames_len)
            .map_err(|_| Error::Os { what: "cannot register frames", errno: Errno::NOMEM })?;
        // The budget may grow; what is not used of this costs nothing.
        let pool_len = (self.budget as usize * 4).max(256 << 20);
        let pool_memory =
            OwnMapping::new(pool_len, ProtFlags::empty()).map_err(os("cannot reserve the compressed pool"))?;
        keep(&pool_memory).map_err(os("cannot reserve the compressed pool"))?;
        let base = pool_memory.0.base as *mut u8;
        // SAFETY: the mapping is for the pool only and is dropped after the devices (order of PagerCore's fields).
        let swap = unsafe { SwapSpace::build(&self.swap, base, pool_len, memory_most(self.budget)) }?;
        if self.swap.iter().any(|spec| matches!(spec.kind, DeviceKind::Nbd(_))) {
            leave_at_exit();
        }
        swap.check_connections()?;
        swap.begin_division(self.budget);
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
        let readahead = RegionReadahead::new(self.readahead, (pages as u64 / BUDGET_PART) as u32, rotational);
        let lists = PageLists::new(self.mode == FaultMode::Signal, pages);
        let core = Arc::new(PagerCore {
            space,
            uffd,
            frame_entries: FrameEntries::new(frames.len()),
            frames,
            frame_memory,
            lists,
            readahead,
            zero_streams: Mutex::new(Streams::new()),
            swap,
            pool_memory,
            key,
            prefetch_posts: PrefetchPosts::default(),
            to_free: Mutex::new(Vec::with_capacity(TO_FREE)),
            slot_hand: AtomicU32::new(0),
            clean: CleanSlotPolicy::default(),
            controls: Controls::new(Pins::default()),
            share: Mutex::new(division::new_share(self.budget)),
            load_times: LoadTimes::default(),
            protecting: RwLock::new(()),
            gone_at_wp_sweep: AtomicU64::new(u64::MAX),
            scanned_in_vain: AtomicU64::new(0),
            discarded_under_us: AtomicU64::new(0),
            wp_sweeps: self.mode == FaultMode::Signal,
            pidfd: Fd::new(pidfd),
            table: Arc::default(),
            reclaimers: Default::default(),
            stat: PagerStat::new().map_err(os("cannot reserve address space"))?,
            wp_sweeps_done: AtomicU64::new(0),
            wakeups: ReclaimWakeups::default(),
            pid: AtomicU32::new(std::process::id()),
            inherit: self.inherit,
            verify: self.verify,
            faults: Gate::default(),
            workers: Gate::default(),
            leases: Leases::new(),
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
            if self.system_calls {
                syscalls::install()?;
            }
            // After that, so that no thread blocks it anew; then handlers and threads that do.
            sigbus::unblock_in_handlers();
            blocked_threads::unblock();
        }
        let entry = match self.mode {
            FaultMode::Signal => Some(RegistryEntry::take(Arc::as_ptr(&core)).ok_or(Error::TooManyPagers)?),
            FaultMode::Thread => None,
        };
        if entry.is_some() && self.system_calls {
            syscalls::cover(&core);
        }
        fork::follow_forks();
        let setting = Threads { reclaim: self.threads, mode: self.mode };
        let owner = Arc::new(Owner::new(core, entry, setting));
        owner.core.set_fd_table();
        owner.start_threads()?;
        owner.core.update_overhead();
        owner.core.stat.announce();
        if self.inherit {
            owner::adopt(&owner);
        }
        Ok(Pager::of(owner))
    }
}
