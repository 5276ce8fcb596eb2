//! Compressed pages: content, refusal, demotion, and threads at the same slots.

mod damage;

use super::*;
use crate::io::inject::Injector;
use crate::testing::{Frame, OnOneCpu, Region, check_of, page_of};
use farpage_swap::sim::Random;
use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

fn zram(region: &Region, alg: Alg, limit: u64, files: Vec<Arc<FileDevice>>) -> Zram {
    // SAFETY: the region is private, zero memory that the tests keep longer than the device and use for nothing else.
    let pool = unsafe { Pool::new(region.base(), region.bytes(), limit) };
    Zram::new(0, alg, u64::from(u32::MAX), pool, files)
}

fn usage(device: &dyn SwapDevice) -> Usage {
    let mut usage = Usage::default();
    device.add_usage(&mut usage);
    usage
}

fn expect(device: &Zram, entry: Entry, seed: u64) {
    let mut page = Frame::boxed();
    device.load(entry, &mut page.0).unwrap();
    assert!(page.0 == page_of(seed).0, "content of page {seed}");
    assert_eq!(device.check(entry), Some(check_of(seed)));
}

#[test]
fn device_zram_keeps_pages_with_either_codec() {
    for alg in [Alg::Lz4, Alg::Zstd] {
        let region = Region::new(64 << 20);
        let device = zram(&region, alg, 64 << 20, Vec::new());
        let mut kept = Vec::new();
        for seed in 0..2000 {
            match device.store(&page_of(seed).0, check_of(seed)) {
                Ok(entry) => kept.push((entry, seed)),
                Err(error) => assert!(error == StoreError::Incompressible && seed % 8 >= 6, "{seed}: {error}"),
            }
        }
        let u = usage(&device);
        assert_eq!((u.same_filled_pages, u.slots_in_use), (250, kept.len() as u64));
        assert!(u.pool_compressed_bytes < u.pool_bytes && u.pool_bytes < u.pool_orig_bytes);
        assert!(u.incompressible_pages >= 250);
        println!("{alg:?}: {} -> {}, pool {}", u.pool_orig_bytes, u.pool_compressed_bytes, u.pool_bytes);
        kept.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
        for &(entry, _) in &kept {
            assert!(device.free(entry) && !device.free(entry));
        }
        let u = usage(&device);
        assert_eq!((u.slots_in_use, u.pool_compressed_bytes, u.bad_frees), (0, 0, kept.len() as u64));
        assert!(u.pool_bytes <= 128 << 10);
        let mut page = Frame::boxed();
        assert!(matches!(device.load(kept[0].0, &mut page.0), Err(LoadError::NotInUse { .. })));
    }
}

/// A page of words, all below 10,000.
fn words(seed: u64) -> Box<Frame> {
    let mut page = Frame::boxed();
    let mut rng = Random(seed << 8 | 1);
    page.0.as_chunks_mut().0.iter_mut().for_each(|word| *word = (rng.bits() % 10_000).to_le_bytes());
    page
}

#[test]
fn device_zram_words_are_shuffled_and_text_is_not() {
    let region = Region::new(8 << 20);
    let device = zram(&region, Alg::Lz4, 8 << 20, Vec::new());
    // By turns, longer than it takes to notice.
    let (mut sizes, mut kept) = ([0, 0], Vec::new());
    for seed in 0..2000 {
        let is_text = seed / 200 % 2 == 1;
        let page = if is_text { page_of(1) } else { words(seed) };
        let before = usage(&device).pool_compressed_bytes;
        kept.push((device.store(&page.0, u128::from(seed)).unwrap(), page));
        sizes[usize::from(is_text)] += usage(&device).pool_compressed_bytes - before;
    }
    let plain = |page: &Page| {
        let mut out = vec![0; farpage_codec::lz4::bound(PAGE_SIZE)];
        farpage_codec::lz4::Compressor::new().unwrap().compress(page, &mut out).unwrap() as u64
    };
    assert!(sizes[0] / 1000 < plain(&words(1).0) * 3 / 4, "{sizes:?}, as they are {}", plain(&words(1).0));
    assert!(sizes[1] / 1000 < plain(&page_of(1).0) + 64, "{sizes:?}, as it is {}", plain(&page_of(1).0));
    let mut back = Frame::boxed();
    for (entry, page) in kept {
        device.load(entry, &mut back.0).unwrap();
        assert!(back.0 == page.0);
    }
}

