//! The engine's threads beside the pager.

pub(crate) mod decompressor;
pub mod monitor;
