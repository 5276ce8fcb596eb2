//! What a swap path may be, and how much of the disk it may take.
//!
//! Called by the file device: `open` once when it is made, `grant` now and then as the file grows.
//!
//! A regular file stands for the place where it lies: pages go to an unnamed file beside it, as they do in a directory.
//! So nothing of a program's memory ever has a name that others could open, whatever the named file's permissions are,
//! and nothing is left of it when the process has ended, however it ended.

use super::backing::{Backing, MAGIC};
use super::block;
use super::disk::{Fail, block_size, queue, swaps_to};
use super::table::PAGE_BITS;
use crate::error::DeviceError;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::raw::ErrnoText;
use farpage_swap::PAGE_SIZE;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::path::Path;

/// Share of the filesystem that stays free, and the most that is.
const KEEP_FREE_PERCENT: u64 = 5;
const KEEP_FREE_MAX: u64 = 4 << 30;
/// Filesystem types that are memory.
const MEMORY_FILESYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

pub struct OpenedFile {
    pub name: String,
    /// Where files are created; `None`: nowhere, the path is a block device.
    pub dir: Option<Fd>,
    /// The block device, if the path is one.
    pub block: Option<Backing>,
    /// Slots at most, slot 0 included.
    pub slots_max: u64,
    pub rotational: bool,
    /// Bytes; of a file: of the disk below its filesystem.
    pub block_size: u32,
    pub warning: Option<String>,
}

/// What is to be said of a directory whose filesystem takes the memory that is to be saved.
fn in_memory(dir: &OwnedFd, name: &str) -> Option<String> {
    let is_memory = rustix::fs::fstatfs(dir).is_ok_and(|s| MEMORY_FILESYSTEMS.contains(&(s.f_type as u32)));
    is_memory
        .then(|| format!("swap device {name:?}: this filesystem is itself memory; use a directory on a disk instead"))
}

/// What a device of this path is called.
pub fn file_name(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// Opens a swap path; creates nothing.
pub fn open(path: &Path, size: Option<u64>) -> Result<OpenedFile, DeviceError> {
    let name = file_name(path);
    let error = |reason: String, remedy: &str| DeviceError { name: name.clone(), reason, remedy: remedy.into() };
    let slots_max = size.map_or(1 << PAGE_BITS, |bytes| (bytes / PAGE_SIZE as u64).min(1 << PAGE_BITS));
    if size.is_some_and(|bytes| bytes < 2 * PAGE_SIZE as u64) {
        return Err(error("its size is below 8 KiB".into(), "give it a larger size="));
    }
    let stat = look(path, &error)?;
    let dir = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => open_directory(path, &error)?,
        FileType::RegularFile => {
            let dir = beside(path, &error)?;
            empty_file(path, true, &error)?;
            dir
        }
        FileType::BlockDevice => {
            let (backing, slots) = block::open(path, stat.st_rdev, &error)?;
            let (rotational, block_size) = (is_rotational(stat.st_rdev), block_size(stat.st_rdev));
            let (block, slots_max) = (Some(backing), slots_max.min(slots));
            return Ok(OpenedFile { name, dir: None, block, slots_max, rotational, block_size, warning: None });
        }
        _ => return Err(error(String::from(NEITHER), "use a directory, as in file:/var/tmp")),
    };
    may_create(&dir, &error)?;
    let warning = in_memory(&dir, &name);
    let (rotational, block_size) = (is_rotational(stat.st_dev), block_size(stat.st_dev).min(PAGE_SIZE as u32));
    Ok(OpenedFile { name, dir: Some(Fd::new(dir)), block: None, slots_max, rotational, block_size, warning })
}

/// A directory in which files can be made, and what is odd about it.
///
/// # Errors
/// It is none.
pub fn directory(path: &Path) -> Result<(Fd, Option<String>), DeviceError> {
    let error = |reason: String, remedy: &str| {
        let name = format!("mirror={}", file_name(path));
        DeviceError { name, reason, remedy: remedy.into() }
    };
    let dir = open_directory(path, &error)?;
    may_create(&dir, &error)?;
    let warning = in_memory(&dir, &format!("mirror={}", file_name(path)));
    Ok((Fd::new(dir), warning))
}

/// Whether second copies can be kept in a directory.
///
/// # Errors
/// They cannot.
pub fn check_mirror(path: &Path) -> Result<(), DeviceError> {
    directory(path).map(drop)
}

/// What the launcher can see to before the program starts, without changing anything.
///
/// # Errors
/// A directory where no file can be made; a file that is not there, in use, another user's or not farpage's, or beside
/// which none can be made; a block device that is in use or holds something; a path that can be no swap device.
pub fn check(path: &Path) -> Result<(), DeviceError> {
    let error = |reason: String, remedy: &str| {
        let name = file_name(path);
        DeviceError { name, reason, remedy: remedy.into() }
    };
    let stat = look(path, &error)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => may_create(&open_directory(path, &error)?, &error),
        FileType::RegularFile => {
            empty_file(path, false, &error)?;
            may_create(&beside(path, &error)?, &error)
        }
        FileType::BlockDevice => block::check(path, stat.st_rdev, &error),
        _ => Err(error(String::from(NEITHER), "use a directory, as in file:/var/tmp")),
    }
}

