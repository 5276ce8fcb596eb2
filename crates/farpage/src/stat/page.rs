//! Where a [`Stat`] lies: a memfd, mapped by who counts in it. Here the engine's; a pager's is in `region::stat`.
//!
//! Called by the engine at its start and after forks. No lock: one thread does this.

use super::{MAGIC, MEMFD_NAME, STAT_BYTES, Stat};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

/// The mapping behind a [`Stat`] and its descriptor.
#[derive(Debug)]
pub struct StatPage;

/// Descriptor of the memfd: in the engine's table and, until [`StatPage::close_descriptor`], in the program's.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The descriptor came from the launcher and stays open in the program's table, for a program that execs itself.
static FROM_LAUNCHER: AtomicBool = AtomicBool::new(false);
/// Where counters go if there is no memory for a page of their own: they count, but nobody sees them.
static NOWHERE: [AtomicU64; STAT_BYTES / 8] = [const { AtomicU64::new(0) }; STAT_BYTES / 8];

impl StatPage {
    /// The page of this process: the one the launcher made for it, else a new one.
    pub fn of_environment() -> &'static Stat {
        let given = std::env::var(crate::conf::ENV_STAT_FD).ok().and_then(|v| {
            let (fd, pid) = v.split_once(':')?;
            let (fd, pid) = (fd.parse::<RawFd>().ok()?, pid.parse::<u32>().ok()?);
            (pid == std::process::id()).then_some(fd)
        });
        let map = |fd: RawFd| -> Option<&'static Stat> {
            // SAFETY: the descriptor is open: the launcher's word, or just made.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            // SAFETY: a new mapping at an address of the kernel's choice.
            let at = unsafe { mmap(std::ptr::null_mut(), STAT_BYTES, RW, MapFlags::SHARED, borrowed, 0) }.ok()?;
            // SAFETY: mapped for good, zeroed or written by an earlier image of this process; atomics only.
            Some(unsafe { &*at.cast::<Stat>() })
        };
        let stat = match given.and_then(|fd| Some((fd, map(fd)?))) {
            Some((fd, stat)) => {
                FROM_LAUNCHER.store(true, Relaxed);
                DESCRIPTOR.store(fd, Relaxed);
                Some(stat)
            }
            None => new_memfd().and_then(|fd| {
                let raw = fd.into_raw_fd();
                DESCRIPTOR.store(raw, Relaxed);
                map(raw)
            }),
        };
        // SAFETY: as large as a Stat (checked below), zeroed, atomics only.
        let stat = stat.unwrap_or(unsafe { &*NOWHERE.as_ptr().cast::<Stat>() });
        stat.pid.store(u64::from(std::process::id()), Relaxed);
        stat.magic.store(MAGIC, Relaxed);
        stat
    }

    /// In a forked child: puts a new page in place of the parent's, at the same address.
    pub fn renew(stat: &'static Stat, budget_bytes: u64) {
        let at = std::ptr::from_ref(stat).cast_mut().cast::<std::ffi::c_void>();
        FROM_LAUNCHER.store(false, Relaxed);
        DESCRIPTOR.store(-1, Relaxed);
        let flags = MapFlags::FIXED;
        match new_memfd() {
            Some(fd) => {
                // SAFETY: replaces the mapping of the same size that holds the parent's page; atomics only, so other
                // content is no surprise to anybody.
                if unsafe { mmap(at, STAT_BYTES, RW, flags | MapFlags::SHARED, &fd, 0) }.is_ok() {
                    DESCRIPTOR.store(fd.into_raw_fd(), Relaxed);
                }
            }
            None => {
                // SAFETY: as above.
                let _ = unsafe { mmap_anonymous(at, STAT_BYTES, RW, flags | MapFlags::PRIVATE) };
            }
        }
        stat.budget_bytes.store(budget_bytes, Relaxed);
        stat.pid.store(u64::from(std::process::id()), Relaxed);
        stat.magic.store(MAGIC, Relaxed);
    }

    /// The memfd's number, which the engine's table keeps.
    pub fn descriptor() -> Option<RawFd> {
        Some(DESCRIPTOR.load(Relaxed)).filter(|fd| *fd >= 0)
    }

    /// Closes the memfd in the program's table, once the engine has a table of its own.
    pub fn close_descriptor() {
        if let Some(fd) = StatPage::descriptor().filter(|_| !FROM_LAUNCHER.load(Relaxed)) {
            // SAFETY: made by this module; in the program's table nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

/// How a page is mapped by who counts in it.
pub const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A new page, all zero, that can be sealed (as NOEXEC_SEAL implies); `None`: the kernel gives none.
pub fn new_memfd() -> Option<OwnedFd> {
    let fd = rustix::fs::memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL).ok()?;
    rustix::fs::ftruncate(&fd, STAT_BYTES as u64).ok()?;
    Some(fd)
}
