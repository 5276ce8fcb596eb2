//! All devices together: order, what falls through to the next, and random work against a model.

use super::build::memory_most;
use super::*;
use crate::testing::{Frame, Region, check_of, page_of};
use farpage_ipc::conf::{Alg, DeviceKind, InjectedFault};
use farpage_swap::sim::Random;
use std::collections::HashMap;
use std::path::Path;

fn space(region: &Region, limit: u64, specs: &[SwapSpec]) -> Result<SwapSpace, DeviceError> {
    // SAFETY: the region is private, zero memory that the tests keep longer than the space and use for nothing else.
    unsafe { SwapSpace::build(specs, region.base().as_ptr(), region.bytes(), limit) }
}

fn zram(size: Option<u64>) -> SwapSpec {
    SwapSpec { size, ..SwapSpec::zram(Alg::Lz4) }
}

fn file(path: &Path, size: Option<u64>, prio: Option<i32>) -> SwapSpec {
    SwapSpec { size, prio, ..SwapSpec::file(path) }
}

fn expect(space: &SwapSpace, entry: Entry, seed: u64) {
    let mut page = Frame::boxed();
    space.load(entry, &mut page.0).unwrap();
    assert!(page.0 == page_of(seed).0, "content of page {seed}");
    assert_eq!(space.check(entry), Some(check_of(seed)));
}

#[test]
fn files_of_the_same_priority_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let of = |prio, size| file(dir.path(), size, prio);
    let region = Region::new(1 << 20);
    let used = |specs: &[SwapSpec], batches: u64| -> Vec<u64> {
        let s = space(&region, 1 << 20, specs).unwrap();
        for batch in 0..batches {
            let pages: Vec<_> = (4 * batch..4 * batch + 4).map(page_of).collect();
            let pages: Vec<_> = pages.iter().zip(4 * batch..).map(|(page, seed)| (&page.0, check_of(seed))).collect();
            let mut out = [None; 4];
            s.store_batch(&pages, &mut out).unwrap();
            // A batch stays together, and can be read back.
            assert!(out.iter().all(|entry| entry.unwrap().device() == out[0].unwrap().device()));
            out.iter().zip(4 * batch..).for_each(|(entry, seed)| expect(&s, entry.unwrap(), seed));
        }
        let slots = |file: &Arc<FileDevice>| {
            let mut usage = Usage::default();
            file.add_usage(&mut usage);
            usage.slots_in_use
        };
        s.files.iter().map(slots).collect()
    };
    assert_eq!(used(&[of(Some(5), None), of(Some(5), None), of(Some(5), None)], 6), [8, 8, 8]);
    assert_eq!(used(&[of(Some(7), None), of(Some(5), None), of(Some(5), None)], 6), [24, 0, 0]);
    // One that is full is passed over (a page of its nine is its header); what is left goes to the one behind.
    assert_eq!(used(&[of(Some(5), Some(9 * 4096)), of(Some(5), None), of(Some(3), None)], 8), [8, 24, 0]);
    // In the order given, without a priority.
    assert_eq!(used(&[of(None, None), of(None, None)], 4), [16, 0]);
}

#[test]
fn device_space_orders_devices_and_passes_pages_on() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(16 << 20);
    let specs = [zram(None), file(dir.path(), Some(8 * 4096), None), file(dir.path(), None, Some(5))];
    let s = space(&region, 16 << 20, &specs).unwrap();
    assert_eq!(s.store(&page_of(1).0, 0).unwrap().device(), 0, "the file with prio=5 is first");
    assert_eq!(s.devices.iter().map(|device| device.caps().priority).collect::<Vec<_>>(), [5, -1, -1]);
    let s = space(&region, 16 << 20, &specs[..2]).unwrap();
    let text = s.store(&page_of(1).0, check_of(1)).unwrap();
    assert_eq!((text.device(), s.is_synchronous(text)), (0, true));
    // Seven incompressible pages fit in the file; the eighth is stored as it is in zram.
    let random: Vec<_> =
        (0..8).map(|i| (s.store(&page_of(7 + 8 * i).0, check_of(7 + 8 * i)).unwrap(), 7 + 8 * i)).collect();
    assert!(random[..7].iter().all(|(e, _)| e.device() == 1 && !s.is_synchronous(*e)));
    assert_eq!(random[7].0.device(), 0);
    random.iter().for_each(|&(entry, seed)| expect(&s, entry, seed));
    expect(&s, text, 1);
    assert!(s.check(Entry::new(7, 7).unwrap()).is_none() && !s.free(Entry::new(7, 7).unwrap()));
}

