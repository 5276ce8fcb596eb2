//! Synchronous devices store, load and free without allocating: the fault path must not wait for an allocator.
//!
//! The global allocator counts. A test of its own, because the count is the whole process's.

use farpage_base::mem::count::{Counting, allocations};
use farpage_base::mem::units::Page;
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::{Alg, DeviceKind, SwapSpec};
use farpage_swap::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const POOL: usize = 64 << 20;

fn page(seed: u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        // Every third page is of one word, the others compress to a third or so.
        let value = if seed.is_multiple_of(3) || i % 3 != 0 { seed } else { seed.wrapping_mul(i as u64 * 0x9e37_79b9) };
        word.copy_from_slice(&value.to_ne_bytes());
    }
    page
}

#[test]
fn device_synchronous_stores_loads_and_frees_allocate_nothing() {
    // Slots come from a cluster for each CPU, and a cluster that is used for the first time gets its tables.
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).unwrap();
    let specs: [(&str, SwapSpec); 3] = [
        ("ram", DeviceKind::Ram.into()),
        ("zram, lz4", SwapSpec::zram(Alg::Lz4)),
        ("zram, zstd", SwapSpec::zram(Alg::Zstd)),
    ];
    for (name, spec) in specs {
        // SAFETY: a new anonymous mapping at an address the kernel chooses; it is never unmapped.
        let memory = unsafe {
            mmap_anonymous(std::ptr::null_mut(), POOL, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        // SAFETY: the mapping is new, private and used by nothing else.
        let space = unsafe { SwapSpace::build(&[spec], memory.unwrap().cast(), POOL, POOL as u64 / 2) }.unwrap();
        let pages: Vec<_> = (0..2000).map(page).collect();
        let mut into = Box::new([0; PAGE_SIZE]);
        let mut entries: Vec<Option<Entry>> = vec![None; 2000];
        let store = |i: usize| space.store_now(&pages[i], i as u128).unwrap().unwrap();
        // Tables and codec states are made on the way to the working set.
        (0..2000).for_each(|i| entries[i] = Some(store(i)));
        space.load(entries[1].unwrap(), &mut into).unwrap();
        // The same number again, in another order, with the tables as large as they get.
        (0..2000).filter(|i| i % 2 == 0).for_each(|i| assert!(space.free(entries[i].take().unwrap())));
        (0..2000).filter(|i| i % 2 == 0).for_each(|i| entries[i] = Some(store(i)));
        // At first the freed slots spread over a few more clusters, each with its tables; then nothing is allocated.
        let mut before = 0;
        for round in 0..9000 {
            if round == 6000 {
                before = allocations();
            }
            let i = round * 7 % 2000;
            let entry = entries[i].take().unwrap();
            space.load(entry, &mut into).unwrap();
            assert!(into == pages[i]);
            assert!(space.free(entry));
            entries[i] = Some(store(i));
        }
        assert_eq!(allocations() - before, 0, "{name}");
    }
}
