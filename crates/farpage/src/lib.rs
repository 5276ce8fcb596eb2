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
//! A user of the library needs [`region`], [`Pager`] from it, [`SwapSpec`] for devices, and perhaps [`Growing`].
//!
//! A test (`tests/layers.rs`) fails on files that use each other in a circle, in any crate.

pub mod region;

#[doc(inline)]
pub use farpage_base::mem::heap::Growing;
#[doc(hidden)]
pub use farpage_ipc::conf::InjectedFault;
#[doc(inline)]
pub use farpage_ipc::conf::{Alg, ConfError, DeviceKind, SwapSpec};
pub use farpage_swap::{PAGE_SHIFT, PAGE_SIZE};
pub use region::Pager;
