//! Swap files: content, limits, refusals, and which slots a fork freezes.

mod block;
mod content;
mod nbd;
mod redis;
mod threads;

use super::*;
use crate::file::health::WRITE_ERRORS_MAX;
use crate::testing::{Frame, check_of, page_of};
use farpage_swap::PAGE_SIZE;
use farpage_swap::cluster::CLUSTER_SLOTS;
use farpage_swap::sim::Random;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

fn usage(device: &FileDevice) -> Usage {
    let mut usage = Usage::default();
    device.add_usage(&mut usage);
    usage
}

fn expect(device: &FileDevice, entry: Entry, seed: u64) {
    let mut page = Frame::boxed();
    device.load(entry, &mut page.0).unwrap();
    assert!(page.0 == page_of(seed).0, "content of page {seed}");
    assert_eq!(device.check(entry), Some(check_of(seed)));
}

#[test]
fn device_file_is_created_unnamed_at_the_first_store() {
    for use_tmpfile in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let mut device = FileDevice::open(3, dir.path(), None).unwrap();
        device.site.use_tmpfile = use_tmpfile;
        let mut fds = Vec::new();
        device.fds(&mut fds);
        assert_eq!(fds.len(), 1, "only the directory");
        let entry = device.store(&page_of(1).0, check_of(1)).unwrap();
        assert_eq!((entry.device(), entry.slot()), (3, 1));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let backing = device.own_file().unwrap().1;
        println!("O_DIRECT: {}", backing.is_direct());
        let fd = std::fs::File::open(format!("/proc/self/fd/{}", backing.fd.raw().unwrap()));
        assert_eq!(fd.unwrap().metadata().unwrap().mode() & 0o777, 0o644);
    }
}

#[test]
fn device_file_takes_what_others_leave_of_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let clusters = 40;
    let device = FileDevice::open(2, dir.path(), Some(clusters * (CLUSTER_SLOTS * PAGE_SIZE) as u64)).unwrap();
    // Others have all but two clusters.
    device.share_size(|device, end, most| {
        assert_eq!((device, most), (2, 40 * CLUSTER_SLOTS as u64));
        end.min(2 * CLUSTER_SLOTS as u64)
    });
    let stored = (0..).take_while(|i| device.store(&page_of(*i).0, check_of(*i)).is_ok()).count();
    assert_eq!(stored, 2 * CLUSTER_SLOTS - 1, "one slot is the header's");
}

#[test]
fn device_file_random_pages_aligned_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let mut rng = Random(99);
    let mut live: HashMap<Entry, u64> = HashMap::new();
    let mut order = Vec::new();
    for seed in 0..800u64 {
        let n = 1 + rng.index(40);
        let frames: Vec<_> = (0..n as u64).map(|i| page_of(seed * 100 + i)).collect();
        // Every fifth batch has an unaligned page in it.
        let mut bytes = vec![0; 2 * PAGE_SIZE];
        let mut pages: Vec<_> = (0..n as u64).zip(&frames).map(|(i, f)| (&f.0, check_of(seed * 100 + i))).collect();
        if seed % 5 == 0 {
            bytes[24..24 + PAGE_SIZE].copy_from_slice(&frames[0].0);
            pages[0].0 = bytes[24..24 + PAGE_SIZE].try_into().unwrap();
        }
        let mut out = vec![None; n];
        // A place that is already taken stays.
        let other = Entry::new(9, 9);
        if n > 3 {
            out[2] = other;
        }
        device.store_batch(&pages, &mut out).unwrap();
        for (i, entry) in out.into_iter().enumerate().filter(|&(_, e)| e != other) {
            assert!(live.insert(entry.unwrap(), seed * 100 + i as u64).is_none());
            order.push(entry.unwrap());
        }
        while order.len() > 900 {
            let entry = order.swap_remove(rng.index(order.len()));
            expect(&device, entry, live.remove(&entry).unwrap());
            assert!(device.free(entry));
        }
    }
    for (&entry, &seed) in &live {
        expect(&device, entry, seed);
    }
    assert_eq!(usage(&device).slots_in_use, live.len() as u64);
    assert!(live.keys().all(|&entry| device.free(entry)));
    assert_eq!((usage(&device).slots_in_use, usage(&device).bad_frees), (0, 0));
}

