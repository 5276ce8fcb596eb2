//! The engine's own address space: one reservation, cut into parts with inaccessible gaps between them.
//!
//! Everything the engine touches lies here, so that "never manage your own memory" is one range check: adoption skips
//! `[base, end)`. The gaps keep neighbouring anonymous mappings of the program from merging with ours.
//!
//! ```text
//!   gap | heap | gap | page table | gap | pool | gap | stacks | gap | frames | gap | discard area | gap | doorbell |
//!   gap
//!       | transit | gap | waste | gap
//! ```
//! *Frames* are registered with the same userfaultfd as the program's memory: the kernel then refuses a move while a
//! mapping change is pending, which is what makes moving pages out safe against munmap and mmap in other threads.
//! *Trash* belongs to a second userfaultfd without events: pages moved there are given back to the kernel without
//! causing an event that somebody would have to read. *Transit* and *waste* are the same for executable memory
//! (`crate::run::pager::transit`).

use crate::PAGE_SIZE;
use crate::mem::open::open;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};
use std::ffi::c_void;

const GAP: usize = 2 << 20;

/// One part of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
}

impl Part {
    /// First byte behind.
    pub fn end(&self) -> usize {
        self.base + self.len
    }

    /// Whether the address lies in the part.
    pub fn contains(&self, addr: usize) -> bool {
        (self.base..self.end()).contains(&addr)
    }
}

/// The reservation and its parts.
#[derive(Debug, Clone, Copy)]
pub struct Arena {
    /// All of it.
    pub all: Part,
    /// Rust heap of the engine.
    pub heap: Part,
    /// Page table (see [`crate::run::page_table`]).
    pub table: Part,
    /// Compressed pool.
    pub pool: Part,
    /// Stacks of the engine threads.
    pub stacks: Part,
    /// Frames.
    pub frames: Part,
    /// Where pages are moved that shall be freed.
    pub discard_area: Part,
    /// One page, never present, registered like the frames: discarding it is how a program thread wakes the pager.
    pub doorbell: Part,
    /// Through which executable pages are taken out.
    pub transit: Part,
    /// Where they are moved to be freed.
    pub waste: Part,
}

/// Bytes of the discard area: pages freed in one go.
pub const DISCARD_AREA_BYTES: usize = 256 * PAGE_SIZE;

/// Bytes of the transit part, and of the waste: pages taken out in one go.
pub const TRANSIT_BYTES: usize = 64 * PAGE_SIZE;

impl Arena {
    fn part_sizes([heap, table, pool, stacks, frames]: [usize; 5]) -> [usize; 9] {
        [heap, table, pool, stacks, frames, DISCARD_AREA_BYTES, PAGE_SIZE, TRANSIT_BYTES, TRANSIT_BYTES]
            .map(|n| n.next_multiple_of(GAP))
    }

    /// Bytes of address space that [`Arena::reserve`] takes for parts of these sizes.
    pub fn bytes(sizes: [usize; 5]) -> usize {
        Arena::part_sizes(sizes).iter().map(|n| n + GAP).sum::<usize>() + GAP
    }

    /// Reserves the arena, for heap, page table, pool, stacks and frames of these sizes in bytes. Nothing is touched
    /// yet, and most of it is not writable yet ([`crate::mem::open`]), so it costs address space only: stacks, discard
    /// area and doorbell can be used, the table can be read, and the rest is closed.
    ///
    /// # Errors
    /// No address space (a limit on it, RLIMIT_AS, is the usual reason).
    pub fn reserve(sizes: [usize; 5]) -> Result<Arena, Errno> {
        let total = Arena::bytes(sizes);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let all = Part { base: base as usize, len: total };
        let mut at = all.base + GAP;
        let mut parts = [Part { base: 0, len: 0 }; 9];
        for (part, len) in parts.iter_mut().zip(Arena::part_sizes(sizes)) {
            *part = Part { base: at, len };
            at += len + GAP;
            let ptr = part.base as *mut c_void;
            // SAFETY: inside the reservation made above, which nobody else knows yet. Huge pages would blur the
            // page-wise accounting; without them it still works.
            let _ = unsafe { madvise(ptr, len, Advice::LinuxNoHugepage) };
        }
        let [heap, table, pool, stacks, frames, discard_area, doorbell, transit, waste] = parts;
        for part in [stacks, discard_area, doorbell] {
            // SAFETY: as above.
            unsafe { open(part.base, part.len) }?;
        }
        // SAFETY: as above.
        unsafe { mprotect(table.base as *mut c_void, table.len, MprotectFlags::READ) }?;
        Ok(Arena { all, heap, table, pool, stacks, frames, discard_area, doorbell, transit, waste })
    }
}
