//! The farpage engine.

pub mod conf;
pub mod device;
pub mod size;
pub mod stat;
pub mod sys;

pub use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