#[test]
fn device_file_notices_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(2, dir.path(), None).unwrap();
    let frames: Vec<_> = (0..64).map(page_of).collect();
    let pages: Vec<_> = frames.iter().zip(0..).map(|(f, seed)| (&f.0, check_of(seed))).collect();
    let mut out = [None; 64];
    device.store_batch(&pages, &mut out).unwrap();
    let first = out[0].unwrap();
    assert_eq!(out[63], first.offset(63), "a batch lies side by side");
    (0..64).for_each(|i| expect(&device, out[i as usize].unwrap(), i));
    // Unaligned target.
    let mut bytes = vec![0; 2 * PAGE_SIZE];
    let (pages, _) = bytes[8..8 + PAGE_SIZE].as_chunks_mut::<PAGE_SIZE>();
    device.load(first.offset(5).unwrap(), &mut pages[0]).unwrap();
    assert!(pages[0] == frames[5].0);
    // Truncated behind our back.
    let mut fds = Vec::new();
    device.fds(&mut fds);
    rustix::fs::ftruncate(borrow(fds[1]), (first.slot() + 50) * PAGE_SIZE as u64).unwrap();
    let mut page = Frame::boxed();
    let lost = first.offset(60).unwrap();
    let slot = lost.slot();
    assert_eq!(device.load(lost, &mut page.0), Err(LoadError::ShortRead { device: 2, slot }));
    assert!(device.free(lost));
    assert_eq!(device.load(lost, &mut page.0), Err(LoadError::NotInUse { device: 2, slot }));
    assert_eq!(usage(&device).read_errors, 1);
    let page = PAGE_SIZE as u64;
    // What could not be read is not counted.
    assert_eq!((usage(&device).file_write_bytes, usage(&device).file_read_bytes), (64 * page, 65 * page));
}

#[test]
fn device_file_stops_at_its_size_and_goes_on_after_a_free() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), Some(700 * 4096)).unwrap();
    let page = page_of(5);
    let pages = vec![(&page.0, 5u128); 1000];
    let mut out = vec![None; 1000];
    assert_eq!(device.store_batch(&pages, &mut out), Err(StoreError::Full));
    assert_eq!(out.iter().flatten().count(), 699);
    assert!(!device.accepts() && usage(&device).devices_full == 1);
    assert_eq!(device.store(&page.0, 1), Err(StoreError::Full));
    assert!(device.free(out[17].unwrap()));
    assert_eq!(device.store(&page.0, 1), Ok(out[17].unwrap()));
}

#[test]
fn device_file_refuses_what_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path, part: &str| {
        let message = FileDevice::open(0, path, None).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("; ") && !message.contains('\n'), "{message}");
        println!("{message}");
    };
    refused(&dir.path().join("none"), "no such file");
    refused(Path::new("/dev/null"), "neither a directory, a regular file nor a block device");
    let path = dir.path().join("data");
    std::fs::write(&path, b"my precious data").unwrap();
    refused(&path, "not farpage's");
    assert_eq!(std::fs::read(&path).unwrap(), b"my precious data");
    std::fs::write(&path, b"short").unwrap();
    refused(&path, "not farpage's");
    let tiny = FileDevice::open(0, dir.path(), Some(4096)).map(|_| ()).unwrap_err();
    assert!(tiny.to_string().contains("size"));
}

/// Whatever its permissions and links are: nothing is in it that anybody could read, then or later.
#[test]
fn device_file_with_a_name_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("swap"), dir.path().join("link"));
    std::fs::write(&path, b"").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let devices = [&path, &link].map(|path| FileDevice::open(0, path, None).unwrap());
    for device in &devices {
        check(&path).unwrap();
        let entry = device.store(&page_of(3).0, check_of(3)).unwrap();
        expect(device, entry, 3);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let fd = device.own_file().unwrap().1.fd.raw().unwrap();
        assert_eq!(rustix::fs::fstat(borrow(fd)).unwrap().st_mode & 0o777, 0o644);
    }
}

