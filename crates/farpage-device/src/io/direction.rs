//! Which way bytes go. A type only.

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device into memory.
    Read,
    /// From memory to the device.
    Write,
}
