//! The pure part of farpage: no operating system calls, so that it can be property-tested and model-checked.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`claims`] | shares of one budget, claimed by several processes |
//! | [`cluster`] | swap slots of all devices: clusters of 512, given out and taken back |
//! | [`slots`] | the slots of one device with a value each |
//! | [`table`] | the swap table: one word a slot |
//! | [`lock`], [`sync`] | locks with statistics; every lock and atomic, std's or loom's |
//! | [`lru`] | intrusive page lists |
//! | [`workingset`] | which page leaves memory next |
//! | [`sim`] | policies under page traces |
//! | [`readahead`] | how many pages to bring in around a fault |
//! | [`pool_share`] | how memory is divided between pages and their compressed copies |
//! | [`clean_slots`], [`fading_ratio`], [`score`] | whether the copy of a page that came in is kept; what decides it |
//! | [`watermarks`] | how much room is made ahead |
//! | [`tuning`] | the feedback controllers, all of them |
//! | [`split`] | work that its owner and a helper do together |
//! | [`range`] | sets of page ranges (what is managed, what is not) |
#![forbid(unsafe_code)]

mod chunked;
pub mod claims;
pub mod clean_slots;
pub mod cluster;
pub mod fading_ratio;
pub mod lock;
pub mod lru;
pub mod pool_share;
pub mod range;
pub mod readahead;
pub mod score;
pub mod sim;
pub mod slots;
pub mod split;
pub mod sync;
pub mod table;
pub mod tuning;
pub mod watermarks;
pub mod workingset;

/// Bytes of a page. farpage runs where the base page is 4 KiB.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
