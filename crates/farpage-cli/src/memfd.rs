//! Memfds of other processes, found among their descriptors by the name.
//!
//! The user of a process gives its files any name: also one that looks like a memfd's, of a file that cannot be opened.
//! A pipe waits for its other end, a filesystem in user space for its server, a lease for its holder. So a file is
//! opened only if it lies where all memfds do, and only if that needs no waiting.
//!
//! Callers: [`crate::stat_cmd::find`], [`crate::trees`]. No locks.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What a descriptor of another process leads to.
#[derive(Debug)]
pub struct Memfd {
    place: OwnedFd,
    /// Number of its file.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
}

/// The descriptors below `dir`, a `/proc/PID` or `/proc/PID/task/TID`, whose name begins as that of a memfd called
/// `name`.
///
/// # Errors
/// It has ended, or may not be looked at.
pub fn named(dir: &Path, name: &str) -> io::Result<impl Iterator<Item = PathBuf>> {
    let start = format!("/memfd:{name}");
    let is_one = move |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|link| link.as_os_str().as_bytes().starts_with(start.as_bytes()))
    };
    Ok(fs::read_dir(dir.join("fd"))?.flatten().map(|entry| entry.path()).filter(is_one))
}

impl Memfd {
    /// Looks at what this descriptor leads to, without opening it.
    ///
    /// # Errors
    /// It is no memfd, or not to be seen.
    pub fn at(path: &Path) -> io::Result<Memfd> {
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let asked = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(AT_STATX_DONT_SYNC);
        let what = rustix::fs::statx(&place, c"", asked, StatxFlags::BASIC_STATS)?;
        let is_regular = FileType::from_raw_mode(what.stx_mode.into()).is_file();
        match Some((what.stx_dev_major, what.stx_dev_minor)) == memfd_device() && is_regular {
            true => Ok(Memfd { place, inode: what.stx_ino, size: what.stx_size }),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// Not ours to open, or `EAGAIN`: a process has a lease on it.
    pub fn open(&self, access: OFlags) -> io::Result<OwnedFd> {
        let again = format!("/proc/self/fd/{}", self.place.as_raw_fd());
        Ok(rustix::fs::open(again, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// Nothing but what is known already; a part of `AT_STATX_SYNC_TYPE`, which rustix has no name for.
const AT_STATX_DONT_SYNC: u32 = 0x4000;

/// The device of the kernel's own filesystem in which all memfds are.
fn memfd_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let stat = rustix::fs::fstat(farpage_ipc::stat::new_memfd().ok()?).ok()?;
        Some((rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn only_a_memfd_is_opened_and_nothing_is_waited_for() {
        let memfd = rustix::fs::memfd_create("some-name", MemfdFlags::CLOEXEC).unwrap();
        let path = |fd: &dyn AsRawFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let mut found = named(Path::new("/proc/self"), "some-name").unwrap();
        assert!(found.any(|one| one == path(&memfd)));
        assert!(Memfd::at(&path(&memfd)).unwrap().open(OFlags::RDWR).is_ok());
        let file = tempfile::tempfile().unwrap();
        let (pipe, _other) = io::pipe().unwrap();
        assert!([path(&file), path(&pipe)].iter().all(|path| Memfd::at(path).is_err()));
        // It has no writer: to open it for reading would wait.
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
        assert!(Memfd::at(&fifo).is_err());
        // A lease: to open it would wait until the lease is given back.
        // SAFETY: sets a lease on a descriptor of ours.
        assert_eq!(unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }, 0);
        // SAFETY: sets a disposition: the signal says that it is to be opened.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let refused = Memfd::at(&path(&memfd)).unwrap().open(OFlags::RDWR).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }
}
