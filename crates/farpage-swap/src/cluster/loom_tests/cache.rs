//! Binding, look-up, counts.

use super::*;
use crate::table::View;

/// [26]: the last reference and the frame go at the same time: the slot is freed once.
#[test]
fn the_last_reference_and_the_frame_free_a_slot_once() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let entry = swap.alloc(0, 0, Fill::Cached(1)).unwrap();
        swap.dup(entry, 1).unwrap();
        let other = swap.clone();
        let thread = thread::spawn(move || other.put(entry, 1).unwrap());
        let removed = swap.cache_remove(entry, 1, 1, 5).unwrap();
        assert_eq!(removed + thread.join().unwrap(), 1, "[26]");
        assert_eq!(swap.in_use(0), 0);
        check(&swap);
    });
}

/// [29]: two faults on one slot: one reads the page, the other learns the frame.
#[test]
fn one_of_two_faults_binds_the_slot() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let entry = take(&swap, 0);
        let other = swap.clone();
        let thread = thread::spawn(move || other.cache_insert(entry, 1, 1));
        let mine = swap.cache_insert(entry, 1, 0);
        let theirs = thread.join().unwrap();
        let expected = [(Ok(0), Err(CacheError::Bound(0))), (Err(CacheError::Bound(1)), Ok(0))];
        assert!(expected.contains(&(mine, theirs)), "[29] {mine:?} {theirs:?}");
        check(&swap);
    });
}

/// [30], [34]: a look-up against the eviction of the page and the re-use of its slot for another page, in another
/// frame: under the frame's lock it is certain whether the frame has the slot's content.
#[test]
fn a_looked_up_frame_is_checked_under_its_lock() {
    loom::model(|| {
        let swap = swap(&[two_clusters()]);
        let entry = swap.alloc(0, 0, Fill::Cached(0)).unwrap();
        *swap.env().frames[0].lock().unwrap() = Some(entry);
        let other = swap.clone();
        // The reader is the spawned thread: loom tries the loads of a thread that starts later before and between the
        // stores of the first one, but not the other way round.
        let thread = thread::spawn(move || {
            if let View::Cached { frame } = other.lookup(entry).view() {
                let content = other.env().frames[frame as usize].lock().unwrap();
                if other.lookup(entry).frame() == Some(frame) {
                    assert_eq!(*content, Some(entry), "[30]");
                }
            }
        });
        {
            // Eviction: unbound under the frame's lock, and the slot is free.
            let mut frame = swap.env().frames[0].lock().unwrap();
            assert_eq!(swap.cache_remove(entry, 1, 0, 0), Ok(1));
            *frame = None;
        }
        {
            // The slot again, for another page in the other frame.
            let mut frame = swap.env().frames[1].lock().unwrap();
            let again = swap.alloc(0, 0, Fill::Cached(1)).unwrap();
            *frame = Some(again);
        }
        thread.join().unwrap();
        check(&swap);
    });
}

/// [31]: the table of an emptied cluster goes to another cluster while a reader looks: it sees the slot's own words
/// only.
#[test]
fn a_reader_never_sees_another_clusters_words() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 12, ..DeviceOptions::default() }]);
        let entry = swap.alloc(0, 2, Fill::Cached(7)).unwrap();
        assert_eq!(entry.slot, 4);
        let other = swap.clone();
        let thread = thread::spawn(move || {
            let word = other.lookup(entry.offset(1));
            assert!(word == Word::FREE || word.frame() == Some(7), "[31] {word:?}");
        });
        assert_eq!(swap.cache_remove(entry, CLUSTER_SLOTS, 7, 0), Ok(CLUSTER_SLOTS));
        // The freed cluster is busy: the next one is a new one, with the table of the first.
        let cluster = swap.device(0).unwrap().cluster(entry.cluster()).unwrap();
        let busy = cluster.state.lock(&sites::CLUSTER_ADMIN);
        let next = swap.alloc(1, 2, Fill::Cached(9)).unwrap();
        drop(busy);
        assert_eq!((next.slot, swap.tables.counts().0), (8, 2), "cluster 2, with a table that was there");
        thread.join().unwrap();
        check(&swap);
    });
}

/// [25]: reclaim of a lazily freed slot against its removal by the owner of the frame.
#[test]
fn reclaim_and_removal_free_a_slot_once() {
    loom::model(|| {
        let swap = swap(&[DeviceOptions { slots: 3, ..DeviceOptions::default() }]);
        let lazy = swap.alloc(0, 0, Fill::Cached(0)).unwrap();
        take(&swap, 0);
        let other = swap.clone();
        let thread = thread::spawn(move || other.cache_remove(lazy, 1, 0, 0));
        // Full but for the lazily freed slot.
        let mine = swap.alloc(0, 0, Fill::Swapped);
        let removed = thread.join().unwrap();
        assert!(mine.is_none_or(|mine| mine == lazy));
        assert!(mine.is_some() || removed == Ok(1));
        check(&swap);
    });
}
