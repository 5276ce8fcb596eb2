//! Userfaultfds of a process whose user may have none that serve the kernel's faults, too: root has made two for its
//! memory, and of each the kernel makes another one for the memory of every forked child (`UFFD_FEATURE_EVENT_FORK`).
//! The process cannot make any.
//!
//! The thread that reads the message of a fork gets the child's; until then the fork waits. Callers: `farpage attach`,
//! as root; `farpage_run::shared::given_uffds`. No locks.

use super::{COPY_QUIET, FEATURES, FEATURES_QUIET, UFFDIO_API, UFFDIO_COPY, UFFDIO_UNREGISTER, Uffd};
use crate::sys::fd::Fd;
use crate::sys::pagemap::present_runs;
use crate::sys::raw::{Errno, nr, syscall};
use farpage_swap::PAGE_SIZE;
use linux_raw_sys::general as k;

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, readlinkat_raw};
use std::sync::atomic::Ordering::Relaxed;

/// What they are for: the program's memory, and memory of the engine.
pub const KINDS: usize = 2;

/// Whether the calling thread's table has a userfaultfd under this number.
pub fn is_userfaultfd(number: RawFd) -> bool {
    let mut name = [0u8; 32];
    let read = readlinkat_raw(CWD, format!("/proc/thread-self/fd/{number}"), &mut name[..]);
    read.is_ok_and(|len| name.starts_with(b"anon_inode:[userfaultfd]") && len == 24)
}

/// Switches on a userfaultfd that another process has made, as that one's. Only root may.
///
/// # Errors
/// `PERM`: without `CAP_SYS_PTRACE`. `INVAL`: it is something else. What the kernel lacks.
pub fn switch_on(fd: BorrowedFd<'_>, kind: usize) -> Result<(), Errno> {
    if !is_userfaultfd(fd.as_raw_fd()) {
        return Err(Errno::INVAL);
    }
    let features = [FEATURES, FEATURES_QUIET][kind] | k::UFFD_FEATURE_EVENT_FORK as u64;
    let mut api = k::uffdio_api { api: k::UFFD_API as u64, features, ioctls: 0 };
    let args = [fd.as_raw_fd() as usize, UFFDIO_API, std::ptr::from_mut(&mut api) as usize, 0, 0, 0];
    // SAFETY: api is a live uffdio_api; of any other descriptor the request is refused.
    unsafe { syscall(nr::IOCTL, args) }.map(drop)
}

/// The command by which a process makes one of an open `/dev/userfaultfd`: `ioctl(device, NEW, FLAGS)`.
pub const NEW: usize = super::IOC_NEW;
/// Its flags.
pub const FLAGS: usize = (k::O_CLOEXEC | k::O_NONBLOCK) as usize;

/// Reads the message of a fork from a userfaultfd that has no other messages, without waiting: the child's.
///
/// # Errors
/// `AGAIN`: there is none. `MFILE`, `NFILE`: no descriptor is left.
pub fn read_child(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut message = [0u8; size_of::<k::uffd_msg>()];
    let n = rustix::io::read(fd, &mut message)?;
    // SAFETY: the bytes of a message, which may lie anywhere; all of its members are integers.
    let message = unsafe { message.as_ptr().cast::<k::uffd_msg>().read_unaligned() };
    let is_fork = n == size_of::<k::uffd_msg>() && message.event as u32 == k::UFFD_EVENT_FORK;
    if !is_fork {
        return Err(Errno::AGAIN);
    }
    // SAFETY: the member that belongs to this event; a new descriptor of this table.
    Ok(unsafe { OwnedFd::from_raw_fd(message.arg.fork.ufd as RawFd) })
}

/// Undoes what a child has inherited of the registration of `[start, start + len)`. It need not be there any more.
pub fn unregister_child(child: BorrowedFd<'_>, start: usize, len: usize) {
    let mut arg = k::uffdio_range { start: start as u64, len: len as u64 };
    let args = [child.as_raw_fd() as usize, UFFDIO_UNREGISTER, std::ptr::from_mut(&mut arg) as usize, 0, 0, 0];
    // SAFETY: acts on the child's memory, as far as this process's engine had it.
    let _ = unsafe { syscall(nr::IOCTL, args) };
}

impl Uffd {
    /// One that is switched on. `pagemap` is this process's.
    pub fn given(fd: OwnedFd, pagemap: OwnedFd) -> Uffd {
        Uffd::of(fd, pagemap)
    }

    /// That of the child whose fork [`Uffd::read`] has read last.
    pub fn take_child(&self) -> Option<OwnedFd> {
        let child = self.child.swap(-1, Relaxed);
        // SAFETY: stored by `read`, which gave it up; taken once.
        (child >= 0).then(|| unsafe { OwnedFd::from_raw_fd(child) })
    }
}

/// Whether a userfaultfd is for this process's memory. `page` is registered with it, and absent; it has the content of
/// the page at `zeros` then.
///
/// # Safety
/// `page` is the engine's, and no reference points there; `zeros` can be read.
pub unsafe fn is_of_this_process(fd: BorrowedFd<'_>, pagemap: &Fd, page: usize, zeros: usize) -> bool {
    let mut arg =
        k::uffdio_copy { dst: page as u64, src: zeros as u64, len: PAGE_SIZE as u64, mode: COPY_QUIET, copy: 0 };
    let args = [fd.as_raw_fd() as usize, UFFDIO_COPY, std::ptr::from_mut(&mut arg) as usize, 0, 0, 0];
    // SAFETY: fills an absent page only (caller's promise).
    let done = unsafe { syscall(nr::IOCTL, args) }.is_ok();
    let mut is_there = false;
    let seen = present_runs(pagemap, page, page + PAGE_SIZE, |_, _| {
        is_there = true;
        true
    });
    done && seen.is_ok() && is_there
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pagemap;

    #[test]
    fn a_userfaultfd_is_known_by_its_number() {
        let uffd = Uffd::open(None, FEATURES_QUIET, pagemap::own().unwrap()).unwrap();
        let [own, pagemap] = uffd.fds();
        assert!(is_userfaultfd(own) && !is_userfaultfd(pagemap) && !is_userfaultfd(-1));
    }
}