#[test]
fn a_steady_pool_keeps_what_it_has_and_refuses_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(4 << 20);
    let s = space(&region, 1 << 20, &[zram(None), file(dir.path(), None, None)]).unwrap();
    s.set_pools_steady(true);
    let entries: Vec<_> = (0..1500).map(|i| s.store(&page_of(8 * i + 1).0, check_of(8 * i + 1)).unwrap()).collect();
    // The first come, as many as find room; some that are small find it later.
    let held = entries.iter().filter(|entry| s.is_synchronous(**entry)).count();
    assert!(held > 300 && entries[..300].iter().all(|entry| s.is_synchronous(*entry)), "{held}");
    assert!(held < 1500 && !s.pool_over_share() && s.usage().writeback == 0 && s.pool_bytes() <= 1 << 20);
    assert!(s.keep(entries[0], true), "its copy may stay when it comes back");
    // And if it is not, pages move on.
    s.set_pools_steady(false);
    assert!(s.pool_over_share() && !s.keep(entries[0], true));
    while s.pool_over_share() && s.writeback(32) > 0 {}
    assert!(s.usage().writeback > 0);
    for (entry, seed) in entries.iter().zip((0..1500).map(|i| 8 * i + 1)) {
        expect(&s, *entry, seed);
    }
}

#[test]
fn what_does_not_compress_waits_in_a_pool_that_has_room_and_is_the_first_to_leave_it() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(4 << 20);
    let s = space(&region, 4 << 20, &[zram(None), file(dir.path(), None, None)]).unwrap();
    s.let_raw_wait(true);
    let store = |seed: u64| {
        let (page, check) = (page_of(seed), check_of(seed));
        let now = s.store_or_let_wait(&page.0, check).unwrap();
        (now.unwrap_or_else(|| s.store(&page.0, check).unwrap()), seed)
    };
    // Older than what does not compress.
    let mut text: Vec<_> = (0..240).map(|i| store(8 * i + 1)).collect();
    let mut random: Vec<_> = (0..200).map(|i| store(8 * i + 7)).collect();
    let in_pool = |(entry, _): &&(Entry, u64)| s.is_synchronous(*entry);
    let waiting = random.iter().take_while(in_pool).count();
    assert_eq!(waiting, 120, "one in three and no more");
    assert!(!random[waiting..].iter().any(|one| in_pool(&one)));
    text.extend((240..480).map(|i| store(8 * i + 1)));
    s.set_pool_limit(s.pool_bytes());
    random.push(store(8 * 200 + 7));
    assert!(!in_pool(&&random[200]), "there is no room to spare");
    // Room for the text and for some of the others.
    let little = (s.pool_bytes() - waiting as u64 * 4096 + (300 << 10)) / 7 * 8;
    s.set_pool_limit(little);
    while s.pool_over_share() && s.writeback(32) > 0 {}
    assert!(!s.pool_over_share() && text.iter().all(|one| in_pool(&one)));
    let gone = random.iter().filter(|one| !in_pool(one)).count();
    assert!((random.len() - waiting + 1..random.len()).contains(&gone), "{gone}");
    // With room again, those that moved on and were read and left unchanged wait once more.
    s.set_pool_limit(4 << 20);
    random.iter().skip(waiting).for_each(|&(entry, _)| assert!(s.free(entry)));
    random.truncate(waiting);
    random.iter().for_each(|(entry, seed)| s.promote(*entry, || Some(page_of(*seed).0)));
    assert!(random.iter().all(|one| in_pool(&one)));
    text.iter().chain(&random).for_each(|&(entry, seed)| expect(&s, entry, seed));
    text.iter().chain(&random).for_each(|&(entry, seed)| expect(&s, entry, seed));
    assert_eq!(s.usage().raw_pages, waiting as u64);
    // Where memory is missing, nothing waits.
    assert_eq!(s.store_now(&page_of(7).0, check_of(7)), Ok(None));
    assert!(text.iter().chain(&random).all(|&(entry, _)| s.free(entry)));
    assert_eq!(s.usage().raw_pages, 0);
}

