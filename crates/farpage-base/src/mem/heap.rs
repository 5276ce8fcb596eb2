//! The engine's private heap: the global allocator of the preload library and, as [`Growing`], of the C library and of
//! Rust programs whose signal handlers touch regions.
//!
//! The program's malloc is out of bounds for the engine (its memory may be swapped out, its locks may be held by the
//! thread whose fault is being served). This heap takes memory from one part after another, in size classes of a
//! quarter of a power of two, and keeps freed blocks per class. Of a big one (what has grown out of it, buffers of a
//! thread that rests) the kernel gets the memory; the addresses stay.
//!
//! There is no lock (but where memory is mapped, ahead of its use: [`crate::mem::open`]): a thread that is interrupted
//! in the middle, by a signal or for ever by a fork that leaves it behind, holds up no other thread. The free blocks of
//! a class are a stack of the kind of Treiber (1986); its top has a number beside it that counts changes, in 16 bytes
//! that are compared and exchanged at once, so that a pop whose block was popped and pushed by others meanwhile fails.
//! (The top's link may be read while its new owner writes there: the pop fails then, too.)

use crate::mem::arena::Part;
use crate::mem::open::Opening;
use farpage_swap::PAGE_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::alloc::{GlobalAlloc, Layout};
use std::arch::asm;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

const MIN: usize = 16;
/// Open beyond what is used, bytes: an allocation cannot do without.
const AHEAD: usize = 1 << 20;
const CLASSES: usize = 4 * 40;
/// The memory of free blocks of so many bytes goes back: a system call, and a fault a page when they are used again.
const BIG: usize = 8 << 10;

/// The beginning of each part.
struct Piece {
    /// Where the memory that was never used begins.
    next: AtomicUsize,
    end: usize,
    opening: Opening,
}

/// The top of a stack of free blocks: two words that change together, by an instruction that no atomic type has
/// (docs/decisions/0022-sixteen-bytes-by-asm.md).
#[repr(C, align(16))]
struct Top {
    /// The first block, 0 for none; each holds the address of the next in its first word.
    first: AtomicUsize,
    /// Changes so far.
    changes: AtomicUsize,
}

impl Top {
    const fn new() -> Top {
        Top { first: AtomicUsize::new(0), changes: AtomicUsize::new(0) }
    }

    /// What is there. The two are not read at once; a [`Top::exchange`] of what never was there together fails.
    fn load(&self) -> (usize, usize) {
        // The number first: a block that is pushed afterwards comes with a larger one.
        let changes = self.changes.load(Acquire);
        (self.first.load(Acquire), changes)
    }

    /// Puts `first` in the place of what [`Top::load`] returned, if that is still there. Orders like `AcqRel`.
    fn exchange(&self, (old, changes): (usize, usize), first: usize) -> bool {
        let done: u8;
        // SAFETY: 16 aligned bytes, both of atomics, so they may change under shared references. rbx, which the
        // compiler may have in use, is restored; the others are named, because one of them could be rbx. Every x86-64
        // processor has the instruction but the first ones, of 2003.
        unsafe {
            asm!(
                "xchg rbx, rsi",
                "lock cmpxchg16b [rdi]",
                "sete r8b",
                "mov rbx, rsi",
                inout("rsi") first => _,
                in("rdi") std::ptr::from_ref(self),
                out("r8b") done,
                inout("rax") old => _,
                inout("rdx") changes => _,
                in("rcx") changes.wrapping_add(1),
                options(nostack)
            );
        }
        done != 0
    }
}

/// See the module documentation. Starts empty; [`Heap::give`] hands it memory.
pub struct Heap {
    /// The part that new blocks come from.
    piece: AtomicPtr<Piece>,
    /// Free blocks, by class.
    free: [Top; CLASSES],
    used: AtomicUsize,
    /// Free blocks of so many bytes have no memory.
    big: usize,
}

