//! Priorities, rotation, lists, reclaim and discard: one mechanism a test.

use super::*;
use proptest::prelude::*;

fn device(slots: u64, priority: i32) -> DeviceOptions {
    DeviceOptions { slots, priority: Some(priority), ..DeviceOptions::default() }
}

#[test]
fn swap_equal_devices_take_turns_cluster_by_cluster() {
    let swap = Swap::new(1, ());
    for _ in 0..3 {
        swap.swapon(device(512 * 9, 3)).unwrap();
    }
    swap.swapon(device(512 * 9, 1)).unwrap();
    for _ in 0..512 * 24 {
        let entry = swap.alloc(0, 0, Fill::Swapped).unwrap();
        assert!(entry.device < 3, "[22] a lower device while a higher one has room");
        let clusters: Vec<u64> = (0..3).map(|device| swap.stats(device).clusters).collect();
        assert!(clusters.iter().max().unwrap() - clusters.iter().min().unwrap() <= 1, "[22] {clusters:?}");
    }
    while swap.alloc(0, 0, Fill::Swapped).is_some() {}
    assert_eq!((0..4).map(|device| swap.in_use(device)).sum::<u64>(), 4 * (512 * 9 - 1));
    // The highest with room again, though hints point elsewhere.
    assert_eq!(swap.put(Entry { device: 1, slot: 77 }, 1), Ok(1));
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(Entry { device: 1, slot: 77 }));
    check(&swap);
}

#[test]
fn swap_a_cluster_of_bad_slots_is_full_from_the_start() {
    for order in [0, 4] {
        let swap = Swap::new(1, Frames::default());
        swap.swapon(DeviceOptions { bad: vec![512], ..device(513, 0) }).unwrap();
        while swap.alloc(0, order, Fill::Swapped).is_some() {}
        check(&swap);
    }
}

/// Counts how often a device was chosen under the lock of the list.
struct Chosen;
static CHOSEN: AtomicUsize = AtomicUsize::new(0);

impl crate::lock::Meter for Chosen {
    const ON: bool = true;
    fn acquired(site: &'static crate::lock::Site, _: Option<u64>) {
        CHOSEN.fetch_add(usize::from(site == &sites::AVAIL_NEXT), Ordering::Relaxed);
    }
}

impl Env for Chosen {
    type Meter = Chosen;
}

#[test]
fn swap_a_device_without_an_equal_is_chosen_without_the_lists_lock() {
    let swap = Swap::new(1, Chosen);
    let all = |swap: &Swap<Chosen>, device: u8, order: u8| {
        let (before, mut n) = (CHOSEN.load(Ordering::Relaxed), 0);
        while swap.alloc(0, order, Fill::Swapped).inspect(|entry| assert_eq!(entry.device, device)).is_some() {
            n += 1;
        }
        (n, CHOSEN.load(Ordering::Relaxed) - before)
    };
    swap.swapon(device(512 * 3, 1)).unwrap();
    assert_eq!(all(&swap, 0, 9), (2, 0), "alone, and in vain");
    // Full, it is on the list no more; no device is.
    assert_eq!(all(&swap, 0, 0), (511, 1));
    swap.swapon(device(512 * 5, 7)).unwrap();
    assert_eq!(swap.put(Entry { device: 0, slot: 512 }, 512), Ok(512));
    let before = CHOSEN.load(Ordering::Relaxed);
    for _ in 0..4 * 32 {
        assert_eq!(swap.alloc(0, 4, Fill::Swapped).map(|entry| entry.device), Some(1));
    }
    assert_eq!(CHOSEN.load(Ordering::Relaxed), before, "first of two");
    // With an equal there are turns to take.
    let swap = Swap::new(1, Chosen);
    for _ in 0..2 {
        swap.swapon(device(512 * 9, 1)).unwrap();
    }
    let before = CHOSEN.load(Ordering::Relaxed);
    for _ in 0..512 * 8 {
        swap.alloc(0, 0, Fill::Swapped).unwrap();
    }
    assert!(CHOSEN.load(Ordering::Relaxed) - before >= 8);
}

