//! Batches against a plain file: merging, order, short transfers, errors, with and without io_uring.

use super::inject::{Faults, Injector, Upset};
use super::*;
use crate::testing::{Frame, page_of};
use farpage_swap::sim::Random;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;

fn file(dir: &std::path::Path, direct: bool) -> OwnedFd {
    let flags = OFlags::RDWR | OFlags::TMPFILE | if direct { OFlags::DIRECT } else { OFlags::empty() };
    rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).unwrap()
}

/// Where disks are; tempfile's default may be memory.
fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn place(fd: &OwnedFd, page: u64, injector: Option<&Arc<Injector>>) -> Place {
    Place::in_file(fd.as_raw_fd(), page * PAGE_SIZE as u64, true, injector.cloned())
}

fn rings(uring: bool) -> Rings {
    let rings = Rings::default();
    if !uring {
        rings.refuse();
    }
    rings
}

/// Random batches of random pages, each page compared with a model; with `faults`, failed pages are tried again.
fn random_batches(uring: bool, faults: Option<Faults>) {
    let dir = disk();
    let fd = file(dir.path(), true);
    let rings = rings(uring);
    let injector = faults.map(|f| Arc::new(Injector::new(f)));
    let mut rng = Random(7);
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut seed = 0;
    for _ in 0..300 {
        // A few stretches of neighbours, in file order, as callers push them.
        let mut slots: Vec<u64> = (0..1 + rng.index(BATCH_MAX)).map(|_| rng.index(200) as u64).collect();
        slots.sort_unstable();
        slots.dedup();
        let write = model.is_empty() || rng.index(2) == 0;
        if !write {
            slots.retain(|slot| model.contains_key(slot));
        }
        let mut frames: Vec<_> = slots.iter().map(|_| Frame::boxed()).collect();
        if write {
            for (slot, frame) in slots.iter().zip(&mut frames) {
                seed += 1;
                *frame = page_of(seed);
                model.insert(*slot, seed);
            }
        }
        let mut todo: Vec<usize> = (0..slots.len()).collect();
        for attempt in 0.. {
            assert!(attempt < 40, "faults never end");
            let mut batch = Batch::new(if write { Direction::Write } else { Direction::Read });
            for &i in &todo {
                // SAFETY: the frames live until after the run, and nothing else touches them.
                unsafe { batch.push(&place(&fd, slots[i], injector.as_ref()), &mut frames[i].0) }.unwrap();
            }
            assert!(batch.runs() <= batch.len());
            let mut called = 0;
            rings.run(&mut batch, &mut || called += 1);
            assert_eq!(called, 1);
            let outcomes: Vec<_> = (0..todo.len()).map(|n| batch.outcome(n)).collect();
            let right = |i: usize| write || frames[i].0 == page_of(model[&slots[i]]).0;
            todo = todo
                .iter()
                .zip(outcomes)
                .filter(|&(&i, o)| o != Transferred::Done || !right(i))
                .map(|(&i, _)| i)
                .collect();
            if todo.is_empty() {
                break;
            }
            assert!(faults.is_some(), "failed without faults");
        }
    }
    assert_eq!(rings.refused(), !uring);
    if let Some(injector) = injector {
        println!("uring {uring}: {} faults injected, {:?} requests, pages", injector.injected(), rings.counts());
        assert!(injector.injected() > 20);
    }
}

#[test]
fn io_batches_match_a_model() {
    random_batches(true, None);
    random_batches(false, None);
}

#[test]
fn io_batches_get_over_errors_short_transfers_and_flipped_bits() {
    for seed in 0..3 {
        random_batches(true, Some(Faults { delay: 0, ..Faults::curable(seed) }));
        random_batches(false, Some(Faults { delay: 0, ..Faults::curable(seed) }));
    }
}

