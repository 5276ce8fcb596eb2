//! userfaultfd: open, register, move and copy pages, read messages.
//!
//! The errno of every operation is turned into its meaning here ([`UffdError`]); no raw number leaves this file except
//! inside an error for a human.

use super::fd::Fd;
use super::pagemap::present_runs;
use super::raw::{Errno, ErrnoText, nr, syscall};
use super::table::Table;
use farpage_swap::PAGE_SIZE;
use linux_raw_sys::general as k;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

pub mod given;

const fn iowr(nr: u32, size: usize) -> usize {
    (3 << 30) | (size << 16) | (0xAA << 8) | nr as usize
}
const fn ior(nr: u32, size: usize) -> usize {
    (2 << 30) | (size << 16) | (0xAA << 8) | nr as usize
}

const UFFDIO_API: usize = iowr(0x3f, size_of::<k::uffdio_api>());
const UFFDIO_REGISTER: usize = iowr(0x00, size_of::<k::uffdio_register>());
const UFFDIO_UNREGISTER: usize = ior(0x01, size_of::<k::uffdio_range>());
const UFFDIO_WAKE: usize = ior(0x02, size_of::<k::uffdio_range>());
const UFFDIO_COPY: usize = iowr(0x03, size_of::<k::uffdio_copy>());
const UFFDIO_ZEROPAGE: usize = iowr(0x04, size_of::<k::uffdio_zeropage>());
const UFFDIO_CONTINUE: usize = iowr(0x07, size_of::<k::uffdio_continue>());
const UFFDIO_WRITEPROTECT: usize = iowr(0x06, size_of::<k::uffdio_writeprotect>());
/// Modes of `UFFDIO_COPY`: wake no thread; the new page is write-protected.
const COPY_QUIET: u64 = 1;
const COPY_PROTECTED: u64 = 2;
const UFFDIO_POISON: usize = iowr(0x08, size_of::<k::uffdio_poison>());
const UFFDIO_MOVE: usize = iowr(0x05, size_of::<k::uffdio_move>());
/// `USERFAULTFD_IOC_NEW` on `/dev/userfaultfd`.
const IOC_NEW: usize = 0xAA << 8;

const _: () = assert!(size_of::<k::uffdio_move>() == 40 && size_of::<k::uffdio_copy>() == 40);
const _: () = assert!(size_of::<k::uffd_msg>() == 32);

/// Features for the program's memory. (`EVENT_REMAP` not for the events alone: without it a move can end the
/// registration of a neighbour, `tests/kernel/remap_merge.c`.)
pub const FEATURES: u64 = (k::UFFD_FEATURE_EVENT_REMOVE
    | k::UFFD_FEATURE_EVENT_UNMAP
    | k::UFFD_FEATURE_EVENT_REMAP
    | k::UFFD_FEATURE_THREAD_ID
    | k::UFFD_FEATURE_MOVE) as u64;

/// Features for memory that only the engine changes: without events, so that emptying it does not wait until one is
/// read.
pub const FEATURES_QUIET: u64 = k::UFFD_FEATURE_MOVE as u64;

/// Why the kernel did not move, copy or register.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum UffdError {
    /// A mapping change is under way: read the events, then try again (EAGAIN).
    Retry,
    /// The destination already has a page (EEXIST).
    Present,
    /// No page at the source, or no such registered mapping (ENOENT).
    Absent,
    /// Shared copy-on-write, or pinned (EBUSY).
    Busy,
    /// The two mappings differ in access rights, or one is locked (EINVAL).
    Incompatible,
    /// Anything else: no memory, the process is exiting.
    Other(Errno),
}

impl std::fmt::Debug for UffdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UffdError::Retry => "Retry",
            UffdError::Present => "Present",
            UffdError::Absent => "Absent",
            UffdError::Busy => "Busy",
            UffdError::Incompatible => "Incompatible",
            UffdError::Other(errno) => return write!(f, "{}", ErrnoText(*errno)),
        })
    }
}

impl From<Errno> for UffdError {
    fn from(e: Errno) -> UffdError {
        match e {
            Errno::AGAIN => UffdError::Retry,
            Errno::EXIST => UffdError::Present,
            Errno::NOENT => UffdError::Absent,
            Errno::BUSY => UffdError::Busy,
            Errno::INVAL => UffdError::Incompatible,
            other => UffdError::Other(other),
        }
    }
}

