//! A pager's statistics page, which `farpage stat` reads from outside: its counters, and levels as of a moment ago.
//!
//! There is one set of counters, the page's: every thread counts there, faults in a signal handler too. Levels, and
//! readahead by region, are published by the thread that looks at the overhead: the first reclaim thread does so at
//! least five times a second ([`PagerCore::update_overhead`]).
//!
//! The page is a memfd, mapped for as long as the pager lives, its descriptor in the pager's table. Only this mapping
//! can write it, and no process can make it shorter. Where the kernel gives no memfd, there are the counters still, but
//! no other process sees them.
//!
//! A forked child has mapping and descriptor too. It neither counts there (the pager is not its own) nor is it taken
//! for the page's owner: that is the process whose number the page has. A child that inherits the pager gets a new page
//! in the same place, and counts from zero.
//!
//! Locks: `descriptor`, a leaf, for the making and the end of a page. `published`, held while `readahead` is read.

use farpage_base::mem::lock::lock;
use farpage_ipc::stat::{MAGIC, RW, STAT_BYTES, Stat, complete, new_memfd};
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Pagers built so far in this process (and, in a forked child, in its parent before).
static BUILT: AtomicU64 = AtomicU64::new(0);

/// See the module documentation.
#[derive(Debug)]
pub struct PagerStat {
    at: NonNull<Stat>,
    descriptor: Mutex<Option<Descriptor>>,
    /// When readahead by region was published last.
    pub(super) published: Mutex<Option<Instant>>,
}

// SAFETY: the page consists of atomics; the mapping stays where it is as long as self lives.
unsafe impl Send for PagerStat {}
// SAFETY: as above.
unsafe impl Sync for PagerStat {}

impl PagerStat {
    /// A new page; one of ordinary memory, which no other process can read, if there is no memfd.
    ///
    /// # Errors
    /// No address space.
    pub fn new() -> Result<PagerStat, Errno> {
        let (at, descriptor) = map(std::ptr::null_mut(), MapFlags::empty())?;
        Ok(PagerStat { at, descriptor: Mutex::new(descriptor), published: Mutex::default() })
    }

    /// Makes the page one that readers take for a pager's of this process.
    pub fn announce(&self) {
        self.pager.store(BUILT.fetch_add(1, Relaxed) + 1, Relaxed);
        self.announce_again();
    }

    /// In a forked child, whose pager has the number that it had in the parent.
    pub fn announce_again(&self) {
        self.pid.store(u64::from(std::process::id()), Relaxed);
        self.magic.store(MAGIC, Relaxed);
    }

    /// The descriptor's number, in the table of the process that made the page.
    pub fn fd(&self) -> Option<RawFd> {
        lock(&self.descriptor).as_ref().map(|descriptor| descriptor.fd)
    }

    /// In a forked child: an empty page in place of the parent's, not announced yet.
    ///
    /// # Errors
    /// The parent's page is still there: nothing must be counted.
    pub fn renew(&self) -> Result<(), Errno> {
        let number = self.pager.load(Relaxed);
        let (_, new) = map(self.at.as_ptr().cast(), MapFlags::FIXED)?;
        self.pager.store(number, Relaxed);
        if let Some(old) = std::mem::replace(&mut *lock(&self.descriptor), new) {
            old.close();
        }
        Ok(())
    }
}

impl Deref for PagerStat {
    type Target = Stat;

    fn deref(&self) -> &Stat {
        // SAFETY: mapped as long as self lives, large enough (checked in `stat`), zeroed; atomics only.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for PagerStat {
    fn drop(&mut self) {
        // SAFETY: made by `new`; there are no references into it when it is dropped.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), STAT_BYTES) };
        if let Some(descriptor) = lock(&self.descriptor).take() {
            descriptor.close();
        }
    }
}

/// Maps an empty page; `at` is the mapping to replace, with [`MapFlags::FIXED`].
fn map(at: *mut c_void, flags: MapFlags) -> Result<(NonNull<Stat>, Option<Descriptor>), Errno> {
    if let Ok(fd) = new_memfd() {
        // SAFETY: a new mapping at an address of the kernel's choice, or in place of one of this module's with the same
        // size: atomics only, so other content breaks no rule.
        if let Ok(at) = unsafe { mmap(at, STAT_BYTES, RW, flags | MapFlags::SHARED, &fd, 0) } {
            complete(&fd);
            return Ok((page_at(at)?, Descriptor::of(fd)));
        }
    }
    // SAFETY: as above.
    let at = unsafe { mmap_anonymous(at, STAT_BYTES, RW, flags | MapFlags::PRIVATE) }?;
    Ok((page_at(at)?, None))
}

fn page_at(at: *mut c_void) -> Result<NonNull<Stat>, Errno> {
    NonNull::new(at.cast()).ok_or(Errno::FAULT) // the kernel chooses no such address
}

/// The memfd's number, and how to tell whether it is still the memfd's.
#[derive(Debug)]
struct Descriptor {
    fd: RawFd,
    file: (u64, u64),
}

impl Descriptor {
    fn of(fd: OwnedFd) -> Option<Descriptor> {
        let stat = rustix::fs::fstat(&fd).ok()?;
        let file = (stat.st_dev, stat.st_ino);
        Some(Descriptor { fd: fd.into_raw_fd(), file })
    }

    /// Closes it, unless the program has: the number may be another file's by now.
    fn close(self) {
        // SAFETY: only asked what it is, which does no harm to any owner.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(self.fd) });
        if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file) {
            // SAFETY: it is this module's memfd, which no other code closes on purpose.
            unsafe { rustix::io::close(self.fd) };
        }
    }
}
