//! What a swap path may be, and how much of the disk it may take.
//!
//! Called by the file device: `open` once when it is made, `grant` now and then as the file grows.

use super::backing::{Backing, Fd, MAGIC};
use super::{DeviceError, ErrnoText};
use crate::PAGE_SIZE;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Share of the filesystem that stays free, and the most that is.
const KEEP_FREE_PERCENT: u64 = 5;
const KEEP_FREE_MAX: u64 = 4 << 30;
/// Filesystem types that are memory.
const MEMORY_FILESYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

pub struct Opened {
    pub name: String,
    /// Where files are created.
    pub dir: Fd,
    /// The file itself, if the path is one.
    pub file: Option<Backing>,
    pub rotational: bool,
    pub warning: Option<String>,
}

/// Opens a swap path; creates nothing.
pub fn open(path: &Path, size: Option<u64>) -> Result<Opened, DeviceError> {
    let name = format!("file:{}", path.display());
    let error = |reason: String, remedy: &str| DeviceError { name: name.clone(), reason, remedy: remedy.into() };
    if size.is_some_and(|bytes| bytes < 2 * PAGE_SIZE as u64) {
        return Err(error("its size is below 8 KiB".into(), "give it a larger size="));
    }
    let stat = rustix::fs::stat(path).map_err(|errno| {
        let remedy = "name a directory that exists, or make an empty file there first";
        error(format!("cannot look at it: {}", ErrnoText(errno)), remedy)
    })?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let dir_path = match kind {
        FileType::Directory => path,
        FileType::RegularFile => path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        FileType::BlockDevice => {
            return Err(error("block devices are not supported yet".into(), "use a directory or a file on it"));
        }
        _ => {
            return Err(error(
                "it is neither a directory nor a regular file".into(),
                "use a directory, as in file:/var/tmp",
            ));
        }
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, dir_path, flags, Mode::empty()).map_err(|errno| {
        error(format!("cannot open the directory: {}", ErrnoText(errno)), "use a directory that you may write to")
    })?;
    let file = match kind {
        FileType::RegularFile => Some(open_file(path, &error)?),
        _ => {
            let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            rustix::fs::accessat(&dir, c".", access, AtFlags::empty()).map_err(|errno| {
                let remedy = "use a directory that you may write to";
                error(format!("cannot create files there: {}", ErrnoText(errno)), remedy)
            })?;
            None
        }
    };
    let in_memory = rustix::fs::statfs(path).is_ok_and(|s| MEMORY_FILESYSTEMS.contains(&(s.f_type as u32)));
    let warning = in_memory
        .then(|| format!("swap device {name:?}: this filesystem is itself memory; use a directory on a disk instead"));
    Ok(Opened { rotational: is_rotational(stat.st_dev), dir: Fd::new(dir), file, warning, name })
}

/// A file with a name: only one that is empty or a swap file of ours, and that nobody else swaps to.
fn open_file(path: &Path, error: &dyn Fn(String, &str) -> DeviceError) -> Result<Backing, DeviceError> {
    let failed = |what: &str, errno: Errno| error(format!("{what}: {}", ErrnoText(errno)), "use a file that is yours");
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| failed("cannot open it", e))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| failed("cannot look at it", e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(error("it is no longer a regular file".into(), "use a directory, as in file:/var/tmp"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(error("it belongs to another user".into(), "use a file that is yours, or a directory"));
    }
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let remedy = "use a directory, where each program gets a file of its own";
            return Err(error("another process swaps to it".into(), remedy));
        }
        Err(errno) => return Err(failed("cannot lock it", errno)),
    }
    // Looked at under the lock, so that it cannot change hands in between.
    let mut head = [0; MAGIC.len()];
    let size = rustix::fs::fstat(&fd).map_err(|e| failed("cannot look at it", e))?.st_size;
    if size != 0 {
        let n = rustix::io::pread(&fd, &mut head, 0).map_err(|e| failed("cannot read it", e))?;
        if n < head.len() || head != *MAGIC {
            let remedy = "use an empty file or a directory; farpage does not overwrite your data";
            return Err(error("it holds something that is not farpage's".into(), remedy));
        }
    }
    // Old pages go, and so does what they held.
    let mut header = [0; PAGE_SIZE];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    rustix::fs::ftruncate(&fd, 0).map_err(|e| failed("cannot empty it", e))?;
    match rustix::io::pwrite(&fd, &header, 0) {
        Ok(n) if n == header.len() => Ok(Backing::new(fd)),
        Ok(_) => Err(failed("cannot write its header", Errno::NOSPC)),
        Err(errno) => Err(failed("cannot write its header", errno)),
    }
}

/// How far the file may grow: `step` slots beyond `end`, or less when the disk or a limit of the process is near.
/// Not above `end`: not at all for now.
pub fn grant(backing: &Backing, end: u64, step: u64) -> u64 {
    let room = backing.fd.borrow().and_then(free_bytes).unwrap_or(0) / PAGE_SIZE as u64;
    // Beyond this a write would not fail but kill the program (SIGXFSZ).
    let file_max = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let file_max = file_max.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64);
    (end + room.min(step)).min(file_max)
}

/// Bytes that may be taken from the filesystem.
fn free_bytes(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let fs = rustix::fs::fstatvfs(file.as_fd())?;
    let keep = (fs.f_blocks.saturating_mul(fs.f_frsize) / 100 * KEEP_FREE_PERCENT).min(KEEP_FREE_MAX);
    Ok(fs.f_bavail.saturating_mul(fs.f_frsize).saturating_sub(keep))
}

/// Whether the disk under a filesystem has heads to move. Unknown: no.
fn is_rotational(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no queue of its own; its disk, one directory up, has.
    ["", "../"].iter().any(|up| {
        let path = format!("/sys/dev/block/{major}:{minor}/{up}queue/rotational");
        let mut byte = [0];
        let file = rustix::fs::openat(CWD, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        file.is_ok_and(|fd| rustix::io::read(&fd, &mut byte) == Ok(1)) && byte == *b"1"
    })
}
