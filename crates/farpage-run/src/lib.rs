//! The engine of `farpage run`: inside an unmodified program, from before its `main` (it begins in
//! [`lifecycle::preload`], [`dormant`] and [`lifecycle::start`]).
//!
//! ```text
//!             program's threads                          a page's word
//!    touch an absent page |   ^ wake                     None, Mapped, Cached, Writeback, Swapped
//!                         v   |
//!    userfaultfd ----> pager: fault -> fill <- swap_in <--- devices: compressed pool, files
//!                         |                                    ^
//!                     reclaim: move_out -> swap cache -> writer: store
//!                         ^
//!    monitor: samples resident memory, finds mappings, divides the budget
//! ```
//!
//! The words, and one fault and one eviction followed through the files, are in `docs/dev/architecture.md`; the lock
//! order is in `docs/dev/locking.md`, the map of folders in `CONTRIBUTING.md`.

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