#[test]
fn device_file_of_an_earlier_version_is_emptied_unless_it_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("swap");
    std::fs::write(&path, [&backing::MAGIC[..], &[7; 8192]].concat()).unwrap();
    let user = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&user, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for result in [check(&path), FileDevice::open(0, &path, None).map(drop)] {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("another process"), "{message}");
    }
    drop(user);
    check(&path).unwrap();
    assert_ne!(std::fs::metadata(&path).unwrap().len(), 0, "only looked at");
    FileDevice::open(0, &path, None).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn device_file_that_cannot_be_created_says_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    drop(dir);
    assert_eq!(device.store(&page_of(3).0, 0), Err(StoreError::Failed));
    assert_eq!(device.store(&page_of(3).0, 0), Err(StoreError::Failed));
    let warning = device.take_warning().unwrap();
    assert!(warning.contains("cannot create") && !warning.contains("os error"), "{warning}");
    assert_eq!(device.take_warning(), None);
    assert_eq!(usage(&device).devices_failed, 1);
    assert!(!device.accepts());
}

#[test]
fn device_file_write_errors_are_counted_and_their_slots_never_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let kept = device.store(&page_of(3).0, check_of(3)).unwrap();
    // A read-only descriptor in place of the file's: reads work, writes fail.
    let mut fds = Vec::new();
    device.fds(&mut fds);
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", fds[1])).unwrap();
    device.replace_fds(&[(fds[1], read_only.as_raw_fd())]);
    // A whole batch that fails is one failure.
    let page = page_of(4);
    let batch = [(&page.0, 0u128); 32];
    assert_eq!(device.store_batch(&batch, &mut [None; 32]), Err(StoreError::Io(Errno::BADF)));
    for i in 1..WRITE_ERRORS_MAX {
        assert_eq!(device.store(&page.0, 0), Err(StoreError::Io(Errno::BADF)), "try {i}");
    }
    assert_eq!(device.store(&page_of(4).0, 0), Err(StoreError::Failed));
    assert!(device.take_warning().unwrap().contains("writes keep failing"));
    expect(&device, kept, 3);
    let used = usage(&device);
    let failed = 31 + u64::from(WRITE_ERRORS_MAX);
    assert_eq!((used.write_errors, used.bad_slots, used.slots_in_use), (failed, failed, 1));
    device.replace_fds(&[(read_only.as_raw_fd(), fds[1])]);
}

/// A slot that is being written has no content yet that could be moved; once it is there, it is looked at again.
#[test]
fn device_file_a_write_in_flight_is_not_taken_off() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let kept = device.store(&page_of(3).0, check_of(3)).unwrap();
    let (own, backing) = device.own_file().unwrap();
    let (slot, _) = device.take(own, backing, 1).unwrap();
    device.health.fail("somebody else's read failed", Errno::IO);
    let drained: Vec<_> = std::iter::from_fn(|| device.next_to_drain()).collect();
    assert_eq!(drained, [(kept, check_of(3))]);
    let in_flight = Entry::new(0, slot).unwrap();
    let mut page = Frame::boxed();
    assert_eq!(device.load(in_flight, &mut page.0), Err(LoadError::NotInUse { device: 0, slot }));
    assert!(device.check(in_flight).is_none() && !device.free(in_flight));
    assert!(!device.wants_drain());
}

/// A write that ends while the drain is under way, behind it.
#[test]
fn device_file_a_write_that_ends_behind_the_drain_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let (own, backing) = device.own_file().unwrap();
    let (slot, _) = device.take(own, backing, 1).unwrap();
    // Slots come from a cluster for each CPU, so the next one need not lie behind it.
    let mut live = HashSet::new();
    while live.iter().filter(|entry: &&Entry| entry.slot() > slot).count() < 2 {
        live.insert(device.store(&page_of(3).0, check_of(3)).unwrap());
    }
    device.health.fail("somebody else's read failed", Errno::IO);
    let mut named = Vec::new();
    while named.last().is_none_or(|entry: &Entry| entry.slot() < slot) {
        named.push(device.next_to_drain().unwrap().0);
    }
    let page = page_of(4);
    let mut out = [None];
    device.write(own, backing, &[(&page.0, check_of(4))], &[(0, slot)], &mut out).unwrap();
    let late = out[0].unwrap();
    assert_eq!(late.slot(), slot);
    named.extend(std::iter::from_fn(|| device.next_to_drain()).map(|(entry, _)| entry));
    assert!(named.contains(&late) && live.iter().all(|entry| named.contains(entry)));
    assert!(!device.wants_drain());
}

