//! Random operations on several devices against a model that knows the state of every slot.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Op {
    /// Allocate `times` blocks: CPU, order, cached or swapped.
    Alloc {
        cpu: usize,
        order: u8,
        cached: bool,
        times: usize,
        at_most: bool,
    },
    /// Drop a reference of `times` random slots.
    Put {
        seed: usize,
        times: usize,
    },
    /// Drop every reference to the slots of a cluster.
    Empty {
        seed: usize,
    },
    Dup {
        seed: usize,
        n: usize,
    },
    Insert {
        seed: usize,
        n: usize,
    },
    Remove {
        seed: usize,
    },
    Zero {
        seed: usize,
    },
    /// A thread has, or gives up, the lock of a frame.
    Busy {
        seed: usize,
    },
    Reclaim,
    Discard,
    Wrong {
        device: u8,
        slot: u64,
    },
    Grow {
        seed: usize,
        by: u64,
    },
    Swapon {
        slots: u64,
        priority: i32,
        rotational: bool,
        discard: bool,
        bad: Vec<u64>,
    },
    /// Give up after moving this many slots; more than there are: finish.
    Swapoff {
        seed: usize,
        give_up: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let orders = prop_oneof![4 => Just(0u8), 2 => Just(4), 1 => Just(2), 1 => 0u8..10];
    let times = prop_oneof![3 => 1usize..40, 1 => 200usize..700];
    let bad = prop::collection::vec(0u64..1500, 0..4);
    let priority = prop_oneof![Just(-1), Just(5), Just(7)];
    prop_oneof![
        12 => (0usize..3, orders, any::<bool>(), times.clone(), any::<bool>())
            .prop_map(|(cpu, order, cached, times, at_most)| Op::Alloc { cpu, order, cached, times, at_most }),
        8 => (any::<usize>(), times).prop_map(|(seed, times)| Op::Put { seed, times }),
        3 => any::<usize>().prop_map(|seed| Op::Empty { seed }),
        3 => (any::<usize>(), 1usize..600).prop_map(|(seed, n)| Op::Dup { seed, n }),
        3 => (any::<usize>(), 1usize..20).prop_map(|(seed, n)| Op::Insert { seed, n }),
        3 => any::<usize>().prop_map(|seed| Op::Remove { seed }),
        1 => any::<usize>().prop_map(|seed| Op::Zero { seed }),
        2 => any::<usize>().prop_map(|seed| Op::Busy { seed }),
        1 => Just(Op::Reclaim),
        2 => Just(Op::Discard),
        1 => (0u8..5, prop_oneof![0u64..3000, any::<u64>()]).prop_map(|(device, slot)| Op::Wrong { device, slot }),
        1 => (any::<usize>(), 0u64..900).prop_map(|(seed, by)| Op::Grow { seed, by }),
        2 => (0u64..2200, priority, any::<bool>(), any::<bool>(), bad).prop_map(
            |(slots, priority, rotational, discard, bad)| Op::Swapon { slots, priority, rotational, discard, bad }),
        1 => (any::<usize>(), prop_oneof![0usize..300, Just(usize::MAX)])
            .prop_map(|(seed, give_up)| Op::Swapoff { seed, give_up }),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    count: u64,
    zero: bool,
    frame: Option<u64>,
    shadow: u64,
}

struct Dev {
    slots: u64,
    bad: HashSet<u64>,
    discard: bool,
}

struct Model {
    swap: Swap<Frames>,
    slots: BTreeMap<Entry, Slot>,
    devices: BTreeMap<u8, Dev>,
    next_frame: u64,
}

impl Model {
    fn pick(&self, seed: usize) -> Option<Entry> {
        let n = self.slots.len();
        if n == 0 {
            return None;
        }
        let device = self.devices.keys().nth(seed % self.devices.len().max(1)).copied().unwrap_or(0);
        let from = Entry { device, slot: seed as u64 / 7 % 2500 };
        let found = self.slots.range(from..).next().or_else(|| self.slots.iter().next());
        found.map(|(&entry, _)| entry)
    }

    /// [7], [8], [9]: the block is where a block may be, and has no other owner.
    fn take(&mut self, first: Entry, order: u8, frame: Option<u64>) {
        let n = 1u64 << order;
        let device = &self.devices[&first.device];
        assert!(
            first.slot > 0 && first.slot.is_multiple_of(n) && first.slot + n <= device.slots,
            "[7] {first:?} {order}"
        );
        assert_eq!(first.slot / 512, (first.slot + n - 1) / 512, "[7]");
        let slot = Slot { count: u64::from(frame.is_none()), zero: false, frame, shadow: 0 };
        for at in 0..n {
            assert!(!device.bad.contains(&(first.slot + at)), "[7]");
            assert!(self.slots.insert(first.offset(at), slot).is_none(), "[8] {:?} given out twice", first.offset(at));
        }
        if order > 0 {
            let cluster = self.swap.device(first.device).unwrap().cluster(first.cluster()).unwrap();
            assert_eq!(cluster.state.lock(&sites::CLUSTER_ADMIN).order, order, "[9]");
        }
    }

    fn alloc(&mut self, cpu: usize, order: u8, cached: bool, at_most: bool) -> bool {
        let frame = cached.then_some(self.next_frame);
        let fill = frame.map_or(Fill::Swapped, Fill::Cached);
        let found = if at_most {
            self.swap.alloc_at_most(cpu, order, fill)
        } else {
            self.swap.alloc(cpu, order, fill).map(|entry| (entry, order))
        };
        self.note_own_work();
        if let Some((entry, order)) = found {
            self.next_frame += 1;
            self.take(entry, order, frame);
        } else if order == 0 || at_most {
            // [11]: nothing is free, and what could be reclaimed is locked, or less than half is used.
            let capacity: u64 = self.devices.keys().map(|&device| self.swap.capacity(device)).sum();
            assert_eq!(self.slots.len() as u64, capacity, "[11]");
            let busy = self.swap.env().busy.lock().unwrap();
            assert!(self.slots.values().all(|s| s.count > 0 || s.frame.is_none_or(|f| busy.contains(&f))), "[11]");
        }
        found.is_some()
    }

    /// What the allocator did by itself since the last call, before the model learns of what it gave out since: it
    /// may do so in any call. What it reclaimed, it must have had the right to: no reference, frame told. What it
    /// discarded is not in use.
    fn note_own_work(&mut self) {
        let frames: Vec<u64> = self.swap.env().unbound.lock().unwrap().drain(..).collect();
        for frame in frames {
            let of: Vec<Entry> = self.slots.iter().filter(|(_, s)| s.frame == Some(frame)).map(|(&e, _)| e).collect();
            // One of its slots a call.
            let gone: Vec<_> = of.into_iter().filter(|&e| self.swap.lookup(e).frame() != Some(frame)).collect();
            for entry in gone {
                assert_eq!(self.slots.remove(&entry).map(|s| s.count), Some(0), "[25] reclaimed a slot in use");
            }
        }
        for (device, slot) in self.swap.env().discarded.lock().unwrap().drain(..) {
            let first = Entry { device, slot };
            assert!(self.slots.range(first..first.offset(512)).next().is_none(), "discarded slots in use");
        }
    }

    fn put(&mut self, entry: Entry) {
        let slot = self.slots[&entry];
        let freed = self.swap.put(entry, 1);
        if slot.count == 0 {
            assert_eq!(freed, Err(CountError::NotInUse));
            return;
        }
        let last = slot.count == 1 && slot.frame.is_none();
        assert_eq!(freed, Ok(usize::from(last)), "[25]");
        if last {
            self.slots.remove(&entry);
            assert_eq!(self.swap.lookup(entry), Word::FREE);
        } else {
            self.slots.get_mut(&entry).unwrap().count -= 1;
        }
    }

    fn remove(&mut self, entry: Entry) {
        let slot = self.slots[&entry];
        match slot.frame {
            None => assert_eq!(self.swap.cache_remove(entry, 1, 1, 9), Err(CacheError::NotBound)),
            Some(frame) => {
                assert_eq!(self.swap.cache_remove(entry, 1, frame + 1, 9), Err(CacheError::NotBound));
                let freed = self.swap.cache_remove(entry, 1, frame, frame ^ 77);
                assert_eq!(freed, Ok(usize::from(slot.count == 0)), "[25]");
                if slot.count == 0 {
                    self.slots.remove(&entry);
                } else {
                    let slot = self.slots.get_mut(&entry).unwrap();
                    (slot.frame, slot.shadow) = (None, frame ^ 77);
                }
            }
        }
    }

    fn release(&mut self, entry: Entry) {
        while self.slots.get(&entry).is_some_and(|slot| slot.count > 0) {
            self.put(entry);
        }
        if self.slots.contains_key(&entry) {
            self.remove(entry);
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { cpu, order, cached, times, at_most } => {
                for _ in 0..times.min(1 + (900 >> order)) {
                    if !self.alloc(cpu, order, cached, at_most) {
                        break;
                    }
                }
            }
            Op::Put { seed, times } => {
                for i in 0..times {
                    let Some(entry) = self.pick(seed.wrapping_mul(i + 1)) else { break };
                    self.put(entry);
                }
            }
            Op::Empty { seed } => {
                let Some(entry) = self.pick(seed) else { return };
                let first = Entry { slot: entry.slot / 512 * 512, ..entry };
                let all: Vec<Entry> = self.slots.range(first..first.offset(512)).map(|(&e, _)| e).collect();
                // Those that can go together go in one call.
                let (batch, rest): (Vec<Entry>, Vec<Entry>) =
                    all.into_iter().partition(|e| self.slots[e].count == 1 && self.slots[e].frame.is_none());
                assert_eq!(self.swap.put_all(&batch), (batch.len(), 0));
                batch.iter().for_each(|e| assert!(self.slots.remove(e).is_some()));
                rest.into_iter().for_each(|e| self.release(e));
            }
            Op::Dup { seed, n } => {
                let Some(first) = self.pick(seed) else { return };
                let range: Vec<Entry> = (0..n as u64).map(|i| first.offset(i)).collect();
                let fails = range.iter().find_map(|e| match self.slots.get(e) {
                    None => Some(CountError::NotInUse),
                    Some(_) => None,
                });
                assert_eq!(self.swap.dup(first, n), fails.map_or(Ok(()), Err), "[24], [27]");
                if fails.is_none() {
                    range.iter().for_each(|e| self.slots.get_mut(e).unwrap().count += 1);
                }
            }
            Op::Insert { seed, n } => {
                let Some(first) = self.pick(seed) else { return };
                let n = n.min(512 - first.place());
                let range: Vec<Entry> = (0..n as u64).map(|i| first.offset(i)).collect();
                let fails = range.iter().find_map(|e| match self.slots.get(e) {
                    None => Some(CacheError::NotInUse),
                    Some(slot) => slot.frame.map(CacheError::Bound),
                });
                let frame = self.next_frame;
                let shadow = self.slots[&first].shadow;
                assert_eq!(self.swap.cache_insert(first, n, frame), fails.map_or(Ok(shadow), Err), "[33]");
                if fails.is_none() {
                    self.next_frame += 1;
                    range.iter().for_each(|e| self.slots.get_mut(e).unwrap().frame = Some(frame));
                }
            }
            Op::Remove { seed } => {
                let Some(entry) = self.pick(seed) else { return };
                self.remove(entry);
            }
            Op::Zero { seed } => {
                let Some(entry) = self.pick(seed) else { return };
                assert_eq!(self.swap.set_zero(entry, 1, seed % 2 == 0), Ok(()));
                self.slots.get_mut(&entry).unwrap().zero = seed % 2 == 0;
            }
            Op::Busy { seed } => {
                let frame = self.pick(seed).and_then(|entry| self.slots[&entry].frame);
                let mut busy = self.swap.env().busy.lock().unwrap();
                if seed % 3 == 0 {
                    busy.clear();
                } else {
                    busy.extend(frame);
                }
            }
            Op::Reclaim => {
                // As if a device had become full.
                self.swap.devices().for_each(|device| self.swap.want_reclaim(device));
                while self.swap.work(2) {}
                self.note_own_work();
            }
            Op::Discard => {
                for (&device, about) in &self.devices {
                    let done = self.swap.discard_some(device, 2);
                    assert!(done == 0 || about.discard);
                }
                self.note_own_work();
            }
            Op::Wrong { device, slot } => {
                let entry = Entry { device, slot };
                if !self.slots.contains_key(&entry) {
                    assert_eq!(self.swap.put(entry, 1), Err(CountError::NotInUse));
                    assert_eq!(self.swap.dup(entry, 1), Err(CountError::NotInUse));
                    assert_eq!(self.swap.cache_insert(entry, 1, 5), Err(CacheError::NotInUse));
                    assert!(!self.swap.lookup(entry).is_in_use());
                    assert_eq!(self.swap.count(entry), 0);
                }
            }
            Op::Grow { seed, by } => {
                let keys: Vec<u8> = self.devices.keys().copied().collect();
                if keys.is_empty() {
                    return;
                }
                let device = self.devices.get_mut(&keys[seed % keys.len()]).unwrap();
                device.slots += by;
                self.swap.grow(keys[seed % keys.len()], device.slots);
                self.swap.grow(keys[seed % keys.len()], device.slots / 2);
            }
            Op::Swapon { slots, priority, rotational, discard, bad } => {
                if self.devices.len() == 4 {
                    return;
                }
                let options = DeviceOptions { slots, priority: Some(priority), rotational, discard, bad: bad.clone() };
                let index = self.swap.swapon(options).unwrap();
                let bad: HashSet<u64> = bad.into_iter().filter(|&slot| slot != 0 && slot < slots).collect();
                assert_eq!(self.swap.capacity(index), slots.saturating_sub(1) - bad.len() as u64);
                assert!(self.devices.insert(index, Dev { slots, bad, discard }).is_none());
            }
            Op::Swapoff { seed, give_up } => self.swapoff(seed, give_up),
        }
    }

    /// [19] in one thread: no slot of the device is given out meanwhile; [23] to [25] as its slots are emptied.
    fn swapoff(&mut self, seed: usize, give_up: usize) {
        let keys: Vec<u8> = self.devices.keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let device = keys[seed % keys.len()];
        let mut moved = 0;
        let mut from = 0;
        loop {
            // The handle borrows the swap: find the next slot, let go, move it, begin again where we were.
            let off = self.swap.swapoff(device).unwrap();
            let found = off.next(from);
            let Some((entry, _)) = found else {
                if give_up < moved {
                    drop(off);
                    return;
                }
                assert!(self.slots.keys().all(|e| e.device != device));
                let held = self.swap.get(device);
                let Err(off) = off.finish() else { panic!("[20] finished while referenced") };
                assert!(self.swap.get(device).is_none(), "[20]");
                drop(held);
                assert!(off.finish().is_ok());
                assert!(self.swap.get(device).is_none(), "[20]");
                self.devices.remove(&device);
                return;
            };
            for cpu in 0..3 {
                if let Some(other) = self.swap.alloc(cpu, 0, Fill::Swapped) {
                    assert_ne!(other.device, device, "[19]");
                    assert_eq!(self.swap.put(other, 1), Ok(1));
                }
            }
            drop(off);
            self.note_own_work();
            if moved == give_up {
                return;
            }
            if self.slots.contains_key(&entry) {
                self.release(entry);
            }
            (moved, from) = (moved + 1, entry.slot + 1);
        }
    }

    /// [10] at the end; [23], [33] for every slot.
    fn compare(&self) {
        let mut found = BTreeMap::new();
        for &device in self.devices.keys() {
            let mut from = 0;
            while let Ok((slot, _)) = self.swap.next_in_use(device, from, usize::MAX) {
                found.insert(slot, device);
                from = slot + 1;
            }
        }
        for (&entry, slot) in &self.slots {
            let word = self.swap.lookup(entry);
            assert_eq!((word.count(), word.is_zero()), (slot.count, slot.zero), "[23], [33] {entry:?}");
            match slot.frame {
                Some(frame) => assert_eq!(word.view(), View::Cached { frame }),
                None => assert_eq!(word.view(), View::Swapped { shadow: slot.shadow }),
            }
        }
        let in_use: u64 = self.devices.keys().map(|&device| self.swap.in_use(device)).sum();
        assert_eq!(in_use, self.slots.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]
    #[test]
    fn swap_matches_a_set_model(ops in prop::collection::vec(op(), 1..60)) {
        let mut model =
            Model { swap: Swap::new(2, Frames::default()), slots: BTreeMap::new(), devices: BTreeMap::new(), next_frame: 100 };
        model.apply(Op::Swapon { slots: 1600, priority: 5, rotational: false, discard: false, bad: vec![700] });
        for op in ops {
            model.apply(op);
            check(&model.swap);
        }
        model.compare();
        let all: Vec<Entry> = model.slots.keys().copied().collect();
        model.swap.env().busy.lock().unwrap().clear();
        all.into_iter().for_each(|entry| model.release(entry));
        check(&model.swap);
        for device in model.swap.devices() {
            assert_eq!(device.usage.in_use(), 0, "[10]");
            let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh;
            for index in 0..fresh {
                let state = device.cluster(index).unwrap().state.lock(&sites::CLUSTER_ADMIN);
                assert!(state.count > 0 || matches!(state.flag, Flag::Free | Flag::Discard), "[10]");
            }
        }
    }
}
