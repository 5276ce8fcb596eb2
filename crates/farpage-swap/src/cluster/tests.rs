//! The allocator against a map, and its invariants.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn check_invariants<T: Copy + Default>(a: &SlotAllocator<T>) {
    let mut total = 0;
    let mut tables = 0;
    for (i, c) in a.clusters.iter().enumerate() {
        let capacity = a.cluster_capacity(i as u32);
        total += u64::from(c.count);
        tables += usize::from(c.table.is_some());
        if let Some(t) = &c.table {
            let bits: u32 = t.used.iter().map(|w| w.count_ones()).sum();
            assert_eq!(bits, u32::from(c.count) + (CLUSTER_SLOTS as u32 - u32::from(capacity)));
        }
        match c.state {
            State::Free => assert!(c.count == 0 && c.table.is_none()),
            State::Nonfull => assert!(c.count > 0 && c.count < capacity && c.table.is_some()),
            State::Full => assert!(c.count == capacity && c.table.is_some()),
            State::Current => assert!(a.current == i as u32 && c.count < capacity && c.table.is_some()),
        }
    }
    assert_eq!((total, tables), (a.in_use, a.tables));
    let mut listed = usize::from(a.current != NIL);
    for (list, state) in [(a.free, State::Free), (a.nonfull, State::Nonfull), (a.full, State::Full)] {
        let (mut at, mut prev, mut len) = (list.head, NIL, 0);
        while at != NIL {
            let c = &a.clusters[at as usize];
            assert_eq!((c.prev, c.state), (prev, state));
            (prev, at, len) = (at, c.next, len + 1);
        }
        assert_eq!((prev, len), (list.tail, list.len));
        listed += len as usize;
    }
    assert_eq!(listed, a.clusters.len());
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(u32),
    Run(usize),
    Free(usize),
    FreeBad(u64),
    Set(usize, u32),
    Grow(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u32>().prop_map(Op::Alloc),
        3 => (0usize..700).prop_map(Op::Run),
        6 => any::<usize>().prop_map(Op::Free),
        1 => (0u64..5000).prop_map(Op::FreeBad),
        1 => (any::<usize>(), any::<u32>()).prop_map(|(i, v)| Op::Set(i, v)),
        1 => (0u64..800).prop_map(Op::Grow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn cluster_allocator_matches_a_map(first in 0u64..2600, ops in prop::collection::vec(op(), 1..300)) {
        let mut slots = first;
        let mut a = SlotAllocator::<u32>::new(slots);
        let mut model: HashMap<u64, u32> = HashMap::new();
        let mut order: Vec<u64> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc(value) => match a.alloc(value) {
                    Some(slot) => {
                        prop_assert!(slot > 0 && slot < slots);
                        prop_assert!(model.insert(slot, value).is_none(), "slot {} given out twice", slot);
                        order.push(slot);
                    }
                    None => prop_assert_eq!(model.len() as u64, a.capacity()),
                },
                Op::Run(max) => match a.alloc_run(max) {
                    Some((first, n)) => {
                        prop_assert!(n >= 1 && n <= max && first / 512 == (first + n as u64 - 1) / 512);
                        for slot in first..first + n as u64 {
                            prop_assert!(slot > 0 && slot < slots);
                            prop_assert!(model.insert(slot, 0).is_none(), "slot {} given out twice", slot);
                            order.push(slot);
                        }
                    }
                    None => prop_assert!(max == 0 || model.len() as u64 == a.capacity()),
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
                _ => {}
            }
            check_invariants(&a);
            prop_assert_eq!(a.in_use(), model.len() as u64);
        }
        let mut listed: Vec<(u64, u32)> = model.iter().map(|(&s, &v)| (s, v)).collect();
        listed.sort_unstable();
        prop_assert_eq!(a.iter().collect::<Vec<_>>(), listed);
        for slot in order {
            prop_assert_eq!(a.free(slot), model.remove(&slot));
        }
        check_invariants(&a);
        prop_assert_eq!(a.in_use(), 0);
        prop_assert!(a.iter().next().is_none());
        prop_assert!(a.tables <= 1);
    }
}

#[test]
fn cluster_runs_are_contiguous_and_a_huge_device_is_free_until_used() {
    let mut a = SlotAllocator::<[u32; 7]>::new(1 << 32);
    assert_eq!(a.meta_bytes(), 0);
    assert_eq!(a.alloc_run(32), Some((1, 32)));
    assert_eq!(a.alloc_run(32), Some((33, 32)));
    assert_eq!(a.alloc_run(10_000), Some((65, 447)));
    assert_eq!(a.alloc_run(10_000), Some((512, 512)));
    assert!(a.free(7).is_some());
    assert_eq!(a.alloc([0; 7]), Some(7), "nonfull before a new cluster");
    assert!(a.meta_bytes() < 64 << 10);
    assert_eq!(a.get(1 << 33), None);
    assert_eq!(a.free(u64::MAX), None);
}

#[test]
fn cluster_without_room_gives_nothing() {
    for slots in [0, 1] {
        assert_eq!(SlotAllocator::<u8>::new(slots).alloc(1), None);
    }
    let mut a = SlotAllocator::<u8>::new(2);
    assert_eq!((a.alloc(1), a.alloc(2)), (Some(1), None));
}