#[test]
fn swap_a_search_looks_into_each_nonfull_cluster_once() {
    let swap = one(512 * 20);
    let blocks: Vec<Entry> = (0..18 * 32).map(|_| swap.alloc(0, 4, Fill::Swapped).unwrap()).collect();
    while swap.alloc(0, 0, Fill::Swapped).is_some_and(|entry| entry.slot < 512 * 19) {}
    while swap.alloc(0, 0, Fill::Swapped).is_some() {}
    let device = swap.device(0).unwrap();
    // One slot of each block: nothing for order 4, and no cluster says so, though none is full.
    blocks.iter().for_each(|&block| assert_eq!(swap.put(block, 1), Ok(1)));
    assert_eq!((device.list_len(Flag::Nonfull, 4), device.ready_list(Stack::Holes(4)).len()), (0, 0));
    assert_eq!(swap.alloc(1, 4, Fill::Swapped), None);
    // A search for holes in the full list moves some to frag; one by one, all of them.
    while device.list_len(Flag::Frag, 4) < 18 {
        device.isolate_few(4, 18, |_, _| ()).unwrap();
    }
    // A block in each cluster, of which single slots are taken again: all say they have one, none has.
    for cluster in blocks.chunks(32) {
        assert_eq!(swap.put(cluster[9].offset(1), 15), Ok(15));
    }
    assert_eq!(device.list_len(Flag::Nonfull, 4), 18);
    for cluster in blocks.chunks(32) {
        let mut state = device.cluster(cluster[9].cluster()).unwrap().state.lock(&sites::CLUSTER_ADMIN);
        state.table.as_mut().unwrap().set(cluster[9].place() + 3, Word::swapped(1, 0));
        state.count += 1;
        device.usage.add(1);
    }
    assert_eq!(swap.alloc(1, 4, Fill::Swapped), None);
    assert_eq!((device.list_len(Flag::Nonfull, 4), device.list_len(Flag::Frag, 4)), (0, 18), "[16]");
    // The largest order that fits is found; order 0 would have done in the kernel.
    assert_eq!(swap.put(blocks[40].offset(8), 8), Ok(8));
    assert_eq!(swap.alloc_at_most(1, 4, Fill::Swapped).map(|(_, order)| order), Some(0));
    check(&swap);
}

#[test]
fn swap_single_slots_are_stolen_from_broken_blocks() {
    let swap = one(512 * 2);
    let blocks: Vec<Entry> = (0..32).map(|_| swap.alloc(0, 4, Fill::Swapped).unwrap()).collect();
    while swap.in_use(0) < swap.capacity(0) {
        swap.alloc(0, 0, Fill::Swapped).unwrap();
    }
    // Three whole blocks, and one slot of a fourth.
    (4..7).for_each(|i| assert_eq!(swap.put(blocks[i], 16), Ok(16)));
    assert_eq!(swap.put(blocks[20].offset(5), 1), Ok(1));
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(blocks[20].offset(5)));
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(blocks[4]), "nothing else left: a block is broken");
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(blocks[4].offset(1)), "and used up");
    assert_eq!(swap.alloc(0, 4, Fill::Swapped), Some(blocks[5]));
    check(&swap);
}

