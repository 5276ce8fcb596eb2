//! Why a page was not stored, or cannot be read. Texts are one line: what, to what, why.

use farpage_base::sys::raw::{Errno, ErrnoText};
pub use farpage_ipc::conf::DeviceError;

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
    /// The file ends before the page does (it was truncated).
    #[error("swap device {device}: slot {slot} is beyond the end of the file")]
    ShortRead {
        /// Device number.
        device: u8,
        /// Slot of the device.
        slot: u64,
    },
    /// Its server is out of reach; the page is there.
    #[error("swap device {device}: the server of slot {slot} is out of reach")]
    OutOfReach {
        /// Device number.
        device: u8,
        /// Slot of the device.
        slot: u64,
    },
    /// The server has forgotten the page.
    #[error("swap device {device}: the server does not have slot {slot} any more")]
    Gone {
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
            | LoadError::OutOfReach { device, .. }
            | LoadError::Gone { device, .. }
            | LoadError::Corrupt { device, .. }
            | LoadError::NotInUse { device, .. } => device,
        }
    }
}
