//! The engine of `farpage run`: inside an unmodified program, from before its `main` (where it begins: `preload`,
//! `dormant`, `start`).

pub mod budget;
pub mod cpus;
pub mod dormant;
pub mod fork;
pub mod lifecycle;
pub mod mappings;
pub mod monitor;
pub mod pager;
pub mod privileges;
pub mod probe;
pub mod shared;
pub mod store;
pub mod threads;

#[cfg(test)]
mod tests;