#[test]
fn swap_pieces_in_any_cluster_are_used_up_before_a_block_is_broken() {
    // Twenty clusters of blocks; in each a whole block is free, and three slots of another one, last in the lowest
    // cluster.
    let swap = one(512 * 21);
    let blocks: Vec<Entry> = (0..20 * 32).map(|_| swap.alloc(0, 4, Fill::Swapped).unwrap()).collect();
    while swap.in_use(0) < swap.capacity(0) {
        swap.alloc(0, 0, Fill::Swapped).unwrap();
    }
    for cluster in blocks.chunks(32).rev() {
        assert_eq!(swap.put(cluster[3], 16), Ok(16));
        (2..5).for_each(|at| assert_eq!(swap.put(cluster[9].offset(at), 1), Ok(1)));
    }
    assert_eq!(swap.device(0).unwrap().ready_list(Stack::Broken).len(), 20);
    check(&swap);
    let pieces: Vec<Entry> = (0..60).map(|i| swap.alloc(i % 2, 0, Fill::Swapped).unwrap()).collect();
    let of_broken = |entry: &&Entry| blocks.chunks(32).any(|c| (c[9].slot + 2..c[9].slot + 5).contains(&entry.slot));
    assert_eq!(pieces.iter().filter(of_broken).count(), 60);
    assert_eq!(
        (0..20).filter(|_| swap.alloc(0, 4, Fill::Swapped).is_some()).count(),
        20,
        "no block was broken for them"
    );
    check(&swap);
    // A block that is whole again is no piece, also where its cluster is first on the stack.
    assert_eq!(swap.put(blocks[600].offset(1), 1), Ok(1));
    assert_eq!((swap.put(blocks[70], 9), swap.put(blocks[70].offset(9), 7)), (Ok(9), Ok(7)));
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(blocks[600].offset(1)));
    assert_eq!(swap.alloc(1, 4, Fill::Swapped), Some(blocks[70]));
    check(&swap);
}

#[test]
fn swap_no_block_is_broken_while_there_are_empty_clusters() {
    let swap = one(512 * 40);
    let blocks: Vec<Entry> = (0..32).map(|_| swap.alloc(0, 4, Fill::Swapped).unwrap()).collect();
    // The rest of the header's cluster.
    (0..511).for_each(|_| _ = swap.alloc(0, 0, Fill::Swapped).unwrap());
    blocks.iter().skip(16).for_each(|&block| assert_eq!(swap.put(block, 16), Ok(16)));
    assert_eq!(swap.put(blocks[3].offset(5), 1), Ok(1));
    // One piece, then a cluster of its own.
    let places: Vec<Entry> = (0..100).map(|_| swap.alloc(1, 0, Fill::Swapped).unwrap()).collect();
    assert_eq!(places[0], blocks[3].offset(5));
    assert!(places[1..].iter().all(|place| place.cluster() != blocks[0].cluster()));
    assert_eq!(
        (0..16).filter(|_| swap.alloc(0, 4, Fill::Swapped).unwrap().cluster() == blocks[0].cluster()).count(),
        16
    );
    check(&swap);
}

#[test]
fn swap_a_cpu_that_breaks_blocks_stops_as_soon_as_there_are_pieces() {
    let swap = one(512 * 3);
    let blocks: Vec<Entry> = (0..2 * 32).map(|_| swap.alloc(0, 4, Fill::Swapped).unwrap()).collect();
    let singles: Vec<Entry> = (0..511).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap()).collect();
    (8..12).for_each(|i| assert_eq!(swap.put(blocks[i], 16), Ok(16)));
    let cluster = swap.alloc(0, 0, Fill::Swapped).unwrap().cluster();
    let from = |n: usize| (0..n).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap().cluster()).collect::<HashSet<_>>();
    assert_eq!(from(15 + 16), HashSet::from([cluster]), "nothing else is free: it goes on to the next block");
    assert_eq!(swap.put_all(&singles[100..200]), (100, 0));
    assert_eq!(from(100), HashSet::from([singles[100].cluster()]));
    assert_eq!((0..3).filter(|_| swap.alloc(1, 4, Fill::Swapped).is_some()).count(), 2);
    check(&swap);
}