fn look(path: &Path, error: Fail<'_>) -> Result<rustix::fs::Stat, DeviceError> {
    rustix::fs::stat(path).map_err(|errno| {
        let remedy = "name a directory that exists, or make an empty file there first";
        error(format!("cannot look at it: {}", ErrnoText(errno)), remedy)
    })
}

fn open_directory(path: &Path, error: Fail<'_>) -> Result<OwnedFd, DeviceError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| {
        error(format!("cannot open the directory: {}", ErrnoText(errno)), "use a directory that you may write to")
    })
}

fn may_create(dir: &OwnedFd, error: Fail<'_>) -> Result<(), DeviceError> {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let remedy = "use a directory that you may write to";
    let refused = |errno| error(format!("cannot create files there: {}", ErrnoText(errno)), remedy);
    rustix::fs::accessat(dir, c".", access, AtFlags::empty()).map_err(refused)?;
    // Root may write to /proc and /sys, and yet cannot create a file there. That there is no room now is no error:
    // there may be later.
    match Backing::create_in(dir.as_fd(), true) {
        Err(errno) if !matches!(errno, Errno::NOSPC | Errno::DQUOT) => Err(refused(errno)),
        _ => Ok(()),
    }
}

const NEITHER: &str = "it is neither a directory, a regular file nor a block device";

/// The directory of a file, which must be on the file's own filesystem.
fn beside(path: &Path, error: Fail<'_>) -> Result<OwnedFd, DeviceError> {
    let failed = |e: std::io::Error| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        error(format!("cannot find its directory: {}", ErrnoText(errno)), "use a directory, as in file:/var/tmp")
    };
    // Through symbolic links: the file's own place is meant.
    let file = path.canonicalize().map_err(failed)?;
    let dir = open_directory(file.parent().unwrap_or(Path::new("/")), error)?;
    let mount = |at: &OwnedFd, name: &Path, flags| {
        rustix::fs::statx(at, name, flags, StatxFlags::MNT_ID).ok().map(|s| s.stx_mnt_id)
    };
    let own = file.file_name().and_then(|name| mount(&dir, Path::new(name), AtFlags::SYMLINK_NOFOLLOW));
    if own.is_none() || own != mount(&dir, Path::new(""), AtFlags::EMPTY_PATH) {
        let reason = "it is mounted by itself, and pages go to an unnamed file beside it";
        return Err(error(reason.into(), "use a directory of the disk that is meant"));
    }
    Ok(dir)
}

/// A file with a name: only one that is empty, or one that an earlier version of farpage swapped to. With `now`, what
/// that left there goes.
fn empty_file(path: &Path, now: bool, error: Fail<'_>) -> Result<(), DeviceError> {
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
    if stat.st_size == 0 {
        return Ok(());
    }
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let remedy = "use a directory, or another file";
            return Err(error("another process swaps to it".into(), remedy));
        }
        Err(errno) => return Err(failed("cannot lock it", errno)),
    }
    // The kernel keeps everybody from writing to it, but only in the middle of the work.
    if swaps_to(|swap| (swap.st_dev, swap.st_ino) == (stat.st_dev, stat.st_ino)) {
        return Err(error("the kernel swaps to it".into(), "use another file, or swapoff this one"));
    }
    let mut head = [0; MAGIC.len()];
    let n = rustix::io::pread(&fd, &mut head, 0).map_err(|e| failed("cannot read it", e))?;
    if n < head.len() || head != *MAGIC {
        let remedy = "use an empty file or a directory; farpage does not overwrite your data";
        return Err(error("it holds something that is not farpage's".into(), remedy));
    }
    if now {
        rustix::fs::ftruncate(&fd, 0).map_err(|e| failed("cannot empty it", e))?;
    }
    Ok(())
}

/// How far the file may grow: `step` slots beyond `end`, or less when the disk or a limit of the process is near.
/// Not above `end`: not at all for now. `keep_free`: bytes that stay free on the filesystem, if not the default.
pub fn grant(backing: &Backing, end: u64, step: u64, keep_free: Option<u64>) -> u64 {
    if backing.is_block() {
        return end + step;
    }
    if let Some(store) = backing.store() {
        return store.grow(end, step);
    }
    let free = backing.fd.borrow().and_then(|fd| free_bytes(fd, keep_free)).unwrap_or(0);
    // Parts of the file that are not written yet, or were given back, have no place on the disk, but will want one.
    let promised = (end * PAGE_SIZE as u64).saturating_sub(backing.disk_bytes());
    let room = free.saturating_sub(promised) / PAGE_SIZE as u64;
    // Beyond this a write would not fail but kill the program (SIGXFSZ).
    let file_max = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let file_max = file_max.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64);
    (end + room.min(step)).min(file_max)
}

/// Bytes that may be taken from the filesystem.
fn free_bytes(file: BorrowedFd<'_>, keep_free: Option<u64>) -> Result<u64, Errno> {
    let fs = rustix::fs::fstatvfs(file.as_fd())?;
    let share = || (fs.f_blocks.saturating_mul(fs.f_frsize) / 100 * KEEP_FREE_PERCENT).min(KEEP_FREE_MAX);
    let keep = keep_free.unwrap_or_else(share);
    Ok(fs.f_bavail.saturating_mul(fs.f_frsize).saturating_sub(keep))
}

/// Whether the disk under a filesystem has heads to move. Unknown: no.
fn is_rotational(device: u64) -> bool {
    queue(device, "rotational") == Some(1)
}
