//! The units in which pages are counted and named, and the end of what can be named.
//!
//! Callers: everybody. Types only.

use crate::PAGE_SIZE;

/// One page of data. References to frames are page-aligned; others work, but cost a copy on files.
pub type Page = [u8; PAGE_SIZE];
/// Virtual page number: address divided by the page size.
pub type Vpn = u64;
/// Index of a frame in the arena.
pub type FrameNo = u32;

/// End of the addresses a program can have, bytes.
pub const USER_END: usize = (1 << 47) - PAGE_SIZE;
