//! Block devices: whether one may be used, and its discards.
//!
//! ```text
//!   | header page | zeros up to 1 MiB | slot 0 (not used), slot 1, ...            | zeros, 64 KiB |
//! ```
//!
//! Whatever keeps data on a block device says so near its beginning or its end: partition tables, filesystems, RAID,
//! LVM, encryption. So a device is taken only if the first 1 MiB and the last 64 KiB are zero, but for a header page of
//! ours; and as farpage leaves both like that, it also notices when another program has used the device since. It is
//! opened exclusively: the kernel refuses that while the device (or a partition of it) is mounted, swapped to, part of
//! a RAID or a volume group, or in use by another farpage.
//!
//! Called by `open`. No locks.

use super::backing::{Backing, MAGIC};
use super::disk::{Fail, block_size, swaps_to};
use crate::error::DeviceError;
use farpage_base::sys::escape::unescape;
use farpage_base::sys::proc::text;
use farpage_base::sys::raw::ErrnoText;
use farpage_swap::PAGE_SIZE;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Bytes before slot 0, and behind the last one.
const FRONT: u64 = 1 << 20;
const BACK: u64 = 64 << 10;

/// Looks whether a device may be used, and changes nothing: for the launcher, before the program starts.
pub fn check(path: &Path, rdev: u64, fail: Fail<'_>) -> Result<(), DeviceError> {
    let fd = claim(path, rdev, OFlags::RDONLY, fail)?;
    slots_of(&fd, rdev, fail).map(drop)
}

/// Opens a device for the engine: what was on it is discarded. The device, and its slots (slot 0 included).
pub fn open(path: &Path, rdev: u64, fail: Fail<'_>) -> Result<(Backing, u64), DeviceError> {
    let failed = |what: &str, errno: Errno| fail(format!("{what}: {}", ErrnoText(errno)), "use another device");
    let fd = claim(path, rdev, OFlags::RDWR, fail)?;
    let slots = slots_of(&fd, rdev, fail)?;
    let mut header = [0; PAGE_SIZE];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    let written = rustix::io::pwrite(&fd, &header, 0).map_err(|e| failed("cannot write its header", e))?;
    if written != header.len() {
        return Err(failed("cannot write its header", Errno::IO));
    }
    // From the page cache to the device, before O_DIRECT goes around it.
    rustix::fs::fdatasync(&fd).map_err(|e| failed("cannot write its header", e))?;
    let backing = Backing::of_block(fd, FRONT).map_err(|e| failed("cannot use it", e))?;
    backing.discard(0, slots);
    Ok((backing, slots))
}

/// Opens it for ourselves alone.
fn claim(path: &Path, rdev: u64, access: OFlags, fail: Fail<'_>) -> Result<OwnedFd, DeviceError> {
    let flags = access | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::BUSY => {
            let (reason, remedy) = user_of(rdev);
            fail(reason, remedy)
        }
        _ => fail(format!("cannot open it: {}", ErrnoText(errno)), "use a device that you may write to"),
    })?;
    // The path may have come to mean something else since it was looked at.
    match rustix::fs::fstat(&fd) {
        Ok(stat) if stat.st_rdev == rdev => Ok(fd),
        _ => Err(fail("it is no longer the same device".into(), "try again")),
    }
}

/// What has a device that cannot be claimed, and what to do.
fn user_of(rdev: u64) -> (String, &'static str) {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let mounts = text("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{major}:{minor}");
    let mounted = mounts.lines().map(|line| line.split(' ')).find_map(|mut fields| {
        (fields.nth(2) == Some(number.as_str())).then(|| unescape(fields.nth(1).unwrap_or("?")))
    });
    if let Some(place) = mounted {
        return (format!("it is mounted at {}", place.display()), "use a directory there, or unmount it");
    }
    if swaps_to(|stat| stat.st_rdev == rdev) {
        return ("the kernel swaps to it".into(), "use another device, or swapoff this one");
    }
    let text = "somebody else has it: a mounted partition, RAID, LVM, or another program that runs under farpage";
    (text.into(), "use a device that is free, or a directory")
}

/// The slots of a device that holds nothing, or only what we left there.
fn slots_of(fd: &OwnedFd, rdev: u64, fail: Fail<'_>) -> Result<u64, DeviceError> {
    let block = block_size(rdev);
    if block as usize > PAGE_SIZE {
        return Err(fail(
            format!("it transfers {block} bytes at least, and a page has {PAGE_SIZE}"),
            "use another device",
        ));
    }
    let failed = |what: &str, errno: Errno| fail(format!("{what}: {}", ErrnoText(errno)), "use another device");
    let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|e| failed("cannot tell its size", e))?;
    if size < FRONT + BACK + 64 * PAGE_SIZE as u64 {
        return Err(fail("it is too small".into(), "use one of 2 MiB or more"));
    }
    let mut bytes = vec![0; 64 << 10];
    for at in (0..FRONT).step_by(bytes.len()).chain([size - BACK]) {
        let n = rustix::io::pread(fd, &mut bytes[..], at).map_err(|e| failed("cannot read it", e))?;
        if n != bytes.len() {
            return Err(failed("cannot read it", Errno::IO));
        }
        let skip = if at == 0 && bytes.starts_with(MAGIC) { MAGIC.len() } else { 0 };
        if bytes[skip..].iter().any(|byte| *byte != 0) {
            let remedy = "use a blank device; if nothing on this one is needed, make it blank with wipefs -a and \
                          dd if=/dev/zero bs=1M count=1";
            return Err(fail("it holds something that is not farpage's".into(), remedy));
        }
    }
    Ok((size - FRONT - BACK) / PAGE_SIZE as u64)
}
