//! Reading ahead in regions: the right bytes under every rule, right counts, no other region's pages.

use super::super::Region;
use super::super::tests::{mix, nothing_is_left, stress};
use super::super::word::PageState;
use super::super::{Advice, Pager};
use super::*;
use farpage_ipc::conf::SwapSpec;
use farpage_ipc::stat::{MappingReadahead, READAHEADS};
use farpage_swap::PAGE_SIZE;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn file(path: &Path) -> SwapSpec {
    SwapSpec::file(path)
}

fn pager(budget: u64, tuning: &str, swap: Vec<SwapSpec>) -> Pager {
    Pager::builder().budget(budget).swap(swap).readahead_tuning(Tuning::parse(tuning).unwrap()).build().unwrap()
}

const RULES: [&str; 6] = ["none", "slot", "vma", "stream", "stream,exact", "stream,page_cluster=9"];

/// A region with a number in each page, larger than the budget.
fn filled(pager: &Pager, pages: usize) -> Region {
    let mut region = pager.region(pages * PAGE_SIZE).unwrap();
    for page in 0..pages {
        let words = &mut region.view_mut::<u64>()[page * 512..(page + 1) * 512];
        words.iter_mut().enumerate().for_each(|(i, w)| *w = mix((page * 64 + i % 64) as u64));
    }
    region
}

fn check(region: &Region, page: usize) {
    let at = page * 512 + page % 512;
    assert_eq!(region.view::<u64>()[at], mix((page * 64 + page % 512 % 64) as u64), "page {page}");
}

#[test]
fn bytes_are_right_under_every_rule() {
    let dir = std::env::temp_dir();
    for (seed, rule) in (20..).zip(RULES) {
        for swap in [SwapSpec::defaults(), vec![file(&dir)]] {
            let pager = pager(8 << 20, rule, swap);
            stress(&pager, 24 << 20, 2, 6000, seed);
            let stats = pager.stats().unwrap();
            assert!(stats.pswpin > 100 && stats.swap_ra_hit <= stats.swap_ra, "{rule}: {stats:?}");
            assert_eq!(stats.swap_ra > 0, rule != "none", "{rule}: {stats:?}");
        }
    }
}

#[test]
fn sequential_reads_hit_and_exact_counts_say_the_same_as_markers() {
    for (rule, exact) in [("stream", false), ("stream,exact", true), ("vma", true)] {
        let pager = pager(8 << 20, rule, SwapSpec::defaults());
        let pages = 6000;
        let region = filled(&pager, pages);
        for _ in 0..2 {
            (0..pages).for_each(|page| check(&region, page));
        }
        let (stats, of_region) = (pager.stats().unwrap(), region.readahead_stats().unwrap());
        assert_eq!((stats.swap_ra, stats.swap_ra_hit), (of_region.swap_ra, of_region.swap_ra_hit));
        assert!(stats.swap_ra > pages as u64, "{rule}: {stats:?}");
        let pct = of_region.hit_pct().unwrap();
        assert!((if exact { 97.0 } else { 95.0 }..=100.0).contains(&pct), "{rule}: {pct} {stats:?}");
        assert!(stats.pgmajfault < stats.pswpin / 2 && of_region.window > 1, "{rule}: {stats:?}");
    }
}

#[test]
fn random_reads_and_advised_ones_stay_single() {
    let pager = pager(8 << 20, "stream", SwapSpec::defaults());
    let pages = 6000;
    let region = filled(&pager, pages);
    let before = pager.stats().unwrap();
    (0..10_000).for_each(|i| check(&region, mix(i) as usize % pages));
    let after = pager.stats().unwrap();
    let (read, ahead) = (after.pswpin - before.pswpin, after.swap_ra - before.swap_ra);
    assert!(read > 5000 && ahead * 50 < read, "{ahead} of {read} read ahead at random");
    region.advise(0..region.len(), Advice::Random).unwrap();
    (0..pages).for_each(|page| check(&region, page));
    assert_eq!(pager.stats().unwrap().swap_ra, after.swap_ra, "it was told not to");
    region.advise(0..region.len(), Advice::Sequential).unwrap();
    (0..pages).for_each(|page| check(&region, page));
    assert!(pager.stats().unwrap().swap_ra > after.swap_ra + pages as u64 / 2, "it was told to");
}