#[test]
fn swap_a_cluster_that_was_busy_when_its_user_came_is_offered_again() {
    let swap = one(512 * 4);
    let first: Vec<Entry> = (0..3 * 512 + 100).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap()).collect();
    let (used, device) = (first.last().unwrap(), swap.device(0).unwrap());
    let lock = device.cluster(used.cluster()).unwrap().state.lock(&sites::CLUSTER_ADMIN);
    // Its user meets the lock, finds nothing else, and has no hint to it any more.
    assert_eq!(swap.put_all(&first[600..700]), (100, 0));
    assert_eq!(swap.alloc(0, 0, Fill::Swapped).map(|e| e.cluster()), Some(1));
    drop(lock);
    (0..98).for_each(|_| _ = swap.alloc(0, 0, Fill::Swapped).unwrap());
    assert_eq!(swap.put(first[1600], 1), Ok(1));
    assert_eq!(device.list_len(Flag::Nonfull, 0), 1);
    let next = || swap.alloc(0, 0, Fill::Swapped).map(|entry| entry.cluster());
    assert_eq!([next(), next()], [Some(1), Some(used.cluster())], "the last free slot there, then here");
    assert_eq!(device.list_len(Flag::Nonfull, 0), 0);
    check(&swap);
    // While it goes on there, no other user is sent there.
    assert_eq!(swap.put(first[1601], 1), Ok(1));
    assert_eq!(device.list_len(Flag::Nonfull, 0), 0);
}

#[test]
fn swap_lower_orders_are_tried_before_single_slots() {
    let swap = one(512 * 3);
    let pair = swap.alloc(0, 1, Fill::Swapped).unwrap();
    while swap.alloc(0, 4, Fill::Swapped).is_some() {}
    assert_eq!(swap.alloc_at_most(0, 4, Fill::Swapped).map(|(_, order)| order), Some(1));
    assert_eq!(swap.alloc_at_most(0, 4, Fill::Swapped).map(|(e, _)| e.cluster()), Some(pair.cluster()));
    check(&swap);
}

#[test]
fn swap_a_rotational_device_goes_on_where_it_was_for_all_cpus() {
    let swap = Swap::new(4, ());
    swap.swapon(DeviceOptions { rotational: true, ..device(5000, 0) }).unwrap();
    let slots: Vec<u64> = (0..4000).map(|i| swap.alloc(i % 4, 0, Fill::Swapped).unwrap().slot).collect();
    assert!(slots.windows(2).all(|w| w[1] == w[0] + 1), "slots in order, whichever CPU asks");
    let swap = Swap::new(4, ());
    swap.swapon(device(5000, 0)).unwrap();
    let clusters: HashSet<u32> = (0..4).map(|cpu| swap.alloc(cpu, 0, Fill::Swapped).unwrap().cluster()).collect();
    assert_eq!(clusters.len(), 4, "otherwise each CPU has a cluster of its own");
}

#[test]
fn swap_nonfull_before_free_and_hints_follow() {
    let swap = one(512 * 40);
    let all: Vec<Entry> = (0..5000).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap()).collect();
    assert!(all.windows(2).all(|w| w[1].slot == w[0].slot + 1));
    // Slots 512 to 574: too few to be worth a search while there is so much room.
    let device = swap.device(0).unwrap();
    assert_eq!(swap.put(all[511], 63), Ok(63));
    assert_eq!(device.ready_list(Stack::Holes(0)), []);
    assert_eq!(swap.put(all[700], 1), Ok(1));
    assert_eq!((device.ready_list(Stack::Holes(0)), device.list_len(Flag::Full, 0)), (vec![1], 9));
    assert_eq!(swap.alloc(1, 0, Fill::Swapped), Some(all[511]), "another CPU takes it before a free one");
    assert_eq!(swap.alloc(1, 0, Fill::Swapped), Some(all[512]));
    assert_eq!(
        (device.ready_list(Stack::Holes(0)), device.list_len(Flag::Full, 0)),
        (vec![], 9),
        "it stays on the full list"
    );
    // Three more: the last one first, and a cluster that was emptied meanwhile is passed over.
    for i in [2, 3, 4] {
        assert_eq!(swap.put_all(&all[512 * i - 1..512 * i + 99]), (100, 0));
    }
    assert_eq!(device.ready_list(Stack::Holes(0)), [4, 3, 2]);
    assert_eq!(swap.put_all(&all[512 * 3 + 99..512 * 4 - 1]), (412, 0));
    (0..62 + 100).for_each(|_| assert!([1, 4].contains(&swap.alloc(1, 0, Fill::Swapped).unwrap().cluster())));
    assert_eq!(swap.alloc(1, 0, Fill::Swapped).map(|e| e.cluster()), Some(2));
    assert_eq!(device.ready_list(Stack::Holes(0)), []);
    check(&swap);
    assert_eq!(swap.alloc(0, 0, Fill::Swapped).map(|e| e.slot), Some(5001), "a hint goes on in its cluster");
    assert_eq!(swap.put(Entry { device: 0, slot: 4999 }, 1), Ok(1));
    assert_eq!(swap.device(0).unwrap().list_len(Flag::Nonfull, 0), 0, "a CPU is at this one: it stays where it is");
    while swap.alloc(0, 0, Fill::Swapped).is_some_and(|e| e.slot != 512 * 10 - 1) {}
    assert_eq!(swap.alloc(0, 0, Fill::Swapped).map(|e| e.slot), Some(4999), "what was freed behind the hint is found");
    check(&swap);
}