#[test]
fn device_space_is_full_when_everything_is() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(16 << 20);
    let s = space(&region, 1 << 20, &[zram(None), file(dir.path(), Some(11 * 4096), None)]).unwrap();
    let mut kept = Vec::new();
    for seed in (0..2000).filter(|s| s % 8 != 0) {
        match s.store(&page_of(seed).0, check_of(seed)) {
            Ok(entry) => kept.push((entry, seed)),
            Err(error) => assert_eq!(error, StoreError::Full),
        }
    }
    let usage = s.usage();
    println!("{} kept, {usage:?}", kept.len());
    assert!(kept.len() > 300 && usage.pool_bytes == 1 << 20 && usage.file_bytes == 10 * 4096);
    assert_eq!((usage.devices_full, usage.slots_in_use), (2, kept.len() as u64));
    kept.iter().for_each(|&(entry, seed)| expect(&s, entry, seed));
    assert!(kept.iter().all(|&(entry, _)| s.free(entry)));
}

#[test]
fn device_space_goes_on_without_a_device_that_fails() {
    let (dir, gone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let region = Region::new(1 << 20);
    let s = space(&region, 1 << 20, &[file(gone.path(), None, None), file(dir.path(), None, None)]).unwrap();
    drop(gone);
    let entry = s.store(&page_of(9).0, check_of(9)).unwrap();
    assert_eq!(entry.device(), 1);
    expect(&s, entry, 9);
    assert!(s.take_warning().unwrap().contains("cannot create") && s.take_warning().is_none());
    let message = space(&region, 0, &[file(Path::new("/nowhere"), None, None)]).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("file:/nowhere"), "{message}");
}

/// A full pool makes room for the youngest page by moving the oldest on, also for who stores in batches (regions).
#[test]
fn device_space_keeps_the_youngest_pages_in_the_pool() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let region = Region::new(16 << 20);
    let s = space(&region, 1 << 20, &[zram(None), file(dir.path(), None, None)]).unwrap();
    let mut live = Vec::new();
    for seed in (0..6000).filter(|seed| matches!(seed % 8, 1..=3)) {
        let mut out = [None];
        s.store_batch(&[(&page_of(seed).0, check_of(seed))], &mut out).unwrap();
        live.push((out[0].unwrap(), seed));
    }
    // Holes between objects may leave no room for one of a certain size.
    let direct = live.iter().filter(|(entry, _)| entry.device() == 1).count();
    let there = |some: &[(Entry, u64)]| some.iter().filter(|(e, _)| s.resolve(*e).device() == 1).count();
    let (old, young) = live.split_at(live.len() - 200);
    println!("{direct} past the pool, {} old and {} young ones in the file", there(old), there(young));
    assert!(direct * 20 < live.len() && there(old) > 500 && there(young) < 50);
    live.iter().for_each(|&(entry, seed)| expect(&s, entry, seed));
}

