//! The engine's threads beside the pager: their loops.

pub(crate) mod board;
pub(crate) mod decompressor;
pub mod monitor;
pub(crate) mod writer;
