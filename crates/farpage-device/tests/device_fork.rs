//! A real fork: parent, child and grandchild go on storing, loading and freeing, and each keeps all its bytes.
//!
//! The child's tables are its copy-on-write snapshot, the swap file is shared; see `device::file` for the rules.

use farpage_base::mem::units::Page;
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{Alg, SwapSpec};
use farpage_swap::PAGE_SIZE;
use farpage_swap::sim::Random;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::collections::HashMap;

const POOL_BYTES: usize = 64 << 20;

fn fill(seed: u64, page: &mut Page) {
    let mut random = Random(seed);
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        // Two in three pages compress.
        let value = if seed.is_multiple_of(3) || i % 4 == 0 { random.bits() } else { seed };
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Random work on a space, checked against a map; panics on the first wrong byte.
struct Worker {
    space: SwapSpace,
    live: HashMap<u64, Entry>,
    next: u64,
    random: Random,
}

impl Worker {
    fn random(&mut self, below: u64) -> u64 {
        self.random.index(below as usize) as u64
    }

    fn expect(&self, seed: u64, entry: Entry) {
        let (mut want, mut got) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        fill(seed, &mut want);
        self.space.load(entry, &mut got).unwrap_or_else(|e| panic!("page {seed}: {e}"));
        assert!(want == got, "content of page {seed}, entry {entry:?}");
        assert_eq!(self.space.check(entry), Some(u128::from(seed)));
    }

    fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.random(2) == 0 {
                let n = 1 + self.random(16);
                let mut frames = vec![[0; PAGE_SIZE]; n as usize];
                frames.iter_mut().zip(self.next..).for_each(|(page, seed)| fill(seed, page));
                let pages: Vec<_> = frames.iter().zip(self.next..).map(|(p, seed)| (p, u128::from(seed))).collect();
                let mut out = vec![None; n as usize];
                self.space.store_batch(&pages, &mut out).unwrap();
                for (entry, seed) in out.into_iter().zip(self.next..) {
                    self.live.insert(seed, entry.unwrap());
                }
                self.next += n;
            } else {
                let count = self.random(16) as usize;
                let seeds: Vec<u64> = self.live.keys().copied().take(count).collect();
                for seed in seeds {
                    let entry = self.live[&seed];
                    self.expect(seed, entry);
                    self.live.remove(&seed);
                    assert!(self.space.free(entry));
                }
            }
            if self.random(8) == 0 {
                self.space.writeback(16);
                // Space is given back while a child may still need what was in it before the fork.
                self.space.tend(true);
            }
        }
    }

    fn verify(&self) {
        self.live.iter().for_each(|(&seed, &entry)| self.expect(seed, entry));
    }

    /// Forks; the child runs `child` and exits with 0 if nothing panicked. Returns pid and lease.
    fn fork(&mut self, child: impl FnOnce(&mut Worker)) -> (i32, u32) {
        // SAFETY: the test program has one thread that uses the space and the allocator of the child is the
        // C library's, which survives a fork; the child leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // The descriptor table was copied: the same numbers are the child's own.
                let fds: Vec<_> = self.space.fds().into_iter().map(|fd| (fd, fd)).collect();
                self.space.fork_child(&fds);
                // From here on the child's pages differ from the parent's of the same number.
                self.next += 10_000_000 * (1 + u64::from(std::process::id()) % 1000);
                child(self);
                self.verify();
                let seeds: Vec<u64> = self.live.keys().copied().collect();
                for seed in seeds {
                    assert!(self.space.free(self.live[&seed]));
                }
                let usage = self.space.usage();
                assert_eq!((usage.slots_in_use, usage.bad_frees), (0, 0));
            }));
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        (pid, self.space.fork_parent())
    }
}

fn wait(pid: i32) {
    let mut status = 0;
    // SAFETY: `status` is a valid place; the pid is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
}

#[test]
fn device_fork_parent_child_and_grandchild_keep_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: a new anonymous mapping at an address the kernel chooses; it is never unmapped.
    let pool = unsafe {
        mmap_anonymous(std::ptr::null_mut(), POOL_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let specs = [SwapSpec::zram(Alg::Lz4), SwapSpec::parse(&format!("file:{},encrypt", dir.path().display())).unwrap()];
    // SAFETY: the mapping is new, private and used by nothing else.
    let space = unsafe { SwapSpace::build(&specs, pool.unwrap().cast(), POOL_BYTES, 1 << 20) }.unwrap();
    let mut worker = Worker { space, live: HashMap::new(), next: 1, random: Random(0x1357_9bdf) };
    worker.work(300);
    assert!(worker.space.usage().file_bytes > 0 && worker.space.usage().pool_bytes > 0);
    let mut children = Vec::new();
    for round in 0..4 {
        children.push(worker.fork(|child| {
            child.random.0 += 1;
            child.work(150);
            let (pid, lease) = child.fork(|grandchild| {
                grandchild.random.0 += 2;
                grandchild.work(200);
            });
            child.work(150);
            wait(pid);
            child.space.end_lease(lease);
            child.work(50);
        }));
        worker.work(200);
        if round % 2 == 1 {
            let (pid, lease) = children.swap_remove(0);
            wait(pid);
            worker.space.end_lease(lease);
        }
        worker.work(50);
    }
    assert!(worker.space.usage().deferred_slots > 0);
    for (pid, lease) in children {
        wait(pid);
        worker.space.end_lease(lease);
    }
    worker.work(100);
    worker.verify();
    let usage = worker.space.usage();
    assert_eq!((usage.deferred_slots, usage.bad_frees, usage.read_errors, usage.write_errors), (0, 0, 0, 0));
    assert_eq!(usage.slots_in_use, worker.live.len() as u64);
    println!("{usage:?}");
}
