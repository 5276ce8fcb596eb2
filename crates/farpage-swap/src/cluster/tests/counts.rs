//! Counts beyond their word, multi-page frames, batches.

use super::*;
use crate::table::COUNT_MAX;

#[test]
fn swap_counts_are_exact_to_a_million_and_back() {
    let swap = one(2000);
    let entry = swap.alloc(0, 0, Fill::Swapped).unwrap();
    let mut model = 1u64;
    for up in [1_000_000, COUNT_MAX + 1, COUNT_MAX - 1, COUNT_MAX + 3] {
        while model < up {
            swap.dup(entry, 1).unwrap();
            model += 1;
            if model.is_multiple_of(4093) || model.abs_diff(COUNT_MAX) < 3 {
                assert_eq!(swap.count(entry), model, "[23]");
            }
        }
        while model > up.min(3) {
            assert_eq!(swap.put(entry, 1), Ok(0));
            model -= 1;
            if model.is_multiple_of(4093) || model.abs_diff(COUNT_MAX) < 3 {
                assert_eq!(swap.count(entry), model, "[23]");
            }
        }
    }
    assert_eq!((swap.put(entry, 1), swap.put(entry, 1), swap.put(entry, 1)), (Ok(0), Ok(0), Ok(1)));
    assert_eq!(swap.put(entry, 1), Err(CountError::NotInUse));
    assert!(swap.device(0).unwrap().many.lock(&sites::MANY).is_empty());
    check(&swap);
}

#[test]
fn swap_the_first_reference_needs_a_frame_and_a_failed_dup_changes_nothing() {
    let swap = one(2000);
    // Two clusters of order 9, the second cached and without references.
    let first = swap.alloc(0, 9, Fill::Swapped).unwrap();
    let second = swap.alloc(0, 9, Fill::Cached(70)).unwrap();
    assert_eq!(second.slot, first.slot + 512);
    assert_eq!(swap.dup(second, 512), Ok(()), "[24]");
    assert_eq!(swap.put(second, 512), Ok(0));
    assert_eq!(swap.cache_remove(second.offset(500), 12, 70, 0), Ok(12), "no reference and no frame: free");
    let before: Vec<u64> = (0..1024).map(|at| swap.count(first.offset(at))).collect();
    assert_eq!(swap.dup(first, 1024), Err(CountError::NotInUse));
    let after: Vec<u64> = (0..1024).map(|at| swap.count(first.offset(at))).collect();
    assert_eq!(before, after, "[27]");
    check(&swap);
}

#[test]
fn swap_all_words_of_a_large_frame_name_it() {
    let swap = one(4096);
    let first = swap.alloc(1, 4, Fill::Cached(33)).unwrap();
    assert!(first.slot.is_multiple_of(16));
    assert!((0..16).all(|at| swap.lookup(first.offset(at)).frame() == Some(33)), "[28]");
    swap.dup(first, 16).unwrap();
    swap.set_zero(first, 16, true).unwrap();
    assert_eq!(swap.cache_remove(first, 16, 33, 123), Ok(0));
    assert_eq!(swap.put(first.offset(3), 1), Ok(1));
    // One slot is free now: the block cannot be bound as a whole, and nothing changes.
    assert_eq!(swap.cache_insert(first, 16, 34), Err(CacheError::NotInUse));
    assert_eq!(swap.lookup(first).view(), View::Swapped { shadow: 123 }, "[33]");
    assert_eq!(swap.cache_insert(first, 3, 34), Ok(123));
    assert!(swap.lookup(first).is_zero() && swap.lookup(first).count() == 1, "[33]");
    assert_eq!(swap.cache_insert(first.offset(1), 1, 35), Err(CacheError::Bound(34)), "[29]");
    assert_eq!(swap.cache_remove(first, 3, 34, 123), Ok(0));
    assert_eq!(swap.lookup(first).view(), View::Swapped { shadow: 123 });
    check(&swap);
}

#[test]
fn swap_batches_free_what_can_be_freed() {
    let swap = one(4096);
    let entries: Vec<Entry> = (0..1200).map(|_| swap.alloc(0, 0, Fill::Swapped).unwrap()).collect();
    swap.dup(entries[5], 1).unwrap();
    let mut all = entries.clone();
    all.push(entries[7]);
    all.push(Entry { device: 9, slot: 3 });
    assert_eq!(swap.put_all(&all), (1199, 2), "one has a second reference, one was given twice, one is no slot");
    assert_eq!(swap.put_all(&entries[5..6]), (1, 0));
    assert_eq!(swap.in_use(0), 0);
    check(&swap);
}

/// The only references go without waiting for a lock that is held, and the slots are given out when it is not any more.
#[test]
fn swap_a_free_does_not_wait_for_a_lock() {
    let swap = one(512 * 2);
    let block = swap.alloc(0, 4, Fill::Swapped).unwrap();
    let single = swap.alloc(0, 0, Fill::Swapped).unwrap();
    let all: Vec<Entry> = std::iter::from_fn(|| swap.alloc(0, 0, Fill::Swapped)).collect();
    assert_eq!(swap.in_use(0), 1023);
    let device = swap.device(0).unwrap();
    let guards = [0, 1].map(|index| device.cluster(index).unwrap().state.lock(&sites::CLUSTER_ADMIN));
    assert_eq!((swap.put(block, 16), swap.put(single, 1)), (Ok(16), Ok(1)));
    assert!((0..16).all(|at| swap.lookup(block.offset(at)) == Word::FREE));
    assert_eq!(swap.lookup(single), Word::FREE);
    assert!(swap.lookup(all[0]).is_in_use());
    assert_eq!(swap.in_use(0), 1023, "they are not given out yet");
    drop(guards);
    // A thread that has a lock looks after the unlock; these two guards do not.
    assert!(swap.carry_out_all(device) && !swap.carry_out_all(device));
    assert_eq!(swap.in_use(0), 1006);
    assert_eq!(swap.put(single, 1), Err(CountError::NotInUse));
    check(&swap);
    assert_eq!(swap.alloc(0, 4, Fill::Swapped), Some(block));
    assert_eq!(swap.alloc(0, 0, Fill::Swapped), Some(single));
}
