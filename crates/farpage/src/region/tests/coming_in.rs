//! What comes in, and how much with it: advice, readahead, zero pages, the swap cache.

use super::*;

const BUDGET: u64 = 8 << 20;
const PAGES: usize = 6000; // nearly three times of it

/// A file takes nothing of the budget. `None`: the mode is not to be had here.
fn pager_in(mode: FaultMode, readahead: u32) -> Option<Pager> {
    built_in(mode, Pager::builder().budget(BUDGET).swap([file()]).readahead(readahead))
}

/// A number in each page, none of which is zero.
fn fill(region: &mut Region) {
    region.view_mut::<u64>().iter_mut().step_by(512).enumerate().for_each(|(page, word)| *word = mix(page as u64 + 1));
}

fn check(region: &Region, page: usize) {
    assert_eq!(region.view::<u64>()[page * 512], mix(page as u64 + 1), "page {page}");
}

/// Pages of a range that are there, as the kernel says.
fn present(region: &Region, pages: Range<usize>) -> usize {
    let mut there = vec![0u8; pages.len()];
    let from = region.as_ptr().wrapping_add(pages.start * PAGE_SIZE).cast_mut().cast();
    // SAFETY: pages of the region, and a byte for each of them.
    let result = unsafe { libc::mincore(from, pages.len() * PAGE_SIZE, there.as_mut_ptr()) };
    assert_eq!(result, 0);
    there.iter().filter(|byte| **byte & 1 == 1).count()
}

fn bytes(pages: &Range<usize>) -> Range<usize> {
    pages.start * PAGE_SIZE..pages.end * PAGE_SIZE
}

#[test]
fn what_is_asked_for_is_there_when_it_returns() {
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        for by_advice in [false, true] {
            let Some(pager) = pager_in(mode, 128) else { return };
            let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
            fill(&mut region);
            for first in [100, 1000, 2000] {
                let pages = first..first + 300;
                let there = present(&region, pages.clone());
                assert!(there < 30, "{mode:?}: it did not swap");
                let asked = match by_advice {
                    false => region.prefetch(bytes(&pages)),
                    true => region.advise(bytes(&pages), Advice::WillNeed),
                };
                asked.unwrap();
                let before = pager.stats().unwrap();
                if mode == FaultMode::Signal {
                    assert_eq!(present(&region, pages.clone()), 300);
                }
                pages.clone().for_each(|page| check(&region, page));
                // Those that were there before are as cold as they were: reclaim, still at work, may take them. In
                // thread mode the policy may also have unmapped some again meanwhile; they are in the swap cache.
                let after = pager.stats().unwrap();
                let (read, faults) = (after.pgmajfault - before.pgmajfault, after.pgfault - before.pgfault);
                assert!(read <= there as u64, "{mode:?}: {read} faults that read, {there} were there before");
                assert!(
                    mode == FaultMode::Thread || faults <= there as u64,
                    "{faults} faults, {there} were there before"
                );
            }
        }
    }
}

/// More than fits is not brought in, so that what comes first is not pushed out by what comes last.
#[test]
fn asking_for_everything_keeps_the_beginning() {
    let pager = pager_in(FaultMode::Signal, 1).unwrap();
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    fill(&mut region);
    let half = BUDGET as usize / PAGE_SIZE / 2;
    let (before, there) = (pager.stats().unwrap().pswpin, present(&region, 0..half));
    assert!(there < half / 10, "it did not swap: {there}");
    region.prefetch(0..region.len()).unwrap();
    assert_eq!(pager.stats().unwrap().pswpin - before, (half - there) as u64);
    assert_eq!(present(&region, 0..half), half);
}

/// The cap is reached, so it is the cap that keeps windows from being larger.
#[test]
fn readahead_has_a_cap() {
    // As asked for; down to a power of two; a sixty-fourth of the budget.
    for (budget, asked, most) in [(32 << 20, 8, 8), (32 << 20, 20, 16), (4 << 20, 128, 16), (32 << 20, 128, 128)] {
        for hint in [Advice::Normal, Advice::Sequential] {
            let pager = Pager::builder().budget(budget).readahead(asked).build().unwrap();
            let mut region = pager.region(3 * budget as usize).unwrap();
            fill(&mut region);
            region.advise(0..region.len(), hint).unwrap();
            let pages = region.len() / PAGE_SIZE;
            let windows = (0..pages).map(|page| {
                check(&region, page);
                region.readahead_stats().unwrap().window
            });
            assert_eq!(windows.max(), Some(most), "{asked} asked for, {hint:?}");
        }
    }
}

