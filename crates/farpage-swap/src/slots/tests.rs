//! Slots with values against a map.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Debug, Clone)]
enum Op {
    Alloc(u32),
    Run(usize),
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
        let mut a = if discard { SlotMap::<u32>::with_discard(slots, 1) } else { SlotMap::<u32>::new(slots, 1) };
        // A cluster that is being discarded.
        let mut away: Option<u64> = None;
        let is_away = |away: Option<u64>, slot: u64| away.is_some_and(|first| (first..first + 512).contains(&slot));
        let mut model: HashMap<u64, u32> = HashMap::new();
        let mut order: Vec<u64> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc(value) => match a.alloc(0, value) {
                    Some(slot) => {
                        prop_assert!(slot > 0 && slot < slots && !is_away(away, slot));
                        prop_assert!(model.insert(slot, value).is_none(), "slot {} given out twice", slot);
                        order.push(slot);
                    }
                    None => prop_assert_eq!(model.len() as u64, a.capacity() - away.map_or(0, |_| 512)),
                },
                Op::Run(max) => match a.alloc_run(0, max, 0) {
                    Some((first, n)) => {
                        prop_assert!(n >= 1 && n <= max && n.is_power_of_two() && first % n as u64 == 0);
                        for slot in first..first + n as u64 {
                            prop_assert!(slot > 0 && slot < slots && !is_away(away, slot));
                            prop_assert!(model.insert(slot, 0).is_none(), "slot {} given out twice", slot);
                            order.push(slot);
                        }
                    }
                    None => prop_assert!(max == 0 || model.len() as u64 == a.capacity() - away.map_or(0, |_| 512)),
                },
                Op::Free(i) if !order.is_empty() => {
                    // A few at once, so that whole clusters become free.
                    for _ in 0..(i % 40) + 1 {
                        if order.is_empty() { break; }
                        let slot = order.swap_remove(i % order.len());
                        prop_assert_eq!(a.free(slot), model.remove(&slot));
                        prop_assert_eq!(a.free(slot), None);
                    }
                }
                Op::FreeBad(slot) if !model.contains_key(&slot) => {
                    prop_assert_eq!(a.free(slot), None);
                    prop_assert!(!a.set(slot, 1));
                }
                Op::Set(i, value) if !order.is_empty() => {
                    let slot = order[i % order.len()];
                    prop_assert!(a.set(slot, value));
                    model.insert(slot, value);
                }
                Op::Grow(more) if more % 8 == 0 => {
                    slots += more;
                    a.grow(slots);
                    a.grow(slots / 2);
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
            prop_assert_eq!(a.made, a.tables.iter().flatten().count());
            prop_assert_eq!(a.in_use(), model.len() as u64);
        }
        let mut listed: Vec<(u64, u32)> = model.iter().map(|(&s, &v)| (s, v)).collect();
        listed.sort_unstable();
        prop_assert_eq!(a.iter().collect::<Vec<_>>(), listed);
        for slot in order {
            prop_assert_eq!(a.free(slot), model.remove(&slot));
        }
        prop_assert_eq!(a.in_use(), 0);
        prop_assert!(a.iter().next().is_none());
        prop_assert_eq!(a.made, 0);
    }
}

#[test]
fn slots_that_wait_to_be_given_back_are_used_before_smaller_blocks() {
    let mut a = SlotMap::<u8>::with_discard(512 * 3, 1);
    let runs: Vec<u64> =
        (0..64).map_while(|_| a.alloc_run(0, 32, 0)).map(|(first, n)| if n == 32 { first } else { 0 }).collect();
    runs.iter()
        .filter(|&&first| first >= 1024)
        .for_each(|&first| (first..first + 32).for_each(|slot| _ = a.free(slot)));
    assert_eq!(a.alloc_run(0, 32, 0), Some((1024, 32)));
    // One cluster only: it is in use again, so nothing waits.
    assert_eq!(a.begin_discard(), None);
    (1024..1056).for_each(|slot| _ = a.free(slot));
    assert_eq!(a.begin_discard(), Some(1024));
    assert!(a.alloc_run(0, 32, 0).is_none_or(|(first, _)| first < 1024));
    a.end_discard(1024);
    assert_eq!(a.alloc_run(0, 32, 0), Some((1024, 32)));
}

#[test]
fn slots_come_in_aligned_runs_and_a_huge_device_is_free_until_used() {
    let mut a = SlotMap::<[u32; 7]>::new(1 << 32, 1);
    assert!(a.meta_bytes() < 4096);
    assert_eq!(a.alloc(0, [1; 7]), Some(1));
    assert_eq!(a.alloc_run(0, 40, [0; 7]), Some((512, 32)), "the largest power of two");
    assert_eq!(a.alloc_run(0, 32, [0; 7]), Some((544, 32)));
    assert_eq!(a.alloc_run(0, 10_000, [2; 7]), Some((1024, 512)));
    assert!(a.free(520).is_some());
    assert_eq!(a.get(521), Some([0; 7]));
    assert_eq!(a.get(1535), Some([2; 7]));
    assert!(a.meta_bytes() < 80 << 10);
    assert_eq!(a.get(1 << 33), None);
    assert_eq!(a.free(u64::MAX), None);
}

#[test]
fn slots_without_room_give_nothing() {
    for slots in [0, 1] {
        assert_eq!(SlotMap::<u8>::new(slots, 1).alloc(0, 1), None);
    }
    let mut a = SlotMap::<u8>::new(2, 1);
    assert_eq!((a.alloc(0, 1), a.alloc(0, 2)), (Some(1), None));
    a.grow(4);
    assert_eq!(a.alloc_run(0, 9, 3), Some((2, 1)), "beside the header there are only single slots");
    assert_eq!(a.alloc_run(0, 9, 4), Some((3, 1)), "what is left is found, whatever was asked for");
    assert_eq!((a.alloc(0, 1), a.free(3), a.free(3), a.get(2)), (None, Some(4), None, Some(3)));
}
