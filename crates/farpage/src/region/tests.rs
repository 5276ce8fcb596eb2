//! Regions against a model that knows every word, and the things that programs do wrong.

mod inherit;
mod lost;
mod pool;
mod taking_out;

use super::*;
use crate::conf::{Alg, SwapSpec};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn file() -> SwapSpec {
    SwapSpec::file(std::env::temp_dir())
}

fn pager(budget: u64) -> Pager {
    Pager::builder().budget(budget).build().unwrap()
}

pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
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

/// Threads that own every n-th page each, so that neighbours belong to others, and know what is in them.
pub(super) fn stress(pager: &Pager, bytes: usize, threads: usize, rounds: usize, seed: u64) {
    let region = pager.region(bytes).unwrap();
    stress_region(pager, &region, threads, rounds, seed);
    drop(region);
    let stats = pager.stats().unwrap();
    assert_eq!((stats.resident_bytes, stats.cached_bytes, stats.pool_orig_bytes), (0, 0, 0), "{stats:?}");
    // No frame is lost; the thread that reads ahead may have some for a moment.
    let frames = &pager.owner.inner.frames;
    let all_back = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        frames.unused_count() == frames.len()
    });
    assert!(all_back, "{} of {} frames", frames.unused_count(), frames.len());
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
                    // SAFETY: the page is this thread's: nobody else reads or writes its words.
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

/// Resident anonymous memory is what the budget promises, by the kernel's own count.
#[test]
fn the_kernel_agrees_with_the_budget() {
    let output = in_a_process("rss_in_a_process_of_its_own");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "run by the_kernel_agrees_with_the_budget, in a process without other tests"]
fn rss_in_a_process_of_its_own() {
    let rss = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap().trim();
        line.trim_end_matches(" kB").parse::<i64>().unwrap() << 10
    };
    let before = rss();
    let budget = 32 << 20;
    let pager = pager(budget as u64);
    let mut region = pager.region(128 << 20).unwrap();
    let mut most = 0;
    for i in 0..3 * (128 << 20) / PAGE_SIZE {
        let page = if i < 128 << 8 { i } else { mix(i as u64) as usize % (128 << 8) };
        let bytes = &mut region[page * PAGE_SIZE..(page + 1) * PAGE_SIZE];
        bytes[..2000].iter_mut().enumerate().for_each(|(j, b)| *b = mix((i * 4096 + j) as u64 / 8 / 3) as u8);
        if i % 500 == 0 {
            most = most.max(rss() - before);
        }
    }
    let used = pager.stats().unwrap().used_bytes as i64;
    assert!(most < budget + budget / 20 + (1 << 20), "{most} resident of {budget}, {used} by our own count");
    assert!(most > budget / 4 * 3, "{most} resident of {budget}: the budget was not used");
    drop((region, pager));
    assert!(rss() - before < 4 << 20, "{} stay behind", rss() - before);
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
fn pinned_pages_stay_and_work_for_system_calls() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    region[..1 << 20].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 3) as u8);
    let sweep =
        |region: &mut Region| region[1 << 20..].iter_mut().step_by(512).enumerate().for_each(|(i, b)| *b = i as u8);
    sweep(&mut region);
    let into_pipe = |region: &Region| {
        let (_reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, &region[500 << 10..501 << 10])
    };
    assert_eq!(into_pipe(&region), Err(rustix::io::Errno::FAULT), "not present: the documented error");
    let pin = region.pin(0..1 << 20).unwrap();
    let second = region.pin(0..1).unwrap();
    let pinned = pager.stats().unwrap().pinned_bytes;
    sweep(&mut region);
    assert_eq!(into_pipe(&region), Ok(1024));
    region.advise(0..1 << 20, Advice::DontNeed).unwrap();
    assert!(region[..1 << 20].iter().enumerate().all(|(i, b)| *b == (i / 3) as u8), "pinned pages are not discarded");
    assert_eq!((pinned, pager.stats().unwrap().pinned_bytes), (1 << 20, 1 << 20));
    drop(pin);
    assert_eq!(pager.stats().unwrap().pinned_bytes, PAGE_SIZE as u64);
    drop(second);
    assert!(matches!(region.pin(0..16 << 20), Err(Error::PinLimit(_))));
    assert_eq!(pager.stats().unwrap().pinned_bytes, 0);
    let pin = region.pin(0..4096).unwrap();
    drop((region, pager));
    drop(pin); // keeps the memory until here
}

