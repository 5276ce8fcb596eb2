//! Pages that come in write-protected because hardly any is written.

use super::*;

/// A region three times the budget of 8 MiB whose pages are known to stay unwritten: written once, then read over and
/// over.
fn read_over_and_over(pager: &Pager) -> Region {
    let mut region = pager.region(24 << 20).unwrap();
    (0..pages(&region)).for_each(|page| region[page * PAGE_SIZE] = content(page));
    (0..2).for_each(|_| read(&region, 0));
    assert!(pager.owner.core.stays_unwritten(region.core.place.first));
    region
}

fn pages(region: &Region) -> usize {
    region.len() / PAGE_SIZE
}

fn content(page: usize) -> u8 {
    1 + (page % 251) as u8
}

/// Reads all pages from `from` on, in order, and compares.
fn read(region: &Region, from: usize) {
    (from..pages(region)).for_each(|page| assert_eq!(region[page * PAGE_SIZE], content(page), "page {page}"));
}

/// Pages that came in write-protected and are there.
fn unwritten(region: &Region) -> Vec<usize> {
    let (first, space) = (region.core.place.first, &region.core.owner.core.space);
    (0..pages(region)).filter(|&page| space.word(first + page as u32).load().is_unwritten()).collect()
}

#[test]
fn unwritten_pages_leave_without_a_sweep() {
    let pager = pager(8 << 20);
    let region = read_over_and_over(&pager);
    let core = &pager.owner.core;
    let (sweeps, before) = (core.wp_sweeps_done.load(Ordering::Relaxed), pager.stats().unwrap());
    (0..3).for_each(|_| read(&region, 0));
    let after = pager.stats().unwrap();
    let left = (after.swpout_clean - before.swpout_clean) as usize;
    assert!(left > 3 * pages(&region) / 2, "{after:?}");
    // Without, one for each time that probation has gone by: some thirty.
    let sweeps = core.wp_sweeps_done.load(Ordering::Relaxed) - sweeps;
    assert!(sweeps <= 5, "{sweeps} sweeps for {left} pages");
    assert_eq!((after.wp_fault, after.pswpout), (before.wp_fault, before.pswpout));
}

#[test]
fn a_write_to_an_unwritten_page_is_seen() {
    let pager = pager(8 << 20);
    let mut region = read_over_and_over(&pager);
    let before = pager.stats().unwrap();
    let there = unwritten(&region);
    assert!(there.len() > 500, "{}", there.len());
    // The first byte of all is read, another one of some is written.
    let some: Vec<usize> = there.into_iter().step_by(7).collect();
    some.iter().for_each(|page| region[page * PAGE_SIZE + 9] = 77);
    // But for some that just left.
    assert!(pager.stats().unwrap().wp_fault as usize > before.wp_fault as usize + some.len() / 2);
    assert!(!pager.owner.core.stays_unwritten(region.core.place.first), "before any of them has left");
    (0..2).for_each(|_| read(&region, 0));
    some.iter().for_each(|page| assert_eq!(region[page * PAGE_SIZE + 9], 77, "page {page}"));
    // A program that now writes what it reads is not made to fault twice for long.
    (0..pages(&region)).for_each(|page| region[page * PAGE_SIZE + 9] = region[page * PAGE_SIZE] + 1);
    assert!(!pager.owner.core.stays_unwritten(region.core.place.first));
    assert_eq!(unwritten(&region), Vec::<usize>::new());
    read(&region, 0);
    (0..pages(&region)).for_each(|page| assert_eq!(region[page * PAGE_SIZE + 9], content(page) + 1, "page {page}"));
}