/// What the kernel tells: a thread that waits for a page, or a change of mappings that must be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Thread `tid` waits for the page at `addr` (bytes, page aligned).
    Fault {
        /// Page address.
        addr: usize,
        /// The access was a write.
        write: bool,
        /// Waiting thread.
        tid: u32,
    },
    /// `[start, end)` is about to be emptied: madvise(DONTNEED, FREE).
    Remove {
        /// First byte.
        start: usize,
        /// First byte behind.
        end: usize,
    },
    /// `[start, end)` is not mapped any more (or mapped anew): munmap, brk, mmap over it.
    Unmap {
        /// First byte.
        start: usize,
        /// First byte behind.
        end: usize,
    },
    /// mremap took `len` bytes from `from` to `to`.
    Remap {
        /// Old address.
        from: usize,
        /// New address.
        to: usize,
        /// Bytes.
        len: usize,
    },
}

impl Message {
    /// Bytes from and to where nothing is mapped any more after this change, or something else.
    pub fn left(&self) -> Option<(usize, usize)> {
        match *self {
            Message::Unmap { start, end } => Some((start, end)),
            Message::Remap { from, len, .. } => Some((from, from + len)),
            Message::Fault { .. } | Message::Remove { .. } => None,
        }
    }
}

/// Messages read at once.
pub const MESSAGES_MAX: usize = 40;

/// A userfaultfd that is switched on.
#[derive(Debug)]
pub struct Uffd {
    fd: Fd,
    /// `/proc/self/pagemap`: what is where after a move that was cut short.
    pagemap: Fd,
    /// The userfaultfd of a forked child that was read last, or -1 ([`given`]).
    child: AtomicI32,
}

impl Drop for Uffd {
    fn drop(&mut self) {
        drop(self.take_child());
    }
}

/// Every way that was tried to open a userfaultfd, and how it failed.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenError {
    /// The inherited descriptor of `/dev/userfaultfd`.
    pub inherited: Option<Errno>,
    /// Opening `/dev/userfaultfd`.
    pub device: Option<Errno>,
    /// The system call in full mode.
    pub syscall: Option<Errno>,
    /// It opened, but the kernel lacks a feature: what the engine asks for needs Linux 6.8.
    pub features: Option<Errno>,
}

impl std::error::Error for OpenError {}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(e @ (Errno::PERM | Errno::ACCESS)) = self.features {
            return write!(f, "a userfaultfd opens, but its ioctls are refused (a seccomp filter?): {}", ErrnoText(e));
        }
        if let Some(e) = self.features {
            return write!(
                f,
                "the kernel's userfaultfd lacks a feature (UFFDIO_MOVE needs Linux 6.8): {}",
                ErrnoText(e)
            );
        }
        if let (None, None, Some(e)) = (self.inherited, self.device, self.syscall) {
            // One for user mode only, which only a sandbox refuses.
            return write!(f, "cannot create a userfaultfd: userfaultfd(2) is refused here: {}", ErrnoText(e));
        }
        f.write_str("cannot create a userfaultfd that also serves system calls: tried")?;
        let tried = [
            ("inherited descriptor", self.inherited),
            ("/dev/userfaultfd", self.device),
            ("userfaultfd(2)", self.syscall),
        ];
        let mut sep = " ";
        for (what, e) in tried {
            match e {
                Some(e) => write!(f, "{sep}{what} ({})", ErrnoText(e))?,
                None => write!(f, "{sep}{what} (none)")?,
            }
            sep = ", ";
        }
        Ok(())
    }
}