/// Reclaim write-protects what is present, now and then; system calls go on to write to what is pinned, before and after.
#[test]
fn system_calls_write_to_pinned_pages() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    let pipe = || std::io::pipe().unwrap();
    let read_into = |region: &mut Region, at: usize, byte: u8| {
        let (reader, writer) = pipe();
        rustix::io::write(&writer, &[byte; 3000]).unwrap();
        assert_eq!(rustix::io::read(&reader, &mut region[at..at + 3000]), Ok(3000), "page {}", at / PAGE_SIZE);
    };
    let mut model = vec![0u8; 4096];
    for round in 0..8u64 {
        let page = mix(round) as usize % 4000;
        let (start, len) = (page * PAGE_SIZE, 16 * PAGE_SIZE);
        // Present, and perhaps write-protected, or not present.
        let pin = region.pin(start..start + len).unwrap();
        let sweeps = || pager.owner.inner.counters.sweeps.load(Ordering::Relaxed);
        let before = sweeps();
        // In no order, so that single pages go out.
        let order = (0..4096).map(|i| i * 1009 % 4096);
        for other in order.filter(|other| !(page..page + 16).contains(other)) {
            let at = other * PAGE_SIZE;
            assert_eq!(region[at], model[other], "round {round}, page {other}");
            model[other] = model[other].wrapping_add(1 + other as u8 % 7);
            region[at] = model[other];
            if other % 64 == 0 {
                read_into(&mut region, start + other / 64 % 16 * PAGE_SIZE, other as u8);
            }
        }
        assert!(sweeps() > before, "nothing was protected");
        for (pinned, byte) in model.iter_mut().enumerate().skip(page).take(16) {
            *byte = pinned as u8 ^ round as u8;
            read_into(&mut region, pinned * PAGE_SIZE, *byte);
        }
        drop(pin);
    }
    // What was written while it was pinned went out as it was then.
    assert!((0..4096).all(|page| region[page * PAGE_SIZE] == model[page]));
}

#[test]
fn a_full_device_makes_the_budget_give_way() {
    let small = SwapSpec::parse(&format!("file:{},size=1M", std::env::temp_dir().display())).unwrap();
    let pager = Pager::builder().budget(4 << 20).swap([small]).build().unwrap();
    let mut region = pager.region(12 << 20).unwrap();
    let words: &mut [u64] = region.view_mut();
    words.iter_mut().enumerate().for_each(|(i, w)| *w = mix(i as u64));
    assert!(words.iter().enumerate().all(|(i, w)| *w == mix(i as u64)));
    let stats = pager.stats().unwrap();
    assert!(stats.over_budget > 0, "{stats:?}");
    // Room again: back within the budget.
    region.advise(0..12 << 20, Advice::DontNeed).unwrap();
    region[0] = 1;
    assert!(pager.stats().unwrap().resident_bytes <= 64 * PAGE_SIZE as u64);
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

/// Handlers of the program that touch a region at any moment, also while the engine works in the same thread.
#[test]
fn a_signal_handler_may_touch_a_region() {
    static BASE: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static WRONG: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn touch(_: i32) {
        let n = CALLS.fetch_add(1, Ordering::SeqCst);
        let page = mix(n as u64) as usize % 4096;
        // SAFETY: the region outlives the signals (the test waits), and nobody writes after it was filled.
        let word = unsafe { ((BASE.load(Ordering::SeqCst) + page * PAGE_SIZE) as *const u64).read_volatile() };
        WRONG.fetch_add(usize::from(word != page as u64 + 1), Ordering::SeqCst);
    }
    // SAFETY: a handler that touches memory and atomics only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = touch as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    for page in 0..4096 {
        region.view_mut::<u64>()[page * 512..][..512].fill(page as u64 + 1);
        region.view_mut::<u64>()[page * 512 + 1] = mix(page as u64);
    }
    BASE.store(region.as_ptr() as usize, Ordering::SeqCst);
    // SAFETY: no preconditions.
    let thread = unsafe { libc::pthread_self() };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                // SAFETY: the thread waits for this one to end.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                std::thread::sleep(std::time::Duration::from_micros(30));
            }
        });
        for i in 0..60_000u64 {
            let page = mix(i) as usize % 4096;
            assert_eq!(region.view::<u64>()[page * 512 + 7], page as u64 + 1);
            if i % 50 == 0 {
                region.prefetch(page * PAGE_SIZE..(page + 8).min(4096) * PAGE_SIZE).unwrap();
                drop(region.pin(page * PAGE_SIZE..(page + 1) * PAGE_SIZE).unwrap());
                pager.stats().unwrap();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(CALLS.load(Ordering::SeqCst) > 100);
    assert_eq!(WRONG.load(Ordering::SeqCst), 0);
}

/// Runs an ignored test of this module in a process of its own; how it ended, and what it said.
pub(super) fn in_a_process(name: &str) -> std::process::Output {
    let exe = std::env::current_exe().unwrap();
    let name = format!("region::tests::{name}");
    let mut command = std::process::Command::new(exe);
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads", "1", &name]).output().unwrap()
}

#[test]
fn a_forked_child_gets_a_clear_fault_and_not_zeros() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    region.view_mut::<u64>().iter_mut().step_by(512).enumerate().for_each(|(i, w)| *w = i as u64 + 1);
    let page = region.as_ptr();
    // SAFETY: the child makes system calls and touches its own memory only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child: with a core signal at the first access, or with 0 if that gave anything at all.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let refused = matches!(pager.region(1), Err(Error::Forked))
                && matches!(pager.stats(), Err(Error::Forked))
                && matches!(region.advise(0..1, Advice::DontNeed), Err(Error::Forked));
            if !refused {
                libc::_exit(3);
            }
            page.read_volatile();
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
    let words: &[u64] = region.view();
    assert!(words.iter().step_by(512).enumerate().all(|(i, w)| *w == i as u64 + 1), "the parent goes on");
}

