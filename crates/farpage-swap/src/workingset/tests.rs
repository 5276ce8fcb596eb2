//! The policy in memories of fixed size, by counts; and refault distances.

use super::*;
use crate::sim::{
    Access, CachedLen, Counts, Division, Lru, Met, Moved, Nodes, Opt, Ours, Policy, Random, Synthetic, Tree, replay,
};
use proptest::prelude::*;

const PAGES: u32 = 4096;

/// Reads of our policy, of exact least-recently-used order, and of Belady's.
fn reads(trace: &[Access], size: u32) -> (u64, u64, u64) {
    let run = |policy: &mut dyn Policy| -> Counts { replay(policy, trace, PAGES) };
    let ours = run(&mut Ours::new(size, PAGES, CachedLen::Adaptive)).reads;
    (ours, run(&mut Lru::new(size, PAGES)).reads, run(&mut Opt::new(size, trace, PAGES)).reads)
}

fn synthetic(kind: Synthetic) -> Vec<Access> {
    kind.trace(PAGES, 200_000, 1)
}

/// Half of the memory is hot and touched at random; between, four times the memory is read once.
#[test]
fn a_pass_over_four_times_the_memory_leaves_the_hot_set_alone() {
    let (size, hot) = (2048, 1024);
    let mut memory = Ours::new(size, hot + 8 * size, CachedLen::Adaptive);
    let (mut random, mut out, mut misses) = (Random(1), Moved::default(), 0);
    let mut touch = |memory: &mut Ours, n: u32| {
        (0..n).for_each(|_| misses += u64::from(memory.access(random.below(hot), &mut out) == Met::Miss));
        std::mem::take(&mut misses)
    };
    touch(&mut memory, 20_000);
    let mut lost = 0;
    for page in hot..hot + 8 * size {
        memory.access(page, &mut Moved::default());
        let missed = touch(&mut memory, 4);
        // The first half of the pass is for the policy to learn.
        lost += if page < hot + 4 * size { 0 } else { missed };
    }
    assert!(lost < u64::from(hot) / 20, "the pass cost {lost} reads of hot pages");
}

/// What is wanted back from main's cached list does not take the next page of main out: beside a pass, main would go
/// round and round, at a fault a page.
#[test]
fn a_pass_does_not_unmap_the_hot_set_over_and_over() {
    let mut random = Random(5);
    let access = |i: u32| if i.is_multiple_of(8) { 1024 + i / 8 } else { random.below(1024) };
    let trace: Vec<Access> = (0..400_000).map(access).map(|page| Access::new(page, false)).collect();
    let counts = replay(&mut Ours::new(2048, 52_000, CachedLen::Adaptive), &trace, 52_000);
    assert!(counts.minor < 50_000 / 8, "{counts:?}: 50 000 pages passed by");
}

/// A loop that has saturated main, and then another hot set at random, nearly as large as memory: it moves in.
#[test]
fn a_loop_that_is_over_makes_room() {
    let (size, looped, hot) = (2048, 2600, 1500);
    let mut memory = Ours::new(size, looped + hot, CachedLen::Adaptive);
    let (mut random, mut out) = (Random(3), Moved::default());
    for i in 0..20 * looped {
        memory.access(i % looped, &mut out);
    }
    assert!(memory.set().ages().saturated);
    let mut missed = |n: u32| {
        let miss = |memory: &mut Ours, page| memory.access(page, &mut Moved::default()) == Met::Miss;
        (0..n).filter(|_| miss(&mut memory, looped + random.below(hot))).count()
    };
    missed(6 * hot);
    let later = missed(2 * hot);
    assert!(later < hot as usize / 20, "{later} of {} touches were reads", 2 * hot);
}

#[test]
fn loops_and_scans_are_better_than_least_recently_used() {
    for (kind, size, most_pct) in [
        (Synthetic::Loop, 2048, 70),
        (Synthetic::Loop, 1024, 90),
        (Synthetic::ScanHot, 2048, 90),
        (Synthetic::ScanHot, 1024, 95),
    ] {
        let (ours, lru, opt) = reads(&synthetic(kind), size);
        assert!(ours * 100 <= lru * most_pct, "{kind:?}, {size}: {ours} of {lru}, and {opt} at best");
    }
}

/// A working set that is a little too large: it must not push itself out for ever (thrash).
#[test]
fn a_loop_a_tenth_too_large_is_mostly_kept() {
    let trace = Synthetic::Loop.trace(1126, 100_000, 1);
    let ours = replay(&mut Ours::new(1024, 1126, CachedLen::Adaptive), &trace, 1126).reads;
    assert!(ours < 100_000 / 2, "{ours} reads of 100 000 accesses");
}

