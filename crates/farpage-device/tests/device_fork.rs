//! A real fork: parent, child and grandchild go on storing, loading, sharing and freeing, and each keeps all its bytes.
//!
//! The child's tables are its copy-on-write snapshot, the swap file is shared; see `device::file` for the rules.

use farpage_base::mem::arena::Part;
use farpage_base::mem::open::WINDOW;
use farpage_base::mem::units::Page;
use farpage_base::sys::proc::Proc;
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{Alg, SwapSpec};
use farpage_swap::PAGE_SIZE;
use farpage_swap::sim::Random;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::collections::HashMap;
use std::io::{Read, Write};

const POOL_BYTES: usize = 64 << 20;

fn fill(seed: u64, page: &mut Page) {
    let mut random = Random(seed);
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        // Two in three pages compress.
        let value = if seed.is_multiple_of(3) || i % 4 == 0 { random.bits() } else { seed };
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

/// With copies for all, which are at the end of the window of all arenas: `place` is the caller's.
fn space(specs: &[SwapSpec], place: usize) -> SwapSpace {
    Proc::open().unwrap().hold();
    let part = Part { base: WINDOW.end - (place + 1) * (1 << 30), len: 1 << 30 };
    // SAFETY: a new anonymous mapping at an address the kernel chooses; it is never unmapped.
    let pool = unsafe {
        mmap_anonymous(std::ptr::null_mut(), POOL_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    // SAFETY: the mapping is new, private and used by nothing else; no other test uses the place.
    unsafe {
        let space = SwapSpace::build(specs, pool.unwrap().cast(), POOL_BYTES, 1 << 20).unwrap();
        space.with_shared(Alg::Lz4, 32 << 20, part)
    }
}

/// Random work on a space, checked against a map; panics on the first wrong byte.
struct Worker {
    space: SwapSpace,
    live: HashMap<u64, Entry>,
    /// Pages that were stored in the copy for all.
    shared: usize,
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
            if self.random(4) == 0 {
                // A page is as it was at the fork, in memory, and leaves.
                let page = self.live.iter().next().map(|(&seed, &entry)| (seed, entry));
                let Some((seed, old)) = page else { continue };
                let mut page = [0; PAGE_SIZE];
                fill(seed, &mut page);
                if let Some(entry) = self.space.share(&page, u128::from(seed), seed) {
                    self.shared += 1;
                    self.live.insert(seed, entry);
                    self.expect(seed, entry);
                    assert!(self.space.free(old));
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
        self.space.share_with_child();
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
    let file = SwapSpec::parse(&format!("file:{},encrypt", dir.path().display())).unwrap();
    let space = space(&[SwapSpec::zram(Alg::Lz4), file], 0);
    let mut worker = Worker { space, live: HashMap::new(), shared: 0, next: 1, random: Random(0x1357_9bdf) };
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
    assert!(worker.space.usage().deferred_slots > 0 && worker.shared > 0);
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

/// What is shared after a fork, the child finds; it stays for the child, and goes with the last descendant.
#[test]
fn device_fork_a_copy_for_all_is_made_once() {
    // SAFETY: there is no memory device.
    let space = space(&[SwapSpec::zram(Alg::Lz4)], 1);
    let page = |seed| {
        let mut page = [0; PAGE_SIZE];
        fill(seed, &mut page);
        page
    };
    let compressible = |n: u64| 3 * n + 1;
    let share = |space: &SwapSpace, seed| space.share(&page(seed), u128::from(seed), seed);
    let mut worker = Worker { space, live: HashMap::new(), shared: 0, next: 1, random: Random(7) };
    assert_eq!(share(&worker.space, compressible(0)), None, "nobody has the page, too");
    let (wait_for_parent, parent) = std::io::pipe().unwrap();
    let mut parent = Some(parent);
    let (pid, lease) = worker.fork(|child| {
        assert_eq!(share(&child.space, compressible(2000)), None, "only the parent adds copies");
        parent = None;
        assert_eq!((&wait_for_parent).read(&mut [0]).unwrap(), 1, "the parent has failed");
        for n in 0..1000 {
            let seed = compressible(n);
            assert!(child.space.shares(seed) && !child.space.shares(seed + 1), "by its number");
            child.live.insert(seed, share(&child.space, seed).unwrap());
        }
        child.verify();
    });
    for n in 0..1000 {
        let seed = compressible(n);
        let entry = share(&worker.space, seed).unwrap();
        assert_eq!(share(&worker.space, seed), Some(entry), "once");
        assert!(worker.space.free(entry));
        worker.live.insert(seed, entry);
    }
    assert_eq!(share(&worker.space, 3), None, "does not compress");
    worker.verify();
    let bytes = worker.space.shared_bytes();
    for entry in worker.live.drain().map(|(_, entry)| entry) {
        assert!(worker.space.free(entry));
    }
    assert!(!worker.space.free(Entry::new(0, 1).unwrap()), "of this process no page needs it");
    assert_eq!(worker.space.shared_bytes(), bytes, "the child may need it");
    parent.take().unwrap().write_all(&[0]).unwrap();
    wait(pid);
    worker.space.end_lease(lease);
    assert_eq!((worker.space.shared_bytes(), worker.space.usage().slots_in_use), (0, 0));
}