impl Heap {
    /// A heap without memory.
    pub const fn empty() -> Heap {
        Heap::with(BIG)
    }

    /// The memory of free blocks of so many bytes goes back.
    const fn with(big: usize) -> Heap {
        Heap {
            big,
            piece: AtomicPtr::new(std::ptr::null_mut()),
            free: [const { Top::new() }; CLASSES],
            used: AtomicUsize::new(0),
        }
    }

    /// Gives the heap its memory, of which the first `opened` bytes can be written; the rest is opened as it is needed.
    /// What was allocated before stays valid; what was left of the part before is not used any more. False: not even
    /// the first page could be opened.
    ///
    /// # Safety
    /// `part` is zeroed, aligned to 16 bytes (to a page, if it is to be opened), larger than a page, not used
    /// elsewhere, and stays mapped.
    #[must_use]
    pub unsafe fn give(&self, part: Part, opened: usize) -> bool {
        let piece = part.base as *mut Piece;
        let first = part.base + size_of::<Piece>();
        // SAFETY: caller's promise.
        let opening = unsafe { Opening::new(part.base + opened, part.end()) }.ahead(AHEAD);
        if !opening.reach(first) {
            return false;
        }
        // SAFETY: the part has room for it, is ours (caller's promise), and is open so far.
        unsafe { piece.write(Piece { next: AtomicUsize::new(first), end: part.end(), opening }) };
        self.piece.store(piece, Release);
        true
    }

    /// A block (null: there is no room), and whether it is known to be zero.
    fn take(&self, layout: Layout) -> (*mut u8, bool) {
        let align = layout.align().max(MIN);
        let (class, size) = class_of(layout.size().max(align));
        let Some(top) = self.free.get(class) else { return (std::ptr::null_mut(), false) };
        loop {
            let seen = top.load();
            if seen.0 == 0 || !seen.0.is_multiple_of(align) {
                break;
            }
            // SAFETY: a block of this heap: parts stay mapped. If another thread has taken it meanwhile, what is read
            // there is not used.
            let next = unsafe { (seen.0 as *const usize).read_volatile() };
            if top.exchange(seen, next) {
                self.used.fetch_add(self.spare_pages(seen.0, size).len(), Relaxed);
                return (seen.0 as *mut u8, false);
            }
        }
        // SAFETY: null, or a piece that `give` has made; parts stay mapped.
        let Some(piece) = (unsafe { self.piece.load(Acquire).as_ref() }) else { return (std::ptr::null_mut(), false) };
        let start = |next: usize| next.next_multiple_of(align);
        let cut = |next: usize| start(next).checked_add(size).filter(|end| *end <= piece.end);
        match piece.next.fetch_update(Relaxed, Relaxed, cut) {
            Ok(next) if piece.opening.reach(start(next) + size) => {
                self.used.fetch_add(start(next) + size - next, Relaxed);
                (start(next) as *mut u8, true)
            }
            _ => (std::ptr::null_mut(), false),
        }
    }

    /// Whether no more memory is to be had: what is left is for what cannot wait.
    pub fn is_short(&self) -> bool {
        // SAFETY: null, or a piece that `give` has made; parts stay mapped.
        let piece = unsafe { self.piece.load(Acquire).as_ref() };
        piece.is_some_and(|piece| piece.opening.is_short(piece.next.load(Relaxed)))
    }

    /// The pages of a free block of `size` bytes whose memory is not kept: all but the one with its link, if it is big.
    fn spare_pages(&self, at: usize, size: usize) -> Range<usize> {
        if size < self.big {
            return at..at;
        }
        (at + 1).next_multiple_of(PAGE_SIZE)..(at + size) / PAGE_SIZE * PAGE_SIZE
    }

