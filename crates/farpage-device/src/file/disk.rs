//! What the kernel says of disks, and what it swaps to itself.
//!
//! Callers: `open`, `block`. No locks.

use crate::error::DeviceError;
use farpage_base::sys::escape::unescape;
use farpage_base::sys::proc::text;

/// Makes an error of this device: what is wrong, what to do.
pub(super) type Fail<'a> = &'a dyn Fn(String, &str) -> DeviceError;

/// Whether the kernel swaps to the file or device that `is_it` knows.
pub(super) fn swaps_to(is_it: impl Fn(&rustix::fs::Stat) -> bool) -> bool {
    let swaps = text("/proc/swaps").unwrap_or_default();
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(unescape));
    paths.any(|path| rustix::fs::stat(&path).is_ok_and(|stat| is_it(&stat)))
}

/// Bytes that a disk transfers at least. Unknown: 512.
pub(super) fn block_size(device: u64) -> u32 {
    queue(device, "logical_block_size").unwrap_or(512)
}

/// What the kernel says of a disk, or of a partition's disk.
pub(super) fn queue(device: u64, name: &str) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no queue of its own; its disk, one directory up, has.
    ["", "../"].iter().find_map(|up| {
        let path = format!("/sys/dev/block/{major}:{minor}/{up}queue/{name}");
        text(path.as_str()).ok()?.trim().parse().ok()
    })
}
