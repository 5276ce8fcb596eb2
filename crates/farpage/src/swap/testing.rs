//! What the device tests share: a region for the pool, pages of known content.

use super::Page;
use crate::PAGE_SIZE;
use farpage_swap::sim::Random;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::NonNull;

/// Private zero memory, unmapped on drop.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is memory, owned by this value; nothing in it belongs to a thread.
unsafe impl Send for Region {}
// SAFETY: only `base` and `len` are reachable through a shared reference.
unsafe impl Sync for Region {}

impl Region {
    pub fn new(len: usize) -> Region {
        // SAFETY: a new anonymous mapping at an address the kernel chooses touches nothing that exists.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        Region { base: NonNull::new(base.unwrap().cast()).unwrap(), len }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length and is used by nothing after the owner is dropped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A page-aligned page.
#[repr(align(4096))]
pub struct Frame(pub Page);

impl Frame {
    pub fn boxed() -> Box<Frame> {
        Box::new(Frame([0; PAGE_SIZE]))
    }
}

/// The page that `seed` names: of one word, text-like, or random bytes.
pub fn page_of(seed: u64) -> Box<Frame> {
    let mut frame = Frame::boxed();
    fill(seed, &mut frame.0);
    frame
}

/// Writes the page that `seed` names: `seed % 8` is 0: one word; 7: random bytes; else text-like.
pub fn fill(seed: u64, page: &mut Page) {
    let mut rng = Random(seed);
    match seed % 8 {
        0 => {
            let word = if seed.is_multiple_of(16) { 0 } else { rng.bits() };
            page.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&word.to_ne_bytes()));
        }
        7 => page.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&rng.bits().to_ne_bytes())),
        kind => {
            let words: [u64; 32] = std::array::from_fn(|_| rng.bits());
            for c in page.chunks_exact_mut(8) {
                let word = if rng.index(8) < kind as usize { rng.bits() & 0xffff } else { words[rng.index(32)] };
                c.copy_from_slice(&word.to_ne_bytes());
            }
            page[..8].copy_from_slice(&seed.to_ne_bytes());
        }
    }
}

/// The check value the tests store with the page of `seed`.
pub fn check_of(seed: u64) -> u128 {
    u128::from(seed) << 64 | u128::from(!seed)
}