#[test]
fn device_zram_same_filled_pages_take_no_pool_memory_and_raw_pages_are_kept_whole() {
    let region = Region::new(1 << 20);
    let device = zram(&region, Alg::Lz4, 1 << 20, Vec::new());
    let same = device.store(&page_of(8).0, check_of(8)).unwrap();
    assert_eq!(usage(&device).pool_bytes, 0);
    let raw = device.store_raw(&page_of(7).0, check_of(7)).unwrap();
    expect(&device, same, 8);
    expect(&device, raw, 7);
    // The limit: one MiB holds 256 raw pages.
    let more = (0..1000).take_while(|_| device.store_raw(&page_of(7).0, 0).is_ok()).count();
    assert_eq!(more, 255);
    assert_eq!(device.store(&page_of(1).0, 0), Err(StoreError::Full));
    assert!(device.store(&page_of(8).0, 0).is_ok(), "a same-filled page needs no room");
    assert!(device.free(raw));
    assert!(device.store_raw(&page_of(15).0, 0).is_ok());
}

#[test]
fn device_zram_writeback_moves_the_oldest_and_entries_stay_valid() {
    // What is oldest is told by the slot.
    let _here = OnOneCpu::here();
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileDevice::open(1, dir.path(), None).unwrap());
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, vec![file.clone()]);
    let store = |seed| (device.store_raw(&page_of(seed).0, check_of(seed)).unwrap(), seed);
    let old: Vec<_> = (0..500).map(store).collect();
    let in_pool = old.iter().filter(|(_, seed)| seed % 8 != 0).count();
    let before = usage(&device).pool_bytes;
    assert_eq!(device.writeback(100), 100);
    assert_eq!(usage(&*file).slots_in_use, 100);
    assert!(usage(&device).pool_bytes < before);
    // The first 100 that are in the pool are the oldest.
    let first = old.iter().filter(|(_, seed)| seed % 8 != 0).take(100);
    assert!(first.clone().all(|&(entry, _)| !device.is_synchronous(entry)));
    // What was stored since is young: everything old goes first.
    let young: Vec<_> = (1000..1100).map(store).collect();
    assert_eq!(device.writeback(in_pool - 100), in_pool - 100);
    assert!(young.iter().all(|&(entry, _)| device.is_synchronous(entry)));
    old.iter().chain(&young).for_each(|&(entry, seed)| expect(&device, entry, seed));
    for (entry, _) in old.into_iter().chain(young) {
        assert!(device.free(entry));
    }
    assert_eq!(usage(&*file).slots_in_use + usage(&device).slots_in_use, 0);
    assert_eq!(usage(&*file).bad_frees + usage(&device).bad_frees, 0);
    assert_eq!(device.writeback(10), 0);
}

