//! System calls of libc on region memory that is swapped out.

use super::inherit::{ended_well, fork};
use super::*;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

const PAGES: usize = 4 << 10; // 16 MiB in 4

fn with_calls(devices: Vec<SwapSpec>) -> Pager {
    Pager::builder().budget(4 << 20).swap(devices).system_calls(true).inherit(true).build().unwrap()
}

fn fill(region: &mut Region, version: u64) {
    let words: &mut [u64] = region.view_mut();
    words.iter_mut().enumerate().for_each(|(i, w)| *w = word(i / 512, i % 512, version));
}

fn is_right(bytes: &[u8], first: usize, version: u64) -> bool {
    let words = bytes.chunks_exact(8).enumerate();
    words.into_iter().all(|(i, w)| w == word(first + i / 512, i % 512, version).to_ne_bytes())
}

#[test]
fn a_region_four_times_the_budget_goes_through_a_file_in_one_call() {
    for devices in [vec![file()], SwapSpec::defaults()] {
        let pager = with_calls(devices);
        let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
        fill(&mut region, 1);
        let mut out = tempfile::tempfile().unwrap();
        out.write_all(&region).unwrap();
        out.rewind().unwrap();
        let mut seen = vec![0; PAGES * PAGE_SIZE];
        out.read_exact(&mut seen).unwrap();
        assert!(is_right(&seen, 0, 1));
        // And back, over pages that are swapped out, and some that were never touched.
        let mut other = pager.region(PAGES * PAGE_SIZE).unwrap();
        out.rewind().unwrap();
        out.read_exact(&mut other).unwrap();
        assert!(is_right(&other, 0, 1));
        let stats = pager.stats().unwrap();
        assert!(stats.pinned_bytes == 0 && stats.resident_bytes <= 4 << 20, "{stats:?}");
    }
}

/// Reclaim goes on around what calls hold.
#[test]
fn calls_of_many_threads_between_faults_of_many_threads() {
    let pager = with_calls(SwapSpec::defaults());
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    fill(&mut region, 1);
    let parts: Vec<&mut [u8]> = region.chunks_mut(PAGES / 4 * PAGE_SIZE).collect();
    std::thread::scope(|scope| {
        for (n, part) in parts.into_iter().enumerate() {
            scope.spawn(move || {
                let mut out = tempfile::tempfile().unwrap();
                for round in 0..40 {
                    let at = mix((n * 100 + round) as u64) as usize % (PAGES / 4 - 64);
                    let range = at * PAGE_SIZE..(at + 64) * PAGE_SIZE;
                    out.rewind().unwrap();
                    out.write_all(&part[range.clone()]).unwrap();
                    part[range.clone()].fill(0xee);
                    out.rewind().unwrap();
                    out.read_exact(&mut part[range.clone()]).unwrap();
                    assert!(is_right(&part[range], n * PAGES / 4 + at, 1), "{n} {round}");
                }
                assert!(is_right(part, n * PAGES / 4, 1));
            });
        }
    });
    assert_eq!(pager.stats().unwrap().pinned_bytes, 0);
}

#[test]
fn a_child_that_is_forked_while_another_thread_is_in_a_call_holds_nothing() {
    let pager = with_calls(SwapSpec::defaults());
    let mut region = pager.region(PAGES * PAGE_SIZE).unwrap();
    fill(&mut region, 1);
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let (head, tail) = region.split_at_mut(PAGES / 2 * PAGE_SIZE);
        let waits = scope.spawn(|| {
            let mut reader = reader;
            reader.read(&mut head[..PAGE_SIZE]).unwrap()
        });
        while pager.stats().unwrap().pinned_bytes == 0 {
            std::thread::yield_now();
        }
        let child = fork(|| {
            let mut out = tempfile::tempfile().unwrap();
            pager.stats().unwrap().pinned_bytes == 0 && out.write_all(tail).is_ok() && is_right(tail, PAGES / 2, 1)
        });
        writer.write_all(&[5; 10]).unwrap();
        ended_well(child);
        assert_eq!(waits.join().unwrap(), 10);
    });
    assert_eq!(region[..10], [5; 10]);
    assert_eq!(pager.stats().unwrap().pinned_bytes, 0);
}

/// What lies between two pagers, a thread's stack for instance, is looked at and left alone.
#[test]
fn memory_between_two_pagers_is_no_region() {
    let (first, second) = (with_calls(SwapSpec::defaults()), with_calls(SwapSpec::defaults()));
    let (a, b) = (first.region(PAGE_SIZE).unwrap(), second.region(PAGE_SIZE).unwrap());
    let ends = [a.as_ptr() as usize, b.as_ptr() as usize];
    // Those of new threads come below what was mapped before.
    let many: Vec<_> = (0..8).map(|_| with_calls(vec![file()])).collect();
    let write = || {
        let on_stack = [3u8; 100];
        let mut out = tempfile::tempfile().unwrap();
        out.write_all(&on_stack).unwrap();
        (on_stack.as_ptr() as usize, out)
    };
    let written = std::thread::spawn(write).join().unwrap();
    assert_eq!(written.1.metadata().unwrap().len(), 100);
    drop((many, ends));
}

/// What the kernel says of a bad descriptor or an address that is none stays as it is.
#[test]
fn errors_are_the_kernels() {
    let pager = with_calls(SwapSpec::defaults());
    let region = pager.region(PAGE_SIZE).unwrap();
    let out = tempfile::tempfile().unwrap();
    let call = |fd, at, len| {
        // SAFETY: reads memory, or fails.
        let result = unsafe { libc::write(fd, at as *const _, len) };
        (result, std::io::Error::last_os_error().raw_os_error().filter(|_| result < 0))
    };
    let at = region.as_ptr() as usize;
    assert_eq!(call(-1, at, 1), (-1, Some(libc::EBADF)));
    assert_eq!(call(out.as_raw_fd(), 16, 1), (-1, Some(libc::EFAULT)));
    // Behind the region is nothing: what is there is written.
    assert_eq!(call(out.as_raw_fd(), at, 2 * PAGE_SIZE), (PAGE_SIZE as isize, None));
    assert_eq!(call(out.as_raw_fd(), at + PAGE_SIZE, 1), (-1, Some(libc::EFAULT)));
}
