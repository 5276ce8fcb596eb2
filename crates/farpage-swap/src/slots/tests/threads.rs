//! Real threads on clusters of full size.

use super::*;
use crate::sim::Random;
use std::sync::atomic::AtomicBool;

const SLOTS: u64 = 512 * 3 + 100;
const WORDS: usize = 7;

/// A value that says which owner's slot it is, how often it was changed, and whether all of it is there.
fn full(slot: u64, owner: u32, changes: u32) -> [u32; WORDS] {
    let mut words = [slot as u32, owner, changes, 0, 0, 0, 0];
    (3..WORDS).for_each(|at| words[at] = words[..at].iter().fold(at as u32, |sum, w| sum.rotate_left(5) ^ w));
    words
}

fn check(slot: u64, words: [u32; WORDS]) {
    assert_eq!(words, full(slot, words[1], words[2]), "slot {slot}");
}

/// Owners take, change and free slots; every owner reads all slots. What an owner reads of its own is what it wrote.
fn own(map: &SlotMap<[u32; WORDS], WORDS>, me: u32, steps: usize) {
    let mut random = Random(u64::from(me) << 32);
    let mut mine: Vec<(u64, u32)> = Vec::new();
    for step in 0..steps as u32 {
        let r = random.bits();
        match r % 8 {
            0..=2 => {
                if let Some((first, n)) = map.take_run(me as usize, 1 << (r >> 8 & 5)) {
                    for slot in first..first + n as u64 {
                        assert_eq!(map.get(slot), None, "a value before it was given");
                        assert!(map.insert(slot, full(slot, me, step)));
                        mine.push((slot, step));
                    }
                }
            }
            3..=5 if !mine.is_empty() => {
                for _ in 0..(r >> 8 & 7) {
                    if mine.is_empty() {
                        break;
                    }
                    let (slot, changes) = mine.swap_remove((r >> 20) as usize % mine.len());
                    assert_eq!(map.free(slot), Some(full(slot, me, changes)), "another one's value");
                }
            }
            6 if !mine.is_empty() => {
                let at = (r >> 20) as usize % mine.len();
                let (slot, changes) = &mut mine[at];
                let old = map.update(*slot, |words| {
                    let old = *words;
                    *words = full(*slot, me, step);
                    Some(old)
                });
                assert_eq!(old, Some(full(*slot, me, *changes)));
                *changes = step;
            }
            _ => {}
        }
        if let Some(&(slot, changes)) = mine.last() {
            assert_eq!(map.get(slot), Some(full(slot, me, changes)));
        }
        let slot = random.bits() % SLOTS;
        map.get(slot).into_iter().for_each(|words| check(slot, words));
    }
    mine.into_iter().for_each(|(slot, changes)| assert_eq!(map.free(slot), Some(full(slot, me, changes))));
}

#[test]
fn slots_threads_find_whole_values_of_the_right_slot() {
    let steps = if cfg!(miri) { 40 } else { 100_000 };
    let map = SlotMap::with_options(DeviceOptions { slots: SLOTS / 2, discard: true, ..DeviceOptions::default() }, 4);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let map = &map;
        let owners = [1, 2, 3].map(|me| scope.spawn(move || own(map, me, steps)));
        // Few slots, so that they change all the time, and a thread that grows the device and gives clusters back
        // meanwhile.
        scope.spawn(|| {
            let mut from = 1;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                map.grow(SLOTS);
                map.begin_discard().into_iter().for_each(|first| map.end_discard(first));
                from = map.next_in_use(from, 1).map_or_else(|next| next.max(1), |slot| slot + 1);
                map.get(from).into_iter().for_each(|words| check(from, words));
                std::thread::yield_now();
            }
        });
        let ended = owners.map(std::thread::ScopedJoinHandle::join);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    assert_eq!(map.in_use(), 0);
}

/// Of many changes of one value none is lost.
#[test]
fn slots_threads_count_in_one_value() {
    let steps = if cfg!(miri) { 50 } else { 200_000 };
    let map = Map::new(512, 2);
    let slot = map.alloc(0, value(0)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..steps {
                    map.update(slot, |words| {
                        *words = value(words[0] + 1);
                        Some(())
                    });
                    let [n, not] = map.get(slot).unwrap();
                    assert_eq!(n, !not);
                }
            });
        }
    });
    assert_eq!(map.free(slot), Some(value(3 * steps)));
}
