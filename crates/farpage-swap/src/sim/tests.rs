//! The reference policies against what is known of them.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn trace(pages: &[u32]) -> Vec<Access> {
    pages.iter().map(|&page| Access::new(page, true)).collect()
}

fn misses(policy: &mut dyn Policy, accesses: &[Access], pages: u32) -> u64 {
    let counts = replay(policy, accesses, pages);
    counts.first + counts.reads
}

/// The reference string of Belady, Nelson and Shedler (1969): first in, first out is worse with more memory.
#[test]
fn beladys_anomaly() {
    let trace = trace(&[1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]);
    assert_eq!((misses(&mut Fifo::new(3, 6), &trace, 6), misses(&mut Fifo::new(4, 6), &trace, 6)), (9, 10));
    assert_eq!((misses(&mut Lru::new(3, 6), &trace, 6), misses(&mut Lru::new(4, 6), &trace, 6)), (10, 8));
    assert_eq!(
        (misses(&mut Opt::new(3, &trace, 6), &trace, 6), misses(&mut Opt::new(4, &trace, 6), &trace, 6)),
        (7, 6)
    );
}

#[test]
fn a_loop_is_the_worst_case_of_recency() {
    let trace = Synthetic::Loop.trace(100, 1000, 1);
    assert_eq!(replay(&mut Lru::new(99, 100), &trace, 100).reads, 900);
    assert_eq!(replay(&mut Lru::new(100, 100), &trace, 100).reads, 0);
    assert!(replay(&mut Opt::new(99, &trace, 100), &trace, 100).reads <= 10);
}

/// More memory is fewer reads also where not all fits.
#[test]
fn a_loop_keeps_most_of_what_fits() {
    const PAGES: u32 = 8192;
    for (size, most) in [(PAGES / 2, 1.35), (PAGES / 4 * 3, 1.15), (PAGES / 10 * 9, 1.3)] {
        let mut policy = Ours::new(size, PAGES, CachedLen::Adaptive);
        let loops = |passes: u32| Synthetic::Loop.trace(PAGES, (PAGES * passes).into(), 1);
        misses(&mut policy, &loops(12), PAGES);
        let (reads, least) = (misses(&mut policy, &loops(8), PAGES) as f64 / 8.0, f64::from(PAGES - size));
        assert!(reads < least * most, "{size} of {PAGES} pages: {reads} reads a pass, at least {least}");
    }
}

#[test]
fn clock_gives_a_second_chance() {
    // 0 is accessed again before 2 comes, so 1 goes.
    let trace = trace(&[0, 1, 0, 2, 0, 1]);
    assert_eq!(misses(&mut Clock::new(2, 3), &trace, 3), 4);
    assert_eq!(misses(&mut Fifo::new(2, 3), &trace, 3), 5);
}

#[test]
fn s3_fifo_lets_a_pass_go_by() {
    let hot = |i: u32| i % 40;
    let pages: Vec<u32> = (0..20_000).map(|i| if i % 4 == 0 { 40 + i / 4 } else { hot(i) }).collect();
    let all = 40 + 5000;
    let (ours, fifo) =
        (replay(&mut S3Fifo::new(50, all), &trace(&pages), all), replay(&mut Fifo::new(50, all), &trace(&pages), all));
    assert!(ours.reads * 10 < fifo.reads, "{} {}", ours.reads, fifo.reads);
}

#[test]
fn writes_are_counted_when_a_written_page_goes() {
    let pages = [(0, true), (1, false), (2, true), (0, false), (3, false), (2, false), (4, false)];
    let trace: Vec<Access> = pages.iter().map(|&(page, write)| Access::new(page, write)).collect();
    // 0 goes written, 1 and 2: 2 written, 0 clean, 3 clean.
    let counts = replay(&mut Fifo::new(2, 5), &trace, 5);
    assert_eq!(counts, Counts { accesses: 7, first: 5, reads: 2, ahead: 0, minor: 0, out: 5, writes: 2 });
}

/// What is read in order comes in by windows, and what is freed is neither stored nor read.
#[test]
fn a_run_reads_ahead_and_forgets() {
    const PAGES: u32 = 8192;
    let numbers: Vec<u64> = (1000..).take(PAGES as usize).collect();
    let twice: Vec<Access> = (0..2 * PAGES).map(|i| Access::new(i % PAGES, false)).collect();
    let counts = replay(&mut Run::new(PAGES / 4, &numbers), &twice, PAGES);
    assert!(counts.reads + counts.ahead > u64::from(PAGES) / 4 * 3, "{counts:?}");
    assert!(counts.reads * 16 < counts.ahead, "{counts:?}");
    let once = (0..PAGES).map(|page| Access::new(page, true));
    let freed = (0..PAGES).map(Access::free);
    let trace: Vec<Access> = once.clone().chain(freed).chain(once).collect();
    let counts = replay(&mut Run::new(PAGES * 2, &numbers), &trace, PAGES);
    assert_eq!((counts.first, counts.reads, counts.out), (u64::from(2 * PAGES), 0, 0), "{counts:?}");
}

