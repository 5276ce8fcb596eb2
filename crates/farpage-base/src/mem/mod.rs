//! Memory of the engine itself: its reservation of address space, its allocator, frames, and the units that count them.

use farpage_swap::PAGE_SIZE;
use rustix::mm::{Advice, madvise};

pub mod arena;
pub mod count;
pub mod frame;
pub mod heap;
pub mod lock;
pub mod open;
pub mod page_ranges;
pub mod units;
pub mod zeros;

/// Gives the memory of a buffer, whose content is not needed, back to the kernel: its whole pages become zero.
pub fn give_back(buffer: &mut [u8]) {
    let start = buffer.as_ptr() as usize;
    let (first, end) = (start.next_multiple_of(PAGE_SIZE), (start + buffer.len()) / PAGE_SIZE * PAGE_SIZE);
    if first < end {
        // SAFETY: whole pages of the buffer, of which the caller has the only reference; whatever they contain then, it
        // is bytes.
        let _ = unsafe { madvise(first as *mut _, end - first, Advice::LinuxDontNeed) };
    }
}
