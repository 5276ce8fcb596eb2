//! Models that loom explores: every interleaving of a few threads (with a bound on preemptions, see `make loom`), on
//! clusters of 4 slots. Numbers in brackets are those in docs/dev/slots.md.
//!
//! `LOOM_MAX_PREEMPTIONS` is set by the Makefile. Each model prepares its swap before the threads start, which costs
//! loom nothing, and checks all structural invariants when they have ended.

mod cache;
mod devices;
mod lists;
mod pending;
mod ready;

use super::ready::Stack;
use super::*;
use crate::lock::sites;
use crate::sync::Arc;
use loom::thread;

/// Frames for the models: a lock a frame, and what was discarded.
pub(super) struct Frames {
    pub frames: Vec<crate::sync::Mutex<Option<Entry>>>,
    pub discards: crate::sync::AtomicU32,
    /// Calls of `work_wanted`.
    pub wanted: crate::sync::AtomicU32,
}

impl Frames {
    pub fn new() -> Frames {
        let frames = (0..2).map(|_| crate::sync::Mutex::new(None)).collect();
        let [discards, wanted] = [(); 2].map(|()| crate::sync::AtomicU32::new(0));
        Frames { frames, discards, wanted }
    }
}

impl Env for Frames {
    type Meter = ();

    fn discard(&self, _device: u8, _first: u64, _slots: u64) {
        self.discards.fetch_add(1, Ordering::Relaxed);
    }

    fn work_wanted(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    fn try_lock_frame(&self, frame: u64) -> bool {
        // The models lock frames for the length of one call, so trying it is enough to show whether it is free; the
        // guard cannot be kept. Frame 1 is never free.
        frame == 0 && self.frames[0].try_lock().is_ok()
    }

    fn unlock_frame(&self, _frame: u64, _unbound: bool) {}
}

pub(super) fn swap(devices: &[DeviceOptions]) -> Arc<Swap<Frames>> {
    let swap = Swap::new(2, Frames::new());
    devices.iter().for_each(|options| assert!(swap.swapon(options.clone()).is_ok()));
    Arc::new(swap)
}

/// Two clusters of four slots; slot 0 is the header.
pub(super) fn two_clusters() -> DeviceOptions {
    DeviceOptions { slots: 8, ..DeviceOptions::default() }
}

pub(super) fn take(swap: &Swap<Frames>, cpu: usize) -> Entry {
    swap.alloc(cpu, 0, Fill::Swapped).unwrap()
}

/// [1], [2], [4], [5], [17] of a quiet swap.
pub(super) fn check(swap: &Swap<Frames>) {
    let available = swap.available();
    for device in swap.devices() {
        let fresh = device.lists.lock(&sites::DEVICE_ADMIN).fresh;
        let listed = device.listed();
        let mut in_use = 0;
        for index in 0..fresh {
            let cluster = device.cluster(index).unwrap();
            assert_eq!(cluster.pending.load(Ordering::Relaxed), 0, "a free was forgotten");
            let state = cluster.state.lock(&sites::CLUSTER_ADMIN);
            let on: Vec<Flag> =
                listed.iter().filter(|(_, _, all)| all.contains(&index)).map(|(flag, ..)| *flag).collect();
            assert_eq!(on, [if state.flag == Flag::Holes { Flag::Full } else { state.flag }], "[4]");
            let stacks: Vec<u8> =
                (0..ORDERS as u8).filter(|&order| device.ready_list(Stack::Holes(order)).contains(&index)).collect();
            assert_eq!(stacks, Vec::from_iter(state.ready), "[4]");
            let broken = device.ready_list(Stack::Broken);
            assert_eq!(broken.iter().filter(|&&b| b == index).count(), usize::from(state.broken), "[4]");
            let words = (0..CLUSTER_SLOTS).map(|at| state.table.as_ref().map_or(Word::FREE, |t| t.word(at)));
            let (mut used, mut bad) = (0, 0);
            for word in words {
                assert!(!word.is_pending(), "a free was forgotten");
                used += u16::from(word != Word::FREE);
                bad += u16::from(word == Word::BAD);
            }
            assert_eq!(state.count, used, "[1]");
            in_use += u64::from(used - bad);
            match state.flag {
                Flag::Free | Flag::Discard => assert!(used == 0 && state.table.is_none(), "[5]"),
                Flag::Full => assert_eq!(usize::from(used), CLUSTER_SLOTS, "[5]"),
                _ => assert!(used > 0 && usize::from(used) < CLUSTER_SLOTS, "[5]"),
            }
        }
        assert_eq!(device.usage.in_use(), in_use, "[2]");
        let here = available.iter().any(|&(_, index)| index == device.index);
        assert_eq!(here, !device.usage.is_off_list(), "[17]");
        let writable = device.writable.load(Ordering::Relaxed);
        assert_eq!(here, writable && in_use < device.usage.capacity(), "[17], [18]");
    }
}
