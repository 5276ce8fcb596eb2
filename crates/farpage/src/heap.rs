//! The engine's private heap: the global allocator of the preload library and of the C library.
//!
//! The program's malloc is out of bounds for the engine (its memory may be swapped out, its locks may be held by the
//! thread whose fault is being served). This heap takes memory from one arena part, in size classes of a quarter of a
//! power of two, keeps freed blocks per class, and never gives memory back: the engine's own data is small, and big
//! blocks (growing tables) are freed rarely.
//!
//! Lock order: innermost; nothing is called while it is held.

use crate::arena::Part;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MIN: usize = 16;
const CLASSES: usize = 4 * 40;

struct State {
    next: usize,
    end: usize,
    free: [usize; CLASSES],
}

/// See the module documentation. Starts empty; [`Heap::give`] hands it memory.
pub struct Heap {
    state: Mutex<State>,
    used: AtomicUsize,
}

impl Heap {
    /// A heap without memory.
    pub const fn empty() -> Heap {
        Heap { state: Mutex::new(State { next: 0, end: 0, free: [0; CLASSES] }), used: AtomicUsize::new(0) }
    }

    /// Gives the heap its memory. What was allocated before stays valid.
    ///
    /// # Safety
    /// `part` is zeroed, readable and writable, used by nobody else, and stays mapped.
    pub unsafe fn give(&self, part: Part) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.next = part.base;
        state.end = part.end();
    }

    /// Locks the heap until the answer is dropped: around a fork, so that the child does not find it locked by a thread that it
    /// does not have.
    pub fn hold(&self) -> Held<'_> {
        Held(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A block (null: there is no room), and whether it is known to be zero.
    fn take(&self, layout: Layout) -> (*mut u8, bool) {
        let align = layout.align().max(MIN);
        let (class, size) = class_of(layout.size().max(align));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let head = state.free[class];
        if head != 0 && head.is_multiple_of(align) {
            // SAFETY: a free block holds the address of the next one in its first word.
            state.free[class] = unsafe { (head as *const usize).read() };
            return (head as *mut u8, false);
        }
        let at = state.next.next_multiple_of(align);
        match at.checked_add(size) {
            Some(end) if end <= state.end => {
                self.used.fetch_add(end - state.next, Relaxed);
                state.next = end;
                (at as *mut u8, true)
            }
            _ => (std::ptr::null_mut(), false),
        }
    }

    /// Bytes taken from the part so far: what the heap costs.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// A locked heap.
pub struct Held<'a>(#[allow(dead_code, reason = "held until it is dropped")] MutexGuard<'a, State>);

/// Class index and block size for a request: sizes are 4, 5, 6 or 7 times a power of two.
fn class_of(size: usize) -> (usize, usize) {
    let size = size.max(MIN);
    let log = usize::BITS as usize - 1 - (size - 1).leading_zeros() as usize;
    let step = 1usize << (log - 2);
    let rounded = size.next_multiple_of(step);
    let sub = (rounded - (1 << log)) / step;
    ((log - 3) * 4 + sub, rounded)
}

// SAFETY: blocks come from memory handed over by `give`, are disjoint (bump pointer, or a free list of the same class),
// aligned as asked (the bump pointer is rounded up; a free list holds blocks of one size, and requests whose alignment
// is above 16 are served with a size rounded to that alignment and checked below), and stay valid until freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).0
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (at, zero) = self.take(layout);
        // Memory that was never used is zero and need not be touched: it costs nothing until it is.
        if !at.is_null() && !zero {
            // SAFETY: a block of at least this size.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let (class, _) = class_of(layout.size().max(layout.align().max(MIN)));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the block is ours again (caller's promise), at least 16 bytes and word aligned.
        unsafe { ptr.cast::<usize>().write(state.free[class]) };
        state.free[class] = ptr as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_and_rarely_waste() {
        let mut last = 0;
        for size in 1..100_000usize {
            let (class, block) = class_of(size);
            assert!(block >= size && block * 4 <= size.max(MIN) * 5 + 16, "{size} {block}");
            assert_eq!(class_of(block), (class, block));
            assert!(class >= last && class < CLASSES);
            last = class;
        }
    }

    #[test]
    fn blocks_are_disjoint_aligned_and_reused() {
        let memory = vec![0u128; 1 << 16].leak();
        let heap = Heap::empty();
        // SAFETY: leaked memory that only the heap uses.
        unsafe { heap.give(Part { base: memory.as_ptr() as usize, len: size_of_val(memory) }) };
        let layouts = [(24, 8), (100, 16), (4096, 4096), (5000, 64), (17, 1)]
            .map(|(s, a)| Layout::from_size_align(s, a).unwrap());
        let mut seen: Vec<(usize, usize)> = Vec::new();
        for round in 0..20 {
            // SAFETY: valid layouts.
            let blocks = layouts.map(|l| unsafe { heap.alloc(l) });
            for (b, l) in blocks.iter().zip(layouts) {
                assert!(!b.is_null() && (*b as usize).is_multiple_of(l.align()));
                if round == 0 {
                    assert!(seen.iter().all(|(s, e)| *b as usize >= *e || *b as usize + l.size() <= *s));
                    seen.push((*b as usize, *b as usize + l.size()));
                }
            }
            for (b, l) in blocks.into_iter().zip(layouts) {
                // SAFETY: allocated above with this layout.
                unsafe { heap.dealloc(b, l) };
            }
        }
        let used = heap.used_bytes();
        assert!(used < 40_000, "{used}");
        let layout = layouts[2];
        // SAFETY: valid layouts, and blocks of this heap.
        unsafe {
            let dirty = heap.alloc(layout);
            dirty.write_bytes(1, layout.size());
            heap.dealloc(dirty, layout);
            let zeroed = heap.alloc_zeroed(layout);
            assert_eq!(zeroed, dirty);
            assert!(std::slice::from_raw_parts(zeroed, layout.size()).iter().all(|byte| *byte == 0));
            heap.dealloc(zeroed, layout);
        }
        // SAFETY: far more than there is.
        assert!(unsafe { heap.alloc(Layout::from_size_align(1 << 30, 16).unwrap()) }.is_null());
    }
}
