//! What goes when: sweeps, pages read ahead.

use super::*;
use farpage_swap::readahead::Window;

/// The oldest pages that have been written since the last sweep are in use: they stay, and make no sweep.
#[test]
fn pages_in_use_do_not_make_sweeps() {
    let pager = Pager::builder().budget(8 << 20).swap([file()]).build().unwrap();
    let mut region = pager.region(14 << 20).unwrap();
    let pages = region.len() / PAGE_SIZE;
    (0..pages).for_each(|page| region[page * PAGE_SIZE] = 1 + page as u8 % 251);
    let c = &pager.owner.inner.counters;
    let count = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
    let (sweeps, out) = (count(&c.sweeps), count(&c.swapped_out) + count(&c.clean));
    let mut random = 7;
    for _ in 0..8 * pages {
        random = mix(random);
        let at = random as usize % pages * PAGE_SIZE + 8;
        region[at] = region[at].wrapping_add(1);
    }
    let (sweeps, out) = (count(&c.sweeps) - sweeps, count(&c.swapped_out) + count(&c.clean) - out);
    // One for each time that half of the pages present have gone, or seldomer.
    assert!(sweeps > 0 && sweeps * 600 < out, "{sweeps} sweeps for {out} pages taken out");
}

/// Frames that wait in the swap cache with what was read ahead, and are never touched, come back when there are no
/// others, even where the budget has room.
#[test]
fn frames_that_nobody_touches_come_back() {
    let exact = ReadaheadTuning::parse("stream,exact,page_cluster=6").unwrap();
    let pager = Pager::builder().budget(8 << 20).reclaim_threads(1).readahead_tuning(exact).build().unwrap();
    let inner = &pager.owner.inner;
    let mut region = pager.region(48 << 20).unwrap();
    let pages = region.len() / PAGE_SIZE;
    (0..pages).for_each(|page| region[page * PAGE_SIZE] = 1 + page as u8 % 251);
    // Room for everything from now on, so that nothing else has to go.
    pager.resize_budget(256 << 20).unwrap();
    let resident = pager.stats().resident_bytes;
    (0..pages).step_by(64).for_each(|page| inner.read_ahead(&Window::of(page as u64, 64)));
    let stats = pager.stats();
    assert!(stats.swap_ra as usize > inner.frames.len() && stats.swap_ra_hit == 0, "{stats:?}");
    assert!(stats.resident_bytes >= resident, "there was room for them: {stats:?}");
    (0..pages).for_each(|page| assert_eq!(region[page * PAGE_SIZE], 1 + page as u8 % 251));
}
