//! Slots with values against a map.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

mod threads;

/// The second word follows from the first, so that two halves of different values are noticed.
type Map = SlotMap<[u32; 2], 2>;

fn value(n: u32) -> [u32; 2] {
    [n, !n]
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(u32),
    Run(usize),
    Insert(usize, u32),
    Remove(usize),
    Free(usize),
    FreeBad(u64),
    Set(usize, u32),
    Grow(u64),
    BeginDiscard,
    EndDiscard,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u32>().prop_map(Op::Alloc),
        3 => (0usize..700).prop_map(Op::Run),
        3 => (any::<usize>(), any::<u32>()).prop_map(|(i, v)| Op::Insert(i, v)),
        1 => any::<usize>().prop_map(Op::Remove),
        6 => any::<usize>().prop_map(Op::Free),
        1 => (0u64..5000).prop_map(Op::FreeBad),
        1 => (any::<usize>(), any::<u32>()).prop_map(|(i, v)| Op::Set(i, v)),
        1 => (0u64..800).prop_map(Op::Grow),
        1 => Just(Op::BeginDiscard),
        1 => Just(Op::EndDiscard),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn slots_match_a_map(first in 0u64..2600, discard: bool, ops in prop::collection::vec(op(), 1..300)) {
        let mut slots = first;
        let a = if discard { Map::with_options(DeviceOptions { slots, discard: true, ..DeviceOptions::default() }, 1) } else { Map::new(slots, 1) };
        // A cluster that is being discarded.
        let mut away: Option<u64> = None;
        let is_away = |away: Option<u64>, slot: u64| away.is_some_and(|first| (first..first + 512).contains(&slot));
        // `None`: taken, without a value.
        let mut model: HashMap<u64, Option<u32>> = HashMap::new();
        let mut order: Vec<u64> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc(n) => match a.alloc(0, value(n)) {
                    Some(slot) => {
                        prop_assert!(slot > 0 && slot < slots && !is_away(away, slot));
                        prop_assert!(model.insert(slot, Some(n)).is_none(), "slot {} given out twice", slot);
                        order.push(slot);
                    }
                    None => prop_assert_eq!(model.len() as u64, a.capacity() - away.map_or(0, |_| 512)),
                },
                Op::Run(max) => match a.take_run(0, max) {
                    Some((first, n)) => {
                        prop_assert!(n >= 1 && n <= max && n.is_power_of_two() && first % n as u64 == 0);
                        for slot in first..first + n as u64 {
                            prop_assert!(slot > 0 && slot < slots && !is_away(away, slot));
                            prop_assert!(model.insert(slot, None).is_none(), "slot {} given out twice", slot);
                            prop_assert_eq!(a.get(slot), None, "a value of the last owner's");
                            order.push(slot);
                        }
                    }
                    None => prop_assert!(max == 0 || model.len() as u64 == a.capacity() - away.map_or(0, |_| 512)),
                },
                Op::Insert(i, n) if !order.is_empty() => {
                    for at in (i % order.len()..order.len()).take(20) {
                        let had = &mut *model.get_mut(&order[at]).unwrap();
                        prop_assert_eq!(a.insert(order[at], value(n)), had.is_none());
                        had.get_or_insert(n);
                    }
                }
                Op::Remove(i) if !order.is_empty() => {
                    let slot = order[i % order.len()];
                    prop_assert_eq!(a.remove_if(slot, |_| false), None);
                    prop_assert_eq!(a.remove_if(slot, |_| true), model.insert(slot, None).unwrap().map(value));
                }
                Op::Free(i) if !order.is_empty() => {
                    // A few at once, so that whole clusters become free.
                    for _ in 0..(i % 40) + 1 {
                        if order.is_empty() { break; }
                        let slot = order.swap_remove(i % order.len());
                        let had = model.remove(&slot).unwrap().map(value);
                        prop_assert_eq!(a.free(slot), had);
                        prop_assert_eq!(a.give_back(slot), had.is_none());
                        prop_assert_eq!((a.free(slot), a.give_back(slot)), (None, false));
                    }
                }
                Op::FreeBad(slot) if !model.contains_key(&slot) => {
                    prop_assert_eq!((a.free(slot), a.get(slot), a.give_back(slot)), (None, None, false));
                    prop_assert_eq!(a.update(slot, |_| Some(())), None);
                }
                Op::Set(i, n) if !order.is_empty() => {
                    let slot = order[i % order.len()];
                    prop_assert_eq!(a.update(slot, |now| { *now = value(!n); None::<()> }), None);
                    let old = a.update(slot, |now| Some(std::mem::replace(now, value(n))));
                    let had = model.get_mut(&slot).unwrap();
                    prop_assert_eq!(old, had.map(value));
                    *had = had.map(|_| n);
                }
                Op::Grow(more) if more % 8 == 0 => {
                    slots += more;
                    a.grow(slots);
                    a.grow(slots / 2);
                    prop_assert_eq!(a.slots(), slots);
                }
                Op::BeginDiscard if away.is_none() => {
                    away = a.begin_discard();
                    prop_assert!(discard || away.is_none());
                    if let Some(first) = away {
                        prop_assert!(first % 512 == 0 && !model.keys().any(|&slot| is_away(away, slot)));
                    }
                }
                Op::EndDiscard => away.take().into_iter().for_each(|first| a.end_discard(first)),
                _ => {}
            }
            prop_assert_eq!(a.in_use(), model.len() as u64);
        }
        let mut taken: Vec<u64> = model.keys().copied().collect();
        taken.sort_unstable();
        let mut at = 1;
        let listed = std::iter::from_fn(|| {
            let slot = a.next_in_use(at, usize::MAX).ok()?;
            at = slot + 1;
            Some(slot)
        });
        prop_assert_eq!(listed.collect::<Vec<_>>(), taken);
        for slot in order {
            prop_assert_eq!(a.get(slot), model[&slot].map(value));
            prop_assert!(a.free(slot).is_some() || a.give_back(slot));
        }
        prop_assert_eq!(a.in_use(), 0);
        prop_assert_eq!(a.next_in_use(1, usize::MAX), Err(0));
    }
}