#[test]
fn swap_few_free_slots_of_full_clusters_are_found_when_nothing_else_is_left() {
    let swap = one(512 * 4);
    let all: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).collect();
    // Room in the last cluster; then some holes in the others, which stay on the full list; then the room is used up.
    assert_eq!(swap.put_all(&all[1535..]), (512, 0));
    let holes = [all[3], all[600], all[601], all[1100]];
    assert_eq!(swap.put_all(&holes), (4, 0));
    assert_eq!(swap.device(0).unwrap().list_len(Flag::Full, 0), 3);
    check(&swap);
    assert!((0..512).all(|_| swap.alloc(0, 0, Fill::Swapped).is_some_and(|e| e.slot >= 1536)));
    let mut found: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).collect();
    found.sort_unstable();
    assert_eq!(found, holes, "[11]");
    check(&swap);
}

#[test]
fn swap_a_device_short_of_large_blocks_packs_single_slots() {
    let swap = one(512 * 8);
    let all: Vec<Entry> = (1..512 * 7).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap()).collect();
    let device = swap.device(0).unwrap();
    assert_eq!(swap.put(all[600], 1), Ok(1));
    assert_eq!(device.ready_list(Stack::Holes(0)), [], "one slot is not worth a search");
    let blocks: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 4, Fill::Swapped)).collect();
    assert_eq!(swap.put(all[1200], 1), Ok(1));
    assert_eq!(device.ready_list(Stack::Holes(0)), [2], "it is, when large blocks are not to be had");
    assert_eq!(swap.put_all(&all[512..1535]), (1021, 2));
    assert!(swap.alloc(0, 9, Fill::Swapped).is_some() && !blocks.is_empty());
    assert_eq!(swap.put(all[2000], 1), Ok(1));
    assert!(!device.ready_list(Stack::Holes(0)).contains(&3), "there are empty clusters again");
    check(&swap);
}

#[test]
fn swap_lazily_freed_slots_are_reclaimed_when_half_is_used() {
    let swap = one(512 * 4);
    let lazy: Vec<Entry> = (0..600).map(|i| swap.alloc(0, 0, Fill::Cached(i)).unwrap()).collect();
    let mut swapped = 0;
    while swap.in_use(0) < swap.capacity(0) {
        swap.alloc(0, 0, Fill::Swapped).unwrap();
        swapped += 1;
    }
    assert_eq!(swapped, 2047 - 600);
    // The device is full, but 600 of its slots can be had.
    swap.env().busy.lock().unwrap().insert(5);
    for _ in 0..599 {
        swap.alloc(0, 0, Fill::Swapped).unwrap();
    }
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), None, "[11] the last one's frame is busy");
    assert_eq!(swap.lookup(lazy[5]).frame(), Some(5));
    swap.env().busy.lock().unwrap().clear();
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(lazy[5]));
    let mut unbound = swap.env().unbound.lock().unwrap().clone();
    unbound.sort_unstable();
    assert_eq!(unbound, (0..600).collect::<Vec<_>>(), "each frame lost its slot once");
    check(&swap);
}

