//! Where a [`Stat`] lies: a memfd, mapped by the process that counts in it. Here the engine's; a pager's is in
//! `region::stat`.
//!
//! A process that may look at this one can open the memfd, also for writing. So it is sealed before it is mapped: no
//! process can make it shorter, which would end the program by SIGBUS where it counts next. A descriptor that comes
//! from elsewhere is mapped only if it is sealed like that.
//!
//! Called by the initialiser, by the engine at its start, and after forks. No lock: one thread does this.

use super::{MAGIC, MEMFD_NAME, STAT_BYTES, Stat};
use farpage_base::sys::raw::Errno;
use farpage_base::sys::thread::without_signal;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

/// The mapping behind a [`Stat`] and its descriptor.
#[derive(Debug)]
pub struct StatPage;

/// Descriptor of the memfd, in the engine's table.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The descriptor came from the launcher and stays open in the program's table, for a program that execs itself.
static FROM_LAUNCHER: AtomicBool = AtomicBool::new(false);
/// The launcher's page's file.
static INODE: AtomicU64 = AtomicU64::new(0);
/// Where counters go if there is no memory for a page of their own: they count, but no other process sees them.
static NOWHERE: [AtomicU64; STAT_BYTES / 8] = [const { AtomicU64::new(0) }; STAT_BYTES / 8];

impl StatPage {
    /// The page that the launcher made for this process, if it made one. By the initialiser.
    pub fn of_launcher() -> Option<&'static Stat> {
        let given = std::env::var(crate::conf::ENV_STAT_FD).ok()?;
        let (fd, pid) = given.split_once(':')?;
        let (fd, pid) = (fd.parse::<RawFd>().ok()?, pid.parse::<u32>().ok()?);
        // SAFETY: only asked what it is, and mapped if it is a page, which does no harm to any owner.
        let page = unsafe { BorrowedFd::borrow_raw(fd) };
        // The program may have closed it before an exec, and the number is another file's by now.
        let stat = if pid == std::process::id() && is_page(page) { map(page) } else { None }?;
        FROM_LAUNCHER.store(true, Relaxed);
        DESCRIPTOR.store(fd, Relaxed);
        INODE.store(inode(fd), Relaxed);
        Some(stat)
    }

    /// The launcher's page's number, if the program has not put something else there. On the engine's first thread.
    pub fn still_there() -> Option<RawFd> {
        let there = StatPage::descriptor().filter(|fd| inode(*fd) == INODE.load(Relaxed));
        if there.is_none() {
            StatPage::forget();
        }
        there
    }

    /// The page of the engine that begins here: the one `given`, else a new one. On its first thread.
    pub fn of_engine(given: Option<&'static Stat>) -> &'static Stat {
        let new = || {
            let fd = new_memfd().ok()?;
            let stat = map(fd.as_fd());
            complete(&fd);
            DESCRIPTOR.store(fd.into_raw_fd(), Relaxed);
            stat
        };
        // SAFETY: as large as a Stat (checked below), zeroed, atomics only.
        let stat = given.or_else(new).unwrap_or(unsafe { &*NOWHERE.as_ptr().cast::<Stat>() });
        StatPage::begin(stat, 0);
        stat
    }

    /// Says which process's page it is.
    pub fn begin(stat: &Stat, budget_bytes: u64) {
        stat.budget_bytes.store(budget_bytes, Relaxed);
        stat.pid.store(u64::from(std::process::id()), Relaxed);
        stat.magic.store(MAGIC, Relaxed);
    }

    /// In a forked child that has no engine yet: the parent's page is not its own.
    pub fn forget() {
        FROM_LAUNCHER.store(false, Relaxed);
        DESCRIPTOR.store(-1, Relaxed);
    }

    /// In a forked child: puts a new page in place of the parent's, at the same address.
    pub fn renew(stat: &'static Stat, budget_bytes: u64) {
        let at = std::ptr::from_ref(stat).cast_mut().cast::<std::ffi::c_void>();
        StatPage::forget();
        let flags = MapFlags::FIXED;
        match new_memfd() {
            Ok(fd) => {
                // SAFETY: replaces the mapping of the same size that holds the parent's page; atomics only, so other
                // content breaks no rule.
                if unsafe { mmap(at, STAT_BYTES, RW, flags | MapFlags::SHARED, &fd, 0) }.is_ok() {
                    complete(&fd);
                    DESCRIPTOR.store(fd.into_raw_fd(), Relaxed);
                }
            }
            Err(_) => {
                // Shared, because private memory is the program's, and would be managed.
                // SAFETY: as above.
                let _ = unsafe { mmap_anonymous(at, STAT_BYTES, RW, flags | MapFlags::SHARED) };
            }
        }
        StatPage::begin(stat, budget_bytes);
    }

    /// The memfd's number, which the engine's table keeps.
    pub fn descriptor() -> Option<RawFd> {
        Some(DESCRIPTOR.load(Relaxed)).filter(|fd| *fd >= 0)
    }
}

/// Number of the file behind a descriptor; 0: none.
fn inode(fd: RawFd) -> u64 {
    // SAFETY: only asked what it is.
    rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).map_or(0, |stat| stat.st_ino)
}

/// Maps the page with this descriptor for good.
fn map(fd: BorrowedFd<'_>) -> Option<&'static Stat> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(std::ptr::null_mut(), STAT_BYTES, RW, MapFlags::SHARED, fd, 0) }.ok()?;
    // SAFETY: mapped for good, zeroed or written by an earlier image of this process; atomics only.
    Some(unsafe { &*at.cast::<Stat>() })
}

/// How a page is mapped by the process that counts in it.
pub const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A page keeps its size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A new page, all zero, whose size is sealed.
///
/// # Errors
/// `FBIG`: the limit on the size of files is lower. Else the kernel gives none.
pub fn new_memfd() -> Result<OwnedFd, Errno> {
    // NOEXEC_SEAL implies that it can be sealed.
    let fd = rustix::fs::memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
    // A limit on the size of files is for these, too: then there is none, but it must not end the process.
    without_signal(libc::SIGXFSZ, || rustix::fs::ftruncate(&fd, STAT_BYTES as u64))?;
    fcntl_add_seals(&fd, SIZE_SEALS)?;
    Ok(fd)
}

/// The page has all mappings that are to write it: no other can be made, and it cannot be sealed further.
pub fn complete(fd: &OwnedFd) {
    // Where it is refused, the page can be changed by a process that may read it, and by no other.
    let _ = fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL);
}

/// Whether a descriptor from elsewhere is a page that may be mapped.
fn is_page(fd: BorrowedFd<'_>) -> bool {
    let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SIZE_SEALS));
    sealed && fstat(fd).is_ok_and(|stat| stat.st_size == STAT_BYTES as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::ftruncate;

    #[test]
    fn a_page_cannot_be_shortened_and_what_can_be_is_none() {
        let page = new_memfd().unwrap();
        assert!(is_page(page.as_fd()));
        assert_eq!(ftruncate(&page, 0), Err(Errno::PERM));
        complete(&page);
        assert_eq!(rustix::io::pwrite(&page, b"x", 0), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&page, SealFlags::WRITE), Err(Errno::PERM));
        let unsealed = rustix::fs::memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, STAT_BYTES as u64).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(STAT_BYTES as u64).unwrap();
        assert!(!is_page(unsealed.as_fd()) && !is_page(file.as_fd()));
        let short = rustix::fs::memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&short, SIZE_SEALS).unwrap();
        assert!(!is_page(short.as_fd()));
    }
}
