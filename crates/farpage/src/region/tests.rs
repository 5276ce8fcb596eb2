//! Regions against a model that knows every word, and the things that programs do wrong.

mod budget;
mod coming_in;
mod descriptors;
mod devices_write;
mod dividing;
mod inherit;
mod list_lock;
mod lost;
mod pins;
mod places;
mod pool;
mod scans;
mod sigbus;
mod signals;
mod stat;
mod storing;
mod syscalls;
mod taking_out;
mod unwritten;

use super::word::PageState;
use super::*;
use farpage_device::testing;
use farpage_ipc::conf::{Alg, DeviceKind, SwapSpec};
use farpage_swap::PAGE_SIZE;
use proptest::prelude::*;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;

fn file() -> SwapSpec {
    SwapSpec::file(std::env::temp_dir())
}

/// In this mode; `None`, and said, where the system has no descriptor for thread mode.
fn built_in(mode: FaultMode, builder: Builder) -> Option<Pager> {
    match builder.fault_mode(mode).build() {
        Ok(pager) => Some(pager),
        Err(Error::Userfaultfd(error)) if mode == FaultMode::Thread => {
            println!("skipped in mode {mode:?}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn pager(budget: u64) -> Pager {
    Pager::builder().budget(budget).build().unwrap()
}

pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Tells the other threads of a test that it is over, also if it failed.
struct Done<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Word `at` of a page in a version; version 0 is zeros, every eighth version compresses to nothing, some do not
/// compress at all.
fn word(page: usize, at: usize, version: u64) -> u64 {
    match version {
        0 => 0,
        v if v % 8 == 0 => v,
        v if v % 8 == 1 => mix((page * 512 + at) as u64 ^ v << 40),
        v => mix((page * 64 + at % 64) as u64 ^ v << 40),
    }
}

/// Waits for `f`; false: that hangs.
pub(super) fn soon(f: impl Fn() -> bool) -> bool {
    let start = std::time::Instant::now();
    while !f() {
        if start.elapsed() > std::time::Duration::from_secs(300) {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    true
}

/// Whether the pages of regions that are gone are, too; reclaim may be about to free the last ones.
pub(super) fn nothing_is_left(pager: &Pager) -> bool {
    let bytes = |s: Stats| s.resident_bytes + s.cached_bytes + s.pool_orig_bytes + s.file_bytes;
    soon(|| pager.stats().is_ok_and(|stats| bytes(stats) == 0))
}

/// Threads that own every n-th page each, so that neighbours belong to others, and know what is in them.
pub(super) fn stress(pager: &Pager, bytes: usize, threads: usize, rounds: usize, seed: u64) {
    let region = pager.region(bytes).unwrap();
    stress_region(pager, &region, threads, rounds, seed);
    drop(region);
    assert!(nothing_is_left(pager), "{:?}", pager.stats());
    // No frame is lost; the thread that reads ahead may have some for a moment.
    let frames = &pager.owner.core.frames;
    let all_back = soon(|| frames.unused_count() == frames.len());
    assert!(all_back, "{} of {} frames", frames.unused_count(), frames.len());
    assert_eq!(pager.owner.core.swapped.load(Ordering::Relaxed), 0, "pages counted that are not on a device any more");
}

fn stress_region(pager: &Pager, region: &Region, threads: usize, rounds: usize, seed: u64) {
    let bytes = region.len();
    let pages = bytes / PAGE_SIZE;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let base = region.as_ptr() as *mut u64;
                let mut versions = vec![0u64; pages];
                let mut random = mix(seed ^ (thread as u64) << 50);
                let mut draw = |n: usize| {
                    random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    (mix(random) % n as u64) as usize
                };
                let own = |n: usize| (n / threads * threads + thread) % (pages / threads * threads);
                let mut sweep = thread;
                for _ in 0..rounds {
                    let kind = draw(100);
                    let page = if kind < 50 { sweep } else { own(draw(pages)) };
                    if kind < 50 {
                        sweep = (sweep + threads) % (pages / threads * threads);
                    }
                    // SAFETY: the page is this thread's: no other reads or writes its words.
                    let words = unsafe { std::slice::from_raw_parts_mut(base.add(page * 512), 512) };
                    let check = |words: &[u64], at: usize, version: u64| {
                        assert_eq!(words[at], word(page, at, version), "page {page}, word {at}, version {version}");
                    };
                    match draw(100) {
                        0..45 => check(words, draw(512), versions[page]),
                        45..60 => (0..512).for_each(|at| check(words, at, versions[page])),
                        60..90 => {
                            versions[page] += 1;
                            let version = versions[page];
                            words.iter_mut().enumerate().for_each(|(at, w)| *w = word(page, at, version));
                        }
                        90..94 => {
                            region.advise(page * PAGE_SIZE..(page + 1) * PAGE_SIZE, Advice::DontNeed).unwrap();
                            versions[page] = 0;
                        }
                        94..96 => {
                            let pin = region.pin(page * PAGE_SIZE..(page + 1) * PAGE_SIZE).unwrap();
                            (0..512).for_each(|at| check(words, at, versions[page]));
                            drop(pin);
                        }
                        96..98 => {
                            let start = draw(bytes);
                            region.prefetch(start..(start + 100_000).min(bytes)).unwrap();
                        }
                        98 => pager.resize_budget(((4 + draw(9)) << 20) as u64).unwrap(),
                        _ => {
                            let advice = [Advice::Normal, Advice::Sequential, Advice::Random][draw(3)];
                            let start = draw(bytes);
                            region.advise(start..(start + 100_000).min(bytes), advice).unwrap();
                        }
                    }
                }
                for page in (thread..pages / threads * threads).step_by(threads) {
                    // SAFETY: as above.
                    let words = unsafe { std::slice::from_raw_parts(base.add(page * 512), 512) };
                    for (at, w) in words.iter().enumerate() {
                        assert_eq!(*w, word(page, at, versions[page]), "at the end: page {page}, word {at}");
                    }
                }
            });
        }
    });
}