#[test]
fn device_zram_pages_taken_back_from_a_file_leave_again_without_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileDevice::open(1, dir.path(), None).unwrap());
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, vec![file.clone()]);
    let compressible = (1..400).filter(|seed| (1..6).contains(&(seed % 8)));
    let kept: Vec<_> = compressible.map(|s| (device.store(&page_of(s).0, check_of(s)).unwrap(), s)).collect();
    let n = kept.len();
    assert_eq!(device.writeback(n), n);
    let (in_file, in_pool) = (usage(&*file), usage(&device));
    assert_eq!((in_file.slots_in_use, in_pool.pool_orig_bytes), (n as u64, 0));
    kept.iter().for_each(|&(entry, s)| device.promote(entry, &page_of(s).0));
    assert!(kept.iter().all(|&(entry, _)| device.is_synchronous(entry)), "all are in memory again");
    kept.iter().for_each(|&(entry, s)| expect(&device, entry, s));
    assert_eq!(usage(&device).slots_in_use + usage(&*file).slots_in_use, n as u64, "each page counts once");
    // Objects that move within the pool keep their copies.
    device.compact(100_000);
    // One by one by request, the others by age; neither writes anything.
    let (first, others) = kept.split_at(n / 2);
    assert!(first.iter().all(|&(entry, _)| device.give_up(entry) && !device.is_synchronous(entry)));
    let written = usage(&*file).file_bytes;
    assert_eq!(device.writeback(n), others.len());
    assert_eq!((usage(&*file).file_bytes, usage(&device).pool_orig_bytes), (written, 0));
    kept.iter().for_each(|&(entry, s)| expect(&device, entry, s));
    // Freed while in both places: both are free.
    first.iter().for_each(|&(entry, s)| device.promote(entry, &page_of(s).0));
    assert!(kept.iter().all(|&(entry, _)| device.free(entry)));
    assert_eq!((usage(&*file).slots_in_use, usage(&device).slots_in_use), (0, 0));
    assert_eq!(usage(&device).pool_compressed_bytes, 0);
    // What was never in a file is not given up.
    let only = device.store(&page_of(1).0, check_of(1)).unwrap();
    assert!(!device.give_up(only) && device.is_synchronous(only));
}

#[test]
fn device_zram_pages_as_they_are_are_taken_back_from_a_file_and_leave_again_without_a_write() {
    // What is oldest is told by the slot.
    let _here = OnOneCpu::here();
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileDevice::open(1, dir.path(), None).unwrap());
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, vec![file.clone()]);
    let text: Vec<_> =
        (0..400).map(|i| (device.store(&page_of(8 * i + 1).0, check_of(8 * i + 1)).unwrap(), 8 * i + 1)).collect();
    let waiting = |seed: u64| device.store_waiting(&page_of(seed).0, check_of(seed));
    assert_eq!(waiting(7), Err(StoreError::Incompressible), "nobody has said that they may");
    device.let_raw_wait(true);
    let raw: Vec<_> = (0..100).map(|i| (waiting(8 * i + 7).unwrap(), 8 * i + 7)).collect();
    let loaded = |pages: &[(Entry, u64)]| pages.iter().filter(|(entry, _)| device.is_synchronous(*entry)).count();
    // All are young; those that are there as they are go in the first round.
    assert_eq!((device.writeback(100), loaded(&raw), loaded(&text)), (100, 0, 400));
    raw.iter().for_each(|&(entry, s)| device.promote(entry, &page_of(s).0));
    assert_eq!((loaded(&raw), usage(&device).raw_pages, usage(&*file).slots_in_use), (100, 100, 100));
    device.compact(100_000);
    raw.iter().for_each(|&(entry, s)| expect(&device, entry, s));
    // By request, by age; nothing is written: a place in the file more than before would be one.
    assert!(raw[..40].iter().all(|&(entry, _)| device.give_up(entry)));
    device.inner.lock().hand = raw[40].0.slot();
    assert_eq!((device.writeback(60), loaded(&raw)), (60, 0));
    assert_eq!((usage(&*file).slots_in_use, usage(&device).raw_pages), (100, 0));
    raw.iter().for_each(|&(entry, s)| expect(&device, entry, s));
    // Not while there is no room to spare, and not more than one in three.
    device.let_raw_wait(false);
    device.promote(raw[0].0, &page_of(raw[0].1).0);
    assert_eq!(loaded(&raw), 0);
    // Freed while in both places: both are free.
    device.let_raw_wait(true);
    raw.iter().for_each(|&(entry, s)| device.promote(entry, &page_of(s).0));
    assert!(raw.iter().chain(&text).all(|&(entry, _)| device.free(entry)));
    let (z, f) = (usage(&device), usage(&*file));
    assert_eq!((z.slots_in_use, z.raw_pages, z.pool_compressed_bytes, f.slots_in_use), (0, 0, 0, 0));
}

