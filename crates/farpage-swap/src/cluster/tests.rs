//! The allocator against a set model, with its structural invariants checked as often as that is cheap.
//!
//! Numbers in brackets are the invariants' numbers of docs/dev/slots.md.

mod counts;
mod devices;
mod random;
mod swapoff;
mod threads;
mod worker;

use super::ready::Stack;
use super::*;
use crate::lock::sites;
use crate::table::View;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

/// An owner of frames for tests: which are locked, which lost their slot, and what was discarded.
#[derive(Default)]
pub(super) struct Frames {
    /// Frames that cannot be locked now.
    pub busy: Mutex<HashSet<u64>>,
    pub unbound: Mutex<Vec<u64>>,
    pub discarded: Mutex<Vec<(u8, u64)>>,
    pub asked: AtomicUsize,
    /// Calls of `work_wanted`.
    pub wanted: AtomicUsize,
    /// The thread that is to be woken by them.
    pub worker: Mutex<Option<std::thread::Thread>>,
}

impl Env for Frames {
    type Meter = ();

    fn discard(&self, device: u8, first: u64, slots: u64) {
        assert_eq!((first % CLUSTER_SLOTS as u64, slots), (0, CLUSTER_SLOTS as u64));
        self.discarded.lock().unwrap().push((device, first));
    }

    fn work_wanted(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        self.worker.lock().unwrap().iter().for_each(std::thread::Thread::unpark);
    }

    fn try_lock_frame(&self, frame: u64) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.busy.lock().unwrap().insert(frame)
    }

    fn unlock_frame(&self, frame: u64, unbound: bool) {
        assert!(self.busy.lock().unwrap().remove(&frame));
        if unbound {
            self.unbound.lock().unwrap().push(frame);
        }
    }
}

/// Checks everything that must hold of a quiet swap: [1] to [6], [17], and that lazily freed slots are counted.
pub(super) fn check<E: Env>(swap: &Swap<E>) {
    let available = swap.available();
    assert!(available.is_sorted_by(|a, b| a.0 >= b.0));
    for device in swap.devices() {
        let (fresh, limit, bad_list) = {
            let lists = device.lists.lock(&sites::DEVICE_ADMIN);
            (lists.fresh, lists.limit, lists.bad.clone())
        };
        let listed = device.listed();
        let ready: Vec<Vec<u32>> = (0..ORDERS as u8).map(|order| device.ready_list(Stack::Holes(order))).collect();
        let broken = device.ready_list(Stack::Broken);
        let (mut in_use, mut all_lazy) = (0, 0);
        for index in 0..fresh {
            let cluster = device.cluster(index).unwrap();
            assert_eq!(cluster.pending.load(Ordering::Relaxed), 0);
            let state = cluster.state.lock(&sites::CLUSTER_ADMIN);
            let on: Vec<_> = listed.iter().filter(|(_, _, all)| all.contains(&index)).collect();
            assert_eq!(on.len(), usize::from(!matches!(state.flag, Flag::None | Flag::Discarding)), "[4] {index}");
            for (flag, order, _) in on {
                let flag_of_list = if state.flag == Flag::Holes { Flag::Full } else { state.flag };
                assert_eq!(*flag, flag_of_list, "[4] {index}");
                if matches!(flag, Flag::Nonfull | Flag::Frag) {
                    assert_eq!(*order, state.order, "[6] {index}");
                }
            }
            let (mut used, mut lazy, mut bad) = (0, 0, 0);
            for at in 0..CLUSTER_SLOTS {
                let slot = u64::from(index) * CLUSTER_SLOTS as u64 + at as u64;
                let word = state.table.as_ref().map_or(Word::FREE, |table| table.word(at));
                assert!(!word.is_pending(), "slot {slot}");
                assert_eq!(swap.lookup(Entry { device: device.index, slot }), word);
                if let Some(table) = &state.table {
                    assert_eq!(table.used[at / 64] >> (at % 64) & 1 == 1, word != Word::FREE);
                    let unusable = slot == 0 || slot >= limit || bad_list.contains(&slot);
                    assert_eq!(word == Word::BAD, unusable, "slot {slot}");
                }
                used += u16::from(word != Word::FREE);
                lazy += u16::from(word.is_lazily_free());
                bad += u16::from(word == Word::BAD);
            }
            assert_eq!((state.count, state.lazy), (used, lazy), "[1] {index}");
            in_use += u64::from(used - bad);
            all_lazy += u64::from(lazy);
            let fits = match state.flag {
                Flag::Free | Flag::Discard | Flag::Discarding => used == 0 && state.table.is_none() && state.order == 0,
                Flag::Full => usize::from(used) == CLUSTER_SLOTS,
                Flag::Holes | Flag::Nonfull | Flag::Frag => used > 0 && usize::from(used) < CLUSTER_SLOTS,
                Flag::None => false,
            };
            assert!(fits, "[5] {index}: {:?} with {used}", state.flag);
            let on: Vec<u8> = (0..ORDERS as u8).filter(|&order| ready[usize::from(order)].contains(&index)).collect();
            assert_eq!(on, Vec::from_iter(state.ready), "[4] {index}: on no stack but its own");
            let times = broken.iter().filter(|&&other| other == index).count();
            assert_eq!(times, usize::from(state.broken), "[4] {index}: on that of broken blocks");
        }
        assert_eq!(device.usage.in_use(), in_use, "[2]");
        assert_eq!(device.lazy.load(Ordering::Relaxed), all_lazy);
        assert!(in_use <= device.usage.capacity(), "[3]");
        let here = available.iter().any(|&(_, index)| index == device.index);
        assert_eq!(device.usage.is_off_list(), !here, "[17]");
        let writable = device.writable.load(Ordering::Relaxed);
        assert_eq!(here, writable && in_use < device.usage.capacity(), "[17]");
    }
}

/// A swap with one device.
pub(super) fn one(slots: u64) -> Swap<Frames> {
    let swap = Swap::new(2, Frames::default());
    swap.swapon(DeviceOptions { slots, ..DeviceOptions::default() }).unwrap();
    swap
}