#[test]
fn threads_find_what_they_wrote() {
    for (seed, threads) in [(1, 1), (2, 2), (3, 4)] {
        let pager = pager(8 << 20);
        stress(&pager, 32 << 20, threads, 40_000 / threads, seed);
        let stats = pager.stats().unwrap();
        assert!(stats.pswpin > 1000 && stats.pswpout > 1000, "it did not swap: {stats:?}");
        assert!(stats.swpout_clean > 0 && stats.workingset_refault_cached > 0, "{stats:?}");
    }
}

#[test]
fn threads_find_what_they_wrote_on_a_file_and_with_zstd() {
    let zstd = SwapSpec::zram(Alg::Zstd);
    for devices in [vec![file()], vec![zstd, file()]] {
        let pager = Pager::builder().budget(8 << 20).swap(devices).reclaim_threads(2).build().unwrap();
        stress(&pager, 24 << 20, 2, 10_000, 9);
    }
}

#[test]
fn thread_mode_serves_system_calls_too() {
    use std::io::{Read, Write};
    let builder = Pager::builder().budget(8 << 20).fault_mode(FaultMode::Thread);
    let pager = match builder.build() {
        Ok(pager) => pager,
        Err(Error::Userfaultfd(error)) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    stress(&pager, 32 << 20, 2, 10_000, 5);
    let mut region = pager.region(32 << 20).unwrap();
    region.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 5) as u8);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&region[..1 << 20]).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_exact(&mut region[4 << 20..5 << 20]).unwrap();
    assert!(region[4 << 20..5 << 20].iter().enumerate().all(|(i, b)| *b == (i / 5) as u8));
}

#[derive(Debug, Clone)]
enum Op {
    Write(u16, u8),
    Discard(u16, u16),
    Prefetch(u16, u16),
    Hint(u16, u16, u8),
    Pin(u16, u16),
    Unpin,
    Resize(u8),
    Fill(u16, u16, u8),
}