/// Writes that report success and are wrong: of one page each, on the disk only, and only those that were counted.
#[test]
fn io_silent_faults_change_what_is_stored_and_nothing_else() {
    let dir = disk();
    for (uring, faults) in [(true, Faults::silent(5)), (false, Faults::silent(6))] {
        for (torn, flip) in [(faults.silent_torn, 0), (0, faults.silent_flip)] {
            let fd = file(dir.path(), true);
            let rings = rings(uring);
            let faults = Faults { silent_torn: torn * 8, silent_flip: flip * 8, ..faults };
            let injector = Arc::new(Injector::new(faults));
            let mut wrong = 0;
            for round in 0..200u64 {
                // Two runs, so that the ring is used; neighbours in memory or not.
                let slots = [0, 1, 2, 9, 10].map(|slot| round * 20 + slot);
                let mut frames: Vec<_> = slots.iter().map(|slot| *page_of(slot * 8 + 7)).collect();
                let mut batch = Batch::new(Direction::Write);
                for (slot, frame) in slots.iter().zip(&mut frames) {
                    // SAFETY: the frames live until after the run, and nothing else touches them.
                    unsafe { batch.push(&place(&fd, *slot, Some(&injector)), &mut frame.0) }.unwrap();
                }
                rings.run(&mut batch, &mut || {});
                assert!((0..slots.len()).all(|n| batch.outcome(n) == Transferred::Done), "told");
                for (slot, frame) in slots.iter().zip(&frames) {
                    let right = page_of(slot * 8 + 7);
                    assert!(frame.0 == right.0, "the page in memory was changed");
                    let mut stored = Frame::boxed();
                    let got = rustix::io::pread(&fd, &mut stored.0, slot * PAGE_SIZE as u64).unwrap();
                    let differs = stored.0.iter().zip(&right.0).filter(|(a, b)| a != b).count();
                    assert!(differs <= 1 || torn > 0 && stored.0[..512] == right.0[..512], "{differs} bytes differ");
                    assert!(got == PAGE_SIZE || torn > 0, "a flipped bit is stored whole");
                    wrong += u64::from(differs > 0);
                }
            }
            println!("uring {uring}: {wrong} pages wrong");
            assert_eq!(wrong, injector.injected());
            assert!(wrong > 20);
        }
    }
}

#[test]
fn io_a_torn_write_stores_whole_units() {
    for unit in [512, 2048, 4096] {
        let faults = Faults { torn: 20_000, short: 20_000, silent_torn: 20_000, ..Faults::none(3) };
        let injector = Injector::new(faults).with_unit(unit);
        let mut torn = 0;
        for run in 0..300 {
            let len = PAGE_SIZE * (1 + run as usize % 3);
            if let Upset::Torn(bytes) | Upset::Short(bytes) | Upset::TornSilently(bytes) =
                injector.upset(Direction::Write, run * 64 * 1024, len)
            {
                assert!(bytes > 0 && bytes < len && bytes % unit == 0, "{bytes} of {len}, {unit}");
                torn += 1;
            }
        }
        assert!(torn > 50, "{torn}");
    }
}

#[test]
fn io_neighbours_are_merged() {
    let dir = disk();
    let fd = file(dir.path(), true);
    let mut frames: Vec<Frame> = Vec::new();
    frames.resize_with(8, || Frame([1; PAGE_SIZE]));
    let mut batch = Batch::new(Direction::Write);
    for (i, slot) in [1, 2, 3, 5, 6, 9, 8, 10].into_iter().enumerate() {
        // SAFETY: the frames live until after the run, and nothing else touches them.
        unsafe { batch.push(&place(&fd, slot, None), &mut frames[i].0) }.unwrap();
    }
    // 1-3, 5-6, 9, 8, 10; neighbours in memory are one vector.
    assert_eq!((batch.runs(), batch.vector_count), (5, 5));
    rings(true).run(&mut batch, &mut || {});
    assert!((0..8).all(|i| batch.outcome(i) == Transferred::Done));
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 11 * PAGE_SIZE as i64);
}

#[test]
fn io_the_end_of_the_file_and_errors_are_told_page_by_page() {
    let dir = disk();
    let fd = file(dir.path(), true);
    rustix::fs::ftruncate(&fd, 3 * PAGE_SIZE as u64).unwrap();
    for uring in [true, false] {
        let rings = rings(uring);
        let mut frames: Vec<_> = (0..4).map(|_| Frame::boxed()).collect();
        let mut batch = Batch::new(Direction::Read);
        for (slot, frame) in (1..).zip(&mut frames) {
            // SAFETY: as above.
            unsafe { batch.push(&place(&fd, slot, None), &mut frame.0) }.unwrap();
        }
        rings.run(&mut batch, &mut || {});
        let outcomes: Vec<_> = (0..4).map(|i| batch.outcome(i)).collect();
        assert_eq!(outcomes, [Transferred::Done, Transferred::Done, Transferred::EndOfFile, Transferred::EndOfFile]);
        // One run on a descriptor that is not there, one that is.
        let mut batch = Batch::new(Direction::Read);
        let gone = Place::in_file(-1, PAGE_SIZE as u64, true, None);
        // SAFETY: as above.
        unsafe {
            batch.push(&gone, &mut frames[0].0);
            batch.push(&place(&fd, 1, None), &mut frames[1].0);
        }
        rings.run(&mut batch, &mut || {});
        assert_eq!((batch.outcome(0), batch.outcome(1)), (Transferred::Failed(Errno::BADF), Transferred::Done));
    }
}

