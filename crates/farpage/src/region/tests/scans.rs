//! What a pass over much data, and a loop over a little too much, do to the pages that are in use; by counts of faults
//! that read a device. First in, first out loses all of the hot set to the pass, and both that and least recently used
//! read every page of the loop each time.

use super::*;

/// Pages.
const BUDGET: usize = 2048;
const HOT: usize = BUDGET / 2;
const PASS: usize = 4 * BUDGET;

/// A file takes nothing of the budget, and without readahead each fault is a page. `None`: the mode is not to be had
/// here.
fn region_in(mode: FaultMode, pages: usize) -> Option<(Pager, Region)> {
    let builder = Pager::builder().budget((BUDGET * PAGE_SIZE) as u64).swap([file()]).readahead(1);
    let pager = built_in(mode, builder)?;
    let mut region = pager.region(pages * PAGE_SIZE).unwrap();
    region.advise(0..region.len(), Advice::Random).unwrap();
    region.view_mut::<u64>().iter_mut().step_by(512).enumerate().for_each(|(page, word)| *word = mix(page as u64 + 1));
    Some((pager, region))
}

fn check(region: &Region, page: usize) {
    assert_eq!(region.view::<u64>()[page * 512], mix(page as u64 + 1), "page {page}");
}

/// Faults that read a device while `run` runs.
fn major(pager: &Pager, run: impl FnOnce()) -> u64 {
    let before = pager.stats().unwrap().pgmajfault;
    run();
    pager.stats().unwrap().pgmajfault - before
}

#[test]
fn a_pass_over_four_times_the_budget_leaves_the_hot_set_in_memory() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let Some((pager, region)) = region_in(mode, HOT + 3 * PASS) else { continue };
        let mut random = 1;
        let mut touch_hot = |n: usize| {
            (0..n).for_each(|_| {
                random = mix(random + 1);
                check(&region, random as usize % HOT);
            });
        };
        // It proves hot beside another pass.
        (HOT..HOT + PASS).for_each(|page| {
            check(&region, page);
            touch_hot(8);
        });
        // In use all the time.
        let beside = major(&pager, || {
            (HOT + PASS..HOT + 2 * PASS).for_each(|page| {
                check(&region, page);
                touch_hot(1);
            });
        }) - PASS as u64;
        // Not in use meanwhile: all accesses between are the pass.
        let pass = major(&pager, || (HOT + 2 * PASS..HOT + 3 * PASS).for_each(|page| check(&region, page)));
        let lost = major(&pager, || (0..HOT).for_each(|page| check(&region, page)));
        println!("{mode:?}: {beside} reads of hot pages beside a pass, {lost} of {HOT} after one, which took {pass}");
        assert!(pass >= (PASS - BUDGET) as u64, "{mode:?}: {pass}: it was in memory");
        assert!(beside < HOT as u64, "{mode:?}: {beside} reads of hot pages in use");
        assert!(lost < HOT as u64 / 5, "{mode:?}: {lost} of {HOT} hot pages are lost");
    }
}

#[test]
fn a_loop_over_half_as_much_again_keeps_some_of_it() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let pages = BUDGET * 3 / 2;
        let Some((pager, region)) = region_in(mode, pages) else { continue };
        let rounds = |n: usize| (0..n).for_each(|_| (0..pages).for_each(|page| check(&region, page)));
        rounds(6);
        let reads = major(&pager, || rounds(6));
        let all = 6 * pages as u64;
        println!("{mode:?}: {reads} of {all} pages of a loop are read");
        assert!(reads < all * 85 / 100, "{mode:?}: {reads} of {all} pages are read");
    }
}