fn op(pages: u16) -> impl Strategy<Value = Op> {
    let range = move || (0..pages, 1..64u16);
    prop_oneof![
        6 => (0..pages, any::<u8>()).prop_map(|(p, v)| Op::Write(p, v)),
        3 => (range(), any::<u8>()).prop_map(|((p, n), v)| Op::Fill(p, n, v)),
        2 => range().prop_map(|(p, n)| Op::Discard(p, n)),
        1 => range().prop_map(|(p, n)| Op::Prefetch(p, n)),
        1 => (range(), 0..3u8).prop_map(|((p, n), h)| Op::Hint(p, n, h)),
        1 => range().prop_map(|(p, n)| Op::Pin(p, n)),
        1 => Just(Op::Unpin),
        1 => (4..12u8).prop_map(Op::Resize),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_region_is_an_array_of_bytes(ops in proptest::collection::vec(op(4096), 1..400)) {
        let pager = pager(4 << 20);
        let mut region = pager.region(4096 * PAGE_SIZE - 100).unwrap();
        let mut model = vec![0u8; region.len()];
        let mut pins = Vec::new();
        let len = region.len();
        let bytes = |p: u16, n: u16| usize::from(p) * PAGE_SIZE..((usize::from(p) + usize::from(n)) * PAGE_SIZE).min(len);
        for op in ops {
            match op {
                Op::Write(p, v) => {
                    let at = usize::from(p) * PAGE_SIZE + usize::from(v);
                    prop_assert_eq!(region[at], model[at]);
                    (region[at], model[at]) = (v, v);
                }
                Op::Fill(p, n, v) => {
                    for at in bytes(p, n).step_by(3) {
                        let b = (at / 7) as u8 ^ v;
                        (region[at], model[at]) = (b, b);
                    }
                }
                Op::Discard(p, n) => {
                    if pins.is_empty() {
                        region.advise(bytes(p, n), Advice::DontNeed).unwrap();
                        model[bytes(p, n)].fill(0);
                    }
                }
                Op::Prefetch(p, n) => region.prefetch(bytes(p, n)).unwrap(),
                Op::Hint(p, n, h) => {
                    let advice = [Advice::Normal, Advice::Sequential, Advice::Random][usize::from(h)];
                    region.advise(bytes(p, n), advice).unwrap();
                }
                Op::Pin(p, n) => pins.extend(region.pin(bytes(p, n)).ok()),
                Op::Unpin => drop(pins.pop()),
                Op::Resize(mib) => pager.resize_budget(u64::from(mib) << 20).unwrap(),
            }
        }
        prop_assert!(region[..] == model[..]);
    }
}

#[test]
fn absurd_sizes_are_refused() {
    assert!(matches!(Pager::builder().budget(BUDGET_MIN - 1).build(), Err(Error::Budget(_))));
    assert!(matches!(Pager::builder().budget(u64::MAX).build(), Err(Error::Budget(_))));
    let pager = pager(BUDGET_MIN);
    assert!(matches!(pager.region(0), Err(Error::ZeroSize)));
    assert!(matches!(pager.region(usize::MAX), Err(Error::TooLarge(_))));
    assert!(matches!(pager.region(1 << 50), Err(Error::TooLarge(_))));
    assert!(matches!(pager.resize_budget(0), Err(Error::Budget(0))));
    let mut region = pager.region(1).unwrap();
    region[0] = 7;
    assert_eq!((region[0], region.len()), (7, 1));
    assert!(matches!(region.advise(0..2, Advice::DontNeed), Err(Error::Range { .. })));
    #[allow(clippy::reversed_empty_ranges, reason = "that is the point")]
    let backwards = region.pin(1..0);
    assert!(matches!(backwards, Err(Error::Range { .. })));
    region.advise(0..1, Advice::DontNeed).unwrap();
    assert_eq!(region[0], 0);
    region.pin(1..1).unwrap();
}

#[test]
fn places_are_used_again_and_regions_do_not_touch() {
    let pager = pager(BUDGET_MIN);
    let mut regions: Vec<_> = (0..40).map(|i| pager.region(PAGE_SIZE * (1 + i % 5)).unwrap()).collect();
    for (i, region) in regions.iter_mut().enumerate() {
        assert!(region.iter().all(|b| *b == 0));
        region.fill(i as u8 + 1);
    }
    let before: Vec<_> = regions.iter().map(|r| r.as_ptr() as usize).collect();
    let mut kept: Vec<_> = regions.into_iter().enumerate().filter(|(i, _)| i % 3 == 0).collect();
    assert!(kept.iter().all(|(i, r)| r.iter().all(|b| usize::from(*b) == i + 1)));
    let again: Vec<_> = (0..20).map(|_| pager.region(PAGE_SIZE).unwrap()).collect();
    assert!(again.iter().any(|r| before.contains(&(r.as_ptr() as usize))), "no place was used again");
    assert!(again.iter().all(|r| r.iter().all(|b| *b == 0)), "another region's bytes");
    kept.clear();
}

#[test]
fn views_and_clones() {
    let pager = pager(BUDGET_MIN);
    let other = pager.clone();
    let mut region = pager.region(10_000).unwrap();
    drop(pager);
    assert_eq!((region.view::<u64>().len(), region.view::<f32>().len()), (1250, 2500));
    assert_eq!(region.view::<[f64; 3]>().len(), 416);
    region.view_mut::<u32>()[3] = 0x0102_0304;
    assert_eq!(region[12..16], [4, 3, 2, 1]);
    assert!(other.stats().unwrap().pgfault > 0);
}

#[test]
fn many_regions_and_pagers_come_and_go_in_many_threads() {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for i in 0..8 {
                    let pager = pager(BUDGET_MIN);
                    let mut region = pager.region(8 << 20).unwrap();
                    let words: &mut [u64] = region.view_mut();
                    words.iter_mut().enumerate().for_each(|(at, w)| *w = (at as u64 / 9) ^ thread << 40 ^ i);
                    assert!(words.iter().enumerate().all(|(at, w)| *w == (at as u64 / 9) ^ thread << 40 ^ i));
                }
            });
        }
    });
}

