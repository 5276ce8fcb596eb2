//! The farpage engine: memory beyond the RAM budget, swapped in user space.
//!
//! A page's life, file by file: fault ([`run::pager`]) -> word ([`run::page_table`]) -> zero page, or frame
//! ([`mem::frame`]) filled from a device ([`swap`]) and moved in -> list (`run::lru`) -> moved out
//! ([`run::pager::reclaim`]) -> swap cache -> stored ([`run::store`]) -> frame recycled. [`run::threads::monitor`]
//! watches the [`run::budget`] and finds mappings; [`run::fork`] carries all of it over a fork. [`run::state`] holds
//! the shared state and the lock order.
//!
//! A folder uses only those before it: `sys`, `mem`, `conf`, `mm`, `swap`, `stat`, `probe`, then `run` and `region`.

pub mod conf;
pub mod mem;
pub mod mm;
pub mod probe;
pub mod region;
pub mod run;
pub mod stat;
pub mod swap;
pub mod sys;

pub use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
pub use region::Pager;