/// Two threads drain: one comes to the end while the other finds no room for a page.
#[test]
fn device_file_a_page_that_found_no_room_elsewhere_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let entry = device.store(&page_of(3).0, check_of(3)).unwrap();
    device.health.fail("somebody else's read failed", Errno::IO);
    assert_eq!(device.next_to_drain(), Some((entry, check_of(3))));
    assert!(device.next_to_drain().is_none() && !device.wants_drain());
    device.drain_again_from(entry);
    assert!(device.wants_drain());
    assert_eq!(device.next_to_drain(), Some((entry, check_of(3))));
}

/// The rule itself, against a model: a slot that some child can see is never given out again.
#[test]
fn device_file_a_frozen_slot_is_not_given_out_before_its_leases_end() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let page = page_of(1);
    let mut rng = Random(5);
    let mut live: Vec<Entry> = Vec::new();
    let mut children: HashMap<u32, HashSet<Entry>> = HashMap::new();
    let mut forks = 0;
    for _ in 0..4000 {
        match rng.index(40) {
            0 if children.len() < 5 => {
                device.fork_parent();
                children.insert(forks, live.iter().copied().collect());
                forks += 1;
            }
            1 => {
                if let Some(&lease) = children.keys().min_by_key(|&&l| rng.0 ^ u64::from(l)) {
                    children.remove(&lease);
                    device.end_lease(lease);
                }
            }
            n if n % 2 == 0 && !live.is_empty() => {
                let entry = live.swap_remove(rng.index(live.len()));
                assert!(device.free(entry) && !device.free(entry));
                assert_eq!(device.check(entry), None);
            }
            _ => {
                let entry = device.store(&page.0, 1).unwrap();
                assert!(!live.contains(&entry));
                assert!(children.values().all(|seen| !seen.contains(&entry)), "frozen slot given out");
                live.push(entry);
            }
        }
        let kept: HashSet<_> = children.values().flatten().filter(|e| !live.contains(e)).collect();
        assert_eq!(usage(&device).deferred_slots, kept.len() as u64);
        assert_eq!(usage(&device).slots_in_use, live.len() as u64);
    }
    children.keys().for_each(|&lease| device.end_lease(lease));
    assert_eq!(usage(&device).deferred_slots, 0);
}

#[test]
fn device_file_a_child_keeps_its_inheritance_and_writes_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let mut live: Vec<(Entry, u64)> = Vec::new();
    // Each round stands for a fork followed in the child.
    for round in 0..5u64 {
        for seed in round * 10..round * 10 + 10 {
            live.push((device.store(&page_of(seed).0, check_of(seed)).unwrap(), seed));
        }
        let mut old = Vec::new();
        device.fds(&mut old);
        let copies: Vec<_> = old.iter().map(|&fd| (fd, rustix::io::dup(borrow(fd)).unwrap())).collect();
        let map: Vec<_> = copies.into_iter().map(|(fd, copy)| (fd, rustix::fd::IntoRawFd::into_raw_fd(copy))).collect();
        device.fork_child(&map);
        let mut new = Vec::new();
        device.fds(&mut new);
        assert_eq!(new, map.iter().map(|m| m.1).collect::<Vec<_>>());
        // The numbers of the parent are not the child's to close; here they stand for it.
        // SAFETY: nothing uses the old numbers any more.
        old.into_iter().for_each(|fd| unsafe { rustix::io::close(fd) });
        live.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    }
    let slots: HashSet<_> = live.iter().map(|(entry, _)| entry).collect();
    assert_eq!(slots.len(), 50);
    let count = || {
        let mut fds = Vec::new();
        device.fds(&mut fds);
        fds.len()
    };
    assert_eq!(count(), 6, "the directory and five inherited files");
    // The files go with their last page, and their ids are used again.
    for (i, (entry, _)) in live.iter().enumerate() {
        assert!(device.free(*entry));
        assert_eq!(count(), 6 - (i + 1) / 10);
    }
    assert_eq!(usage(&device).slots_in_use, 0);
    device.fork_child(&[(0, 0)]);
    assert_eq!(device.store(&page_of(1).0, 0), Err(StoreError::Failed), "without a directory");
}

fn borrow(fd: RawFd) -> rustix::fd::BorrowedFd<'static> {
    // SAFETY: the tests pass descriptors that the device under test keeps open during the call.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}
