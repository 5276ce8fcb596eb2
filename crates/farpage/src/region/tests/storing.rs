//! Where pages are stored, and what is looked at when they come back.

use super::*;

/// Half of each page does not compress, the other half is zeros.
fn half(page: usize, at: usize) -> u64 {
    if at < 256 { mix((page * 512 + at) as u64) } else { 0 }
}

#[test]
fn pages_that_come_back_often_move_to_compressed_memory() {
    const PAGES: usize = 12 << 10; // 48 MiB in 8
    const WANTED: usize = 2000;
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let devices = [SwapSpec::zram(Alg::Lz4), file()];
        let pager = Pager::builder().budget(8 << 20).swap(devices).fault_mode(mode).readahead(1).build().unwrap();
        let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
        region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, word)| *word = half(i / 512, i % 512));
        let from_file = || pager.owner.core.stat.pgmajfault_file.load(Relaxed);
        // The first pages that were written: they are in the file.
        let words = region.view::<u64>();
        let read = |round: usize| {
            let before = from_file();
            for i in 0..WANTED {
                let page = mix((round * WANTED + i) as u64) as usize % WANTED;
                assert_eq!(words[page * 512 + 7], half(page, 7), "page {page}");
            }
            from_file() - before
        };
        let first = read(0);
        (1..8).for_each(|round| _ = read(round));
        let last = read(8);
        // Without, as many pages are read from the file in each round.
        assert!(first > 1000 && last < first / 8, "{mode:?}: {first}, then {last}: {:?}", pager.stats());
    }
}

#[test]
fn a_pager_that_verifies_looks_at_each_page_that_comes_back() {
    for devices in [vec![SwapSpec::zram(Alg::Lz4)], SwapSpec::defaults()] {
        let pager = Pager::builder().budget(4 << 20).swap(devices).verify(true).build().unwrap();
        stress(&pager, 16 << 20, 4, 1500, 7);
        let (stats, stat) = (pager.stats().unwrap(), &pager.owner.core.stat);
        assert!(stats.pswpin > 0 && stat.verified.load(Relaxed) == stats.pswpin, "{stats:?}");
    }
    let out = in_a_process("storing::a_wrong_byte");
    let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("verify: the page at 0x") && text.contains("came back wrong from slot"), "{text}");
    assert!(!text.contains("went on"), "{text}");
}

#[test]
#[ignore = "ends its process; run by a_pager_that_verifies_looks_at_each_page_that_comes_back"]
fn a_wrong_byte() {
    const MEMORY: usize = 6 << 20;
    let memory = SwapSpec { size: Some(MEMORY as u64), ..DeviceKind::Ram.into() };
    let pager = Pager::builder().budget(8 << 20).swap([memory]).verify(true).build().unwrap();
    let mut region = pager.region(12 << 20).unwrap();
    region.view_mut::<u64>().iter_mut().enumerate().for_each(|(i, word)| *word = half(i / 512, i % 512));
    let at = pager.owner.core.pool_memory.0.base as *mut u8;
    // SAFETY: the device's memory, of which only pages that are stored are read; they are to be wrong.
    unsafe {
        let all = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        rustix::mm::mprotect(at.cast(), MEMORY, all).unwrap();
        (0..MEMORY).step_by(PAGE_SIZE).for_each(|page| *at.add(page + 9) ^= 1);
    }
    println!("{} went on", region.view::<u64>().iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
}
