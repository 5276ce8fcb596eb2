//! The farpage engine: memory beyond the RAM budget, swapped in user space.
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
//! | word | meaning |
//! | --- | --- |
//! | page, word | 4 KiB of the program; the atomic word that says where its content is (`run/page_table`) |
//! | frame | a page-sized address of the engine's own, with memory or without (`mem/frame`) |
//! | slot, entry | a place on a device; device and slot in 48 bits (`swap`) |
//! | swap cache | pages that were taken out of the program and are still in a frame |
//! | clean copy | a slot that is kept while its page is in the program |
//! | managed, active | registered with userfaultfd; an engine that manages memory |
//! | dormant | a process without an engine, far below its budget (`run/dormant`) |
//!
//! The whole glossary, and one fault and one eviction followed through the files, is in `docs/dev/architecture.md`. The
//! lock order is in `docs/dev/locking.md`.
//!
//! A user of the library needs [`region`], [`Pager`] from it, [`SwapSpec`] for devices, and perhaps [`Growing`]. What
//! the command and the preload library of the same version need besides comes through one hidden door, `internals`.
//!
//! A folder uses only those before it: `sys`, `mem`, `conf`, `mm`, `swap`, `stat`, `probe`, `tree`, then `run` and
//! `region`. A test (`tests/layers.rs`) fails on an import that goes up, and on files that use each other in a circle.

mod conf;
#[doc(hidden)]
pub mod internals;
mod mem;
mod mm;
mod probe;
pub mod region;
mod run;
mod stat;
mod swap;
mod sys;
mod tree;

#[doc(hidden)]
pub use conf::InjectedFault;
#[doc(inline)]
pub use conf::{Alg, ConfError, SwapSpec};
pub use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
#[doc(inline)]
pub use mem::heap::Growing;
pub use region::Pager;