impl Uffd {
    /// Opens a full-mode userfaultfd for this process, with [`FEATURES`] or [`FEATURES_QUIET`]: through `inherited` (an
    /// open `/dev/userfaultfd`), the device, the system call, in this order. `pagemap` is this process's.
    ///
    /// # Errors
    /// All attempts with their errno.
    pub fn open(inherited: Option<BorrowedFd<'_>>, features: u64, pagemap: OwnedFd) -> Result<Uffd, OpenError> {
        use rustix::fs::{Mode, OFlags, open};
        let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as usize;
        let mut error = OpenError::default();
        let from_device = |fd: BorrowedFd<'_>| {
            // SAFETY: the ioctl creates a descriptor and touches no memory; on any other kind of descriptor it fails.
            unsafe { syscall(nr::IOCTL, [fd.as_raw_fd() as usize, IOC_NEW, flags, 0, 0, 0]) }
        };
        let mut raw = None;
        if let Some(fd) = inherited {
            raw = from_device(fd).map_err(|e| error.inherited = Some(e)).ok();
        }
        if raw.is_none() {
            raw = open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                .and_then(|fd| from_device(fd.as_fd()))
                .map_err(|e| error.device = Some(e))
                .ok();
        }
        if raw.is_none() {
            // SAFETY: creates a descriptor, touches no memory.
            raw = unsafe { syscall(nr::USERFAULTFD, [flags, 0, 0, 0, 0, 0]) }.map_err(|e| error.syscall = Some(e)).ok();
        }
        let Some(raw) = raw else { return Err(error) };
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(raw as RawFd) };
        let uffd = Uffd::of(fd, pagemap);
        let mut api = k::uffdio_api { api: k::UFFD_API as u64, features, ioctls: 0 };
        // SAFETY: api is a live uffdio_api.
        match unsafe { uffd.ioctl(UFFDIO_API, &mut api) } {
            Ok(()) => Ok(uffd),
            Err(e) => Err(OpenError { features: Some(e), ..error }),
        }
    }

    /// Opens a userfaultfd whose faults are signals (SIGBUS) to the thread that has them. Works without privilege:
    /// faults of system calls fail with EFAULT.
    ///
    /// # Errors
    /// The errno of the system call, or the feature that the kernel lacks.
    pub fn open_signal(pagemap: OwnedFd) -> Result<Uffd, OpenError> {
        use rustix::fs::OFlags;
        let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as usize | k::UFFD_USER_MODE_ONLY as usize;
        // SAFETY: creates a descriptor, touches no memory.
        let raw = unsafe { syscall(nr::USERFAULTFD, [flags, 0, 0, 0, 0, 0]) }
            .map_err(|e| OpenError { syscall: Some(e), ..OpenError::default() })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(raw as RawFd) };
        let uffd = Uffd::of(fd, pagemap);
        let features = (k::UFFD_FEATURE_SIGBUS | k::UFFD_FEATURE_MOVE) as u64;
        let mut api = k::uffdio_api { api: k::UFFD_API as u64, features, ioctls: 0 };
        // SAFETY: api is a live uffdio_api.
        match unsafe { uffd.ioctl(UFFDIO_API, &mut api) } {
            Ok(()) => Ok(uffd),
            Err(e) => Err(OpenError { features: Some(e), ..OpenError::default() }),
        }
    }

    fn of(fd: OwnedFd, pagemap: OwnedFd) -> Uffd {
        Uffd { fd: Fd::new(fd), pagemap: Fd::new(pagemap), child: AtomicI32::new(-1) }
    }

    /// The process's pagemap.
    pub fn pagemap(&self) -> &Fd {
        &self.pagemap
    }

    /// From now on its descriptors are ones of this table.
    pub fn set_fd_table(&self, table: &Arc<Table>) {
        self.fd.set_fd_table(table);
        self.pagemap.set_fd_table(table);
    }

    /// The numbers of its descriptors.
    pub fn fds(&self) -> [RawFd; 2] {
        [&self.fd, &self.pagemap].map(|fd| fd.raw().unwrap_or(-1))
    }

    /// In a forked child: becomes `new`. The old numbers, which name the parent's address space, are not closed.
    pub fn exchange(&self, new: Uffd) {
        for (old, new) in [(&self.fd, &new.fd), (&self.pagemap, &new.pagemap)] {
            old.exchange_for(new);
        }
    }

    /// # Safety
    /// `T` must be the structure of the request `op`, and the effect of the request must be sound for the caller.
    unsafe fn ioctl<T>(&self, op: usize, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: the descriptor is a userfaultfd and arg the structure of op (caller's promise).
        unsafe { self.fd.call(nr::IOCTL, [op, std::ptr::from_mut(arg) as usize, 0, 0, 0]) }.map(drop)
    }

    /// Registers `[start, start + len)` for missing-page faults.
    ///
    /// # Errors
    /// `Busy`: another userfaultfd has it. `Incompatible`: not anonymous memory, or nothing mapped.
    pub fn register(&self, start: usize, len: usize) -> Result<(), UffdError> {
        let mut arg = k::uffdio_register {
            range: k::uffdio_range { start: start as u64, len: len as u64 },
            mode: k::UFFDIO_REGISTER_MODE_MISSING as u64,
            ioctls: 0,
        };
        // SAFETY: registering changes how absent pages are served from now on, not the content of present ones.
        Ok(unsafe { self.ioctl(UFFDIO_REGISTER, &mut arg) }?)
    }

    /// Registers `[start, start + len)` for missing pages and for writes to write-protected ones.
    ///
    /// # Errors
    /// As [`Uffd::register`].
    pub fn register_protectable(&self, start: usize, len: usize) -> Result<(), UffdError> {
        let mode = k::UFFDIO_REGISTER_MODE_MISSING | k::UFFDIO_REGISTER_MODE_WP;
        let range = k::uffdio_range { start: start as u64, len: len as u64 };
        let mut arg = k::uffdio_register { range, mode: mode as u64, ioctls: 0 };
        // SAFETY: as for register.
        Ok(unsafe { self.ioctl(UFFDIO_REGISTER, &mut arg) }?)
    }

    /// Write-protects the present pages of `[start, start + len)`, or ends that. One flush of other CPUs' translations
    /// for the whole range. Wakes no thread.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), UffdError> {
        let range = k::uffdio_range { start: start as u64, len: len as u64 };
        // Protect; or: do not wake.
        let mut arg = k::uffdio_writeprotect { range, mode: if on { 1 } else { 2 } };
        // SAFETY: changes whether a write is reported, not what is in memory.
        Ok(unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut arg) }?)
    }

    /// Undoes [`Uffd::register`]; absent pages read as zero from then on.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), UffdError> {
        let mut arg = k::uffdio_range { start: start as u64, len: len as u64 };
        // SAFETY: as for register.
        Ok(unsafe { self.ioctl(UFFDIO_UNREGISTER, &mut arg) }?)
    }

    /// Moves `len` bytes of pages from `src` to `dst`, where no pages are, and wakes the threads that wait for `dst`
    /// (unless `quiet`: then [`Uffd::wake`] is to be called). Returns the bytes moved, and why it stopped if that is
    /// less than `len`.
    ///
    /// The kernel's own count may be too low. Since Linux 6.18 (`move_pages` in mm/userfaultfd.c, when it began to move
    /// several pages at a time) a page table entry that changes under its eyes, for instance because reclaim, DAMON or
    /// `clear_refs` resets its accessed bit, makes it try again, but the old error stays: pages that are then moved are
    /// not counted, it finds them at the destination, and says EEXIST. Measured: 2 of 600 000 moves with another thread
    /// writing `clear_refs`. So what a short count leaves open is looked up.
    ///
    /// # Safety
    /// `dst` and `src` are page aligned; no Rust reference points into either range. No other thread fills or empties
    /// one of the two ranges (it is the caller's, as frames are).
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>) {
        let mut arg =
            k::uffdio_move { dst: dst as u64, src: src as u64, len: len as u64, mode: u64::from(quiet), move_: 0 };
        // SAFETY: the kernel moves pages only where none is, atomically against all other threads; no reference points
        // into the ranges (caller's promise).
        let result = unsafe { self.ioctl(UFFDIO_MOVE, &mut arg) };
        let (moved, result) = progress(result, arg.move_, len);
        if result.is_ok() {
            return (moved, result);
        }
        let more = moved_uncounted(&self.pagemap, dst + moved, src + moved, len - moved);
        if more > 0 && !quiet {
            self.wake(dst + moved, more);
        }
        (moved + more, if moved + more == len { Ok(()) } else { result })
    }

    /// Copies `len` bytes of pages from `src` into new pages at `dst`, where none are, and wakes the threads that wait
    /// for `dst` (unless `quiet`). Returns the bytes copied, and why it stopped if that is less than `len`.
    ///
    /// # Safety
    /// As [`Uffd::move_pages`]; `src` is readable and not managed memory.
    pub unsafe fn copy_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>) {
        // SAFETY: caller's promise.
        unsafe { self.copy(dst, src, len, if quiet { COPY_QUIET } else { 0 }) }
    }

    /// As [`Uffd::copy_pages`]; the new pages are write-protected from the start; wakes no thread.
    ///
    /// # Safety
    /// As there; `dst` is registered for write protection.
    pub unsafe fn copy_pages_protected(&self, dst: usize, src: usize, len: usize) -> (usize, Result<(), UffdError>) {
        // SAFETY: caller's promise.
        unsafe { self.copy(dst, src, len, COPY_QUIET | COPY_PROTECTED) }
    }

    /// # Safety
    /// As [`Uffd::copy_pages`]; [`COPY_PROTECTED`]: `dst` is registered for write protection.
    unsafe fn copy(&self, dst: usize, src: usize, len: usize, mode: u64) -> (usize, Result<(), UffdError>) {
        let mut arg = k::uffdio_copy { dst: dst as u64, src: src as u64, len: len as u64, mode, copy: 0 };
        // SAFETY: the kernel fills only absent pages; no reference points into dst (caller's promise).
        let result = unsafe { self.ioctl(UFFDIO_COPY, &mut arg) };
        progress(result, arg.copy, len)
    }

    /// Makes the absent page at `page` one that cannot be read: every access to it is a SIGBUS, a system call on it
    /// fails with EFAULT, until it is discarded or unmapped. Wakes the threads that wait for it (unless `quiet`).
    ///
    /// # Errors
    /// As [`Uffd::copy_pages`]; `Incompatible`: a kernel before 6.6.
    pub fn poison(&self, page: usize, quiet: bool) -> Result<(), UffdError> {
        let range = k::uffdio_range { start: page as u64, len: PAGE_SIZE as u64 };
        let mut arg = k::uffdio_poison { range, mode: u64::from(quiet), updated: 0 };
        // SAFETY: only an absent page is changed, to one that cannot be read; no reference points to either.
        Ok(unsafe { self.ioctl(UFFDIO_POISON, &mut arg) }?)
    }

    /// Wakes the threads that wait for a page in `[start, start + len)`; they fault again if it is still absent.
    pub fn wake(&self, start: usize, len: usize) {
        let mut arg = k::uffdio_range { start: start as u64, len: len as u64 };
        // SAFETY: wakes threads, touches no memory. It fails only for a malformed range.
        let _ = unsafe { self.ioctl(UFFDIO_WAKE, &mut arg) };
    }

    /// Whether a change of mappings is under way whose event has not been read, or whose thread has not yet noticed
    /// that it was read. The kernel checks this before anything else in a request, so an empty one asks just that.
    pub fn is_changing(&self, page: usize) -> bool {
        let range = k::uffdio_range { start: page as u64, len: 0 };
        let mut arg = k::uffdio_zeropage { range, mode: 0, zeropage: 0 };
        // SAFETY: an empty range fills nothing.
        matches!(unsafe { self.ioctl(UFFDIO_ZEROPAGE, &mut arg) }, Err(Errno::AGAIN))
    }

    /// Whether the anonymous memory at `page` is registered (by any userfaultfd); `None`: as [`Uffd::is_changing`].
    /// What is asked for here is for shared memory only, and the kernel says so of memory that is registered.
    pub fn is_registered(&self, page: usize) -> Option<bool> {
        let range = k::uffdio_range { start: page as u64, len: PAGE_SIZE as u64 };
        let mut arg = k::uffdio_continue { range, mode: 0, mapped: 0 };
        // SAFETY: anonymous memory is not changed by this.
        match unsafe { self.ioctl(UFFDIO_CONTINUE, &mut arg) } {
            Err(Errno::AGAIN) => None,
            result => Some(result != Err(Errno::NOENT)),
        }
    }

    /// Reads up to `out.len()` (at most [`MESSAGES_MAX`]) messages without waiting; 0 when there are none.
    ///
    /// # Errors
    /// Unexpected errno of read.
    pub fn read(&self, out: &mut [Message]) -> Result<usize, Errno> {
        let want = out.len().min(MESSAGES_MAX);
        let mut raw = [const { std::mem::MaybeUninit::<k::uffd_msg>::uninit() }; MESSAGES_MAX];
        let size = size_of::<k::uffd_msg>();
        // SAFETY: viewing uninitialised messages as uninitialised bytes of the same extent.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(raw.as_mut_ptr().cast::<std::mem::MaybeUninit<u8>>(), want * size)
        };
        let n = match rustix::io::read(self.fd.borrow()?, bytes) {
            Ok((init, _)) => init.len() / size,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(e) => return Err(e),
        };
        let mut count = 0;
        for msg in &raw[..n] {
            // SAFETY: the kernel filled the first n messages.
            let msg = unsafe { msg.assume_init_ref() };
            if msg.event as u32 == k::UFFD_EVENT_FORK {
                // SAFETY: the member that belongs to this event; a new descriptor of the calling thread's table.
                let child = unsafe { OwnedFd::from_raw_fd(msg.arg.fork.ufd as RawFd) };
                drop(self.take_child());
                self.child.store(child.into_raw_fd(), Relaxed);
                continue;
            }
            // SAFETY: the event says which member of the union the kernel wrote.
            let decoded = unsafe { decode(msg) };
            if let Some(m) = decoded {
                out[count] = m;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Bytes from the start of both ranges whose pages are at `dst` and no longer at `src`: moved, whatever the kernel
/// reported. A page that the kernel has swapped out is where its entry is (`mincore` would call it absent).
fn moved_uncounted(pagemap: &Fd, dst: usize, src: usize, len: usize) -> usize {
    let mut there = 0;
    let mut all = |start, end| {
        let next = start == dst + there;
        there += if next { end - start } else { 0 };
        next
    };
    if present_runs(pagemap, dst, dst + len, &mut all).is_err() {
        return 0;
    }
    let mut here = there;
    let mut first = |start, _| {
        here = start - src;
        false
    };
    match present_runs(pagemap, src, src + there, &mut first) {
        Ok(()) => here,
        Err(_) => 0,
    }
}

impl Uffd {
    /// For a thread that has its table, to wait for messages.
    ///
    /// # Errors
    /// It is gone.
    pub fn borrow(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.fd.borrow()
    }
}

/// # Safety
/// The union member that belongs to `msg.event` must be initialised.
unsafe fn decode(msg: &k::uffd_msg) -> Option<Message> {
    // SAFETY: caller's promise; all members are plain integers.
    unsafe {
        Some(match msg.event as u32 {
            k::UFFD_EVENT_PAGEFAULT => {
                let p = msg.arg.pagefault;
                Message::Fault {
                    addr: p.address as usize & !(farpage_swap::PAGE_SIZE - 1),
                    write: p.flags & k::UFFD_PAGEFAULT_FLAG_WRITE as u64 != 0,
                    tid: p.feat.ptid,
                }
            }
            k::UFFD_EVENT_REMOVE => {
                Message::Remove { start: msg.arg.remove.start as usize, end: msg.arg.remove.end as usize }
            }
            k::UFFD_EVENT_UNMAP => {
                Message::Unmap { start: msg.arg.remove.start as usize, end: msg.arg.remove.end as usize }
            }
            k::UFFD_EVENT_REMAP => {
                let r = msg.arg.remap;
                Message::Remap { from: r.from as usize, to: r.to as usize, len: r.len as usize }
            }
            _ => return None,
        })
    }
}

fn progress(result: Result<(), Errno>, done: i64, len: usize) -> (usize, Result<(), UffdError>) {
    match result {
        Ok(()) => (len, Ok(())),
        // Partial progress is reported as EAGAIN with a positive count; what stopped it shows at the next call.
        Err(_) if done > 0 => (done as usize, Err(UffdError::Retry)),
        Err(_) if done < 0 && done > -4096 => (0, Err(UffdError::from(Errno::from_raw_os_error(-done as i32)))),
        Err(e) => (0, Err(UffdError::from(e))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    #[test]
    fn what_the_kernel_moved_without_counting_is_found() {
        let map = || {
            let (len, rw) = (100 * PAGE_SIZE, ProtFlags::READ | ProtFlags::WRITE);
            // SAFETY: a new private mapping, never unmapped.
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, rw, MapFlags::PRIVATE) }.unwrap() as usize
        };
        let pagemap = Fd::new(super::super::pagemap::own().unwrap());
        let (dst, src) = (map(), map());
        // SAFETY: inside the mappings.
        let touch = |base: usize, page: usize| unsafe { ((base + page * PAGE_SIZE) as *mut u8).write(1) };
        (0..80).for_each(|page| touch(dst, page));
        (70..100).for_each(|page| touch(src, page));
        let pages = |from: usize, n: usize| {
            moved_uncounted(&pagemap, dst + from * PAGE_SIZE, src + from * PAGE_SIZE, n * PAGE_SIZE) / PAGE_SIZE
        };
        assert_eq!(pages(0, 100), 70, "up to a page that is still at its source");
        assert_eq!(pages(3, 5), 5);
        // A destination that was there before, a source that is gone, both gone.
        assert_eq!((pages(70, 5), pages(85, 5)), (0, 0));
        let nothing = (map(), map());
        assert_eq!(moved_uncounted(&pagemap, nothing.0, nothing.1, 9 * PAGE_SIZE), 0);
    }
}