#[test]
fn io_every_thread_has_a_ring_of_its_own_and_more_threads_do_without() {
    let dir = disk();
    let fd = file(dir.path(), true);
    let rings = Rings::default();
    std::thread::scope(|scope| {
        for thread in 0..12u64 {
            let (rings, fd) = (&rings, &fd);
            scope.spawn(move || {
                for i in 0..50 {
                    let slot = thread * 100 + i;
                    for direction in [Direction::Write, Direction::Read] {
                        // Two runs: one is done plainly.
                        let mut frames = [slot, slot + 5000]
                            .map(|slot| if direction == Direction::Write { page_of(slot) } else { Frame::boxed() });
                        let mut batch = Batch::new(direction);
                        for (slot, frame) in [slot, slot + 5000].into_iter().zip(&mut frames) {
                            // SAFETY: as above.
                            unsafe { batch.push(&place(fd, slot, None), &mut frame.0) };
                        }
                        rings.run(&mut batch, &mut || {});
                        assert_eq!((batch.outcome(0), batch.outcome(1)), (Transferred::Done, Transferred::Done));
                        assert!(frames[0].0 == page_of(slot).0 && frames[1].0 == page_of(slot + 5000).0);
                    }
                }
            });
        }
    });
    assert!(!rings.refused());
}

/// A page that is loaded while a window is read may turn out to be on the same device.
#[test]
fn io_work_done_meanwhile_may_do_io_itself() {
    let dir = disk();
    let fd = file(dir.path(), true);
    let rings = Rings::default();
    let mut frames: Vec<_> = (0..4).map(|_| page_of(7)).collect();
    let (outer_frames, inner_frames) = frames.split_at_mut(2);
    let push = |batch: &mut Batch, slot: u64, frames: &mut [Box<Frame>]| {
        for (slot, frame) in [slot, slot + 9].into_iter().zip(frames) {
            // SAFETY: as above.
            unsafe { batch.push(&place(&fd, slot, None), &mut frame.0) };
        }
    };
    let (mut outer, mut inner) = (Batch::new(Direction::Write), Batch::new(Direction::Write));
    push(&mut outer, 1, outer_frames);
    rings.run(&mut outer, &mut || {
        push(&mut inner, 3, inner_frames);
        rings.run(&mut inner, &mut || {});
    });
    for batch in [&outer, &inner] {
        assert_eq!((batch.outcome(0), batch.outcome(1)), (Transferred::Done, Transferred::Done));
    }
}

/// What a forked child inherits of a ring: nothing it could break.
#[test]
fn io_a_forked_child_makes_rings_of_its_own() {
    let dir = disk();
    let fd = file(dir.path(), true);
    let rings = Rings::default();
    let transfer = |rings: &Rings, direction, slot: u64, frame: &mut Page| {
        let mut batch = Batch::new(direction);
        // The second run is there because one alone is done without a ring.
        let mut other = Frame::boxed();
        // SAFETY: as above.
        unsafe {
            batch.push(&place(&fd, slot, None), frame);
            batch.push(&place(&fd, slot + 100, None), &mut other.0);
        }
        rings.run(&mut batch, &mut || {});
        batch.outcome(0) == Transferred::Done && batch.outcome(1) == Transferred::Done
    };
    assert!(transfer(&rings, Direction::Write, 1, &mut page_of(1).0));
    // The ring's memory is not there in the child: mark where a mapping of the child's own would be lost.
    let mappings = |pattern: &str| std::fs::read_to_string("/proc/self/maps").unwrap().matches(pattern).count();
    assert!(mappings("io_uring") > 0);
    // SAFETY: the child uses the allocator of the C library only, which survives a fork, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut frame = Frame::boxed();
        let mut ok = mappings("io_uring") == 0;
        rings.fork_child();
        ok &= transfer(&rings, Direction::Read, 1, &mut frame.0) && frame.0 == page_of(1).0;
        ok &= transfer(&rings, Direction::Write, 2, &mut page_of(2).0) && !rings.refused();
        ok &= mappings("io_uring") > 0;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut frame = Frame::boxed();
    assert!(transfer(&rings, Direction::Read, 1, &mut frame.0) && frame.0 == page_of(1).0);
    let mut status = 0;
    // SAFETY: `status` is a valid place; the pid is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
    assert!(transfer(&rings, Direction::Read, 2, &mut frame.0) && frame.0 == page_of(2).0);
    assert!(!rings.refused() && rustix::io::fcntl_getfd(fd.as_fd()).is_ok());
}