#[test]
fn device_zram_compaction_fills_holes_and_keeps_pages() {
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, Vec::new());
    let mut rng = Random(11);
    let store = |seed| (device.store_raw(&page_of(seed).0, check_of(seed)).unwrap(), seed);
    let all: Vec<_> = (0..4000).map(store).collect();
    let (kept, freed): (Vec<_>, Vec<_>) = all.into_iter().partition(|_| rng.index(5) == 0);
    assert!(freed.iter().all(|&(entry, _)| device.free(entry)));
    let before = usage(&device).pool_bytes;
    let given_back = device.compact(100_000);
    assert_eq!(usage(&device).pool_bytes, before - given_back);
    assert!(given_back > before / 2, "{given_back} of {before}");
    kept.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    assert!(kept.iter().all(|&(entry, _)| device.free(entry)));
}

/// What is freed behind the hand, in a round that finds nothing in front of it.
#[test]
fn device_zram_compaction_does_not_wait_for_frees_that_it_has_passed() {
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, Vec::new());
    let mut rng = Random(12);
    let all: Vec<_> = (0..4000).map(|seed| device.store_raw(&page_of(seed).0, check_of(seed)).unwrap()).collect();
    device.inner.lock().compact_hand = 4001;
    let kept: Vec<_> = all.into_iter().filter(|&entry| rng.index(5) == 0 || !device.free(entry)).collect();
    let before = usage(&device).pool_bytes;
    assert!(device.compact(100_000) > before / 2);
    assert!(kept.into_iter().all(|entry| device.free(entry)));
}

#[test]
fn device_zram_keeps_pages_whose_writeback_fails() {
    let dir = tempfile::tempdir().unwrap();
    // Room for 15 pages.
    let file = Arc::new(FileDevice::open(1, dir.path(), Some(16 * 4096)).unwrap());
    let region = Region::new(16 << 20);
    let device = zram(&region, Alg::Lz4, 16 << 20, vec![file.clone()]);
    let kept: Vec<_> = (1..100).map(|s| (device.store_raw(&page_of(s).0, check_of(s)).unwrap(), s)).collect();
    assert_eq!(device.writeback(50), 15);
    assert_eq!(device.writeback(50), 0);
    kept.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    for (entry, _) in kept {
        assert!(device.free(entry));
    }
    assert_eq!(usage(&*file).slots_in_use, 0);
}

/// Would hang if anything here waited for the file.
#[test]
fn device_zram_nobody_waits_for_a_page_that_is_being_moved_out() {
    let (dir, gate) = (tempfile::tempdir().unwrap(), Arc::new(Barrier::new(2)));
    let file = FileDevice::open(1, dir.path(), None).unwrap().with_faults(Arc::new(Injector::with_gate(gate.clone())));
    let (file, region) = (Arc::new(file), Region::new(16 << 20));
    let device = zram(&region, Alg::Lz4, 16 << 20, vec![file.clone()]);
    let mut kept: Vec<_> = (1..100).map(|s| (device.store_raw(&page_of(s).0, check_of(s)).unwrap(), s)).collect();
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| device.writeback(50));
        gate.wait();
        // Its pages are being written.
        kept.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
        kept.extend((100..150).map(|s| (device.store_raw(&page_of(s).0, check_of(s)).unwrap(), s)));
        for (entry, _) in kept.drain(..20) {
            assert!(device.free(entry));
        }
        assert_eq!((device.writeback(10), usage(&*file).slots_in_use > 0), (0, true), "one at a time");
        gate.wait();
        assert!(moves.join().unwrap() > 0);
    });
    kept.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    for (entry, _) in kept {
        assert!(device.free(entry));
    }
    assert_eq!((usage(&device).slots_in_use, usage(&*file).slots_in_use), (0, 0));
}