/// Runs an ignored test of this module in a process of its own; how it ended, and what it said.
pub(super) fn in_a_process(name: &str) -> std::process::Output {
    testing::in_a_process(&format!("region::tests::{name}"), true)
}

/// `madvise` behind the engine's back discards pages, as it does for any memory: they read as zeros.
#[test]
fn pages_discarded_behind_our_back_read_as_zeros() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    for round in 1..40u64 {
        let words: &mut [u64] = region.view_mut();
        words.iter_mut().step_by(512).enumerate().for_each(|(i, w)| *w = i as u64 + round);
        let at = mix(round) as usize % 4000;
        let from = region.as_ptr() as usize + at * PAGE_SIZE;
        // SAFETY: the region's own pages; their content is given up.
        unsafe { rustix::mm::madvise(from as *mut _, 64 * PAGE_SIZE, rustix::mm::Advice::LinuxDontNeed) }.unwrap();
        for (page, word) in region.view::<u64>().iter().step_by(512).enumerate() {
            let full = page as u64 + round;
            // What was not present was not discarded.
            let discarded = (at..at + 64).contains(&page) && *word == 0;
            assert!(*word == full || discarded, "page {page}: {word}");
        }
    }
}

/// For a long time: `REGION_SOAK=seconds cargo test --release region::tests::soak -- --ignored`.
#[test]
#[ignore = "takes as long as REGION_SOAK says"]
fn soak() {
    let seconds: u64 = std::env::var("REGION_SOAK").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    for seed in 100.. {
        if std::time::Instant::now() > end {
            return;
        }
        let threads = 1 + seed as usize % 6;
        let mode = if seed % 4 == 3 { FaultMode::Thread } else { FaultMode::Signal };
        let builder = Pager::builder().budget((4 + seed % 5) << 20).reclaim_threads(1 + seed as usize % 3);
        match builder.fault_mode(mode).build() {
            Ok(pager) => stress(&pager, 24 << 20, threads, 60_000 / threads, seed),
            Err(Error::Userfaultfd(error)) if mode == FaultMode::Thread => {
                println!("skipped in mode {mode:?}: {error}")
            }
            Err(error) => panic!("{error}"),
        }
    }
}
