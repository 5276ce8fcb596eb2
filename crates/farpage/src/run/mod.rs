//! The engine of `farpage run`: inside an unmodified program, from before its `main` (where it begins: `preload`,
//! `dormant`, `start`).

pub(crate) mod address_space;
pub mod budget;
pub mod build;
pub mod cpus;
pub mod dormant;
pub mod ended;
pub mod fork;
pub mod given_uffds;
mod images;
pub mod late;
pub(crate) mod lru;
pub mod mappings;
pub mod outcome;
pub mod page_table;
pub mod pager;
pub mod preload;
pub mod privileges;
pub mod program;
mod stacks;
pub mod start;
pub mod start_error;
pub mod state;
pub mod store;
pub mod threads;
pub mod told;
mod uffd_device;

#[cfg(test)]
mod tests;
