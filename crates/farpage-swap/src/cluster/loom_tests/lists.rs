//! Isolate, relocate, commit and free; the counter and the list of devices with room.

use super::*;

/// [12]: two searches take blocks at the same time: different slots, no cluster lost.
#[test]
fn isolate_gives_a_cluster_to_one_thread() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let other = swap.clone();
        let thread = thread::spawn(move || take(&other, 1));
        let mine = take(&swap, 0);
        let theirs = thread.join().unwrap();
        assert_ne!(mine, theirs, "[8]");
        check(&swap);
    });
}

/// [12]: a nonfull cluster, wanted by a search while slots of it are freed.
#[test]
fn a_free_and_a_search_meet() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let all: Vec<Entry> = (0..7).map(|_| take(&swap, 0)).collect();
        assert_eq!(swap.put(all[1], 1), Ok(1));
        let other = swap.clone();
        let freed = all[5];
        let thread = thread::spawn(move || other.put(freed, 1));
        // One slot is free for certain.
        let mine = swap.alloc(1, 0, Fill::Swapped);
        assert_eq!(thread.join().unwrap(), Ok(1));
        assert!(mine.is_none_or(|mine| mine == all[1] || mine == freed));
        check(&swap);
        // [11], [12]: quiet again, nothing is lost: what is free is found.
        let rest = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).count();
        assert_eq!(rest, if mine.is_some() { 1 } else { 2 });
        check(&swap);
    });
}

/// [14]: a hint into a cluster that is freed, and taken for another order, at the same time.
#[test]
fn a_stale_hint_gives_no_wrong_slot() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let pair = swap.alloc(0, 1, Fill::Swapped).unwrap();
        assert_eq!(pair.slot, 4);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            assert_eq!(other.put(pair, 2), Ok(2));
            // The cluster is free now: all of it for one block.
            other.alloc(1, 2, Fill::Swapped)
        });
        let mine = swap.alloc(0, 1, Fill::Swapped);
        let whole = thread.join().unwrap();
        assert!(whole.is_none_or(|whole| whole.slot == 4 && mine.is_none()), "[8] {whole:?} {mine:?}");
        assert!(mine.is_none_or(|mine| mine.slot == 4 || mine.slot == 6));
        check(&swap);
    });
}

/// [15]: an emptied cluster is discarded by one of two, and not allocated from before that.
#[test]
fn a_discard_is_done_once() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { discard: true, ..two_clusters() }]);
        let first: Vec<Entry> = (0..3).map(|_| take(&swap, 0)).collect();
        let entry = take(&swap, 0);
        assert_eq!((first[2].slot, entry.slot), (3, 4));
        assert_eq!(swap.put(entry, 1), Ok(1));
        let other = swap.clone();
        let thread = thread::spawn(move || other.discard_some(0, 9));
        // The hint points into it; the search discards what is pending.
        let mine = swap.alloc(0, 0, Fill::Swapped);
        let theirs = thread.join().unwrap();
        assert_eq!(swap.env().discards.load(Ordering::Relaxed), 1, "[15]");
        assert!(theirs <= 1 && mine.is_none_or(|mine| mine.slot == 4));
        check(&swap);
        assert!(mine.is_some() || swap.alloc(0, 0, Fill::Swapped).is_some());
    });
}

/// [17], [18]: the device becomes full and has room at the same moment, from both sides.
#[test]
fn full_and_not_full_leave_the_device_where_it_belongs() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 4, ..DeviceOptions::default() }]);
        let first = take(&swap, 0);
        take(&swap, 0);
        let other = swap.clone();
        let thread = thread::spawn(move || other.put(first, 1));
        let mine = swap.alloc(0, 0, Fill::Swapped);
        assert_eq!(thread.join().unwrap(), Ok(1));
        assert!(mine.is_some());
        check(&swap);
    });
}

/// [17]: the case that the kernel's test of the returned word misses: full, freed, allocated by hint before the freeing
/// thread has the avail lock.
#[test]
fn a_device_that_is_full_again_stays_off_the_list() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 4, ..DeviceOptions::default() }]);
        let all: Vec<Entry> = (0..3).map(|_| take(&swap, 0)).collect();
        assert!(swap.available().is_empty());
        // A CPU that has a hint needs no list.
        swap.hints.set(1, 0, Some(Entry { device: 0, slot: 1 }));
        let other = swap.clone();
        let freed = all[0];
        let thread = thread::spawn(move || other.put(freed, 1));
        let mine = swap.alloc(1, 0, Fill::Swapped);
        assert_eq!(thread.join().unwrap(), Ok(1));
        assert!(mine.is_none_or(|mine| mine == freed));
        check(&swap);
    });
}

/// [13]: the lock is dropped to reclaim; meanwhile the cluster is emptied and taken for another order.
#[test]
fn a_cluster_that_changed_during_reclaim_is_left_alone() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        // Cluster 1 serves order 1: one pair lazily free in frame 0, one in use; cluster 0 is full.
        let lazy = swap.alloc(0, 1, Fill::Cached(0)).unwrap();
        let used = swap.alloc(0, 1, Fill::Swapped).unwrap();
        assert_eq!((lazy.slot, used.slot), (4, 6));
        assert_eq!((0..3).map(|_| take(&swap, 0).slot).max(), Some(3));
        swap.hints.set(0, 1, Some(lazy));
        let other = swap.clone();
        let thread = thread::spawn(move || {
            let mut freed = other.put(used, 2).unwrap();
            freed += other.cache_remove(lazy, 2, 0, 0).unwrap_or(0);
            (freed, other.alloc(1, 2, Fill::Swapped))
        });
        let mine = swap.alloc(0, 1, Fill::Swapped);
        let (freed, whole) = thread.join().unwrap();
        assert!(freed >= 2);
        assert!(whole.is_none() || mine.is_none(), "[8] {whole:?} {mine:?}");
        check(&swap);
    });
}