#[test]
fn skewed_and_shifting_access_is_about_as_good_as_least_recently_used_or_better() {
    for (kind, size, most_pct) in [
        (Synthetic::Zipf { theta: 0.99 }, 2048, 95),
        (Synthetic::Zipf { theta: 0.99 }, 1024, 90),
        (Synthetic::Phases, 1024, 110),
        (Synthetic::Uniform, 1024, 102),
    ] {
        let (ours, lru, opt) = reads(&synthetic(kind), size);
        assert!(ours * 100 <= lru * most_pct, "{kind:?}, {size}: {ours} against {lru}, and {opt} at best");
    }
}

#[test]
fn a_new_hot_set_replaces_the_old_one() {
    let (mut memory, mut random) = (Ours::new(2048, 8192, CachedLen::Adaptive), Random(3));
    let mut phase = |from: u32| {
        let touch = |_| u64::from(memory.access(from + random.below(1500), &mut Moved::default()) == Met::Miss);
        (0..60_000).map(touch).sum::<u64>()
    };
    phase(0);
    phase(5000);
    let back = phase(0);
    assert!(back < 3 * 1500, "{back} misses until the hot set was in memory again");
    let again = phase(0);
    assert!(again < 150, "{again} misses with a hot set that fits");
}

/// The cached lists are as long as they earn: short where a hot set fits and the rest passes by once, long where it
/// tells pages apart that are accessed more and less often.
#[test]
fn the_stage_follows_what_it_earns() {
    let stage = |trace: &[Access], pages: u32| {
        let mut memory = Ours::new(1024, pages, CachedLen::Adaptive);
        replay(&mut memory, trace, pages);
        memory.set().cached_target(u32::MAX)
    };
    let mut random = Random(9);
    let access = |i: u32| Access::new(if i.is_multiple_of(2) { 512 + i / 2 } else { random.below(512) }, false);
    let pass: Vec<Access> = (0..100_000).map(access).collect();
    let (passed, skewed) = (stage(&pass, 60_000), stage(&synthetic(Synthetic::Zipf { theta: 0.99 }), PAGES));
    assert!(passed < 1024 / 8 && skewed > 1024 / 8, "{passed} pages for a pass, {skewed} for skewed access");
}

struct Ranked(Nodes, Vec<std::cell::Cell<Rank>>);

impl Links for Ranked {
    fn prev(&self, n: u32) -> u32 {
        self.0.prev(n)
    }
    fn next(&self, n: u32) -> u32 {
        self.0.next(n)
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.0.set_prev(n, to);
    }
    fn set_next(&self, n: u32, to: u32) {
        self.0.set_next(n, to);
    }
}

impl Pages for Ranked {
    fn rank(&self, n: u32) -> Rank {
        self.1[n as usize].get()
    }
    fn set_rank(&self, n: u32, rank: Rank) {
        self.1[n as usize].set(rank);
    }
}

#[test]
fn oldest_names_each_page_once() {
    let links = Ranked(Nodes::new(300), Vec::new());
    let mut set = WorkingSet::new();
    (0..100).for_each(|n| set.map(&links, n, Rank::NEW));
    (100..130).for_each(|n| set.map(&links, n, Rank::HOT));
    let mut out = [0; 300];
    for target in [0, 7, 60, 1000] {
        let n = set.oldest(&links, target, &mut out);
        let mut seen: Vec<u32> = out[..n].to_vec();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), n, "target {target}");
        assert!(n > 0 && out[0] == 0, "the oldest of probation first");
    }
}

#[test]
fn a_page_of_high_rank_goes_round_before_it_leaves() {
    let pages = Ranked(Nodes::new(8), vec![Default::default(); 8]);
    let mut set = WorkingSet::new();
    for (n, rank) in [(0, Rank::MAX), (1, Rank::HOT), (2, Rank::HOT)] {
        pages.set_rank(n, rank);
        set.map(&pages, n, rank);
        set.cache(&pages, n, rank);
    }
    let order: Vec<u32> = std::iter::from_fn(|| set.evict_one(&pages).map(|(n, _)| n)).collect();
    assert_eq!(order, [1, 2, 0]);
    assert_eq!((pages.rank(0), set.cached()), (Rank::HOT, 0));
}

/// A page that another thread has is passed by, and stays on its list; nothing has left then.
#[test]
fn a_page_that_may_not_leave_becomes_the_youngest() {
    let pages = Ranked(Nodes::new(8), vec![Default::default(); 8]);
    let mut set = WorkingSet::new();
    (0..4).for_each(|n| {
        set.map(&pages, n, Rank::NEW);
        set.cache(&pages, n, Rank::NEW);
    });
    let mut refusals = 8;
    assert_eq!(set.evict_one_if(&pages, &mut refusals, |n, _| n > 1).map(|(n, _)| n), Some(2));
    assert_eq!((refusals, set.cached(), set.ages().departures), (6, 3, 1));
    assert_eq!(set.evict_one_if(&pages, &mut 5, |_, _| false), None);
    assert_eq!((set.cached(), set.ages().departures), (3, 1));
    set.uncache(&pages, 1, Rank::NEW);
    assert_eq!(set.evict_one(&pages).map(|(n, _)| n), Some(3));
}

