//! The loops of the engine's threads that store and decompress pages.

pub(crate) mod decompressor;
pub(crate) mod writer;
