//! Regions that come and go, and what they cost.

use super::*;
use crate::region::places::LEAF;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[test]
fn what_is_not_touched_costs_nothing() {
    const TOUCHED: usize = 600;
    let pager = pager(16 << 20);
    let before = pager.stats().unwrap().used_bytes;
    let mut region = pager.region(16 << 30).unwrap();
    region.advise(0..16 << 30, Advice::Random).unwrap();
    region.advise(0..16 << 30, Advice::DontNeed).unwrap();
    assert_eq!(pager.stats().unwrap().used_bytes, before, "a region of 16 GiB, 64 MiB of words");
    let at = |i: usize| i * (region_pages() / TOUCHED) * PAGE_SIZE;
    (0..TOUCHED).for_each(|i| region[at(i)] = 1 + i as u8 % 200);
    let stats = pager.stats().unwrap();
    let words = stats.used_bytes - stats.resident_bytes - before;
    assert!(words <= (TOUCHED * 2 * PAGE_SIZE) as u64 + (1 << 20), "{words} bytes for words: {stats:?}");
    // Nothing had to go for it.
    assert_eq!((stats.pswpout, stats.resident_bytes), (0, (TOUCHED * PAGE_SIZE) as u64), "{stats:?}");
    assert!((0..TOUCHED).all(|i| region[at(i)] == 1 + i as u8 % 200 && region[at(i) + PAGE_SIZE - 1] == 0));
    // A pin far away is words for itself.
    let words = pager.owner.core.space.places.bytes();
    let pin = region.pin((16 << 30) - PAGE_SIZE..16 << 30).unwrap();
    assert!(pager.owner.core.space.places.bytes() - words <= u64::from(LEAF) * 16);
    drop((pin, region));
    assert_eq!((pager.owner.core.space.places.bytes(), pager.stats().unwrap().resident_bytes), (0, 0));
}

const fn region_pages() -> usize {
    (16 << 30) / PAGE_SIZE
}

/// Many regions share pages of words with their neighbours, which come and go in other threads.
#[test]
fn regions_come_and_go_beside_each_other() {
    let pager = pager(8 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let pager = &pager;
            scope.spawn(move || {
                let mut kept: Vec<(Region, u64)> = Vec::new();
                for i in 0..600u64 {
                    let draw = mix(thread << 32 | i) as usize;
                    let pages = if draw & 7 == 0 { 1 + draw / 8 % 1500 } else { 1 + draw / 8 % 90 };
                    let mut region = pager.region(pages * PAGE_SIZE).unwrap();
                    if (draw / 64).is_multiple_of(3) {
                        region.advise(0..pages * PAGE_SIZE / 2, Advice::Sequential).unwrap();
                    }
                    let seed = mix(draw as u64);
                    let step = 512 * (1 + draw % 3);
                    assert!(region.view::<u64>().iter().step_by(step).all(|word| *word == 0), "another region's bytes");
                    let words = region.view_mut::<u64>().iter_mut().step_by(step).enumerate();
                    words.for_each(|(at, word)| *word = seed ^ at as u64);
                    kept.push((region, seed));
                    if kept.len() > 8 {
                        let (region, seed) = kept.swap_remove(draw / 512 % 8);
                        let step = (1..4).map(|n| 512 * n).find(|step| {
                            let mut words = region.view::<u64>().iter().step_by(*step).enumerate();
                            words.all(|(at, word)| *word == seed ^ at as u64)
                        });
                        assert!(step.is_some(), "seed {seed}: {} bytes are others", region.len());
                    }
                }
            });
        }
    });
    let stats = pager.stats().unwrap();
    assert!(nothing_is_left(&pager), "{stats:?}");
    assert_eq!(pager.owner.core.space.places.bytes(), 0);
    assert!(stats.pswpin > 0, "{stats:?}");
}

#[test]
fn a_region_that_could_not_be_had_leaves_nothing_behind() {
    let out = in_a_process("places::no_room_for_a_region");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
#[ignore = "run by a_region_that_could_not_be_had_leaves_nothing_behind: it limits the process"]
fn no_room_for_a_region() {
    let pager = pager(4 << 20);
    let small = pager.region(PAGE_SIZE).unwrap();
    let limit = |bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: only sets a limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
    };
    limit(2 << 30);
    for _ in 0..3 {
        assert!(matches!(pager.region(3 << 30), Err(Error::Os { .. })));
    }
    limit(libc::RLIM_INFINITY);
    assert_eq!(pager.owner.core.space.places.each().count(), 1);
    let mut large = pager.region(3 << 30).unwrap();
    large[1 << 30] = 1;
    assert_eq!(large.as_ptr() as usize - small.as_ptr() as usize, 2 * PAGE_SIZE, "the place was not free");
}

/// Blocks are discarded beside others that are read ahead, while the budget goes up and down.
#[test]
fn blocks_are_discarded_beside_readahead() {
    const BLOCK: usize = 48;
    const BLOCKS: usize = 160;
    for (seed, devices) in [(1, SwapSpec::defaults()), (2, vec![file()]), (3, vec![SwapSpec::zram(Alg::Lz4)])] {
        let pager = Pager::builder().budget(12 << 20).swap(devices).build().unwrap();
        let region = pager.region(BLOCK * BLOCKS * PAGE_SIZE).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for mib in [12, 8, 15, 10].into_iter().cycle().take_while(|_| !done.load(Relaxed)) {
                    pager.resize_budget(mib << 20).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let _done = Done(&done);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let region = &region;
                    scope.spawn(move || discard_blocks(region, thread, seed, BLOCK, BLOCKS));
                }
            });
        });
        let stats = pager.stats().unwrap();
        assert!(stats.swap_ra > 1000 && stats.pswpin > 2000, "seed {seed}: {stats:?}");
    }
}

/// Writes, reads in order and discards the blocks whose number is even or odd.
fn discard_blocks(region: &Region, thread: usize, seed: u64, block: usize, blocks: usize) {
    let base = region.as_ptr() as *mut u64;
    let mut versions = vec![0u64; blocks];
    for round in 0..14u64 {
        for number in (thread..blocks).step_by(2) {
            let (first, end) = (number * block, (number + 1) * block);
            // SAFETY: the block is this thread's: no other reads or writes its words.
            let words = unsafe { std::slice::from_raw_parts_mut(base.add(first * 512), block * 512) };
            for page in 0..block {
                for at in [0, 77, 511] {
                    let (is, should) = (words[page * 512 + at], word(first + page, at, versions[number]));
                    assert_eq!(is, should, "seed {seed}, round {round}, page {}, word {at}", first + page);
                }
            }
            match mix(seed << 40 ^ round << 20 ^ number as u64) % 4 {
                0 => {
                    region.advise(first * PAGE_SIZE..end * PAGE_SIZE, Advice::DontNeed).unwrap();
                    versions[number] = 0;
                }
                1 => {}
                _ => {
                    versions[number] += 1;
                    for page in 0..block {
                        let to = words[page * 512..][..512].iter_mut().enumerate();
                        to.for_each(|(at, w)| *w = word(first + page, at, versions[number]));
                    }
                }
            }
        }
    }
}