#[test]
fn device_space_random_work_matches_a_model() {
    for (alg, limit) in [(Alg::Lz4, 2 << 20), (Alg::Zstd, 1 << 20)] {
        let dir = tempfile::tempdir().unwrap();
        let region = Region::new(64 << 20);
        let specs = [SwapSpec::zram(alg), file(dir.path(), None, None)];
        let s = space(&region, limit, &specs).unwrap();
        let mut rng = Random(limit);
        let mut live: HashMap<u64, Entry> = HashMap::new();
        let (mut next, mut moved) = (0, 0);
        for step in 0..3000 {
            if live.len() < 2000 || step % 2 == 0 {
                let n = 1 + rng.index(32) as u64;
                let frames: Vec<_> = (next..next + n).map(page_of).collect();
                let pages: Vec<_> = frames.iter().zip(next..).map(|(f, seed)| (&f.0, check_of(seed))).collect();
                let mut out = vec![None; n as usize];
                s.store_batch(&pages, &mut out).unwrap();
                live.extend((next..).zip(out.into_iter().map(Option::unwrap)));
                next += n;
            } else {
                let seeds: Vec<_> = live.keys().copied().take(40).collect();
                for seed in seeds {
                    let entry = live.remove(&seed).unwrap();
                    expect(&s, entry, seed);
                    assert!(s.free(entry));
                }
            }
            if s.pool_over_share() {
                moved += s.writeback(32);
            }
            if step == 1500 {
                s.set_pool_limit(limit / 2);
            }
        }
        while s.pool_over_share() && s.writeback(64) > 0 {}
        assert!(!s.pool_over_share() && s.usage().pool_bytes <= limit / 2);
        println!("{alg:?}: {} live, {moved} written back, {:?}", live.len(), s.usage());
        assert!(moved > 0 && s.usage().writeback >= moved as u64);
        for (seed, entry) in live {
            expect(&s, entry, seed);
            assert!(s.free(entry));
        }
        let usage = s.usage();
        assert_eq!((usage.slots_in_use, usage.bad_frees, usage.read_errors, usage.write_errors), (0, 0, 0, 0));
    }
}

fn faulty(path: &Path, fault: InjectedFault, encrypt: bool) -> SwapSpec {
    DeviceKind::File { path: path.into(), keep_free: None, encrypt, fault: Some(fault) }.into()
}

/// A disk on which much goes wrong, though never twice in a row at the same place: nothing may be lost.
#[test]
fn device_space_gets_over_every_curable_fault() {
    for seed in 0..3 {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let region = Region::new(16 << 20);
        let specs = [zram(None), faulty(dir.path(), InjectedFault::Curable(seed), seed == 2)];
        let s = space(&region, 1 << 20, &specs).unwrap();
        let key = ContentKey::random();
        s.check_contents(key);
        let mut rng = Random(seed + 1);
        let mut live: Vec<(u64, Entry)> = Vec::new();
        let mut next = 0;
        for _ in 0..400 {
            let n = 1 + rng.index(32) as u64;
            let frames: Vec<_> = (next..next + n).map(page_of).collect();
            let pages: Vec<_> = frames.iter().map(|f| (&f.0, key.hash(&f.0))).collect();
            let mut out = vec![None; n as usize];
            // What fails stays in memory, and goes elsewhere at the next try.
            while s.store_batch(&pages, &mut out).is_err() {}
            live.extend((next..).zip(out.into_iter().map(Option::unwrap)));
            next += n;
            s.writeback(32);
            let window: Vec<_> = (0..32).map(|_| live[rng.index(live.len())]).collect();
            let mut frames: Vec<_> = window.iter().map(|_| Frame::boxed()).collect();
            let entries: Vec<_> = window.iter().map(|w| w.1).collect();
            let loaded = s.load_many(&entries, &mut frames.iter_mut().map(|f| &mut f.0).collect::<Vec<_>>());
            assert_eq!(loaded, (32, None));
            assert!(window.iter().zip(&frames).all(|((seed, _), frame)| frame.0 == page_of(*seed).0));
            for _ in 0..rng.index(24).min(live.len() - 1) {
                let at = rng.index(live.len());
                assert!(s.free(live.swap_remove(at).1));
            }
        }
        let usage = s.usage();
        println!("seed {seed}: {usage:?}");
        assert!(usage.read_errors + s.queued_failures.load(Relaxed) > 10 && usage.devices_failed == 0);
    }
}