#[test]
fn device_zram_threads_store_load_free_while_pages_move_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileDevice::open(1, dir.path(), None).unwrap());
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, vec![file.clone()]);
    let done = AtomicUsize::new(0);
    let moved = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (device, done) = (&device, &done);
            scope.spawn(move || {
                let mut rng = Random(thread + 77);
                let mut live: HashMap<u64, Entry> = HashMap::new();
                for step in 0..6000 {
                    let seed = thread * 1_000_000 + rng.index(400) as u64;
                    match live.remove(&seed) {
                        Some(entry) => {
                            expect(device, entry, seed);
                            if step % 3 == 0 {
                                live.insert(seed, entry);
                            } else {
                                assert!(device.free(entry));
                            }
                        }
                        None => {
                            live.insert(seed, device.store_raw(&page_of(seed).0, check_of(seed)).unwrap());
                        }
                    }
                }
                for (seed, entry) in live {
                    expect(device, entry, seed);
                    assert!(device.free(entry));
                }
                done.fetch_add(1, Relaxed);
            });
        }
        while done.load(Relaxed) < 3 {
            moved.fetch_add(device.writeback(40), Relaxed);
            device.compact(1000);
        }
    });
    println!("{} pages written back", moved.load(Relaxed));
    assert!(moved.load(Relaxed) > 0);
    let (z, f) = (usage(&device), usage(&*file));
    assert_eq!((z.slots_in_use, f.slots_in_use, z.bad_frees, f.bad_frees), (0, 0, 0, 0));
}

/// Pages of all sizes come and go, as many as there are: what the pool takes beyond the compressed bytes stays bounded,
/// and what is freed goes back to the kernel.
#[test]
fn device_zram_pool_stays_dense_and_shrinks_after_frees() {
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, Vec::new());
    let mut rng = Random(3);
    let mut live: Vec<(Entry, u64)> = Vec::new();
    let mut next = 0;
    let mut store = |live: &mut Vec<(Entry, u64)>| {
        next += 1;
        // Neither same-filled nor incompressible.
        let seed = next * 8 + 1 + next % 5;
        live.push((device.store(&page_of(seed).0, check_of(seed)).unwrap(), seed));
    };
    let overhead = || {
        let u = usage(&device);
        u.pool_bytes as f64 / u.pool_compressed_bytes as f64 - 1.0
    };
    (0..12_000).for_each(|_| store(&mut live));
    let filled = overhead();
    let mut worst: f64 = 0.0;
    for step in 0..40_000 {
        let at = rng.index(live.len());
        assert!(device.free(live.swap_remove(at).0));
        store(&mut live);
        if step % 8 == 0 {
            device.compact(64);
        }
        if step > 10_000 && step % 100 == 0 {
            worst = worst.max(overhead());
        }
    }
    println!("overhead: filled {:.1} %, steady state at most {:.1} %", filled * 100.0, worst * 100.0);
    // Two thirds go, at random: every span keeps some. (A pool of few pages cannot be dense: a span for each class.)
    while live.len() > 4000 {
        let at = rng.index(live.len());
        assert!(device.free(live.swap_remove(at).0));
    }
    let sparse = overhead();
    (0..400).for_each(|_| _ = device.compact(64));
    println!("after frees {:.1} %, compacted {:.1} %", sparse * 100.0, overhead() * 100.0);
    live.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    assert!(worst <= 0.12 && overhead() <= 0.15, "a pool this small has a part-filled span for each size");
}

