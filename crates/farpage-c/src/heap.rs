//! The library's heap: what the engine allocates does not come from the program's malloc.
//!
//! A thread that is interrupted inside malloc holds malloc's locks. If its signal handler then touches a region, the
//! fault may have to wait for another thread of the engine, and that one must not wait for malloc. A child that is forked
//! finds the heap unlocked, as it does malloc.

use engine::arena::Part;
use engine::heap::{Heap, Held};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::Once;

/// Taken from the kernel at once, bytes; memory is what is used of it.
const PIECE: usize = 64 << 20;

struct Own {
    heap: Heap,
    start: Once,
    /// Locked by the thread that forks, from before the copy until after.
    held: UnsafeCell<Option<Held<'static>>>,
}

// SAFETY: `held` is touched by `prepare` and `done` alone, between which libc lets no other thread fork.
unsafe impl Sync for Own {}

#[global_allocator]
static OWN: Own = Own { heap: Heap::empty(), start: Once::new(), held: UnsafeCell::new(None) };

impl Own {
    /// Gives the heap another piece, in which there is room for `size` bytes; false: there is none. What was left of the last
    /// one is not used any more.
    fn grow(&'static self, size: usize) -> bool {
        // Before the regions' handlers, which allocate: so it is locked after theirs and unlocked before.
        self.start.call_once(|| {
            // SAFETY: three functions of this library; glibc forgets them when it is unloaded.
            let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(done), Some(done)) };
        });
        // Blocks are up to a quarter larger than what is asked for, and aligned.
        let Some(len) = size.checked_mul(2).map(|twice| twice.max(PIECE)) else { return false };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: just mapped, and never unmapped; nobody else knows it.
        unsafe { self.heap.give(Part { base: at as usize, len }) };
        true
    }
}

extern "C" fn prepare() {
    // SAFETY: see `Own`.
    unsafe { *OWN.held.get() = Some(OWN.heap.hold()) };
}

extern "C" fn done() {
    // SAFETY: see `Own`.
    drop(unsafe { (*OWN.held.get()).take() });
}

// SAFETY: hands on to `Heap`.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: caller's promise.
        let take = || unsafe { self.heap.alloc(layout) };
        let at = take();
        if at.is_null() && OWN.grow(layout.size().max(layout.align())) { take() } else { at }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: caller's promise.
        let take = || unsafe { self.heap.alloc_zeroed(layout) };
        let at = take();
        if at.is_null() && OWN.grow(layout.size().max(layout.align())) { take() } else { at }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: caller's promise.
        unsafe { self.heap.dealloc(ptr, layout) }
    }
}
