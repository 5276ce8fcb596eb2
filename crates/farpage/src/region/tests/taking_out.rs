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
    let (core, s) = (&pager.owner.core, &pager.owner.core.stat);
    let count = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
    let taken_out = || count(&s.pswpout) + count(&s.swpout_clean);
    let (sweeps, out) = (count(&core.wp_sweeps_done), taken_out());
    let mut random = 7;
    for _ in 0..8 * pages {
        random = mix(random);
        let at = random as usize % pages * PAGE_SIZE + 8;
        region[at] = region[at].wrapping_add(1);
    }
    let (sweeps, out) = (count(&core.wp_sweeps_done) - sweeps, taken_out() - out);
    // One for each time that all of probation has gone, a quarter of the pages present, or seldomer.
    assert!(sweeps > 0 && sweeps * 400 < out, "{sweeps} sweeps for {out} pages taken out");
}

/// Frames that wait in the swap cache with what was read ahead, and are never touched, come back when there are no
/// others, even where the budget has room.
#[test]
fn frames_that_are_not_touched_come_back() {
    let exact = ReadaheadTuning::parse("stream,exact,page_cluster=6").unwrap();
    let pager = Pager::builder().budget(8 << 20).reclaim_threads(1).readahead_tuning(exact).build().unwrap();
    let core = &pager.owner.core;
    let mut region = pager.region(48 << 20).unwrap();
    let pages = region.len() / PAGE_SIZE;
    (0..pages).for_each(|page| region[page * PAGE_SIZE] = 1 + page as u8 % 251);
    // Room for everything from now on, so that nothing else has to go.
    pager.resize_budget(256 << 20).unwrap();
    let resident = pager.stats().unwrap().resident_bytes;
    (0..pages).step_by(64).for_each(|page| core.read_ahead(&Window::of(page as u64, 64)));
    let stats = pager.stats().unwrap();
    assert!(stats.swap_ra as usize > core.frames.len() && stats.swap_ra_hit == 0, "{stats:?}");
    assert!(stats.resident_bytes >= resident, "there was room for them: {stats:?}");
    (0..pages).for_each(|page| assert_eq!(region[page * PAGE_SIZE], 1 + page as u8 % 251));
}

/// The program discards pages behind our back (`madvise`) and goes on to write them while they are taken out: nothing
/// of what it writes then is lost, whether the page had been write-protected before or not.
#[test]
fn writes_after_a_discard_behind_our_back_are_kept() {
    let pager = Pager::builder().budget(4 << 20).build().unwrap();
    let region = pager.region(12 << 20).unwrap();
    let (pages, written) = (region.len() / PAGE_SIZE, 128);
    let base = region.as_ptr() as usize;
    let at = |page: usize| (base + page * PAGE_SIZE) as *mut u64;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            // Everything else comes and goes.
            let mut random = 5;
            while !done.load(Ordering::Relaxed) {
                random = mix(random);
                // SAFETY: a page of the region that only this thread uses.
                unsafe { at(written + random as usize % (pages - written)).write_volatile(random) };
            }
        });
        let mut model = vec![0u64; written];
        let mut random = 11;
        for round in 0..3000u64 {
            random = mix(random);
            let page = random as usize % written;
            // SAFETY: a page of the region that only this thread uses.
            unsafe {
                assert_eq!(libc::madvise(at(page).cast(), PAGE_SIZE, libc::MADV_DONTNEED), 0);
                let mut last = at(page).read_volatile();
                assert!(last == 0 || last == model[page], "page {page}, round {round}");
                for _ in 0..200_000 {
                    assert_eq!(at(page).read_volatile(), last, "page {page}, round {round}");
                    last += 1;
                    at(page).write_volatile(last);
                }
                model[page] = last;
            }
        }
    });
}

#[test]
fn locked_regions_are_taken_out_too() {
    let pager = Pager::builder().budget(4 << 20).build().unwrap();
    let mut region = pager.region(12 << 20).unwrap();
    let (at, len) = (region.as_ptr().cast(), region.len());
    // SAFETY: the region's own memory; MLOCK_ONFAULT brings nothing in.
    let locked = unsafe { libc::mlock2(at, len, libc::MLOCK_ONFAULT as _) } == 0;
    let words: &mut [u64] = region.view_mut();
    (0..len / 8).step_by(512).for_each(|i| words[i] = i as u64 + 1);
    assert!((0..len / 8).step_by(512).all(|i| words[i] == i as u64 + 1));
    let stats = pager.stats().unwrap();
    assert!(stats.resident_bytes <= 4 << 20, "locked: {locked}; {stats:?}");
    // Its place can be used again.
    drop(region);
    assert_eq!(pager.region(12 << 20).unwrap().as_ptr().cast(), at);
}

/// Pages that were given to a pipe keep their content there, whatever becomes of the memory that had them.
#[test]
fn what_is_in_a_pipe_is_never_written_again() {
    const GIVEN: usize = 200;
    for mode in [FaultMode::Signal, FaultMode::Thread] {
        let built = Pager::builder().budget(8 << 20).swap([file()]).fault_mode(mode).build();
        let Ok(pager) = built else {
            println!("skipped in mode {mode:?}: {}", built.unwrap_err());
            continue;
        };
        let mut region = pager.region(32 << 20).unwrap();
        let words = region.len() / 8;
        (0..words).for_each(|at| region.view_mut::<u64>()[at] = mix(at as u64));
        let first = words / 512 - GIVEN;
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&write, 1 << 20).unwrap();
        for page in first..first + GIVEN {
            let part =
                libc::iovec { iov_base: region.as_ptr().wrapping_add(page * PAGE_SIZE) as *mut _, iov_len: PAGE_SIZE };
            // Touched here: a system call on what is absent fails in signal mode.
            assert_eq!(region.view::<u64>()[page * 512], mix(page as u64 * 512));
            // SAFETY: memory of the region.
            let given = unsafe { libc::vmsplice(std::os::fd::AsRawFd::as_raw_fd(&write), &part, 1, 0) };
            assert_eq!(given, PAGE_SIZE as isize, "{}", std::io::Error::last_os_error());
        }
        for _ in 0..3 {
            (0..first).for_each(|page| region.view_mut::<u64>()[page * 512 + 1] ^= 1);
        }
        let mut content = [0u8; PAGE_SIZE];
        for page in first..first + GIVEN {
            let mut done = 0;
            while done < PAGE_SIZE {
                done += rustix::io::read(&read, &mut content[done..]).unwrap();
            }
            let (read, _) = content.as_chunks::<8>();
            for (at, word) in read.iter().enumerate() {
                assert_eq!(
                    u64::from_ne_bytes(*word),
                    mix((page * 512 + at) as u64),
                    "{mode:?}: page {page}, word {at}"
                );
            }
        }
    }
}