#[test]
fn device_zram_cold_pages_are_compressed_anew_and_wanted_ones_are_not() {
    let region = Region::new(64 << 20);
    let device = zram(&region, Alg::Lz4, 64 << 20, Vec::new()).with_recompression();
    let seeds = (0..4000).filter(|seed| (1..5).contains(&(seed % 8)));
    let live: Vec<_> = seeds.map(|seed| (device.store(&page_of(seed).0, check_of(seed)).unwrap(), seed)).collect();
    let before = usage(&device);
    let hot = || live.iter().step_by(4);
    // The hand passes everything once, slowly; what is loaded in between stays as it is.
    while device.recompress(1) == 0 {
        hot().for_each(|&(entry, seed)| expect(&device, entry, seed));
    }
    for _ in 0..400 {
        hot().for_each(|&(entry, seed)| assert!(device.check(entry) == Some(check_of(seed))));
        hot().for_each(|&(entry, _)| device.load(entry, &mut Frame::boxed().0).unwrap());
        device.recompress(64);
    }
    let after = usage(&device);
    let dense = |entry: Entry| device.slots.get(entry.slot()).unwrap().packing == Packing::Dense;
    assert!(hot().all(|&(entry, _)| !dense(entry)));
    println!(
        "{} -> {} bytes, pool {} -> {}",
        before.pool_compressed_bytes, after.pool_compressed_bytes, before.pool_bytes, after.pool_bytes
    );
    assert!(after.recompressed_pages > 500 && after.pool_compressed_bytes < before.pool_compressed_bytes);
    assert_eq!(after.recompressed_pages, live.iter().filter(|&&(entry, _)| dense(entry)).count() as u64);
    live.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    live.iter().for_each(|&(entry, _)| assert!(device.free(entry)));
    let end = usage(&device);
    assert_eq!((end.slots_in_use, end.pool_compressed_bytes, end.bad_frees), (0, 0, 0));
    assert_eq!(device.inner.lock().pool.object_bytes(), 0);
}

#[test]
fn device_zram_recompression_beside_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(16 << 20);
    let file = Arc::new(FileDevice::open(1, dir.path(), None).unwrap());
    let device = zram(&region, Alg::Lz4, 1 << 20, vec![file.clone()]).with_recompression();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = |start: u64| {
            let mut rng = Random(start);
            let mut live: Vec<(Entry, u64)> = Vec::new();
            for step in 0..6000u64 {
                let seed = start * 100_000 + step;
                if let Ok(entry) = device.store(&page_of(seed).0, check_of(seed)) {
                    live.push((entry, seed));
                }
                if live.len() > 200 {
                    let (entry, seed) = live.swap_remove(rng.index(live.len()));
                    expect(&device, entry, seed);
                    assert!(device.free(entry));
                }
            }
            for (entry, seed) in live {
                expect(&device, entry, seed);
                assert!(device.free(entry));
            }
        };
        let workers = [3, 5].map(|start| scope.spawn(move || worker(start)));
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                device.recompress(16);
                device.compact(64);
                device.writeback(8);
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Relaxed);
    });
    let end = usage(&device);
    assert_eq!((end.slots_in_use, end.pool_compressed_bytes, end.bad_frees), (0, 0, 0));
    println!("{} recompressed", end.recompressed_pages);
    assert!(end.recompressed_pages > 0);
}

/// What needs no lock of the pool: this hangs if one of these takes it.
#[test]
fn device_zram_looks_up_and_keeps_words_without_the_lock_of_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(16 << 20);
    let file = Arc::new(FileDevice::open(1, dir.path(), None).unwrap());
    let device = zram(&region, Alg::Lz4, 1 << 20, vec![file]);
    let far = device.store(&page_of(1).0, check_of(1)).unwrap();
    assert_eq!(device.writeback(1), 1);
    let near = device.store(&page_of(2).0, check_of(2)).unwrap();
    let inner = device.inner.lock();
    assert_eq!((device.check(near), device.resolve(near)), (Some(check_of(2)), near));
    assert!(device.is_synchronous(near) && !device.is_synchronous(far) && device.resolve(far).device() == 1);
    expect(&device, far, 1);
    let zeros = Frame::boxed();
    let same = device.store(&zeros.0, 7).unwrap();
    let mut page = Frame::boxed();
    assert_eq!(device.load(same, &mut page.0), Ok(()));
    assert!(page.0 == zeros.0 && device.free(same));
    assert!(device.free(far));
    drop(inner);
    expect(&device, near, 2);
}
