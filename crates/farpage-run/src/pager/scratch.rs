//! Engine memory that pages are loaded into, and copied from into the program.
//!
//! Callers: who puts pages into the program, on the pager's thread. No locks.

use farpage_base::mem::units::Page;
use farpage_swap::readahead::READAHEAD_MAX;

/// Pages that are loaded and placed at once.
pub(crate) const SCRATCH_PAGES: usize = READAHEAD_MAX as usize;

/// As many pages of engine memory.
#[repr(align(4096))]
pub(crate) struct Scratch(pub(crate) [Page; SCRATCH_PAGES]);