#[test]
fn slots_that_wait_to_be_given_back_are_used_before_smaller_blocks() {
    let a = Map::with_options(DeviceOptions { slots: 512 * 3, discard: true, ..DeviceOptions::default() }, 1);
    let runs: Vec<u64> =
        (0..64).map_while(|_| a.take_run(0, 32)).map(|(first, n)| if n == 32 { first } else { 0 }).collect();
    runs.iter()
        .filter(|&&first| first >= 1024)
        .for_each(|&first| (first..first + 32).for_each(|slot| assert!(a.give_back(slot))));
    assert_eq!(a.take_run(0, 32), Some((1024, 32)));
    // One cluster only: it is in use again, so nothing waits.
    assert_eq!(a.begin_discard(), None);
    (1024..1056).for_each(|slot| assert!(a.give_back(slot)));
    assert_eq!(a.begin_discard(), Some(1024));
    assert!(a.take_run(0, 32).is_none_or(|(first, _)| first < 1024));
    a.end_discard(1024);
    assert_eq!(a.take_run(0, 32), Some((1024, 32)));
}

#[test]
fn slots_come_in_aligned_runs_and_a_huge_device_is_free_until_used() {
    let a = SlotMap::<[u32; 7], 7>::new(1 << 32, 1);
    assert!(a.meta_bytes() < 4096);
    assert_eq!(a.alloc(0, [1; 7]), Some(1));
    assert_eq!(a.take_run(0, 40), Some((512, 32)), "the largest power of two");
    assert_eq!(a.take_run(0, 32), Some((544, 32)));
    assert_eq!(a.take_run(0, 10_000), Some((1024, 512)));
    assert!(a.insert(521, [3; 7]) && a.insert(1535, [2; 7]));
    assert!(a.give_back(520));
    assert_eq!((a.get(521), a.get(1535)), (Some([3; 7]), Some([2; 7])));
    assert!(a.meta_bytes() < 80 << 10, "{}", a.meta_bytes());
    assert_eq!(a.get(1 << 33), None);
    assert_eq!(a.free(u64::MAX), None);
}

#[test]
fn slots_without_room_give_nothing() {
    for slots in [0, 1] {
        assert_eq!(Map::new(slots, 1).alloc(0, [0; 2]), None);
    }
    let a = Map::new(2, 1);
    assert_eq!((a.alloc(0, value(1)), a.alloc(0, value(2))), (Some(1), None));
    a.grow(4);
    assert_eq!(a.take_run(0, 9), Some((2, 1)), "beside the header there are only single slots");
    assert_eq!(a.take_run(0, 9), Some((3, 1)), "what is left is found, whatever was asked for");
    assert!(a.insert(3, value(4)));
    assert_eq!((a.alloc(0, value(1)), a.free(3), a.free(3), a.get(2)), (None, Some(value(4)), None, None));
}
