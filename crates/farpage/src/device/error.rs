//! Why a page was not stored, or cannot be read, and why a device cannot be used. Texts are one line: what, to what, why.

use rustix::io::Errno;
use std::fmt;

/// Why a page was not stored. The page stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No room (slots, pool limit, size limit, disk space).
    #[error("swap device is full")]
    Full,
    /// Not worth keeping compressed; the next device should take it.
    #[error("page does not compress")]
    Incompressible,
    /// The device takes no more pages since an earlier failure; see `take_warning`.
    #[error("swap device has failed")]
    Failed,
    /// The write failed.
    #[error("write to the swap device failed: {}", ErrnoText(*.0))]
    Io(Errno),
}

/// Why a page could not be read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The read failed.
    #[error("swap device {device}: read of slot {slot} failed: {}", ErrnoText(*errno))]
    Io {
        /// What the kernel said.
        errno: Errno,
        /// Device number.
        device: u8,
        /// Slot of the device.
        slot: u64,
    },
    /// The file ends before the page does (somebody truncated it).
    #[error("swap device {device}: slot {slot} is beyond the end of the file")]
    ShortRead {
        /// Device number.
        device: u8,
        /// Slot of the device.
        slot: u64,
    },
    /// The stored bytes do not decompress to a page.
    #[error("swap device {device}: slot {slot} is corrupt")]
    Corrupt {
        /// Device number.
        device: u8,
        /// Slot of the device.
        slot: u64,
    },
    /// No page is stored under this entry: a bug of the caller.
    #[error("swap device {device}: slot {slot} is not in use")]
    NotInUse {
        /// Device number.
        device: u8,
        /// Slot of the device.
        slot: u64,
    },
}

impl LoadError {
    /// The device that could not bring the page.
    pub fn device(&self) -> u8 {
        match *self {
            LoadError::Io { device, .. }
            | LoadError::ShortRead { device, .. }
            | LoadError::Corrupt { device, .. }
            | LoadError::NotInUse { device, .. } => device,
        }
    }
}

/// Why a device cannot be used at all. `Display` is one line: which device, why, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("swap device {name:?}: {reason}; {remedy}")]
pub struct DeviceError {
    /// The device as the user wrote it.
    pub name: String,
    /// What is wrong.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

/// An errno in words, without libc's tables (which want thread-local storage).
#[derive(Debug, Clone, Copy)]
pub struct ErrnoText(pub Errno);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            Errno::PERM => "Operation not permitted",
            Errno::NOENT => "No such file or directory",
            Errno::IO => "Input/output error",
            Errno::BADF => "Bad file descriptor",
            Errno::ACCESS => "Permission denied",
            Errno::NOTDIR => "Not a directory",
            Errno::INVAL => "Invalid argument",
            Errno::MFILE | Errno::NFILE => "Too many open files",
            Errno::FBIG => "File too large",
            Errno::NOSPC => "No space left on device",
            Errno::ROFS => "Read-only file system",
            Errno::DQUOT => "Disk quota exceeded",
            Errno::OPNOTSUPP => "Operation not supported",
            Errno::NXIO => "No such device or address",
            Errno::NOMEDIUM => "No medium found",
            _ => "error",
        };
        write!(f, "{text} (os error {})", self.0.raw_os_error())
    }
}
