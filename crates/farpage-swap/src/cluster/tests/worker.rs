//! The background work: step by step, and by a thread that sleeps in between.

use super::*;
use crate::sync::AtomicBool;
use std::thread;

fn wanted(swap: &Swap<Frames>) -> usize {
    swap.env().wanted.load(Ordering::Relaxed)
}

#[test]
fn swap_work_discards_in_steps_and_says_when_there_is_more() {
    let swap = Swap::new(1, Frames::default());
    swap.swapon(DeviceOptions { slots: 512 * 6, discard: true, ..DeviceOptions::default() }).unwrap();
    let all: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).collect();
    assert!(!swap.work(9));
    assert_eq!(swap.put_all(&all[..511 + 512 * 4]), (511 + 512 * 4, 0));
    // Cluster 0 has the header; it is never empty.
    assert_eq!((wanted(&swap), swap.device(0).unwrap().list_len(Flag::Discard, 0)), (2, 4), "full once, empty once");
    assert!(swap.work(3), "one is left");
    assert_eq!(swap.env().discarded.lock().unwrap().len(), 3);
    assert!(!swap.work(3) && !swap.work(3));
    let mut discarded = swap.env().discarded.lock().unwrap().clone();
    discarded.sort_unstable();
    assert_eq!(discarded, [(0, 512), (0, 1024), (0, 1536), (0, 2048)]);
    assert_eq!(swap.device(0).unwrap().list_len(Flag::Free, 0), 4);
    assert_eq!(swap.put_all(&all[511 + 512 * 4..]), (512, 0));
    assert_eq!(wanted(&swap), 3, "called again, for the next one");
    check(&swap);
}

#[test]
fn swap_work_reclaims_each_full_cluster_of_a_full_device_once() {
    let swap = one(512 * 8);
    let all: Vec<Entry> = (0..512 * 8 - 1).map(|i| swap.alloc(0, 0, Fill::Cached(i)).unwrap()).collect();
    assert_eq!(wanted(&swap), 1, "the device is full");
    swap.env().busy.lock().unwrap().extend([3, 600]);
    // Half of it stays in use: they get a reference.
    all.chunks(2).for_each(|pair| swap.dup(pair[0], 1).unwrap());
    assert!(swap.work(3));
    let (first, capacity) = (swap.in_use(0), swap.capacity(0));
    assert!((capacity - 3 * 256..capacity - 3 * 255).contains(&first), "three clusters: {first}");
    while swap.work(3) {}
    // Once less than half is used, the rest stays where it is.
    assert!(swap.in_use(0) <= capacity / 2 + 2, "{}", swap.in_use(0));
    assert!(all.chunks(2).all(|pair| swap.count(pair[0]) == 1), "[25] nothing that is in use");
    let busy = [all[3], all[600]].map(|entry| swap.lookup(entry).frame());
    assert_eq!(busy, [Some(3), Some(600)], "frames in use keep their slots");
    check(&swap);
}

#[test]
fn swap_nothing_lazily_free_is_reclaimed_up_to_half() {
    // By the worker: the device was full, and is not any more when it comes to it.
    let swap = one(512 * 8);
    let capacity = swap.capacity(0);
    let lazy = capacity / 2;
    (0..lazy).for_each(|frame| _ = swap.alloc(0, 0, Fill::Cached(frame)).unwrap());
    let used: Vec<Entry> =
        std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).take((capacity - lazy) as usize).collect();
    assert_eq!((wanted(&swap), used.len() as u64), (1, capacity - lazy));
    assert_eq!(swap.put_all(&used), (used.len(), 0));
    while swap.work(3) {}
    assert_eq!((swap.in_use(0), swap.env().unbound.lock().unwrap().len()), (lazy, 0));

    // By searches, for which there are free clusters.
    let swap = one(512 * 8);
    let reclaimed = || swap.env().unbound.lock().unwrap().len();
    let mut frame = 0;
    while swap.in_use(0) + 16 <= capacity / 2 {
        swap.alloc(0, 4, Fill::Cached(frame)).unwrap();
        frame += 16;
        assert_eq!(reclaimed(), 0, "{} of {capacity} slots in use", swap.in_use(0));
    }
    // From there on they are taken before the device is full.
    while frame < capacity / 16 * 16 {
        swap.alloc(0, 4, Fill::Cached(frame)).unwrap();
        frame += 16;
    }
    assert!(reclaimed() > 0 && swap.in_use(0) < capacity / 16 * 16, "{}", swap.in_use(0));
    check(&swap);

    // In the cluster that a search is in: each block has a lazily freed slot, and the others are free.
    let slots_of = |first: Entry| (0..16).map(move |at| first.offset(at));
    for others in [0, 5] {
        let swap = one(512 * 8);
        let reclaimed = || swap.env().unbound.lock().unwrap().len();
        let blocks: Vec<Entry> = (0..31).map(|_| swap.alloc(0, 4, Fill::Swapped).unwrap()).collect();
        (0..others * 32).for_each(|_| _ = swap.alloc(1, 4, Fill::Swapped).unwrap());
        for (frame, &block) in blocks.iter().enumerate() {
            let first = slots_of(block).next().unwrap();
            swap.cache_insert(first, 1, frame as u64).unwrap();
            slots_of(block).for_each(|slot| _ = swap.put(slot, 1).unwrap());
        }
        swap.env().unbound.lock().unwrap().clear();
        let next = swap.alloc(0, 4, Fill::Swapped).unwrap();
        assert!(!slots_of(blocks[30]).any(|slot| slot == next), "the last block of the cluster");
        let next = swap.alloc(0, 4, Fill::Swapped).unwrap();
        let here = next.cluster() == blocks[0].cluster();
        assert_eq!((here, reclaimed()), if others == 0 { (false, 0) } else { (true, 1) }, "{others}, {next:?}");
        check(&swap);
    }
}

/// A worker that sleeps until it is woken leaves nothing behind: all emptied clusters are discarded in the end.
#[test]
fn swap_a_sleeping_worker_is_woken() {
    let rounds = if cfg!(miri) { 3 } else { 200 };
    let swap = Swap::new(2, Frames::default());
    swap.swapon(DeviceOptions { slots: 512 * 8, discard: true, ..DeviceOptions::default() }).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                while swap.work(1) {}
                thread::park();
            }
        });
        *swap.env().worker.lock().unwrap() = Some(worker.thread().clone());
        let (mut emptied, device) = (0, swap.device(0).unwrap());
        for _ in 0..rounds {
            let blocks: Vec<Entry> = (0..3).filter_map(|_| swap.alloc(0, 9, Fill::Swapped)).collect();
            emptied += blocks.len();
            blocks.iter().for_each(|&block| assert_eq!(swap.put(block, 512), Ok(512)));
            // Only the worker does it: the allocations above always find free clusters.
            while device.list_len(Flag::Discard, 0) > 0 {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Release);
        worker.thread().unpark();
        worker.join().unwrap();
        assert_eq!(swap.env().discarded.lock().unwrap().len(), emptied);
    });
    check(&swap);
}
