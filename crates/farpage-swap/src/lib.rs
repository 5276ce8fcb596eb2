//! The pure part of farpage: no operating system calls, so that it can be property-tested and model-checked.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`cluster`] | swap slots of one device: clusters of 512, given out and taken back |
//! | [`lru`] | intrusive page lists |
//! | [`readahead`] | how many pages to bring in around a fault |
//! | [`range`] | sets of page ranges (what is managed, what is not) |
#![forbid(unsafe_code)]

pub mod cluster;
pub mod lru;
pub mod range;
pub mod readahead;
pub mod workingset;

/// Bytes of a page. farpage runs where the base page is 4 KiB.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