#[test]
fn a_child_can_drop_what_it_inherited_and_build_its_own() {
    let pager = pager(4 << 20);
    let region = pager.region(1 << 20).unwrap();
    // SAFETY: the child uses this library and libc only, and no lock of another thread: none is running.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((region, pager));
        let ok = Pager::builder().budget(4 << 20).reclaim_threads(1).build().and_then(|own| {
            let mut region = own.region(12 << 20)?;
            region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, w)| *w = i as u64 / 3);
            Ok(region.view::<u64>().iter().enumerate().all(|(i, w)| *w == i as u64 / 3))
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!matches!(ok, Ok(true)))) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    drop(region);
}

#[test]
fn a_region_dropped_under_a_thread_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    for _ in 0..3 {
        let status = in_a_process("drop_under_threads").status;
        let signal = status.signal();
        assert!(signal == Some(libc::SIGSEGV) || signal == Some(libc::SIGBUS), "{status}");
    }
}

#[test]
#[ignore = "ends its process; run by a_region_dropped_under_a_thread_ends_the_process"]
fn drop_under_threads() {
    let pager = pager(4 << 20);
    let mut region = pager.region(16 << 20).unwrap();
    let base = region.as_ptr() as usize;
    for page in 0..4096usize {
        region[page * PAGE_SIZE..][..8].copy_from_slice(&(page as u64 + 1).to_ne_bytes());
    }
    let threads: Vec<_> = (0..2u64)
        .map(|t| {
            std::thread::spawn(move || {
                for i in 0..u64::MAX {
                    let page = mix(i ^ t << 40) as usize % 4096;
                    // SAFETY: not safe, and that is what is tested: the region goes away.
                    let word = unsafe { ((base + page * PAGE_SIZE) as *const u64).read_volatile() };
                    assert_eq!(word, page as u64 + 1);
                }
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(region);
    for thread in threads {
        let _ = thread.join();
    }
}

#[test]
fn other_sigbus_goes_to_the_handler_that_was_there() {
    assert_eq!(in_a_process("sigbus_chain").status.code(), Some(42));
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(in_a_process("sigbus_default").status.signal(), Some(libc::SIGBUS));
}

/// A mapping of an empty file: touching it is a SIGBUS that is not ours.
fn bus_error() {
    let file = tempfile::tempfile().unwrap();
    let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping; the access is the signal that is tested.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, flags, &file, 0).unwrap();
        at.cast::<u8>().read_volatile();
    }
}

#[test]
#[ignore = "ends its process; run by other_sigbus_goes_to_the_handler_that_was_there"]
fn sigbus_chain() {
    extern "C" fn leave(_: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
        // SAFETY: a handler with SA_SIGINFO gets a valid info; _exit ends the process.
        unsafe { libc::_exit(if (*info).si_code > 0 { 42 } else { 1 }) };
    }
    // SAFETY: a handler that calls _exit only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = leave as extern "C" fn(i32, *mut libc::siginfo_t, *mut std::ffi::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    region.fill(1);
    bus_error();
}

#[test]
#[ignore = "ends its process; run by other_sigbus_goes_to_the_handler_that_was_there"]
fn sigbus_default() {
    let pager = pager(4 << 20);
    let mut region = pager.region(8 << 20).unwrap();
    region.fill(1);
    // SAFETY: the test harness's own handler is out of the way.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    bus_error();
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
        let pager =
            Pager::builder().budget((4 + seed % 5) << 20).reclaim_threads(1 + seed as usize % 3).build().unwrap();
        stress(&pager, 24 << 20, threads, 60_000 / threads, seed);
    }
}