/// By what is really read: a rule that reads nothing in the background, so that it is all for the fault just served.
#[test]
fn a_fault_reads_no_more_than_the_cap() {
    // Not more than a sixty-fourth of the budget, whatever was asked for.
    let budget = BUDGET / 2;
    let share = (budget / PAGE_SIZE as u64 / 64) as u32;
    for (asked, most) in [(4, 4), (128, share)] {
        let rule = ReadaheadTuning::parse("vma").unwrap();
        let pager = Pager::builder().budget(budget).readahead_tuning(rule).readahead(asked).build().unwrap();
        let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
        fill(&mut region);
        let mut last = pager.stats().unwrap().pswpin;
        let reads = (0..PAGES).map(|page| {
            check(&region, page);
            let now = pager.stats().unwrap().pswpin;
            now - std::mem::replace(&mut last, now)
        });
        assert_eq!(reads.max(), Some(most.into()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// [43] Readahead changes nothing that can be seen, and does not throw out the page for which it reads: that one is
    /// there when its access is over, whatever else was brought in with it, in a memory that can hold few windows.
    #[test]
    fn readahead_keeps_what_it_reads_for(
        rule in prop::sample::select(vec!["stream", "stream,page_cluster=9", "exact", "vma,page_cluster=5", "slot,page_cluster=5"]),
        runs in prop::collection::vec((0..PAGES, 1usize..200, prop::sample::select(vec![1isize, 1, -1, 3])), 20..60),
    ) {
        let tuning = ReadaheadTuning::parse(rule).unwrap();
        let pager = Pager::builder().budget(BUDGET / 2).swap([file()]).readahead_tuning(tuning).readahead(512).build().unwrap();
        let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
        fill(&mut region);
        let (mut last, mut read) = (pager.stats().unwrap().pgmajfault, 0);
        for (start, pages, step) in runs {
            for i in 0..pages as isize {
                let Some(page) = start.checked_add_signed(i * step).filter(|page| *page < PAGES) else { break };
                check(&region, page);
                let now = pager.stats().unwrap().pgmajfault;
                if now > last {
                    prop_assert_eq!(present(&region, page..page + 1), 1, "[43] page {} under {}", page, rule);
                    (last, read) = (now, read + 1);
                }
            }
        }
        prop_assert!(read > 0);
        (0..PAGES).for_each(|page| check(&region, page));
    }
}

#[test]
fn a_cap_of_one_is_no_readahead() {
    let pager = pager_in(FaultMode::Signal, 1).unwrap();
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    fill(&mut region);
    region.advise(0..region.len(), Advice::Sequential).unwrap();
    (0..PAGES).for_each(|page| check(&region, page));
    let stats = pager.stats().unwrap();
    assert_eq!((stats.swap_ra, stats.pswpin), (0, stats.pgmajfault), "{stats:?}");
    assert!(stats.pswpin > PAGES as u64 / 2, "{stats:?}");
}

#[test]
fn zero_pages_are_counted_and_never_stored() {
    let pager = pager_in(FaultMode::Signal, 128).unwrap();
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    let fits = BUDGET / PAGE_SIZE as u64;
    let read_all = |region: &Region| assert!(region.iter().step_by(PAGE_SIZE).all(|byte| *byte == 0));
    read_all(&region);
    let once = pager.stats().unwrap();
    assert_eq!(once.swpin_zero, PAGES as u64, "{once:?}");
    assert!(once.swpout_zero >= PAGES as u64 - fits, "{once:?}");
    // The beginning has gone, so it is served again.
    read_all(&region);
    let twice = pager.stats().unwrap();
    assert!(twice.swpin_zero >= 2 * PAGES as u64 - fits && twice.swpout_zero > once.swpout_zero, "{twice:?}");
    assert_eq!((twice.pswpin, twice.pswpout), (0, 0), "{twice:?}");
    let swap = &pager.owner.core.swap;
    assert_eq!((swap.usage().slots_in_use, swap.usage().pool_bytes, swap.usage().file_bytes), (0, 0, 0));
    assert_eq!(swap.rings().counts(), (0, 0), "no I/O");
    // What has been something else is found to be zero, too.
    fill(&mut region);
    region.fill(0);
    let before = pager.stats().unwrap();
    read_all(&region);
    let after = pager.stats().unwrap();
    assert!(before.pswpout > 0 && after.swpin_zero > before.swpin_zero, "{before:?} {after:?}");
    assert!(after.swpout_zero > before.swpout_zero, "{before:?} {after:?}");
}

/// First touches in order bring several pages each, others one.
#[test]
fn zero_windows_are_as_the_hint_says() {
    for (hint, faults) in [(Advice::Random, 512..=512), (Advice::Sequential, 8..=8), (Advice::Normal, 8..=64)] {
        let pager = pager_in(FaultMode::Signal, 128).unwrap();
        let region = pager.region(512 * PAGE_SIZE).unwrap();
        region.advise(0..region.len(), hint).unwrap();
        assert!(region.iter().step_by(PAGE_SIZE).all(|byte| *byte == 0));
        let stats = pager.stats().unwrap();
        assert_eq!(stats.swpin_zero, 512, "{hint:?}: {stats:?}");
        assert!(faults.contains(&stats.pgfault), "{hint:?}: {stats:?}");
    }
}

/// Nothing is read ahead, so all that waits in the swap cache has been moved out, and comes back by being moved.
#[test]
fn in_thread_mode_pages_come_back_from_where_they_were_moved_to() {
    let Some(pager) = pager_in(FaultMode::Thread, 1) else { return };
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    fill(&mut region);
    let before = pager.stats().unwrap();
    for i in 0..4 * PAGES as u64 {
        check(&region, mix(i) as usize % PAGES);
    }
    let after = pager.stats().unwrap();
    assert_eq!(after.swap_ra, 0, "{after:?}");
    let back = after.workingset_refault_cached - before.workingset_refault_cached;
    assert!(back > 0, "{after:?}");
    // Neither zeros nor a device: the other faults.
    let major = after.pgmajfault - before.pgmajfault;
    assert!(major > 0 && back + major <= after.pgfault - before.pgfault, "{before:?} {after:?}");
}
