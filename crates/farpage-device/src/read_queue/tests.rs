//! Reads in flight: windows of all kinds against a model, faults, discarded entries, a fork in between.

use super::*;
use crate::testing::{Frame, Region, page_of};
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::{Alg, DeviceKind, InjectedFault, SwapSpec};
use farpage_swap::sim::Random;
use std::collections::HashMap;

/// Compressed pool and file, half of the pages in each; entries by seed.
fn filled(region: &Region, fault: Option<u64>, pages: u64) -> (SwapSpace, HashMap<u64, Entry>, tempfile::TempDir) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let specs = [SwapSpec { size: Some(pages / 2 * 4096), ..SwapSpec::zram(Alg::Lz4) }, with_faults(dir.path(), fault)];
    // SAFETY: the region is private, zero memory that outlives the space and is used for nothing else.
    let space = unsafe { SwapSpace::build(&specs, region.base().as_ptr(), region.bytes(), 64 << 20) }.unwrap();
    let key = ContentKey::random();
    space.check_contents(key);
    let mut entries = HashMap::new();
    for seed in 0..pages {
        let page = page_of(seed);
        entries.insert(seed, space.store(&page.0, key.hash(&page.0)).unwrap());
    }
    assert!(space.usage().file_bytes > 0 && space.usage().pool_bytes > 0);
    (space, entries, dir)
}

/// A file whose faults can be got over.
fn with_faults(path: &std::path::Path, seed: Option<u64>) -> SwapSpec {
    let fault = seed.map(InjectedFault::Curable);
    DeviceKind::File { path: path.into(), keep_free: None, encrypt: seed.is_some(), fault }.into()
}

struct Flight {
    seeds: Vec<u64>,
    frames: Vec<Box<Frame>>,
}

/// What became of windows.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub deferred: u32,
    pub at_once: u32,
    /// Windows that did not come whole.
    pub failed: u32,
}

/// Up to ten windows at a time, of 1 to 64 pages anywhere: what comes is right; whether all must come.
pub(crate) fn windows(space: &SwapSpace, entries: &[Entry], count: u64, all: bool) -> Served {
    let mut rng = Random(11);
    let mut queue = ReadQueue::new();
    let mut flights: HashMap<u64, Flight> = HashMap::new();
    let mut served = Served::default();
    let check = |flight: &Flight, arrived: Arrived| {
        let whole = (arrived.loaded, arrived.error) == (flight.seeds.len(), None);
        assert!(whole || (!all && arrived.error.is_some()), "{arrived:?}");
        for (seed, frame) in flight.seeds.iter().zip(&flight.frames).take(arrived.loaded) {
            assert!(frame.0 == page_of(*seed).0, "content of page {seed}");
        }
        u32::from(!whole)
    };
    let pages = entries.len();
    for tag in 0..count {
        let start = rng.index(pages - 64) as u64;
        let n = 1 + rng.index(64) as u64;
        // Neighbours, or anywhere.
        let seeds: Vec<u64> = (0..n).map(|i| if tag % 2 == 0 { start + i } else { rng.index(pages) as u64 }).collect();
        let mut flight = Flight { frames: seeds.iter().map(|_| Frame::boxed()).collect(), seeds };
        let wanted: Vec<Entry> = flight.seeds.iter().map(|seed| entries[*seed as usize]).collect();
        let mut pages: Vec<&mut Page> = flight.frames.iter_mut().map(|frame| &mut frame.0).collect();
        // SAFETY: the frames are boxed, kept in `flights` and not looked at before the queue names the tag.
        match unsafe { queue.submit(space, tag, &wanted, &mut pages) } {
            Submitted::Done(arrived) => {
                served.at_once += 1;
                assert_eq!(arrived.tag, tag);
                served.failed += check(&flight, arrived);
            }
            Submitted::InFlight => {
                served.deferred += 1;
                flights.insert(tag, flight);
            }
        }
        while let Some(arrived) = if flights.len() > 9 { queue.wait(space) } else { queue.next(space) } {
            served.failed += check(&flights.remove(&arrived.tag).unwrap(), arrived);
        }
        assert_eq!(queue.in_flight(), flights.len());
    }
    queue.finish_all(space, |arrived| served.failed += check(&flights.remove(&arrived.tag).unwrap(), arrived));
    assert!(flights.is_empty() && queue.in_flight() == 0);
    served
}