#[test]
fn nothing_is_read_beyond_the_end_of_a_region() {
    for rule in ["vma,page_cluster=5", "stream,page_cluster=9", "stream,exact"] {
        let pager = pager(8 << 20, rule, SwapSpec::defaults());
        let regions = [filled(&pager, 3000), filled(&pager, 3000), filled(&pager, 3000)];
        // Side by side, but for one page; whatever is done in the middle one is no matter of the others.
        for _ in 0..2 {
            (0..3000).chain((0..3000).rev()).for_each(|page| check(&regions[1], page));
            (0..3000).step_by(7).for_each(|page| check(&regions[1], page));
        }
        for other in [0, 2] {
            let stats = regions[other].readahead_stats().unwrap();
            assert_eq!((stats.swap_ra, stats.swap_ra_hit), (0, 0), "{rule}: region {other}");
        }
        assert!(regions[1].readahead_stats().unwrap().swap_ra > 3000);
    }
}

#[test]
fn a_region_goes_while_its_window_is_on_its_way() {
    let dir = std::env::temp_dir();
    for swap in [SwapSpec::defaults(), vec![file(&dir)]] {
        let pager = pager(4 << 20, "stream,page_cluster=9", swap);
        for round in 0..30 {
            let region = filled(&pager, 2000);
            (0..40 + round * 7).for_each(|page| check(&region, page));
            drop(region); // the marker just touched has asked for the next window
            assert!(nothing_is_left(&pager), "{:?}", pager.stats());
        }
    }
}

#[test]
fn slot_order_finds_what_was_swapped_out_together() {
    let dir = std::env::temp_dir();
    let pager = pager(8 << 20, "slot,page_cluster=4", vec![file(&dir)]);
    let (one, other) = (filled(&pager, 3000), filled(&pager, 3000));
    for _ in 0..2 {
        (0..3000).for_each(|page| check(&one, page));
        (0..3000).rev().for_each(|page| check(&other, page));
    }
    let stats = pager.stats().unwrap();
    assert!(stats.swap_ra > 1000 && stats.swap_ra_hit * 2 > stats.swap_ra, "{stats:?}");
    // A slot that another page has got since names the wrong page, and that page's word says so.
    drop(other);
    let third = filled(&pager, 3000);
    (0..3000).for_each(|page| check(&one, page));
    (0..3000).for_each(|page| check(&third, page));
}

/// A few pages of the device are damaged. Windows run over them, which has no effect; the process would be ended for
/// one that it asks for. A window that begins right behind a damaged page never reads it, so their distance is no
/// multiple of a window's: not all of them can be placed like that.
#[test]
fn an_error_in_a_page_that_was_not_asked_for_ends_no_process() {
    let dir = tempfile::tempdir().unwrap();
    for rule in ["stream", "stream,exact", "vma", "slot"] {
        let pager = pager(4 << 20, rule, vec![file(dir.path())]);
        let pages = 4000;
        let region = filled(&pager, pages);
        let e = &pager.owner.core;
        let path = format!("/proc/self/fd/{}", e.swap.fds().last().unwrap());
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let mut damaged = Vec::new();
        for page in (300..pages).step_by(601) {
            let state = e.space.word(region.core.place.first + page as u32).load().state();
            if let PageState::Swapped(entry) = state {
                let at = (entry.slot() & 0xffff_ffff) * PAGE_SIZE as u64;
                file.write_all_at(&[0x5a; PAGE_SIZE], at).unwrap();
                damaged.push(page);
            }
        }
        assert!(damaged.len() > 2, "{damaged:?}");
        let before = e.swap.usage().read_errors;
        (0..pages).filter(|page| !damaged.contains(page)).for_each(|page| check(&region, page));
        let errors = e.swap.usage().read_errors - before;
        assert!(
            pager.stats().unwrap().swap_ra > 300 && errors > 0,
            "{rule}: {errors} errors, {:?}",
            pager.stats().unwrap()
        );
        drop((region, pager));
    }
}