#[test]
fn zipf_has_its_law() {
    const DRAWN: u64 = 200_000;
    for theta in [0.5, 0.99, 1.0, 2.0] {
        let weight = |rank: u32| f64::from(rank + 1).powf(-theta);
        let all: f64 = (0..1000).map(weight).sum();
        let trace = Synthetic::Zipf { theta }.trace(1000, DRAWN, 3);
        for ranks in [0..1, 1..2, 2..3, 3..10, 10..100, 100..999, 999..1000] {
            let got = trace.iter().filter(|access| ranks.contains(&access.page())).count() as f64;
            let share = ranks.clone().map(weight).sum::<f64>() / all;
            let (want, spread) = (DRAWN as f64 * share, (DRAWN as f64 * share * (1.0 - share)).sqrt());
            assert!((got - want).abs() < 4.0 * spread + 1.0, "{theta}, {ranks:?}: {got} for {want}");
        }
    }
    assert_eq!(Zipf::new(1, 0.99).rank(&mut Random(1)), 0);
}

#[test]
fn names_are_read() {
    assert_eq!(Synthetic::parse("zipf:1.2"), Ok(Synthetic::Zipf { theta: 1.2 }));
    for bad in ["zipf:x", "zipf:-1", "loop:3", "tape", "zipf:nan"] {
        assert!(Synthetic::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    /// No policy holds more than there is, throws out what is not there, or beats the one that knows the future.
    #[test]
    fn memory_has_its_size(
        pages in prop::collection::vec((0..60u32, 0..16u8), 1..600),
        size in 1..70u32,
        some_are_freed: bool,
    ) {
        let is_free = |&(_, n): &(u32, u8)| some_are_freed && n == 0;
        let access = |of: &(u32, u8)| if is_free(of) { Access::free(of.0) } else { Access::new(of.0, true) };
        let accesses: Vec<Access> = pages.iter().map(access).collect();
        let numbers: Vec<u64> = (0..60).map(|page| page / 20 * 1000 + page).collect();
        let mut opt = Opt::new(size, &accesses, 60);
        let best = misses(&mut opt, &accesses, 60);
        let mut all: Vec<Box<dyn Policy>> = vec![
            Box::new(Fifo::new(size, 60)), Box::new(Clock::new(size, 60)), Box::new(Lru::new(size, 60)),
            Box::new(S3Fifo::new(size, 60)), Box::new(Opt::new(size, &accesses, 60)),
            Box::new(Ours::new(size, 60, CachedLen::Adaptive)), Box::new(Ours::new(size, 60, CachedLen::Fixed(3))),
            Box::new(Run::new(size, &numbers)),
        ];
        for (i, policy) in all.iter_mut().enumerate() {
            let (mut inside, mut moved, mut missed) = (BTreeSet::new(), Moved::default(), 0);
            let mut has_content = BTreeSet::new();
            for of in &pages {
                let page = of.0;
                if is_free(of) {
                    policy.free(page);
                    inside.remove(&page);
                    has_content.remove(&page);
                    continue;
                }
                let met = policy.access(page, &mut moved);
                prop_assert_eq!(met == Met::Miss, inside.insert(page));
                has_content.insert(page);
                missed += u64::from(met == Met::Miss);
                for page in moved.ahead.drain(..) {
                    prop_assert!(inside.insert(page) && has_content.contains(&page));
                    missed += 1;
                }
                for page in moved.out.drain(..) {
                    prop_assert!(inside.remove(&page));
                }
                prop_assert!(inside.len() <= size as usize);
            }
            // In a memory of a few pages ours throws out what has just come, which Belady's does not.
            prop_assert!(missed >= best || (i >= 5 && size < 16));
        }
    }
}

/// One clock makes the members comparable: what they read together is about what one list of all their pages would.
#[test]
fn pages_of_a_tree_leave_in_about_one_order() {
    for mix in Mix::all() {
        let (trace, members) = mix.trace(800_000, 1);
        let pages = members.last().unwrap().end;
        let size = pages / 4;
        let reads = |policy: &mut dyn Policy| replay(policy, &trace, pages).reads as f64;
        let (one, ages) = (reads(&mut Lru::new(size, pages)), reads(&mut Tree::new(size, &members, Division::Ages)));
        // A small set of hot pages has no room to notice which of them are in use. Where one list reads next to
        // nothing, no ratio counts.
        let most = match mix.name {
            "small-large" => 1.5,
            _ if one < trace.len() as f64 / 50.0 => continue,
            _ => 1.15,
        };
        assert!(ages < most * one, "{}: {ages} reads, one list {one}", mix.name);
    }
}

#[test]
fn what_a_sleeping_member_has_goes_to_the_others() {
    let sleeper = Mix::all().into_iter().find(|mix| mix.name == "sleeper").unwrap();
    let (trace, members) = sleeper.trace(300_000, 7);
    let reads = |division| replay(&mut Tree::new(6000, &members, division), &trace, 16_384).reads;
    assert!(reads(Division::Ages) * 10 < reads(Division::Equal) * 9);
}
