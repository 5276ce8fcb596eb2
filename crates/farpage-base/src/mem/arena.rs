//! The engine's own address space: a range of addresses, cut into parts with gaps between them.
//!
//! Everything the engine touches lies here, so that "never manage your own memory" is one range check: adoption skips
//! `[base, end)`. What of it is not used yet is not mapped: a program may limit its address space
//! ([`crate::mem::open`]). So the range lies where the kernel puts nothing by itself. The gaps keep anonymous mappings
//! from merging.
//!
//! ```text
//!   gap | heap | gap | page table | gap | pool | gap | shared | gap | stacks | gap | frames | gap | discard area |
//!   gap | doorbell | gap | transit | gap | waste | gap
//! ```
//! *Frames* are registered with the same userfaultfd as the program's memory: the kernel then refuses a move while a
//! mapping change is pending, which is what makes moving pages out safe against munmap and mmap in other threads.
//! The *discard area* belongs to a second userfaultfd without events: pages moved there are given back to the kernel
//! without an event that the engine would have to read. *Transit* and *waste* are the same for executable memory
//! (`farpage_run::pager::transit`).

use crate::mem::open::{WINDOW, close, empty, forget, open};
use crate::sys::raw::random_bytes;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const GAP: usize = 2 << 20;

/// Bytes at the end of the window that no arena has.
const TESTS: usize = 128 << 30;

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
    /// Page table (see `farpage_run::shared::page_table`).
    pub table: Part,
    /// Compressed pool.
    pub pool: Part,
    /// Compressed pages that forked processes have together (`farpage_device::shared`).
    pub shared: Part,
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
    fn part_sizes([heap, table, pool, shared, stacks, frames]: [usize; 6]) -> [usize; 10] {
        [heap, table, pool, shared, stacks, frames, DISCARD_AREA_BYTES, PAGE_SIZE, TRANSIT_BYTES, TRANSIT_BYTES]
    }

    /// Finds the arena's addresses, for heap, page table, pool, shared pages, stacks and frames of these sizes in
    /// bytes. Only stacks, discard area and doorbell are mapped; the rest is, where it is used ([`crate::mem::open`]).
    /// In a program that has put something everywhere in the window (ThreadSanitizer does), all of it is reserved
    /// elsewhere.
    ///
    /// # Errors
    /// No address space (a limit on it, RLIMIT_AS, is the usual reason).
    pub fn reserve(sizes: [usize; 6]) -> Result<Arena, Errno> {
        const TRIES: usize = 64;
        let sizes = Arena::part_sizes(sizes);
        let len = sizes.iter().map(|n| n.next_multiple_of(GAP) + GAP).sum::<usize>() + GAP;
        for _ in 0..TRIES {
            let all = Part { base: somewhere(len), len };
            match is_free(all).and_then(|()| Arena::at(all, sizes)) {
                Err(Errno::EXIST) => {}
                result => return result,
            }
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice. Huge pages would blur the page-wise accounting;
        // without them it still works.
        let base = unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags)?;
            let _ = madvise(base, len, Advice::LinuxNoHugepage);
            base as usize
        };
        Arena::at(Part { base, len }, sizes)
    }

    /// In a forked child, before it makes an engine of its own: what its parent's has opened of page table, pool,
    /// frames and the ways for executable memory is closed. (Elsewhere than in the window it stays open.)
    ///
    /// # Safety
    /// The parent's engine has managed nothing, and is forgotten.
    pub unsafe fn begin_anew(&self) {
        // SAFETY: caller's promise.
        unsafe { self.close_but(Part { base: 0, len: 0 }) };
    }

    /// The engine has ended: what it has opened of pool, frames and the ways for executable memory is closed, and the
    /// page table is empty: program threads may look at that at any time. (Elsewhere than in the window all of it stays
    /// as it is.)
    ///
    /// # Safety
    /// No engine thread uses any of it any more.
    pub unsafe fn give_back(&self) {
        // SAFETY: caller's promise; a table of zeros has no words.
        unsafe {
            empty(std::slice::from_ref(&(self.table.base..self.table.end())));
            self.close_but(self.table);
        }
        // What stays does so for good.
        forget(&(self.all.base..self.all.end()));
    }

    /// What was opened of page table, pool, frames and the ways for executable memory is closed, but for `stays`.
    unsafe fn close_but(&self, stays: Part) {
        let parts = [self.table, self.pool, self.frames, self.transit, self.waste];
        let parts = parts.map(|part| if part == stays { 0..0 } else { part.base..part.end() });
        if WINDOW.contains(&self.all.base) {
            // SAFETY: caller's promise.
            unsafe { close(&parts) };
        }
    }

    fn at(all: Part, sizes: [usize; 10]) -> Result<Arena, Errno> {
        let mut at = all.base + GAP;
        let [heap, table, pool, shared, stacks, frames, discard_area, doorbell, transit, waste] = sizes.map(|len| {
            let part = Part { base: at, len };
            at += len.next_multiple_of(GAP) + GAP;
            part
        });
        for part in [stacks, discard_area, doorbell] {
            // SAFETY: addresses that are the arena's.
            unsafe { open(part.base, part.len) }?;
        }
        Ok(Arena { all, heap, table, pool, shared, stacks, frames, discard_area, doorbell, transit, waste })
    }
}

/// Addresses for `len` bytes, chosen by chance.
fn somewhere(len: usize) -> usize {
    let mut bytes = [0; 8];
    // Without random bytes it is always the same place, or the next one.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if random_bytes(&mut bytes).is_err() {
        bytes = (NEXT.fetch_add(1, Relaxed) * len).to_ne_bytes();
    }
    // (The end is for the tests of what is opened there.)
    let places = (WINDOW.len() - TESTS - len) / GAP;
    WINDOW.start + usize::from_ne_bytes(bytes) % places * GAP
}

/// Whether nothing is mapped there.
///
/// # Errors
/// `EEXIST`: something is.
fn is_free(all: Part) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: takes nothing's place, and goes again.
    match unsafe { mmap_anonymous(all.base as *mut c_void, all.len, ProtFlags::empty(), flags) } {
        // SAFETY: mapped just now.
        Ok(at) => unsafe { munmap(at, all.len) },
        Err(Errno::EXIST) => Err(Errno::EXIST),
        // So much is not allowed: what is used of it will be seen.
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_used_is_not_mapped() {
        let arena = Arena::reserve([1 << 32, 1 << 34, 1 << 30, 1 << 30, 1 << 20, 1 << 28]).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let mut mapped = 0;
        for line in maps.lines() {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let (start, end) = (number(start), number(end));
            if arena.all.contains(start) {
                assert!([arena.stacks, arena.discard_area, arena.doorbell].iter().any(|part| part.contains(start)));
                mapped += end - start;
            }
        }
        assert_eq!(mapped, (1 << 20) + DISCARD_AREA_BYTES + PAGE_SIZE);
        let parts = [arena.heap, arena.table, arena.pool, arena.shared, arena.stacks, arena.frames, arena.discard_area];
        assert!(parts.windows(2).all(|pair| pair[0].end() < pair[1].base && pair[1].base.is_multiple_of(GAP)));
        assert!(WINDOW.contains(&arena.all.base) && arena.all.end() <= WINDOW.end);
    }
}
