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

/// Address space for it; memory is what is used of it. Less where so much is not to be had (`ulimit -v`).
const RESERVED: [usize; 4] = [64 << 30, 4 << 30, 256 << 20, 16 << 20];

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
    fn start(&'static self) {
        self.start.call_once(|| {
            let map = |len: &usize| {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                // SAFETY: a new mapping where the kernel likes.
                let at =
                    unsafe { libc::mmap(std::ptr::null_mut(), *len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
                (at != libc::MAP_FAILED).then_some(Part { base: at as usize, len: *len })
            };
            let Some(part) = RESERVED.iter().find_map(map) else { return };
            // SAFETY: just mapped, and never unmapped; nobody else knows it.
            unsafe { self.heap.give(part) };
            // Before the regions' handlers, which allocate: so it is locked after theirs and unlocked before.
            // SAFETY: three functions of this library; glibc forgets them when it is unloaded.
            unsafe { libc::pthread_atfork(Some(prepare), Some(done), Some(done)) };
        });
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
        OWN.start();
        // SAFETY: caller's promise.
        unsafe { self.heap.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: caller's promise.
        unsafe { self.heap.dealloc(ptr, layout) }
    }
}