    /// Gives the memory of a block that is being freed back, where it is worth it.
    ///
    /// # Safety
    /// The block, of `size` bytes at `at`, is this heap's, and not used any more.
    unsafe fn give_back(&self, at: usize, size: usize) {
        let spare = self.spare_pages(at, size);
        if !spare.is_empty() {
            self.used.fetch_sub(spare.len(), Relaxed);
            // SAFETY: whole pages of the block, whose content is not needed (caller's promise). Locked pages stay.
            let _ = unsafe { madvise(spare.start as *mut _, spare.len(), Advice::LinuxDontNeed) };
        }
    }

    /// Bytes taken from the parts so far, without what was given back: what the heap costs.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// A [`Heap`] that takes memory from the kernel when it needs some, and never gives it back: for a program whose signal
/// handlers touch regions and may interrupt an allocation. The pager's threads allocate, and the fault may have to wait
/// for them; with an allocator that has locks they would wait for the interrupted thread.
///
/// ```
/// # mod farpage { pub use farpage_base::mem::heap::Growing; }
/// #[global_allocator]
/// static HEAP: farpage::Growing = farpage::Growing::new();
/// # fn main() { assert_eq!(vec![1; 1000].len(), 1000); }
/// ```
pub struct Growing(Heap);

impl Growing {
    /// Taken from the kernel at once, bytes; memory is what is used of it.
    const PIECE: usize = 64 << 20;

    /// A heap that has taken nothing yet.
    #[allow(clippy::new_without_default, reason = "it is for a static")]
    pub const fn new() -> Growing {
        // A program that frees much, and takes it again, is not to pay for that.
        Growing(Heap::with(usize::MAX))
    }

    /// What `from_heap` gives, after the heap has grown if need be.
    fn take(&self, layout: Layout, from_heap: impl Fn() -> *mut u8) -> *mut u8 {
        loop {
            let at = from_heap();
            // Another thread's piece, given to the heap at the same time, may be too small for this block.
            if !at.is_null() || !self.grow(layout.size().max(layout.align())) {
                return at;
            }
        }
    }

    /// Gives the heap another piece, in which there is room for `size` bytes; false: there is none.
    fn grow(&self, size: usize) -> bool {
        // Blocks are up to a quarter larger than what is asked for, and aligned.
        let Some(len) = size.checked_mul(3).map(|thrice| thrice.max(Self::PIECE)) else { return false };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) };
        // SAFETY: just mapped, and never unmapped; nothing else has its address.
        at.is_ok_and(|at| unsafe { self.0.give(Part { base: at as usize, len }, 0) })
    }
}

