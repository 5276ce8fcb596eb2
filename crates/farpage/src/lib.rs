//! Memory larger than its RAM budget, asked for by a program: a [`Pager`] gives out regions, and swaps their pages to
//! devices in user space.
//!
//! A user needs [`region`], [`Pager`] from it, [`SwapSpec`] for devices, and perhaps [`Growing`]. The engine of
//! `farpage run`, which does the same for unmodified programs, is `farpage-run`; both stand on `farpage-device`.
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
