//! Engine memory that pages are copied from.
//!
//! Callers: who puts pages into the program, on the pager's thread. No locks.

use crate::mem::units::Page;

/// Pages of a run that are copied; longer runs are moved.
pub(crate) const COPY_MAX: usize = 8;

/// Engine memory for the pages of a run that is copied into the program.
#[repr(align(4096))]
pub(crate) struct Scratch(pub(crate) [Page; COPY_MAX]);
