//! Forked children that have the regions too.

use super::*;
use std::sync::atomic::AtomicBool;

const PAGES: usize = 6 << 8; // 6 MiB in 4

fn inherited(devices: Vec<SwapSpec>) -> Pager {
    Pager::builder().budget(4 << 20).swap(devices).inherit(true).build().unwrap()
}

fn default_devices() -> Vec<Vec<SwapSpec>> {
    vec![SwapSpec::defaults(), vec![file()]]
}

/// Waits for a child to end well.
pub(super) fn ended_well(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "child {child}");
}

/// Forks; the child runs `f` and ends, well if it says so.
pub(super) fn fork(f: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses this library and libc, whose locks its fork handlers see to.
    match unsafe { libc::fork() } {
        0 => {
            let ok = f();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!ok)) }
        }
        child => child,
    }
}

fn write_all(words: &mut [u64], version: u64) {
    words.iter_mut().enumerate().for_each(|(i, w)| *w = word(i / 512, i % 512, version));
}

fn wrong(words: &[u64], version: u64) -> Option<usize> {
    (0..words.len()).find(|i| words[*i] != word(i / 512, i % 512, version))
}

#[test]
fn a_child_has_a_copy_and_neither_sees_the_others_writes() {
    for devices in default_devices() {
        let pager = inherited(devices);
        let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
        for version in [1, 3] {
            write_all(region.view_mut(), version);
            let (mut read, mut write) = std::io::pipe().unwrap();
            let child = fork(|| {
                use std::io::Read;
                // Only after the parent has written over everything that was stored at the fork.
                if read.read_exact(&mut [0u8; 1]).is_err() || wrong(region.view(), version).is_some() {
                    return false;
                }
                // A child of the child, and a new region of its own.
                let grandchild = fork(|| wrong(region.view(), version).is_none());
                let mut own = pager.region(PAGES * PAGE_SIZE).unwrap();
                write_all(own.view_mut(), 9);
                write_all(region.view_mut(), 7);
                ended_well(grandchild);
                let ok = wrong(own.view(), 9).is_none() && wrong(region.view(), 7).is_none();
                let swapped = pager.stats().unwrap().pswpin > 0;
                drop(own);
                ok && swapped
            });
            write_all(region.view_mut(), version + 1);
            std::io::Write::write_all(&mut write, b"x").unwrap();
            ended_well(child);
            assert_eq!(wrong(region.view(), version + 1), None);
        }
        // What was kept for the children is free again.
        let collected = || {
            let e = &pager.owner.core;
            // Other tests fork meanwhile, and their children have this pager too.
            let _working = e.enter_work();
            e.leases.collect(&e.swap, |fd| e.table.close(fd));
            e.leases.is_empty()
        };
        assert!(soon(collected), "the leases of children that are gone were not ended");
    }
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Forks while other threads fault, pin, discard and resize: no thread waits for ever, and every copy is a good one.
#[test]
fn forks_in_the_middle_of_everything() {
    for devices in default_devices() {
        let pager = inherited(devices);
        let mut still = pager.region(PAGES * PAGE_SIZE).unwrap();
        write_all(still.view_mut(), 2);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ends = Over(&over); // also if a child goes wrong
            let noise: Vec<_> = (0..2)
                .map(|seed| {
                    let (pager, over) = (&pager, &over);
                    scope.spawn(move || {
                        let mut round = 0;
                        while !over.load(Ordering::SeqCst) {
                            let region = pager.region(5 << 20).unwrap();
                            stress_region(pager, &region, 2, 300, seed + round);
                            round += 10;
                        }
                    })
                })
                .collect();
            for i in 0..8 {
                let child = fork(|| wrong(still.view(), 2).is_none());
                // At the same time, in the parent.
                let page = mix(i) as usize % PAGES;
                assert_eq!(still.view::<u64>()[page * 512 + 5], word(page, 5, 2));
                ended_well(child);
            }
            drop(ends);
            noise.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(wrong(still.view(), 2), None);
    }
}

#[test]
fn pages_are_swapped_out_again_after_a_fork() {
    let pager = inherited(SwapSpec::defaults());
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    write_all(region.view_mut(), 1);
    let (read, mut write) = std::io::pipe().unwrap();
    let child = fork(|| std::io::Read::read_exact(&mut &read, &mut [0u8; 1]).is_ok());
    // All pages present are shared with the child, which lives.
    for version in 2..5 {
        write_all(region.view_mut(), version);
        assert_eq!(wrong(region.view(), version), None);
    }
    std::io::Write::write_all(&mut write, b"x").unwrap();
    ended_well(child);
    let stats = pager.stats().unwrap();
    assert_eq!(stats.over_budget, 0, "{stats:?}");
}

/// The child's threads begin while the fork is not over yet, and end before they have done anything. (Fails by not
/// ending.)
#[test]
fn a_child_may_drop_the_pager_at_once() {
    for _ in 0..100 {
        let pager = inherited(SwapSpec::defaults());
        let mut region = pager.region(PAGE_SIZE).unwrap();
        region[0] = 1;
        let child = fork(move || {
            drop((region, pager));
            true
        });
        ended_well(child);
    }
}

#[test]
fn thread_mode_is_refused() {
    let built = Pager::builder().fault_mode(FaultMode::Thread).inherit(true).build();
    assert!(matches!(built, Err(Error::InheritThread)));
}