#[test]
fn swap_large_blocks_are_reclaimed_as_a_whole() {
    let swap = one(512 * 4);
    // A cluster of order 4: every other block only lazily free.
    let blocks: Vec<Entry> =
        (0..96).map(|i| swap.alloc(0, 4, if i % 2 == 0 { Fill::Cached(i) } else { Fill::Swapped }).unwrap()).collect();
    assert_eq!(blocks[95].slot, 2032, "every cluster that can serve order 4 is full");
    swap.env().busy.lock().unwrap().insert(0);
    assert_eq!(swap.alloc(0, 4, Fill::Swapped), Some(blocks[2]), "the first block whose frame can be locked");
    assert!(swap.env().unbound.lock().unwrap().starts_with(&[2; 16]), "all of it, from its full cluster");
    assert_eq!(swap.lookup(blocks[0].offset(9)).frame(), Some(0));
    check(&swap);
}

#[test]
fn swap_emptied_clusters_are_discarded_once_before_they_are_used() {
    let swap = Swap::new(1, Frames::default());
    swap.swapon(DeviceOptions { discard: true, ..device(512 * 3, 0) }).unwrap();
    let all: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).collect();
    assert_eq!(all.len(), 1535);
    assert_eq!(swap.put_all(&all[600..1535]), (935, 0));
    assert_eq!(swap.device(0).unwrap().list_len(Flag::Discard, 0), 1, "the last cluster; the second is not empty");
    assert!(swap.env().discarded.lock().unwrap().is_empty());
    for _ in 0..423 {
        assert!(swap.alloc(0, 0, Fill::Swapped).unwrap().slot < 1024);
    }
    assert!(swap.env().discarded.lock().unwrap().is_empty());
    assert_eq!(swap.alloc(0, 0, Fill::Swapped).map(|e| e.slot), Some(1024), "[15] discarded when nothing else is left");
    assert_eq!(*swap.env().discarded.lock().unwrap(), vec![(0, 1024)]);
    check(&swap);
}

#[test]
fn swap_a_number_is_used_again_and_old_hints_do_no_harm() {
    let swap = Swap::new(1, ());
    assert_eq!(swap.swapon(device(512 * 8, 0)), Ok(0));
    let old: Vec<Entry> = (0..2000).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap()).collect();
    let tables = swap.stats(0).tables;
    let off = swap.swapoff(0).unwrap();
    assert!(swap.swapoff(0).is_none());
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), None, "[19]");
    let Err(off) = off.finish() else { panic!("slots are in use") };
    let mut from = 0;
    let mut seen = Vec::new();
    while let Some((entry, word)) = off.next(from) {
        assert_eq!(word, Word::swapped(1, 0));
        assert_eq!(swap.put(entry, 1), Ok(1));
        seen.push(entry);
        from = entry.slot + 1;
    }
    assert_eq!(seen, old);
    assert!(off.finish().is_ok());
    assert_eq!((swap.capacity(0), swap.stats(0).tables_spare), (0, tables), "every table is spare");
    assert_eq!(swap.swapon(device(100, 0)), Ok(0));
    assert_eq!(swap.lookup(old[1500]), Word::FREE);
    assert_eq!(swap.put(old[1500], 1), Err(CountError::NotInUse));
    let new: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).collect();
    assert_eq!(new.iter().map(|e| e.slot).collect::<Vec<_>>(), (1..100).collect::<Vec<_>>());
    check(&swap);
}

#[test]
fn swap_a_swapoff_that_is_given_up_changes_nothing() {
    let swap = Swap::new(1, ());
    swap.swapon(device(1000, 0)).unwrap();
    swap.swapon(device(1000, -5)).unwrap();
    let before = swap.alloc(0, 0, Fill::Swapped).unwrap();
    let off = swap.swapoff(0).unwrap();
    assert_eq!(swap.alloc(0, 0, Fill::Swapped).map(|e| e.device), Some(1));
    drop(off);
    check(&swap);
    assert_eq!(swap.lookup(before), Word::swapped(1, 0));
    while swap.alloc(0, 0, Fill::Swapped).is_some_and(|e| e.device == 1) {}
    assert_eq!(swap.available()[0], (0, 0));
}

