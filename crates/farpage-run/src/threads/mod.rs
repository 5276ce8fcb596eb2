//! The loops of the engine's threads that store pages, and that load them beside the pager.

pub(crate) mod helper;
pub(crate) mod writer;
