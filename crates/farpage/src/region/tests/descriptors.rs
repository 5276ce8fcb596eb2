//! Programs that close the descriptors that a pager has in their table, and use the numbers for files of their own.

use super::inherit::{ended_well, fork};
use super::*;
use rustix::fd::{BorrowedFd, RawFd};
use std::os::fd::AsRawFd;

const PAGES: usize = 4 << 8; // 4 MiB in 4, with all that a pager takes besides

fn fill(region: &mut Region, version: u64) {
    let words: &mut [u64] = region.view_mut();
    words.iter_mut().enumerate().for_each(|(i, w)| *w = word(i / 512, i % 512, version));
}

fn wrong(region: &Region, version: u64) -> usize {
    let words = region.view::<u64>().iter().enumerate();
    words.filter(|(i, w)| **w != word(i / 512, i % 512, version)).count()
}

/// What the program's table has of a pager.
fn copies(pager: &Pager) -> Vec<RawFd> {
    let e = &pager.owner.core;
    let all = e.uffd.fds().into_iter().chain(e.swap.fds());
    all.filter(|fd| e.table.is_copied(*fd)).collect()
}

/// Files of the program under the numbers of others: ordinary ones, full of ones.
struct Taken(Vec<(RawFd, u64)>);

impl Taken {
    fn new(numbers: &[RawFd]) -> Taken {
        let taken = numbers.iter().map(|number| {
            let file = tempfile::tempfile().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 16 * PAGE_SIZE], 0).unwrap();
            // SAFETY: the number is the test's own, or a pager's, and both are prepared for this.
            assert_eq!(unsafe { libc::dup3(file.as_raw_fd(), *number, libc::O_CLOEXEC) }, *number);
            (*number, rustix::fs::fstat(&file).unwrap().st_ino)
        });
        Taken(taken.collect())
    }

    /// They have been neither closed nor written.
    fn are_whole(&self) -> bool {
        self.0.iter().all(|(number, inode)| {
            // SAFETY: opened by `new`, and only closed by `drop`, or by mistake, which is what is asked here.
            let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(*number) });
            stat.is_ok_and(|stat| stat.st_ino == *inode && stat.st_size == 16 * PAGE_SIZE as i64)
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: opened by `new`.
        self.0.iter().for_each(|(number, _)| _ = unsafe { libc::close(*number) });
    }
}

#[test]
fn numbers_that_the_program_uses_itself_are_left_alone() {
    for devices in [vec![file()], SwapSpec::defaults()] {
        let pager = Pager::builder().budget(4 << 20).swap(devices).inherit(true).build().unwrap();
        let mut region = pager.region(2 * PAGES * PAGE_SIZE).unwrap();
        fill(&mut region, 1);
        let numbers = copies(&pager);
        assert!(numbers.len() >= 4, "userfaultfd, pagemap, directory, file: {numbers:?}");
        let taken = Taken::new(&numbers);
        assert_eq!(wrong(&region, 1), 0);
        fill(&mut region, 2);
        assert_eq!(wrong(&region, 2), 0);
        assert!(copies(&pager).is_empty(), "the program's files were taken for the pager's");
        ended_well(fork(|| {
            let good = wrong(&region, 2) == 0;
            fill(&mut region, 3);
            good && wrong(&region, 3) == 0 && taken.are_whole()
        }));
        assert_eq!(wrong(&region, 2), 0);
        drop((region, pager));
        assert!(taken.are_whole(), "the pager closed or wrote a file of the program");
    }
}

#[test]
fn a_pager_leaves_no_descriptor_behind() {
    let pager = Pager::builder().budget(4 << 20).swap(vec![file()]).build().unwrap();
    let mut region = pager.region(2 * PAGES * PAGE_SIZE).unwrap();
    fill(&mut region, 1);
    let numbers = copies(&pager);
    // SAFETY: only asked what they are.
    let file = |fd: &RawFd| rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(*fd) }).map(|s| (s.st_dev, s.st_ino));
    let before: Vec<_> = numbers.iter().map(|fd| file(fd).unwrap()).collect();
    // Other tests may use the numbers again, for other files. (A directory and a pagemap are the same for all.) The
    // inodes are held, or a new file of another test could have the number of the pager's.
    // SAFETY: as above.
    let held: Vec<_> = numbers.iter().map(|fd| rustix::io::dup(unsafe { BorrowedFd::borrow_raw(*fd) })).collect();
    assert!(held.iter().all(Result::is_ok));
    drop((region, pager));
    let swap = numbers.len() - 1;
    for at in [0, swap] {
        assert!(file(&numbers[at]) != Ok(before[at]), "{at} of {numbers:?}");
    }
}
