//! Many threads on one file.

use super::*;
use std::sync::{Mutex, RwLock};

/// What takes the device's locks is rare: this hangs if one of these does.
#[test]
fn device_file_stores_loads_and_frees_without_a_lock_of_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    assert!(device.free(device.store(&page_of(1).0, 1).unwrap()), "the file is there, and has room");
    let (create, inner) = (device.create.lock(), device.tables.inner.lock());
    let entry = device.store(&page_of(2).0, check_of(2)).unwrap();
    expect(&device, entry, 2);
    assert!(device.place(entry).is_some() && device.resolve(entry) == entry && device.accepts());
    assert!(device.free(entry));
    device.discard_one();
    drop((create, inner));
    assert_eq!(usage(&device).slots_in_use, 0);
}

/// Workers store, load and free; forks come while they hold still, and the children end whenever they like. No frozen
/// slot is given out, every page is what was stored, and nothing is left.
#[test]
fn device_file_threads_while_children_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    // Held for writing by a fork: the engine is quiet then.
    let quiet = RwLock::new(());
    let all: Mutex<HashSet<Entry>> = Mutex::default();
    let children: Mutex<HashMap<u32, HashSet<Entry>>> = Mutex::default();
    let stop = AtomicBool::new(false);
    let work = |me: u64| {
        let mut rng = Random(me + 11);
        let mut live: Vec<(Entry, u64)> = Vec::new();
        for step in 0..1500u64 {
            let _quiet = quiet.read().unwrap();
            if live.len() < 300 && step % 2 == 0 {
                let first = me << 32 | step << 8;
                let n = 1 + rng.index(16) as u64;
                let frames: Vec<_> = (first..first + n).map(page_of).collect();
                let pages: Vec<_> = frames.iter().zip(first..).map(|(f, seed)| (&f.0, check_of(seed))).collect();
                let mut out = vec![None; n as usize];
                device.store_batch(&pages, &mut out).unwrap();
                for (entry, seed) in out.into_iter().map(Option::unwrap).zip(first..) {
                    assert!(children.lock().unwrap().values().all(|seen| !seen.contains(&entry)), "frozen");
                    assert!(all.lock().unwrap().insert(entry), "given out twice");
                    live.push((entry, seed));
                }
            }
            for _ in 0..rng.index(10).min(live.len()) {
                let (entry, seed) = live.swap_remove(rng.index(live.len()));
                expect(&device, entry, seed);
                assert!(all.lock().unwrap().remove(&entry));
                assert!(device.free(entry));
            }
        }
        live.into_iter().for_each(|(entry, seed)| {
            let _quiet = quiet.read().unwrap();
            expect(&device, entry, seed);
            assert!(all.lock().unwrap().remove(&entry) && device.free(entry) && !device.free(entry));
        });
    };
    std::thread::scope(|scope| {
        let workers = [1, 2, 3].map(|me| scope.spawn(move || work(me)));
        scope.spawn(|| {
            let mut forks = 0;
            while !stop.load(Relaxed) {
                if children.lock().unwrap().len() < 3 {
                    let _quiet = quiet.write().unwrap();
                    device.fork_parent();
                    children.lock().unwrap().insert(forks, all.lock().unwrap().clone());
                    forks += 1;
                } else {
                    let lease = *children.lock().unwrap().keys().min_by_key(|&&l| l ^ forks & 2).unwrap();
                    children.lock().unwrap().remove(&lease);
                    device.end_lease(lease);
                }
                device.discard_one();
                assert!(usage(&device).bad_slots == 0);
            }
        });
        let ended = workers.map(std::thread::ScopedJoinHandle::join);
        stop.store(true, Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    children.lock().unwrap().keys().for_each(|&lease| device.end_lease(lease));
    let end = usage(&device);
    assert_eq!((end.slots_in_use, end.deferred_slots), (0, 0));
}

/// Threads that store and free while the device fails and is drained: every page that is left was named, or was there
/// when the drain began anew; and what was moved comes back as an orphan exactly once.
#[test]
fn device_file_threads_while_the_device_is_drained() {
    for round in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::open(0, dir.path(), None).unwrap();
        let page = page_of(round);
        let store = |me: u64| {
            let (mut rng, mut live) = (Random(round << 8 | me), Vec::new());
            loop {
                let mut out = [None; 4];
                let stored = device.store_batch(&[(&page.0, 1); 4], &mut out);
                live.extend(out.into_iter().flatten());
                if stored.is_err() {
                    return live;
                }
                if live.len() > 30 {
                    let entry = live.swap_remove(rng.index(live.len()));
                    assert!(device.free(entry));
                }
            }
        };
        let elsewhere = |entry: Entry| Entry::new(1, entry.slot()).unwrap();
        let mut moved = HashSet::new();
        let live = std::thread::scope(|scope| {
            let threads = [1, 2, 3].map(|me| scope.spawn(move || store(me)));
            while usage(&device).slots_in_use < 40 {
                std::thread::yield_now();
            }
            device.health.fail("a test", rustix::io::Errno::IO);
            while threads.iter().any(|thread| !thread.is_finished()) || device.wants_drain() {
                if let Some((entry, check)) = device.next_to_drain() {
                    assert_eq!(check, 1);
                    // The slot may be another page's by now, which is moved again then.
                    if device.moved_to(entry, elsewhere(entry)) {
                        moved.insert(entry);
                    }
                }
            }
            threads.map(|thread| thread.join().unwrap()).concat()
        });
        let mut orphans: Vec<Entry> = std::iter::from_fn(|| device.take_orphan()).collect();
        for entry in live {
            assert!(moved.contains(&entry), "the drain has not seen {entry:?}");
            assert_eq!(device.resolve(entry), elsewhere(entry));
            assert!(device.free(entry));
            orphans.push(device.take_orphan().unwrap());
        }
        assert!(device.take_orphan().is_none());
        let end = usage(&device);
        assert_eq!((end.slots_in_use, end.bad_frees), (0, 0));
        assert!(device.tables.inner.lock().moved.is_empty() && orphans.len() >= moved.len());
    }
}