/// What nobody can cure is told, never passed off as the page.
#[test]
fn device_space_never_returns_bytes_that_are_not_the_pages() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let region = Region::new(1 << 20);
    let s = space(&region, 1 << 20, &[file(dir.path(), None, None)]).unwrap();
    let key = ContentKey::random();
    s.check_contents(key);
    let frames: Vec<_> = (1..4).map(page_of).collect();
    let pages: Vec<_> = frames.iter().map(|f| (&f.0, key.hash(&f.0))).collect();
    let mut out = [None; 3];
    s.store_batch(&pages, &mut out).unwrap();
    let entries = out.map(Option::unwrap);
    // A torn write behind our back: the second half of the second page is old.
    let path = format!("/proc/self/fd/{}", s.fds().last().unwrap());
    let disk = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let at = entries[1].slot() * 4096 + 2048;
    std::os::unix::fs::FileExt::write_all_at(&disk, &[0x5a; 2048], at).unwrap();
    let mut back: Vec<_> = (0..3).map(|_| Frame::boxed()).collect();
    let corrupt = LoadError::Corrupt { device: 0, slot: entries[1].slot() };
    let loaded = s.load_many(&entries, &mut back.iter_mut().map(|f| &mut f.0).collect::<Vec<_>>());
    assert_eq!(loaded, (1, Some(corrupt)));
    assert_eq!(s.load(entries[1], &mut back[1].0), Err(corrupt));
    assert_eq!(s.load(entries[2], &mut back[2].0), Ok(()));
    assert!(back[0].0 == frames[0].0 && back[2].0 == frames[2].0);
    assert!(s.usage().read_errors >= 6);
}

/// A disk that dies: what is on it goes to the next one, under the same entries, and is freed there.
#[test]
fn device_space_takes_the_pages_off_a_device_that_fails() {
    for (encrypt, tiered) in [(false, false), (true, true)] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let region = Region::new(16 << 20);
        let mut specs = vec![faulty(dir.path(), InjectedFault::Dying(1), encrypt), file(dir.path(), None, None)];
        if tiered {
            specs.insert(0, zram(None));
        }
        let s = space(&region, 1 << 20, &specs).unwrap();
        let key = ContentKey::random();
        s.check_contents(key);
        let mut live = Vec::new();
        let mut warning = None;
        for seed in 0..3000 {
            let page = page_of(seed);
            match s.store(&page.0, key.hash(&page.0)) {
                Ok(entry) => live.push((entry, seed)),
                Err(error) => assert!(matches!(error, StoreError::Io(_)), "{error}"),
            }
            s.writeback(32);
            warning = warning.or_else(|| s.take_warning());
        }
        assert!(warning.is_some_and(|text| text.contains("writes keep failing")));
        let failing = tiered as u8;
        let there = |s: &SwapSpace| live.iter().filter(|(entry, _)| s.resolve(*entry).device() == failing).count();
        let before = there(&s);
        assert!(before > 100, "{before}");
        // Some are freed before they are moved.
        let freed: Vec<_> = (0..live.len()).step_by(9).map(|i| live[i]).collect();
        freed.iter().for_each(|(entry, _)| assert!(s.free(*entry)));
        live.retain(|pair| !freed.contains(pair));
        while s.tend(false) {}
        let there = |s: &SwapSpace| live.iter().filter(|(entry, _)| s.resolve(*entry).device() == failing).count();
        assert_eq!(there(&s), 0, "drained");
        let usage = s.usage();
        assert!(usage.drained_pages > 100 && usage.devices_failed == 1, "{usage:?}");
        assert_eq!(usage.slots_in_use, live.len() as u64);
        for window in live.chunks(32) {
            let entries: Vec<_> = window.iter().map(|w| w.0).collect();
            let mut frames: Vec<_> = window.iter().map(|_| Frame::boxed()).collect();
            let loaded = s.load_many(&entries, &mut frames.iter_mut().map(|f| &mut f.0).collect::<Vec<_>>());
            assert_eq!(loaded, (window.len(), None));
            assert!(window.iter().zip(&frames).all(|((_, seed), frame)| frame.0 == page_of(*seed).0));
        }
        for (entry, seed) in live {
            let page = page_of(seed);
            assert_eq!(s.check(entry), Some(key.hash(&page.0)));
            assert!(s.free(entry));
        }
        let usage = s.usage();
        assert_eq!((usage.slots_in_use, usage.bad_frees), (0, 0), "nothing is left anywhere");
    }
}

