//! How a file device fares: what it has done, what went wrong, and what is to be said of it.
//!
//! Callers: the device's other parts. Locks: `warning`, a leaf.

use crate::{LoadError, StoreError, Usage};
use farpage_base::sys::mutex::Mutex;
use farpage_base::sys::raw::ErrnoText;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

/// After this many failed batches of writes in a row the device takes no more pages.
pub const WRITE_ERRORS_MAX: u32 = 16;
/// After this many failed reads in a row too: so many pages, each tried three times.
const READ_ERRORS_MAX: u32 = 3 * 16;

/// Something the user should know. Made into words where it is said: a read may fail in a signal handler, which must
/// not allocate.
pub enum Warning {
    /// It can be used, but is not what one would expect.
    Odd(String),
    /// What went wrong, for good.
    Failed(&'static str, Errno),
    /// Why it must not be used any longer.
    Unfit(&'static str),
    /// Second copies are not kept, and why.
    NoCopy(&'static str, Errno),
}

/// Pages that were transferred. In a cache line of its own: each transfer writes here.
#[derive(Default)]
#[repr(align(64))]
struct Transfers {
    read: AtomicU64,
    written: AtomicU64,
}

/// See the module header.
#[derive(Default)]
pub struct FileHealth {
    full: AtomicBool,
    failed: AtomicBool,
    /// Second copies could not be written.
    mirror_failed: AtomicBool,
    /// Monotonic second before which free disk space is not looked at again.
    retry_second: AtomicI64,
    warning: Mutex<Option<Warning>>,
    /// Pages read and written so far, apart from what all readers look at.
    transfers: Transfers,
    write_errors: AtomicU64,
    read_errors: AtomicU64,
    bad_frees: AtomicU64,
    /// Failures since the last success.
    writes_failed: AtomicU32,
    reads_failed: AtomicU32,
    /// Slots given back to what is below.
    discarded: AtomicU64,
}

impl FileHealth {
    /// There was no room at the last try.
    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Whether room may be looked for again.
    pub fn may_look(&self) -> bool {
        self.retry_second.load(Relaxed) <= now_second()
    }

    /// There is none for now, and it is not looked for before the next second.
    pub fn look_later(&self) {
        self.retry_second.store(now_second() + 1, Relaxed);
    }

    pub fn no_room(&self) -> StoreError {
        self.full.store(true, Relaxed);
        StoreError::Full
    }

    /// Something was freed.
    pub fn has_room(&self) {
        if self.is_full() {
            self.full.store(false, Relaxed);
        }
    }

    /// The device takes no more pages from now on; a server's link says why.
    pub fn gave_up(&self) {
        self.failed.store(true, Relaxed);
    }

    /// The device takes no more pages from now on, and says so once.
    pub fn fail(&self, what: &'static str, errno: Errno) -> StoreError {
        self.fail_with(Warning::Failed(what, errno));
        StoreError::Failed
    }

    /// The same with other words.
    pub fn fail_with(&self, warning: Warning) {
        if !self.failed.swap(true, Relaxed) {
            *self.warning.lock() = Some(warning);
        }
    }

    /// It can be used, but.
    pub fn warn(&self, warning: Option<String>) {
        *self.warning.lock() = warning.map(Warning::Odd);
    }

    /// Some pages are on the server only, which is said once.
    pub fn no_copies(&self, what: &'static str, errno: Errno) {
        if !self.mirror_failed.swap(true, Relaxed) {
            self.warning.lock().get_or_insert(Warning::NoCopy(what, errno));
        }
    }

    /// A page was read; whether it is the right one.
    pub fn read(&self, right: bool) {
        self.transfers.read.fetch_add(1, Relaxed);
        // Mostly it is zero, and its line stays with all that read.
        if right && self.reads_failed.load(Relaxed) != 0 {
            self.reads_failed.store(0, Relaxed);
        }
    }

    /// Counts what keeps failing.
    pub fn read_failed(&self, error: LoadError) -> LoadError {
        self.read_errors.fetch_add(1, Relaxed);
        if self.reads_failed.fetch_add(1, Relaxed) + 1 >= READ_ERRORS_MAX {
            self.fail("reads keep failing", if let LoadError::Io { errno, .. } = error { errno } else { Errno::IO });
        }
        error
    }

    pub fn write_failed(&self, errno: Errno) -> StoreError {
        self.write_errors.fetch_add(1, Relaxed);
        StoreError::Io(errno)
    }

    /// A batch was written, as far as that. It is one failure at most: it may be over before the next.
    pub fn wrote(&self, pages: u64, result: Result<(), StoreError>) {
        self.transfers.written.fetch_add(pages, Relaxed);
        if pages > 0 {
            self.writes_failed.store(0, Relaxed);
        } else if let Err(StoreError::Io(errno)) = result
            && errno != Errno::TIMEDOUT
            && self.writes_failed.fetch_add(1, Relaxed) + 1 >= WRITE_ERRORS_MAX
        {
            self.fail("writes keep failing", errno);
        }
    }

    pub fn bad_free(&self) {
        self.bad_frees.fetch_add(1, Relaxed);
    }

    pub fn discarded(&self, slots: u64) {
        self.discarded.fetch_add(slots, Relaxed);
    }

    pub fn add_usage(&self, usage: &mut Usage) {
        usage.discarded_bytes += self.discarded.load(Relaxed) * PAGE_SIZE as u64;
        usage.file_read_bytes += self.transfers.read.load(Relaxed) * PAGE_SIZE as u64;
        usage.file_write_bytes += self.transfers.written.load(Relaxed) * PAGE_SIZE as u64;
        usage.devices_full += u32::from(self.is_full());
        usage.devices_failed += u32::from(self.has_failed());
        usage.write_errors += self.write_errors.load(Relaxed);
        usage.read_errors += self.read_errors.load(Relaxed);
        usage.bad_frees += self.bad_frees.load(Relaxed);
    }

    /// In a forked child. Its counters begin at zero, and these go into them.
    ///
    /// # Safety
    /// It has one thread, which has no guard.
    pub unsafe fn fork_child(&self) {
        // SAFETY: caller's promise; the parent's pager may have left a warning behind.
        unsafe { self.warning.free_in_child() };
        for flag in [&self.full, &self.failed] {
            flag.store(false, Relaxed);
        }
        self.retry_second.store(0, Relaxed);
        self.writes_failed.store(0, Relaxed);
        self.reads_failed.store(0, Relaxed);
        self.transfers.read.store(0, Relaxed);
        self.transfers.written.store(0, Relaxed);
    }

    /// What is to be said of the device of this name, once.
    pub fn take_warning(&self, name: &str) -> Option<String> {
        let then = "it takes no more pages, and those on it go to other devices";
        Some(match self.warning.lock().take()? {
            Warning::Odd(text) => text,
            Warning::Failed(what, errno) => format!("swap device {name:?}: {what}: {}; {then}", ErrnoText(errno)),
            Warning::NoCopy(what, errno) => {
                format!("swap device {name:?}: {what}: {}; some pages are on the server only", ErrnoText(errno))
            }
            Warning::Unfit(why) => format!("swap device {name:?}: {why}; {then}"),
        })
    }
}

/// Seconds of the monotonic clock.
fn now_second() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec
}