#[test]
fn swap_a_huge_device_costs_nothing_until_used() {
    let swap = Swap::new(2, ());
    swap.swapon(device(u64::MAX, 0)).unwrap();
    assert_eq!(swap.capacity(0), SLOTS_MAX - 1);
    assert!(swap.stats(0).meta_bytes < 8192, "{:?}", swap.stats(0));
    for order in 0..10 {
        assert!(swap.alloc(0, order, Fill::Swapped).is_some());
    }
    check(&swap);
}

#[test]
fn swap_nothing_to_give() {
    let swap = Swap::new(1, ());
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), None);
    for slots in [0, 1] {
        swap.swapon(device(slots, 0)).unwrap();
    }
    assert_eq!((swap.alloc(0, 0, Fill::Swapped), swap.alloc(0, 10, Fill::Swapped)), (None, None));
    swap.swapon(device(2, 0)).unwrap();
    assert_eq!(swap.alloc(9, 0, Fill::Swapped), Some(Entry { device: 2, slot: 1 }));
    assert_eq!(swap.alloc(9, 0, Fill::Swapped), None);
    (3..DEVICES).for_each(|_| assert!(swap.swapon(device(2, 0)).is_ok()));
    assert_eq!(swap.swapon(device(2, 0)), Err(SwaponError::TooMany));
    check(&swap);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The bitmap search against one that looks at every slot.
    /// [22] for any devices: the highest that has room, and those of equal priority keep level, cluster by cluster.
    #[test]
    fn swap_devices_take_turns_by_priority(devices in prop::collection::vec((1u64..7, 0i32..3), 2..6)) {
        let swap = Swap::new(1, ());
        for &(clusters, priority) in &devices {
            swap.swapon(device(512 * clusters, priority)).unwrap();
        }
        let all: Vec<(u8, i32)> = devices.iter().zip(0..).map(|(&(_, priority), device)| (device, priority)).collect();
        let has_room = |device: u8| swap.in_use(device) < swap.capacity(device);
        loop {
            let highest = all.iter().filter(|&&(device, _)| has_room(device)).map(|&(_, priority)| priority).max();
            let Some(entry) = swap.alloc(0, 0, Fill::Swapped) else {
                prop_assert_eq!(highest, None, "[11]");
                break;
            };
            prop_assert_eq!(Some(devices[usize::from(entry.device)].1), highest, "[22] a lower device before a higher one");
            let level = all.iter().filter(|&&(device, priority)| Some(priority) == highest && has_room(device));
            let level: Vec<u64> = level.map(|&(device, _)| swap.stats(device).clusters).collect();
            if let (Some(least), Some(most)) = (level.iter().min(), level.iter().max()) {
                prop_assert!(most - least <= 1, "[22] {level:?}");
            }
        }
        check(&swap);
    }

    #[test]
    fn table_find_is_the_first_aligned_block(bits in prop::collection::vec(0u16..512, 0..500), from in 0usize..512, order in 0usize..10) {
        let pool = crate::table::TablePool::<()>::new();
        let mut table = pool.take();
        bits.iter().for_each(|&at| table.set(usize::from(at), Word::swapped(1, 0)));
        let n = 1 << order;
        let fits = |&at: &usize| (at..at + n).all(|at| table.word(at) == Word::FREE);
        let start = from.next_multiple_of(n) % 512;
        let want = (start..512).step_by(n).chain((0..start).step_by(n)).find(fits);
        prop_assert_eq!(table.find(from, order), want);
        let free = |at: usize| table.word(at) == Word::FREE;
        let broken = |&at: &usize| free(at) && !fits(&(at >> order << order));
        prop_assert_eq!(table.find_broken(from, order), (from..512).chain(0..from).find(broken));
    }
}
