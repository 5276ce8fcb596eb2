//! Pages of zeros to copy from.
//!
//! Callers: threads that put pages into a program or a region. Never written, so the memory counts nowhere.

use farpage_swap::PAGE_SIZE;

/// How many pages there are.
pub const ZERO_PAGES: usize = 64;

#[repr(align(4096))]
struct Zeros([u8; ZERO_PAGES * PAGE_SIZE]);
static ZEROS: Zeros = Zeros([0; ZERO_PAGES * PAGE_SIZE]);

/// Address of [`ZERO_PAGES`] pages of zeros.
pub fn zero_pages() -> usize {
    ZEROS.0.as_ptr() as usize
}
