//! Engine memory that pages are copied from: zeros, and a buffer.
//!
//! Callers: who puts pages into the program, on the pager's thread. No locks.

use crate::PAGE_SIZE;
use crate::mem::units::Page;

/// Zeros to copy from: never written, so it is the kernel's shared zero page.
pub(crate) static ZEROS: [u8; 64 * PAGE_SIZE] = [0; 64 * PAGE_SIZE];

/// Pages of a run that are copied; longer runs are moved.
pub(crate) const COPY_MAX: usize = 8;

/// Engine memory for the pages of a run that is copied into the program.
#[repr(align(4096))]
pub(crate) struct Scratch(pub(crate) [Page; COPY_MAX]);
