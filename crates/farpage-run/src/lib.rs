//! The engine of `farpage run`: inside an unmodified program, from before its `main` (where it begins: `preload`,
//! `dormant`, `start`).

pub mod address_space;
pub mod budget;
pub mod build;
pub mod cpus;
pub mod dormant;
pub mod ended;
pub mod fork;
pub mod given_uffds;
pub mod images;
pub mod late;
pub mod lru;
pub mod mappings;
pub mod outcome;
pub mod page_table;
pub mod pager;
pub mod preload;
pub mod privileges;
pub mod probe;
pub mod program;
pub mod stacks;
pub mod start;
pub mod start_error;
pub mod state;
pub mod store;
pub mod threads;
pub mod told;
pub mod uffd_device;

#[cfg(test)]
mod tests;
