//! How the budget is divided between pages and compressed memory.

use super::*;

const BUDGET: u64 = 16 << 20;

fn limit(pager: &Pager) -> u64 {
    pager.owner.core.swap.usage().pool_limit_bytes
}

/// The pool's limit after pages of twice the budget were read at random. `shift`: as many words are the same, as a
/// power of two.
fn limit_after(shift: u32) -> u64 {
    let devices = [SwapSpec::zram(Alg::Lz4), file()];
    let pager = Pager::builder().budget(BUDGET).swap(devices).readahead(1).build().unwrap();
    assert_eq!(limit(&pager), BUDGET / 2);
    let pages = 2 * BUDGET as usize / PAGE_SIZE;
    let mut region = pager.region(pages * PAGE_SIZE).unwrap();
    let content = |i: usize| mix(i as u64 >> shift);
    region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, word)| *word = content(i));
    let words = region.view::<u64>();
    for i in 0..30_000 {
        let at = mix(i) as usize % pages * 512 + 7;
        assert_eq!(words[at], content(at), "page {}", at / 512);
    }
    let after = limit(&pager);
    // Another budget begins anew.
    pager.resize_budget(BUDGET / 2).unwrap();
    assert_eq!(limit(&pager), BUDGET / 4);
    after
}

#[test]
fn the_pool_gets_what_it_is_worth() {
    let compresses = limit_after(2);
    assert!(compresses > BUDGET / 2, "{compresses}");
}

#[test]
fn without_a_file_the_pool_may_have_what_pages_leave() {
    let pager = Pager::builder().budget(BUDGET).swap([SwapSpec::zram(Alg::Lz4)]).build().unwrap();
    assert_eq!(limit(&pager), BUDGET / 8 * 7);
}
