//! Models of slots with values that loom explores: clusters of 4 slots, two threads. The table of values is there
//! before the threads start (`OnceLock` is not loom's).

use super::*;
use crate::sync::Arc;
use loom::thread;

type Map = SlotMap<[u32; 2], 2>;

fn value(n: u32) -> [u32; 2] {
    [n, !n]
}

/// A device of one cluster in which `n` slots have the value 1.
fn map(n: usize) -> (Arc<Map>, Vec<u64>) {
    let map = Arc::new(Map::new(4, 2));
    let slots = (0..n).map(|_| map.alloc(0, value(1)).unwrap()).collect();
    (map, slots)
}

/// A reader gets nothing or one whole value, and never an older one after a newer.
#[test]
fn a_reader_sees_whole_values_only() {
    loom::model(|| {
        let (map, slots) = map(1);
        let (other, slot) = (map.clone(), slots[0]);
        let reader = thread::spawn(move || [other.get(slot), other.get(slot)]);
        assert_eq!(map.update(slot, |now| Some(std::mem::replace(now, value(2)))), Some(value(1)));
        assert_eq!(map.remove_if(slot, |_| true), Some(value(2)));
        assert!(map.insert(slot, value(3)));
        let order = [Some(value(1)), Some(value(2)), None, Some(value(3))];
        let seen = reader.join().unwrap().map(|got| order.iter().position(|&one| one == got));
        assert!(seen[0].is_some() && seen[0] <= seen[1], "{seen:?}");
    });
}

/// The only slot goes from one owner to the other: each frees its own value, and the next one starts without.
#[test]
fn a_slot_changes_hands_with_its_value_out() {
    loom::model(|| {
        let (map, slots) = map(3);
        let (other, slot) = (map.clone(), slots[0]);
        let next = thread::spawn(move || {
            let (taken, _) = other.take_run(1, 1)?;
            assert_eq!(taken, slot);
            assert_eq!(other.get(taken), None, "a value of the last owner's");
            assert!(other.insert(taken, value(2)));
            assert_eq!(other.free(taken), Some(value(2)));
            Some(())
        });
        assert_eq!(map.free(slot), Some(value(1)));
        next.join().unwrap();
        assert_eq!((map.in_use(), map.get(slot)), (2, None));
    });
}

/// Of two threads that free a slot one does; of two that change it both do.
#[test]
fn two_threads_change_a_value() {
    loom::model(|| {
        let (map, slots) = map(2);
        let (other, [counted, freed]) = (map.clone(), [slots[0], slots[1]]);
        let count = move |map: &Map| {
            map.update(counted, |now| {
                *now = value(now[0] + 1);
                Some(())
            })
        };
        let thread = thread::spawn(move || {
            assert!(count(&other).is_some());
            other.free(freed)
        });
        assert!(count(&map).is_some());
        let mine = map.free(freed);
        let theirs = thread.join().unwrap();
        assert!(mine.xor(theirs) == Some(value(1)));
        assert_eq!((map.get(counted), map.in_use()), (Some(value(3)), 1));
    });
}