#[test]
fn an_unwritten_page_that_is_discarded_behind_our_back_reads_as_zeros() {
    let pager = pager(8 << 20);
    let region = read_over_and_over(&pager);
    // Those that are there now: what is read ahead may still come in.
    let mut gone: Vec<usize> = unwritten(&region).into_iter().filter(|&page| page >= pages(&region) / 2).collect();
    // Gone for the kernel, and not touched before they are to leave; but for those that just leave anyhow.
    for page in &gone {
        let at = &raw const region[page * PAGE_SIZE];
        // SAFETY: a page of the region, whose content the test gives up.
        assert_eq!(unsafe { libc::madvise(at.cast_mut().cast(), PAGE_SIZE, libc::MADV_DONTNEED) }, 0);
    }
    let there = unwritten(&region);
    gone.retain(|page| there.contains(page));
    assert!(gone.len() > 500, "{}", gone.len());
    for _ in 0..3 {
        (0..pages(&region) / 2).for_each(|page| assert_eq!(region[page * PAGE_SIZE], content(page)));
    }
    gone.iter().for_each(|page| assert_eq!(region[page * PAGE_SIZE], 0, "page {page}"));
}

#[test]
fn threads_that_hardly_write_find_what_they_wrote() {
    let pager = pager(8 << 20);
    let region = read_over_and_over(&pager);
    let (base, pages) = (region.as_ptr() as usize, pages(&region));
    let sure = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pager, region, sure) = (&pager, &region, &sure);
            scope.spawn(move || {
                // Each fourth page is this thread's; how often it was written stands in it, and here.
                let own = pages / 4;
                let mut versions = vec![0u64; own];
                let at = |i: usize| (base + (4 * i + thread) * PAGE_SIZE + 64) as *mut u64;
                let mut random = thread as u64 + 1;
                for step in 0..12 * own {
                    random = mix(random ^ step as u64);
                    // In order half of the time, so that windows come in too.
                    let i = if step / own % 2 == 0 { step % own } else { random as usize % own };
                    // SAFETY: an aligned word of a page of the region that only this thread uses.
                    unsafe {
                        assert_eq!(at(i).read_volatile(), versions[i], "thread {thread}, page {i}, step {step}");
                        if random.is_multiple_of(64) {
                            versions[i] += 1;
                            at(i).write_volatile(versions[i]);
                        }
                    }
                    let is_sure = pager.owner.core.stays_unwritten(region.core.place.first);
                    sure.fetch_add(usize::from(is_sure), Ordering::Relaxed);
                }
            });
        }
    });
    assert!(sure.into_inner() > pages, "it was tested while pages came in protected");
}

/// Whatever is seen of writes, pages come in protected all the time; most of them are written, by several threads, at
/// once.
#[test]
fn what_is_written_while_pages_come_in_protected_is_kept() {
    let pager = pager(8 << 20);
    let (core, done) = (&pager.owner.core, std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let first = core.space.places.each().next().map(|place| place.first);
                first
                    .into_iter()
                    .for_each(|page| _ = core.readahead.write_protect(page, |t| (0..999).for_each(|_| t.left(true))));
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        let _done = Done(&done);
        let region = pager.region(24 << 20).unwrap();
        let (base, pages) = (region.as_ptr() as usize, pages(&region));
        let written = std::sync::atomic::AtomicUsize::new(0);
        // Each word of a page is a thread's; they go through the pages side by side, the budget goes up and down.
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (pager, written) = (&pager, &written);
                scope.spawn(move || {
                    for version in 1..=20u64 {
                        for page in 0..pages {
                            let at = (base + page * PAGE_SIZE + thread * 8) as *mut u64;
                            // SAFETY: an aligned word of the region, which only this thread uses.
                            unsafe {
                                let old = at.read_volatile();
                                assert_eq!(old, (version - 1) * (page as u64 + 1), "page {page}, thread {thread}");
                                at.write_volatile(old + page as u64 + 1);
                            }
                            if written.fetch_add(1, Ordering::Relaxed) % 5000 == 0 {
                                pager.resize_budget((5 + version % 4) << 20).unwrap();
                            }
                        }
                    }
                });
            }
        });
    });
}