/// What a signal handler calls makes no ring, wherever the pages lie.
#[test]
fn device_space_reads_plainly_where_it_is_asked_to() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let region = Region::new(1 << 20);
    let s = space(&region, 1 << 20, &[file(dir.path(), None, None)]).unwrap();
    let pages: Vec<_> = (0..64).map(page_of).collect();
    let live: Vec<_> = pages.iter().zip(0..).map(|(page, seed)| s.store(&page.0, check_of(seed)).unwrap()).collect();
    let apart: Vec<Entry> = live.iter().step_by(3).copied().collect();
    let mut frames: Vec<_> = apart.iter().map(|_| Frame::boxed()).collect();
    let mut into: Vec<_> = frames.iter_mut().map(|f| &mut f.0).collect();
    assert_eq!(s.load_plainly(&apart, &mut into), (apart.len(), None));
    assert!(!s.rings.has_mine());
    assert_eq!(s.load_many(&apart, &mut into), (apart.len(), None));
    assert!(s.rings.has_mine() || s.rings.refused());
    assert!(frames.iter().zip(pages.iter().step_by(3)).all(|(frame, page)| frame.0 == page.0));
}

/// What moves on goes to the next file when the first one is full.
#[test]
fn device_space_moves_pages_on_to_the_second_file() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::new(16 << 20);
    let specs = [zram(None), file(dir.path(), Some(65 * 4096), None), file(dir.path(), None, None)];
    let s = space(&region, 4 << 20, &specs).unwrap();
    let live: Vec<_> = (0..2000)
        .filter(|seed| seed % 8 != 7)
        .map(|seed| (s.store(&page_of(seed).0, check_of(seed)).unwrap(), seed))
        .collect();
    assert!(live.iter().all(|(entry, _)| entry.device() == 0));
    s.set_pool_limit(1 << 20);
    while s.writeback(64) > 0 {}
    assert!(!s.pool_over_share());
    let at = |device| live.iter().filter(|(entry, _)| s.resolve(*entry).device() == device).count();
    assert_eq!(at(1), 64);
    assert!(at(2) > 500, "{}", at(2));
    live.iter().for_each(|&(entry, seed)| expect(&s, entry, seed));
}

/// A disk with some places that cannot be read is still a disk, as long as others can: however they are read.
#[test]
fn device_space_goes_on_with_a_device_of_which_most_can_be_read() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let region = Region::new(1 << 20);
    let s = space(&region, 1 << 20, &[faulty(dir.path(), InjectedFault::Lost(7), false)]).unwrap();
    let pages: Vec<_> = (0..2000).map(page_of).collect();
    let live: Vec<_> = pages.iter().zip(0..).map(|(page, seed)| s.store(&page.0, check_of(seed)).unwrap()).collect();
    let mut page = Frame::boxed();
    let (good, bad): (Vec<Entry>, Vec<Entry>) = live.iter().partition(|entry| s.load(**entry, &mut page.0).is_ok());
    assert!(bad.len() > 3 && s.usage().devices_failed == 0, "{}", bad.len());
    let mut window: Vec<_> = (0..32).map(|_| Frame::boxed()).collect();
    for i in 0..200 {
        assert!(s.load(bad[i % bad.len()], &mut page.0).is_err());
        let entries = &good[i..i + 32];
        let loaded = s.load_many(entries, &mut window.iter_mut().map(|f| &mut f.0).collect::<Vec<_>>());
        assert_eq!(loaded, (32, None));
    }
    assert_eq!(s.usage().devices_failed, 0);
    for i in 0..READS_TO_FAIL {
        assert!(s.load(bad[i % bad.len()], &mut page.0).is_err());
    }
    assert_eq!(s.usage().devices_failed, 1, "nothing else was read");
}

/// Pages that cannot be read, each tried three times, until a device is given up.
const READS_TO_FAIL: usize = 16;

