//! The compressed pool of a pager.

use super::*;
use std::time::Duration;

/// What is freed page by page leaves holes between objects; memory comes back even so. (Fails by not ending.)
#[test]
fn a_pool_full_of_holes_gives_memory_back() {
    const PAGES: usize = 16 << 10;
    const KEPT: usize = 16;
    let pager = Pager::builder().budget(16 << 20).swap([SwapSpec::zram(Alg::Lz4)]).build().unwrap();
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    let content = |i: usize| mix(i as u64) & 0xff_ffff;
    region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, word)| *word = content(i));
    for page in (0..PAGES).step_by(KEPT) {
        region.advise((page + 1) * PAGE_SIZE..(page + KEPT) * PAGE_SIZE, Advice::DontNeed).unwrap();
    }
    loop {
        let stats = pager.stats().unwrap();
        assert!(stats.pool_orig_bytes > 1 << 20, "{stats:?}");
        // Less than the pages would take as they are: not one span for one object.
        if stats.pool_bytes < stats.pool_orig_bytes {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = region.view::<u64>();
    let right = |page: usize| (page * 512..(page + 1) * 512).all(|i| words[i] == content(i));
    assert!((0..PAGES).step_by(KEPT).all(right));
}

#[test]
fn devices_inside_of_the_budget_that_leave_no_room_are_refused() {
    let ram = |bytes: u64| SwapSpec { size: Some(bytes), ..DeviceKind::Ram.into() };
    let build = |devices: Vec<SwapSpec>| Pager::builder().budget(8 << 20).swap(devices).build();
    for devices in [vec![ram(8 << 20)], vec![file(), ram(64 << 20)], vec![ram(4 << 20), ram(4 << 20)]] {
        let Err(Error::Device(error)) = build(devices) else { panic!("it was built") };
        assert!(error.to_string().contains("no room for pages"), "{error}");
    }
    let pager = build(vec![ram(7 << 20)]).unwrap();
    let mut region = pager.region(12 << 20).unwrap();
    region.iter_mut().step_by(PAGE_SIZE).for_each(|byte| *byte = 1);
    assert!(region.iter().step_by(PAGE_SIZE).all(|byte| *byte == 1));
}

/// Where nothing more can be stored, pages that were refused are not protected once more for each that goes.
#[test]
fn a_full_pool_is_not_swept_for_every_page() {
    let pager = Pager::builder().budget(8 << 20).swap([SwapSpec::zram(Alg::Lz4)]).build().unwrap();
    let mut region = pager.region(12 << 20).unwrap();
    let words: &mut [u64] = region.view_mut();
    let pages = words.len() / 512;
    words.iter_mut().enumerate().for_each(|(i, w)| *w = mix(i as u64) & 0xfff_ffff_ffff);
    for i in 0..20_000 {
        let at = mix(i) as usize % pages * 512 + 7;
        assert_eq!(words[at], mix(at as u64) & 0xfff_ffff_ffff);
        // SAFETY: a place of the region. Volatile: to write what is there is a write, too.
        unsafe { (&raw mut words[at]).write_volatile(words[at]) };
    }
    let (stats, sweeps) = (pager.stats().unwrap(), pager.owner.core.wp_sweeps_done.load(Relaxed));
    assert!(stats.over_budget > 1000, "the pool was not full: {stats:?}");
    assert!(sweeps < stats.over_budget / 40, "{sweeps} sweeps: {stats:?}");
}
