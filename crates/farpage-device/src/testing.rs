//! What tests share: a region for the pool, pages of known content, a CPU or a process of their own.

use super::Page;
use farpage_swap::PAGE_SIZE;
use farpage_swap::sim::Random;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::process::{Command, Output};
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
    /// Of so many bytes.
    pub fn new(len: usize) -> Region {
        // SAFETY: a new anonymous mapping at an address the kernel chooses touches nothing that exists.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        Region { base: NonNull::new(base.unwrap().cast()).unwrap(), len }
    }

    /// Its first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How large it is.
    pub fn bytes(&self) -> usize {
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
    /// Of zeros.
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

/// Binds this thread to the CPU that it is on, until it is dropped: slots come from a cluster for each.
pub struct OnOneCpu(CpuSet);

impl OnOneCpu {
    /// The calling thread is, from now on.
    pub fn here() -> OnOneCpu {
        let before = sched_getaffinity(None).unwrap();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        OnOneCpu(before)
    }
}

impl Drop for OnOneCpu {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Runs ignored tests, those with `filter` in their names or the one of that name, one after the other in a process of
/// their own, where nobody forks or opens what others look at: how it ended, and what it said. None would succeed.
pub fn in_a_process(filter: &str, exact: bool) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--nocapture", "--test-threads", "1", filter]).args(exact.then_some("--exact"));
    let out = command.output().unwrap();
    assert!(!String::from_utf8_lossy(&out.stdout).contains("running 0 tests\n"), "{filter}");
    out
}