/// Places that can never be read: an error that names them, and the right bytes everywhere else.
#[test]
fn device_space_tells_what_is_lost_and_keeps_the_rest() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let region = Region::new(1 << 20);
    let s = space(&region, 1 << 20, &[faulty(dir.path(), InjectedFault::Lost(7), false)]).unwrap();
    let pages: Vec<_> = (0..1500).map(page_of).collect();
    let live: Vec<_> =
        pages.iter().zip(0..).map(|(page, seed)| (s.store(&page.0, check_of(seed)).unwrap(), seed)).collect();
    let mut lost = 0;
    for (entry, seed) in live {
        let mut page = Frame::boxed();
        match s.load(entry, &mut page.0) {
            Ok(()) => assert!(page.0 == page_of(seed).0),
            Err(error) => {
                assert_eq!(error, LoadError::Io { errno: rustix::io::Errno::IO, device: 0, slot: entry.slot() });
                lost += 1;
            }
        }
    }
    assert!((1..100).contains(&lost), "{lost}");
}

/// Writes that went wrong untold: the page is lost, and is never something else, however it is read.
#[test]
fn device_space_notices_what_was_silently_not_stored() {
    for encrypt in [false, true] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let region = Region::new(1 << 20);
        let s = space(&region, 1 << 20, &[faulty(dir.path(), InjectedFault::Silent(7), encrypt)]).unwrap();
        let key = ContentKey::random();
        s.check_contents(key);
        let pages: Vec<_> = (0..3200).map(page_of).collect();
        let mut live = Vec::new();
        for some in pages.chunks(32) {
            let stored: Vec<_> = some.iter().map(|page| (&page.0, key.hash(&page.0))).collect();
            let mut out = [None; 32];
            s.store_batch(&stored, &mut out).unwrap();
            live.extend(out.map(Option::unwrap));
        }
        // Again, one by one, where something was before: of a torn write a part is old.
        for (entry, page) in live.iter_mut().zip(&pages).step_by(2) {
            assert!(s.free(*entry));
            *entry = s.store(&page.0, key.hash(&page.0)).unwrap();
        }
        let mut lost = 0;
        for (&entry, page) in live.iter().zip(&pages) {
            let mut back = Frame::boxed();
            match s.load(entry, &mut back.0) {
                Ok(()) => assert!(back.0 == page.0, "wrong bytes"),
                Err(LoadError::Corrupt { .. } | LoadError::ShortRead { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
            let (done, error) = s.load_many(&[entry], &mut [&mut back.0]);
            assert!(done == 0 && error.is_some() || back.0 == page.0);
        }
        println!("{lost} lost");
        assert!((10..400).contains(&lost), "{lost}");
        assert_eq!(s.usage().devices_failed, 0);
    }
}

#[test]
fn the_least_budget_of_a_pool_without_a_file_takes_all_pages_and_hardly_less_would() {
    let region = Region::new(8 << 20);
    let s = space(&region, 8 << 20, &[zram(None)]).unwrap();
    const ALL: u64 = 2048;
    let store = |i: u64| s.store(&page_of(8 * i + 1).0, check_of(8 * i + 1));
    let least = |stored: u64| s.least_budget(stored * 4096, (ALL - stored) * 4096);
    let before = least(0);
    (0..1024).for_each(|i| _ = store(i).unwrap());
    let budget = least(1024);
    assert!(before > budget, "as if they were halved: {before}, then {budget}");
    s.set_pool_limit(memory_most(budget * 7 / 8));
    let fit = (1024..ALL).take_while(|i| store(*i).is_ok()).count() as u64;
    assert!(fit > 512 && 1024 + fit < ALL, "{fit} more");
    s.set_pool_limit(memory_most(budget));
    (1024 + fit..ALL).for_each(|i| _ = store(i).unwrap());
    assert!(least(ALL) <= budget && least(ALL) > budget / 16 * 15, "it was known: {budget}, {}", least(ALL));

    let dir = tempfile::tempdir().unwrap();
    let tiered = space(&region, 1 << 20, &[zram(None), file(dir.path(), None, None)]).unwrap();
    assert_eq!(tiered.least_budget(0, ALL * 4096), 0, "a file takes them");
}
