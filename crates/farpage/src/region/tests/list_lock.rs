//! How often the lists' lock is taken: threads that fault at the same time must not meet there.

use super::*;

/// Four times the budget.
const PAGES: usize = 8192;
const BUDGET: u64 = 8 << 20;
const THREADS: usize = 4;

/// Locks taken, and pages that came in or went out, while four threads write pages of their own, `rounds` times, in the
/// order that `at` says.
fn taken(mode: FaultMode, advice: Advice, rounds: usize, at: impl Fn(usize) -> usize + Sync) -> Option<(u32, u64)> {
    let pager = built_in(mode, Pager::builder().budget(BUDGET).swap([file()]))?;
    let region = pager.region(PAGES * PAGE_SIZE).unwrap();
    region.advise(0..region.len(), advice).unwrap();
    let base = region.as_ptr() as usize;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let at = &at;
            scope.spawn(move || {
                for i in 0..rounds * PAGES / THREADS {
                    let page = at(i) % (PAGES / THREADS) + thread * (PAGES / THREADS);
                    // SAFETY: a word of the region, in pages that only this thread touches.
                    unsafe {
                        let word = (base + page * PAGE_SIZE) as *mut u64;
                        assert!(*word == 0 || *word == page as u64 + 1, "page {page}");
                        *word = page as u64 + 1;
                    }
                }
            });
        }
    });
    let s = pager.stats().unwrap();
    let pages = s.pswpin + s.swpin_zero + s.pswpout + s.swpout_clean + s.swpout_zero;
    let locked = pager.owner.core.lists.locked();
    Some((locked, pages))
}

#[test]
fn the_lock_is_taken_seldom() {
    // With a lock for each page that is put back, and for each count of a page that went: 0.19, 0.77, 1.56.
    let cases = [
        (FaultMode::Signal, Advice::Normal, 0.175),
        (FaultMode::Thread, Advice::Normal, 0.65),
        (FaultMode::Thread, Advice::Random, 1.3),
    ];
    for (mode, advice, most) in cases {
        let at = |i: usize| if advice == Advice::Random { mix(i as u64) as usize } else { i };
        let Some((locked, pages)) = taken(mode, advice, 4, at) else { continue };
        let each = f64::from(locked) / pages as f64;
        println!("{mode:?}, {advice:?}: {pages} pages, {each:.3} locks a page");
        assert!(each < most, "{mode:?}, {advice:?}: {each}");
    }
}
