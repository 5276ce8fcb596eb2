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
//! The words, and one fault and one eviction followed through the files, are in `docs/dev/architecture.md`; the lock
//! order is in `docs/dev/locking.md`, the map of folders in `CONTRIBUTING.md`.
//!
//! A user of the library needs [`region`], [`Pager`] from it, [`SwapSpec`] for devices, and perhaps [`Growing`]. What
//! the command and the preload library of the same version need besides comes through one hidden door, `internals`.
//!
//! A test (`tests/layers.rs`) fails on an import that goes up, and on files that use each other in a circle.

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
pub use conf::{Alg, ConfError, DeviceKind, SwapSpec};
pub use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
#[doc(inline)]
pub use mem::heap::Growing;
pub use region::Pager;
