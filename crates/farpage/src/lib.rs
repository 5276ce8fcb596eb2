//! The farpage engine: memory beyond the RAM budget, swapped in user space.
//!
//! A page's life, file by file: fault ([`pager`], [`fault`]) -> word ([`page_table`]) -> zero page, or frame
//! ([`frame`]) filled from a device ([`device`]) and moved in -> list ([`lru`]) -> moved out ([`reclaim`]) -> swap
//! cache -> stored ([`writer`]) -> frame recycled. [`monitor`] watches the [`budget`] and finds mappings; [`fork`] and
//! [`child`] carry all of it over a fork. [`engine`] holds the shared state and the lock order.

pub mod adopt;
mod ahead;
mod approach;
pub mod arena;
pub mod budget;
pub mod charge;
pub mod child;
pub mod conf;
pub mod content;
pub mod count;
pub mod device;
pub mod engine;
pub mod event;
pub mod fault;
pub mod fork;
pub mod frame;
pub mod heap;
pub mod idle;
pub mod lost;
mod lru;
pub mod monitor;
pub mod news;
pub mod notes;
mod order;
pub mod page_table;
pub mod pager;
mod place;
mod placement;
pub mod pool_share;
pub mod preload;
pub mod probe;
pub mod readahead;
mod reader;
pub mod recent;
pub mod reclaim;
pub mod region;
pub mod size;
pub mod stat;
mod stragglers;
mod swap_in;
pub mod sys;
pub mod trace;
mod trial;
pub mod writer;

pub use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
pub use region::Pager;