// SAFETY: hands on to `Heap`.
unsafe impl GlobalAlloc for Growing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: caller's promise.
        self.take(layout, || unsafe { self.0.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: caller's promise.
        self.take(layout, || unsafe { self.0.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: caller's promise.
        unsafe { self.0.dealloc(ptr, layout) }
    }
}

/// Class index and block size for a request: sizes are 4, 5, 6 or 7 times a power of two.
fn class_of(size: usize) -> (usize, usize) {
    let size = size.max(MIN);
    let log = usize::BITS as usize - 1 - (size - 1).leading_zeros() as usize;
    let step = 1usize << (log - 2);
    let rounded = size.next_multiple_of(step);
    let sub = (rounded - (1 << log)) / step;
    ((log - 3) * 4 + sub, rounded)
}

// SAFETY: blocks come from memory handed over by `give`, are disjoint (cut off once, or popped from a stack of the same
// class), aligned as asked (the cut is rounded up; a stack holds blocks of one size, and the alignment of its first is
// checked), and stay valid until freed.
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
        let (class, size) = class_of(layout.size().max(layout.align().max(MIN)));
        let Some(top) = self.free.get(class) else { return };
        // SAFETY: caller's promise.
        unsafe { self.give_back(ptr as usize, size) };
        loop {
            let seen = top.load();
            // SAFETY: the block is ours again (caller's promise), at least 16 bytes and word aligned.
            unsafe { ptr.cast::<usize>().write_volatile(seen.0) };
            if top.exchange(seen, ptr as usize) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads take blocks, mark them, and give each other's back: no thread ever finds a foreign mark in its own.
    #[test]
    fn many_threads_never_share_a_block() {
        const THREADS: usize = 4;
        const ROUNDS: u64 = 300_000;
        let memory = vec![0u128; 1 << 20].leak();
        let heap = Heap::empty();
        // SAFETY: leaked memory that only the heap uses.
        assert!(unsafe {
            heap.give(Part { base: memory.as_ptr() as usize, len: size_of_val(memory) }, size_of_val(memory))
        });
        let layouts = [24, 64, 100].map(|size| Layout::from_size_align(size, 8).unwrap());
        let market = std::sync::Mutex::new(Vec::<(usize, u64)>::new());
        let check = |(at, mark): (usize, u64)| {
            let layout = layouts[(mark % 3) as usize];
            // SAFETY: a block that was allocated below with this layout, and is in this thread's hands only.
            unsafe {
                for i in 0..layout.size() / 8 {
                    assert_eq!((at as *const u64).add(i).read(), mark);
                }
                heap.dealloc(at as *mut u8, layout);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS as u64 {
                let (heap, market) = (&heap, &market);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for round in 0..ROUNDS {
                        let mark = thread * ROUNDS + round;
                        let layout = layouts[(mark % 3) as usize];
                        // SAFETY: a valid layout; the block is as large.
                        unsafe {
                            let at = heap.alloc(layout);
                            assert!(!at.is_null());
                            (0..layout.size() / 8).for_each(|i| at.cast::<u64>().add(i).write(mark));
                            mine.push((at as usize, mark));
                        }
                        if mine.len() > 20 + (round % 13) as usize {
                            mine.drain(..8).for_each(check);
                        }
                        if round % 97 == 0 {
                            std::mem::swap(&mut *market.lock().unwrap(), &mut mine);
                        }
                    }
                    mine.into_iter().for_each(check);
                });
            }
        });
        market.into_inner().unwrap().into_iter().for_each(check);
        assert!(heap.used_bytes() < 128 << 10, "{} bytes for a few hundred blocks", heap.used_bytes());
    }

    /// Whether a page has memory.
    fn is_resident(at: usize) -> bool {
        let mut entry = [0; 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, (at / PAGE_SIZE * 8) as u64).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn the_memory_of_big_free_blocks_goes_back() {
        let memory = vec![0u128; 1 << 16].leak();
        let heap = Heap::empty();
        // SAFETY: leaked memory that only the heap uses.
        assert!(unsafe {
            heap.give(Part { base: memory.as_ptr() as usize, len: size_of_val(memory) }, size_of_val(memory))
        });
        for (size, goes) in [(BIG / 2, false), (BIG, true), (10 * BIG + 5, true)] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            let before = heap.used_bytes();
            // SAFETY: a valid layout; the blocks are as large, and freed with it.
            unsafe {
                let first = heap.alloc(layout);
                first.write_bytes(7, size);
                let (page, used) = (first as usize + size / 2, heap.used_bytes());
                heap.dealloc(first, layout);
                assert_eq!(is_resident(page), !goes, "{size}");
                assert!(!goes || heap.used_bytes() <= before + 2 * PAGE_SIZE, "{size}");
                assert_eq!(heap.alloc_zeroed(layout), first);
                assert!((0..size).all(|i| first.add(i).read() == 0) && heap.used_bytes() == used);
            }
        }
    }

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
        assert!(unsafe {
            heap.give(Part { base: memory.as_ptr() as usize, len: size_of_val(memory) }, size_of_val(memory))
        });
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
        // More than there is, and more than there is a class for.
        for size in [1 << 30, isize::MAX as usize - 15] {
            // SAFETY: a valid layout.
            assert!(unsafe { heap.alloc(Layout::from_size_align(size, 16).unwrap()) }.is_null());
        }
    }
}