#[test]
fn rules_can_be_changed_for_a_region() {
    let pager = pager(8 << 20, "none", SwapSpec::defaults());
    let region = filled(&pager, 4000);
    (0..4000).for_each(|page| check(&region, page));
    assert_eq!(region.readahead_stats().unwrap(), ReadaheadStats::default());
    region.set_readahead(Tuning::parse("stream,exact").unwrap()).unwrap();
    (0..4000).for_each(|page| check(&region, page));
    let stats = region.readahead_stats().unwrap();
    assert!(stats.swap_ra > 2000 && stats.window > 1, "{stats:?}");
    region.set_readahead(Tuning::parse("slot").unwrap()).unwrap();
    (0..4000).for_each(|page| check(&region, page));
}

#[test]
fn the_background_is_left_alone_while_it_is_late() {
    let b = PrefetchScore::default();
    let free = Controls::new(Default::default());
    assert!(b.pays(&free));
    b.note(true);
    let tries = |n: u32| (0..n).filter(|_| b.pays(&free)).count();
    assert_eq!(tries(4 * TRY_EVERY), 4, "now and then it is tried");
    (0..3).for_each(|_| b.note(false));
    assert_eq!(tries(10), 10);
    (0..100).for_each(|_| b.note(true));
    (0..SCORE_MAX).for_each(|_| b.note(false));
    assert!(b.pays(&free), "what was long ago does not count");
}

#[test]
fn the_page_of_a_slot_is_known_once_a_region_wants_it() {
    let (entry, none) = (Entry::new(0, 70_000).unwrap(), Tuning { rule: Rule::None, ..Tuning::default() });
    for (rule, rotational, known) in [(Rule::Stream, true, 9), (Rule::Slot, false, 9), (Rule::Stream, false, 0)] {
        let state = RegionReadahead::new(none, 64, rotational);
        state.open(1, 100);
        state.stored(9, entry);
        assert_eq!(state.page_of(entry), 0);
        state.tune(1, Tuning { rule, ..none });
        state.stored(9, entry);
        assert_eq!(state.page_of(entry), known);
    }
}

#[test]
fn the_regions_that_fault_most_are_published() {
    let state = RegionReadahead::new(Tuning::default(), 64, false);
    let entry = Entry::new(0, 1).unwrap();
    let to: [MappingReadahead; READAHEADS] = Default::default();
    // Region n has n faults, one of them where nothing shall be read ahead; the first has none.
    for n in 0..20u32 {
        state.open(n * 100 + 1, 50);
        for i in 0..n {
            let hint = if i == 0 { Hint::Random } else { Hint::Normal };
            state.on_miss(n * 100 + 1 + i, entry, hint, false, false, |_| false);
        }
        state.read(n * 100 + 1, 3);
    }
    let shown = || -> Vec<(u64, u64, u64, u64)> {
        let of = |m: &MappingReadahead| [&m.start, &m.pages, &m.faults, &m.swap_ra].map(|n| n.load(Relaxed));
        to.iter().map(of).filter(|m| m[1] > 0).map(|m| (m[0], m[1], m[2], m[3])).collect()
    };
    state.publish(7000, &to);
    let most = 20 - READAHEADS as u64..20;
    assert_eq!(shown(), most.map(|n| (7000 + n * 100 + 1, 50, n, 3)).collect::<Vec<_>>());
    (2..20).for_each(|n| state.close(n * 100 + 1));
    state.publish(7000, &to);
    assert_eq!(shown(), [(7101, 50, 1, 3)], "regions without faults, or that have gone, are not shown");
    state.forget_counts();
    state.publish(7000, &to);
    assert_eq!(shown(), []);
}
