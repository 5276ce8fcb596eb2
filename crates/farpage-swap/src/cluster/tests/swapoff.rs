//! Devices that are emptied and taken away while threads store and load pages: every page keeps its content.

use super::*;
use crate::sim::Random;
use crate::sync::{AtomicBool, AtomicU64};
use std::sync::MutexGuard;
use std::thread;

const SLOTS: u64 = 512 * 4;

/// Where a page is, and how often it was stored.
type Page = (Option<Entry>, u64);

struct Store {
    swap: Swap,
    /// What the devices have in their slots: page in the high half, version in the low one.
    content: Vec<AtomicU64>,
    pages: Vec<Mutex<Page>>,
    /// Stores and loads so far.
    done: AtomicU64,
}

impl Store {
    fn slot(&self, entry: Entry) -> &AtomicU64 {
        &self.content[(u64::from(entry.device) * SLOTS + entry.slot) as usize]
    }

    fn page(&self, page: usize) -> MutexGuard<'_, Page> {
        self.pages[page].lock().unwrap()
    }

    /// One device has room for all pages. But a thread that asks while it comes and the other goes may have looked for
    /// the one too early and for the other too late, so it asks again.
    fn alloc(&self, cpu: usize) -> Entry {
        let again = || {
            thread::yield_now();
            None
        };
        let entry = (0..1000).find_map(|_| self.swap.alloc(cpu, 0, Fill::Swapped).or_else(again));
        entry.unwrap_or_else(|| panic!("a device has room"))
    }

    fn store(&self, cpu: usize, page: usize) {
        let mut at = self.page(page);
        let entry = self.alloc(cpu);
        self.slot(entry).store((page as u64) << 32 | (at.1 + 1), Ordering::Relaxed);
        if let Some(old) = at.0 {
            assert_eq!(self.swap.put(old, 1), Ok(1));
        }
        *at = (Some(entry), at.1 + 1);
    }

    fn load(&self, page: usize) {
        let mut at = self.page(page);
        let Some(entry) = at.0.take() else { return };
        let device = self.swap.get(entry.device);
        assert!(device.is_some(), "[20] a device with a slot in use");
        assert_eq!(self.slot(entry).load(Ordering::Relaxed), (page as u64) << 32 | at.1, "{entry:?}");
        drop(device);
        assert_eq!(self.swap.put(entry, 1), Ok(1));
    }

    /// Moves what is in a slot to another device, if it is still there.
    fn move_away(&self, entry: Entry) {
        let content = self.slot(entry).load(Ordering::Relaxed);
        let mut at = self.page((content >> 32) as usize);
        if at.0 == Some(entry) {
            let new = self.alloc(9);
            assert_ne!(new.device, entry.device, "[19]");
            self.slot(new).store((content >> 32) << 32 | at.1, Ordering::Relaxed);
            assert_eq!(self.swap.put(entry, 1), Ok(1));
            at.0 = Some(new);
        }
    }

    /// Empties a device and takes it away; or gives up after `give_up` slots. Whether it is away.
    fn swapoff(&self, device: u8, give_up: usize) -> bool {
        let mut off = self.swap.swapoff(device).unwrap();
        let mut in_use = self.swap.in_use(device);
        let mut moved = 0;
        loop {
            let mut from = 0;
            while let Some((entry, _)) = off.next(from) {
                if moved == give_up {
                    return false;
                }
                self.move_away(entry);
                (moved, from) = (moved + 1, entry.slot + 1);
                let now = self.swap.in_use(device);
                assert!(now <= in_use, "[19] a slot appeared");
                in_use = now;
            }
            match off.finish() {
                Ok(()) => return true,
                Err(again) => off = again,
            }
            thread::yield_now();
        }
    }
}

/// Two threads store and load `pages`, which fit into one device, while the devices are switched off and on `rounds`
/// times, each time after `between` stores and loads.
fn go_and_come(pages: usize, rounds: usize, between: u64) {
    let options = || DeviceOptions { slots: SLOTS, ..DeviceOptions::default() };
    let store = Store {
        swap: Swap::new(2, ()),
        content: (0..2 * SLOTS).map(|_| AtomicU64::new(0)).collect(),
        pages: (0..pages).map(|_| Mutex::new((None, 0))).collect(),
        done: AtomicU64::new(0),
    };
    (0..2).for_each(|_| assert!(store.swap.swapon(options()).is_ok()));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = |cpu: usize| {
            let mut random = Random((cpu as u64) << 40);
            while !stop.load(Ordering::Relaxed) {
                let page = random.index(pages);
                if random.below(4) == 0 {
                    store.load(page)
                } else {
                    store.store(cpu, page)
                }
                store.done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let workers = [0, 1].map(|cpu| scope.spawn(move || work(cpu)));
        let mut away = 0;
        for round in 0..rounds {
            let until = store.done.load(Ordering::Relaxed) + between;
            while store.done.load(Ordering::Relaxed) < until {
                assert!(!workers.iter().any(thread::ScopedJoinHandle::is_finished), "a thread has failed");
                thread::yield_now();
            }
            let device = (round % 2) as u8;
            let give_up = if round % 3 == 0 { round % pages } else { usize::MAX };
            if store.swapoff(device, give_up) {
                away += 1;
                assert!(store.swap.get(device).is_none(), "[20]");
                assert_eq!(store.swap.swapon(options()), Ok(device));
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(away >= rounds / 2);
    });
    check(&store.swap);
    (0..pages).for_each(|page| store.load(page));
    assert_eq!(store.swap.in_use(0) + store.swap.in_use(1), 0);
    check(&store.swap);
}

#[test]
fn swap_devices_go_and_come_under_load_and_no_page_is_lost() {
    if cfg!(miri) { go_and_come(100, 3, 20) } else { go_and_come(1800, 150, 5000) }
}

/// Clusters become empty all the time, with frees that meet their locks: about one run in five of ten times the length
/// found a free that took a slot's next owner's.
#[test]
fn swap_devices_with_few_pages_go_and_come() {
    if cfg!(miri) { go_and_come(5, 3, 20) } else { go_and_come(24, 3000, 60) }
}