/// Of pages read ahead only what is too much leaves, also beside one that another thread has; the first touch of one
/// does not make it hot.
#[test]
fn pages_read_ahead_leave_where_they_are_too_many() {
    let pages = Ranked(Nodes::new(8), vec![Default::default(); 8]);
    let (mut set, mut batch) = (WorkingSet::new(), Batch::default());
    (0..4).for_each(|n| batch.push_ahead(&pages, n));
    batch.push(&pages, 4, Rank::NEW);
    batch.push(&pages, 5, Rank::HOT);
    set.map_batch(&pages, &mut batch);
    assert!(batch.is_empty());
    assert_eq!((set.ahead(), set.mapped_lens(), set.cached()), (4, (1, 1), 0));
    let mut refusals = 8;
    let mut leave =
        |set: &mut WorkingSet, most| set.evict_cached(&pages, most, &mut refusals, |n, _| n != 0).map(|(n, _)| n);
    assert_eq!((leave(&mut set, 3), leave(&mut set, 3)), (Some(1), None));
    set.cache(&pages, 4, Rank::NEW);
    assert_eq!((leave(&mut set, 3), leave(&mut set, 1)), (Some(4), Some(2)));
    assert_eq!((leave(&mut set, 0), leave(&mut set, 0)), (Some(3), None), "the refused one is left");
    assert_eq!((set.ahead(), set.ages().departures, refusals), (1, 4, 0));
    set.touch_ahead(&pages, 0, Rank::NEW);
    assert_eq!((set.ahead(), set.mapped_lens()), (0, (1, 1)));
}

/// Without cached lists: what probation has above its share, then main, and probation again where there is no main.
#[test]
fn oldest_unstaged_keeps_probation_at_its_share() {
    let pages = Ranked(Nodes::new(1000), vec![Default::default(); 1000]);
    let mut set = WorkingSet::with_probation(4);
    (0..300).for_each(|n| set.map(&pages, n, Rank::NEW));
    let mut out = [0; 100];
    assert_eq!(set.oldest_unstaged(&pages, &mut out), 100);
    assert!(out.iter().copied().eq(0..100), "{out:?}");
    (300..1000).for_each(|n| set.map(&pages, n, Rank::HOT));
    // 250 of 1000 are its share.
    assert_eq!(set.oldest_unstaged(&pages, &mut out), 100);
    assert!(out.iter().copied().eq((0..50).chain(300..350)), "{out:?}");
    assert_eq!(set.oldest_in_turn(&pages, &mut out), 50);
    (0..70).for_each(|n| set.unmap(&pages, n, Rank::NEW));
    let of_main = set.oldest_in_turn(&pages, &mut out);
    assert_eq!((of_main, out[0]), (100, 300));
}

proptest! {
    /// [35]: distances are modular: the same wherever the counter is when they begin.
    #[test]
    fn distances_do_not_mind_the_counters_wrap(start in any::<u32>(), away in 0..1u32 << 30) {
        let set = WorkingSet { departures: start.wrapping_add(away), ..WorkingSet::new() };
        for hot in 0..2 {
            prop_assert_eq!(set.distance(Shadow::from_bits(start << 1 | hot)), away);
        }
    }

    /// [35]: of two pages that left with the same shadow, the one that was away for longer is not the hotter one.
    #[test]
    fn a_page_that_was_away_for_longer_is_not_hotter(
        start in any::<u32>(), mapped in 0..200u32, near in 0..400u32, more in 0..400u32, hot in any::<bool>(),
    ) {
        let links = Nodes::new(200);
        let mut set = WorkingSet::new();
        (0..mapped).for_each(|n| set.map(&links, n, Rank::NEW));
        let shadow = Shadow::from_bits(start << 1 | u32::from(hot));
        set.departures = start.wrapping_add(near);
        let early = set.rank_of(shadow);
        set.departures = start.wrapping_add(near + more);
        prop_assert!(set.rank_of(shadow) <= early);
    }
}

/// Beside a process that uses far more than there is, a small one whose pages are all in use is asked for them so often
/// only as it takes to see that they are: 11 faults a page in 22 rounds of what leaves, 20 if all count as unused.
#[test]
fn what_was_found_in_use_does_not_count_as_old() {
    let (small, large) = (2500, 50_000);
    let mut random = Random(7);
    let mut access = |i: u32| {
        if i.is_multiple_of(4) { small + random.below(large) } else { random.below(small) }
    };
    let trace: Vec<Access> = (0..400_000).map(|i| Access::new(access(i), false)).collect();
    let mut tree = Tree::new(8000, &[0..small, small..small + large], Division::Ages);
    let (mut moved, mut faults) = (Moved::default(), 0);
    for access in &trace {
        let met = tree.access(access.page(), &mut moved);
        faults += u32::from(access.page() < small && met != Met::Hit);
    }
    assert!(faults < 14 * small, "{faults} faults on {small} pages in use");
}
