//! What is passed over, for how long, and that nothing is for ever.

use super::*;
use crate::lru::Links;
use crate::sim::{Nodes, Ours, Random, Stage, Synthetic, replay};
use crate::workingset::{Rank, WorkingSet};
use proptest::prelude::*;
use std::cell::Cell;

/// Pages all of the same rank, at neighbouring places.
struct Marked(Nodes, Vec<Cell<Tick>>);

impl Marked {
    fn new(pages: u32) -> Marked {
        Marked(Nodes::new(pages as usize), vec![Cell::default(); pages.div_ceil(STRETCH_PAGES) as usize])
    }
}

impl Links for Marked {
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

impl Pages for Marked {
    fn rank(&self, _: u32) -> Rank {
        Rank::NEW
    }
    fn set_rank(&self, _: u32, _: Rank) {}
    fn wanted(&self, n: u32) -> Tick {
        self.1[(n / STRETCH_PAGES) as usize].get()
    }
    fn set_wanted(&self, n: u32, tick: Tick) {
        self.1[(n / STRETCH_PAGES) as usize].set(tick);
    }
}

/// `stretches` of pages on probation, the first the oldest.
fn memory(stretches: u32) -> (WorkingSet, Marked) {
    let pages = Marked::new(stretches * STRETCH_PAGES);
    let mut set = WorkingSet::new();
    (0..stretches * STRETCH_PAGES).for_each(|n| set.map(&pages, n, Rank::NEW));
    (set, pages)
}

fn next(set: &mut WorkingSet, pages: &Marked) -> u32 {
    let mut out = [NIL; 8];
    assert!(set.oldest(pages, 1000, &mut out) > 0);
    out[0]
}

#[test]
fn neighbours_of_a_page_that_is_wanted_back_stay() {
    let (mut set, pages) = memory(64);
    set.cache(&pages, 0, Rank::NEW);
    assert_eq!(next(&mut set, &pages), 1, "nothing was wanted back yet");
    set.refault(&pages, 0, Rank::NEW);
    assert_eq!(next(&mut set, &pages), STRETCH_PAGES, "the next stretch");
    // What was passed over is the youngest now, in its order.
    (STRETCH_PAGES..64 * STRETCH_PAGES).for_each(|n| set.unmap(&pages, n, Rank::NEW));
    assert_eq!((set.probation.mapped.back(), set.probation.mapped.front()), (Some(1), Some(STRETCH_PAGES - 1)));
}

/// A page that was read back marks its neighbours if it was away for a quarter of memory at most.
#[test]
fn a_page_that_was_away_for_long_says_nothing_of_its_neighbours() {
    for (away, first) in [(16 * STRETCH_PAGES, STRETCH_PAGES), (16 * STRETCH_PAGES + 1, 0)] {
        let (mut set, pages) = memory(64);
        let shadow = set.leave(Rank::NEW);
        (0..away).for_each(|_| _ = set.leave(Rank::NEW));
        set.note_read(&pages, 3, shadow);
        assert_eq!(next(&mut set, &pages), first, "{away} departures");
    }
}

#[test]
fn a_mark_ages_with_departures_only() {
    let (mut set, pages) = memory(64);
    pages.set_wanted(0, set.clock.now());
    let young = (u32::from(YOUNG) + 1) * (64 * STRETCH_PAGES / TICK_PART);
    for _ in 0..young {
        assert!(set.clock.is_young(pages.wanted(0)));
        set.leave(Rank::NEW);
    }
    assert!(!set.clock.is_young(pages.wanted(0)));
    assert_eq!(next(&mut set, &pages), 0);
}

#[test]
fn where_everything_is_left_alone_the_order_is_the_ordinary_one() {
    let (mut set, pages) = memory(64);
    pages.1.iter().for_each(|mark| mark.set(set.clock.now()));
    let mut out = [NIL; 8];
    assert_eq!(set.oldest(&pages, 1000, &mut out), 8);
    let passed = (Clock::passes(8)) as u32;
    assert_eq!(out.to_vec(), (passed..passed + 8).collect::<Vec<_>>(), "as many as may be, then in order");
    // One page alone: there is no other.
    (1..64 * STRETCH_PAGES).for_each(|n| set.unmap(&pages, n, Rank::NEW));
    assert_eq!((set.oldest(&pages, 1000, &mut out), out[0]), (1, 0));
}

/// Probation is short of its stage, and its only page is marked: it goes, and main's page stays, whose turn it is not.
#[test]
fn a_marked_page_goes_where_only_its_list_is_short() {
    let pages = Marked::new(STRETCH_PAGES);
    let mut set = WorkingSet::new();
    set.map(&pages, 0, Rank::NEW);
    set.map(&pages, 1, Rank::HOT);
    pages.set_wanted(0, set.clock.now());
    let mut out = [NIL; 2];
    assert_eq!((set.oldest(&pages, 0, &mut out), out[0]), (1, 0));
}

/// Skewed access where pages that are used as often lie together, and where the same pages lie anywhere.
#[test]
fn where_use_lies_together_fewer_faults_are_taken_and_no_more_is_read() {
    const PAGES: u32 = 4096;
    let trace = Synthetic::Zipf { theta: 0.99 }.trace(PAGES, 200_000, 1);
    let together: Vec<u64> = (0..u64::from(PAGES)).collect();
    let (mut random, mut mixed) = (Random(7), together.clone());
    (1..PAGES).rev().for_each(|i| mixed.swap(i as usize, random.below(i + 1) as usize));
    let run = |places: &[u64]| replay(&mut Ours::at(PAGES / 4, places, Stage::Adaptive), &trace, PAGES);
    let (together, mixed) = (run(&together), run(&mixed));
    assert!(together.minor * 100 < mixed.minor * 95, "{together:?}, {mixed:?} if the same pages lie anywhere");
    assert!(together.reads <= mixed.reads, "{together:?}, {mixed:?}");
}

proptest! {
    /// Whatever is marked: each page is named once, as many as without marks where enough pages are there, and what is
    /// passed over is bounded by what is asked for.
    #[test]
    fn marks_never_keep_pages_from_going(
        marks in prop::collection::vec(any::<u8>(), 8), now in 1..=255u8, cold in 0..200u32, hot in 0..56u32,
        target in 0..300u32, wanted in 1..80usize,
    ) {
        let pages = Marked::new(8 * STRETCH_PAGES);
        let run = |marked: bool| {
            let mut set = WorkingSet::new();
            set.clock.now = now;
            for (mark, bits) in pages.1.iter().zip(&marks) {
                mark.set(Tick::from_bits(if marked { *bits } else { 0 }));
            }
            (0..cold).for_each(|n| set.map(&pages, n, Rank::NEW));
            (cold..cold + hot).for_each(|n| set.map(&pages, n, Rank::HOT));
            let mut out = vec![NIL; wanted];
            let n = set.oldest(&pages, target, &mut out);
            out.truncate(n);
            (out, set.probation.mapped.iter(&pages).collect::<Vec<u32>>())
        };
        let (plain, _) = run(false);
        let (out, now) = run(true);
        prop_assert_eq!(out.is_empty(), plain.is_empty());
        prop_assert!(out.len() <= plain.len());
        let mut once = out.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), out.len());
        // What was passed over has come to the front; the others are in their order.
        let from_old = || now.iter().rev();
        let stayed = now.len().min(1) + from_old().zip(from_old().skip(1)).take_while(|(a, b)| a < b).count();
        prop_assert!(stayed + Clock::passes(wanted) >= now.len());
    }

    /// A mark is young for so many ticks, wherever the clock stands when it is set.
    #[test]
    fn marks_do_not_mind_the_clocks_wrap(start in 1..=255u8, ticks in 0..255u32) {
        let mut clock = Clock { now: start, departed: 0 };
        let mark = clock.now();
        for _ in 0..ticks {
            clock.on_departure(TICK_PART);
            prop_assert!(clock.now != 0);
        }
        prop_assert_eq!(clock.is_young(mark), ticks <= u32::from(YOUNG));
        prop_assert!(!clock.is_young(Tick::default()));
    }
}
