//! Real threads on real clusters: no thread ever gets what another has.

use super::*;
use crate::sim::Random;
use crate::sync::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::thread;

const SLOTS: u64 = 512 * 12 + 100;

/// The owner of each slot of three devices; 0: none.
struct Owners(Vec<AtomicU32>);

impl Owners {
    fn change(&self, first: Entry, n: u64, from: u32, to: u32) {
        for at in 0..n {
            let index = u64::from(first.device) * SLOTS + first.slot + at;
            assert_eq!(self.0[index as usize].swap(to, Ordering::Relaxed), from, "{first:?} + {at}");
        }
    }
}

fn work(swap: &Swap<Frames>, owners: &Owners, me: u32, steps: usize) {
    let mut random = Random(u64::from(me) << 32);
    let mut mine: Vec<(Entry, u8, bool)> = Vec::new();
    for step in 0..steps {
        let r = random.bits();
        if r % 100 < 52 {
            let order = if r >> 8 & 7 == 0 { 4 } else { (r >> 11 & 1) as u8 };
            let cached = r >> 13 & 3 == 0;
            let frame = u64::from(me) << 32 | step as u64;
            let fill = if cached { Fill::Cached(frame) } else { Fill::Swapped };
            // A frame that may be reclaimed at any time would end our ownership: it is locked from the start.
            if cached {
                swap.env().busy.lock().unwrap().insert(frame);
            }
            if let Some((entry, order)) = swap.alloc_at_most(me as usize, order, fill) {
                owners.change(entry, 1 << order, 0, me);
                assert!((0..1 << order).all(|at| swap.lookup(entry.offset(at)).is_in_use()));
                mine.push((entry, order, cached));
            }
        } else if !mine.is_empty() {
            let (entry, order, cached) = mine.swap_remove((r >> 20) as usize % mine.len());
            let n = 1usize << order;
            owners.change(entry, n as u64, me, 0);
            if cached {
                let frame = swap.lookup(entry).frame().unwrap();
                assert_eq!(swap.cache_remove(entry, n, frame, 0), Ok(n));
                swap.env().busy.lock().unwrap().remove(&frame);
            } else {
                assert_eq!(swap.put(entry, n), Ok(n));
            }
        }
        if step % 97 == 0 {
            swap.devices().for_each(|device| swap.want_reclaim(device));
            swap.work(1);
        }
    }
    for (entry, order, cached) in mine {
        owners.change(entry, 1 << order, me, 0);
        let n = 1usize << order;
        if cached {
            let frame = swap.lookup(entry).frame().unwrap();
            assert_eq!(swap.cache_remove(entry, n, frame, 0), Ok(n));
        } else {
            assert_eq!(swap.put(entry, n), Ok(n));
        }
    }
}

#[test]
fn swap_threads_never_share_a_slot() {
    let steps = if cfg!(miri) { 60 } else { 60_000 };
    let swap = Swap::new(2, Frames::default());
    let owners = Owners((0..3 * SLOTS).map(|_| AtomicU32::new(0)).collect());
    for (priority, discard, rotational) in [(1, false, false), (1, true, false), (0, false, true)] {
        let options = DeviceOptions { slots: SLOTS, priority: Some(priority), discard, rotational, bad: vec![5, 3000] };
        swap.swapon(options).unwrap();
    }
    thread::scope(|scope| {
        for me in 1..=4 {
            let (swap, owners) = (&swap, &owners);
            scope.spawn(move || work(swap, owners, me, steps));
        }
        // Devices that come and go: given up most of the time, for their slots are in use.
        let swap = &swap;
        scope.spawn(move || {
            for i in 0..steps / 200 {
                if let Some(off) = swap.swapoff((i % 3) as u8) {
                    let in_use = swap.in_use((i % 3) as u8);
                    thread::yield_now();
                    assert!(swap.in_use((i % 3) as u8) <= in_use, "[19] a slot appeared");
                    drop(off);
                }
                thread::yield_now();
            }
        });
    });
    check(&swap);
    assert_eq!((0..3).map(|device| swap.in_use(device)).sum::<u64>(), 0);
    assert!(owners.0.iter().all(|owner| owner.load(Ordering::Relaxed) == 0));
}

/// Readers without a lock, while tables go from cluster to cluster: what they see of a slot is always its own.
#[test]
fn swap_lookup_never_sees_another_clusters_word() {
    let rounds = if cfg!(miri) { 1 } else { 3000 };
    let swap = Swap::new(2, ());
    swap.swapon(DeviceOptions { slots: 512 * 4, ..DeviceOptions::default() }).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2u64 {
            let (swap, stop) = (&swap, &stop);
            scope.spawn(move || {
                let mut random = Random(77 + reader);
                while !stop.load(Ordering::Relaxed) {
                    let slot = random.bits() % (512 * 4);
                    match swap.lookup(Entry { device: 0, slot }).view() {
                        View::Cached { frame } => assert_eq!(frame, slot / CLUSTER_SLOTS as u64, "slot {slot}"),
                        View::Swapped { .. } => panic!("never swapped"),
                        _ => {}
                    }
                }
            });
        }
        for _ in 0..rounds {
            // Whole clusters, each named by its frame; freed at once, so that tables wander.
            let order = ORDERS as u8 - 1;
            let mut blocks = Vec::new();
            for frame in 1..4 {
                // Allocate, then give it the right name: the word is right before another thread can look at that slot.
                let Some(entry) = swap.alloc(0, order, Fill::Cached(u64::from(next_free(&swap)))) else { break };
                assert_eq!(swap.lookup(entry).frame(), Some(u64::from(entry.cluster())), "{frame}");
                blocks.push(entry);
            }
            for entry in blocks.into_iter().rev() {
                assert_eq!(swap.cache_remove(entry, CLUSTER_SLOTS, u64::from(entry.cluster()), 0), Ok(CLUSTER_SLOTS));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The cluster that an allocation of the largest order will take: the first of the free list, or a new one.
fn next_free(swap: &Swap<()>) -> u32 {
    let device = swap.device(0).unwrap();
    let listed = device.listed();
    let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh.max(1);
    listed.iter().find(|(flag, ..)| *flag == Flag::Free).and_then(|(.., all)| all.first()).copied().unwrap_or(fresh)
}