fn random_windows(fault: Option<u64>, uring: bool) {
    let region = Region::new(64 << 20);
    let (space, entries, _dir) = filled(&region, fault, 1500);
    if !uring {
        space.rings().refuse();
    }
    let entries: Vec<Entry> = (0..1500).map(|seed| entries[&seed]).collect();
    let served = windows(&space, &entries, 400, true);
    assert_eq!(served.deferred > 0, uring, "{served:?}");
}

#[test]
fn read_queue_windows_match_a_model() {
    random_windows(None, true);
    random_windows(None, false);
}

#[test]
fn read_queue_gets_over_faults() {
    random_windows(Some(1), true);
    random_windows(Some(2), false);
}

#[test]
fn read_queue_its_descriptor_says_when_to_look() {
    let region = Region::new(64 << 20);
    let (space, entries, _dir) = filled(&region, None, 600);
    let mut queue = ReadQueue::new();
    assert!(queue.fds().next().is_none());
    let on_file = *entries.iter().find(|(_, entry)| !space.is_synchronous(**entry)).unwrap().0;
    for tag in 0..50 {
        let mut frame = Frame::boxed();
        // SAFETY: the frame is not looked at before the queue names the tag.
        let submitted = unsafe { queue.submit(&space, tag, &[entries[&on_file]], &mut [&mut frame.0]) };
        assert_eq!(submitted, Submitted::InFlight);
        let fd = queue.fds().next().unwrap();
        let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut poll, None).unwrap(), 1);
        let arrived = queue.next(&space);
        assert_eq!(arrived, Some(Arrived { tag, loaded: 1, error: None }));
        assert!(frame.0 == page_of(on_file).0);
        // Nothing more to look at, after a false alarm at most.
        let alarms = (0..4).take_while(|_| {
            let fd = queue.fds().next().unwrap();
            let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let alarm = rustix::event::poll(&mut poll, Some(&now)).unwrap() > 0;
            assert_eq!(queue.next(&space), None);
            alarm
        });
        assert!(alarms.count() <= 1);
    }
}

#[test]
fn read_queue_entries_may_be_freed_and_their_slots_used_again_meanwhile() {
    let region = Region::new(64 << 20);
    let (space, mut entries, _dir) = filled(&region, None, 600);
    let mut queue = ReadQueue::new();
    let on_file: Vec<u64> = (0..600).filter(|seed| !space.is_synchronous(entries[seed])).collect();
    for (tag, pair) in (0..).zip(on_file.chunks(2).filter(|pair| pair.len() == 2)) {
        let mut frames = [Frame::boxed(), Frame::boxed()];
        let wanted = [entries[&pair[0]], entries[&pair[1]]];
        let [a, b] = &mut frames;
        // SAFETY: the frames are not looked at before the queue names the tag.
        let submitted = unsafe { queue.submit(&space, tag, &wanted, &mut [&mut a.0, &mut b.0]) };
        assert_eq!(submitted, Submitted::InFlight);
        let gone = entries.remove(&pair[1]).unwrap();
        assert!(space.free(gone));
        // The first page arrives; nothing is promised of the other.
        let arrived = queue.wait(&space).unwrap();
        assert!(arrived.tag == tag && arrived.loaded >= 1);
        assert!(frames[0].0 == page_of(pair[0]).0);
    }
    assert_eq!(space.usage().read_errors, 0, "pages that nobody wants any more are not the device's fault");
}

#[test]
fn read_queue_in_a_forked_child_starts_anew() {
    let region = Region::new(64 << 20);
    let (space, entries, _dir) = filled(&region, None, 600);
    let mut queue = ReadQueue::new();
    let seed = *entries.iter().find(|(_, entry)| !space.is_synchronous(**entry)).unwrap().0;
    let read = |queue: &mut ReadQueue| {
        let mut frame = Frame::boxed();
        // SAFETY: the frame is not looked at before the queue names the tag.
        let submitted = unsafe { queue.submit(&space, 7, &[entries[&seed]], &mut [&mut frame.0]) };
        let arrived = if submitted == Submitted::InFlight { queue.wait(&space) } else { None };
        arrived == Some(Arrived { tag: 7, loaded: 1, error: None }) && frame.0 == page_of(seed).0
    };
    assert!(read(&mut queue));
    // SAFETY: the child uses the C library's allocator, which survives a fork, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fds: Vec<_> = space.fds().into_iter().map(|fd| (fd, fd)).collect();
        space.fork_child(&fds);
        queue.fork_child();
        let ok = read(&mut queue) && read(&mut queue);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    assert!(read(&mut queue));
    let mut status = 0;
    // SAFETY: `status` is a valid place; the pid is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
}
