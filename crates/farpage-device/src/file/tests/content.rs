//! Encryption, space given back, space kept free, a full disk.

use super::*;
use crate::io::inject::{Faults, Injector};
use std::collections::BTreeSet;

fn store_all(device: &FileDevice, seeds: std::ops::Range<u64>) -> Vec<(Entry, u64)> {
    let frames: Vec<_> = seeds.clone().map(page_of).collect();
    let pages: Vec<_> = frames.iter().zip(seeds.clone()).map(|(f, seed)| (&f.0, check_of(seed))).collect();
    let mut out = vec![None; pages.len()];
    device.store_batch(&pages, &mut out).unwrap();
    out.into_iter().map(Option::unwrap).zip(seeds).collect()
}

/// What is on the disk in a slot.
fn raw(device: &FileDevice, entry: Entry) -> Box<Frame> {
    let mut frame = Frame::boxed();
    let (file, slot, _) = device.tables.find(entry).unwrap();
    let backing = file.backing.get().unwrap();
    let n = rustix::io::pread(backing.fd.borrow().unwrap(), &mut frame.0, backing.at(slot)).unwrap();
    assert_eq!(n, PAGE_SIZE);
    frame
}

#[test]
fn device_file_encrypts_every_page_with_a_nonce_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let plain = FileDevice::open(0, dir.path(), None).unwrap();
    let (entry, _) = store_all(&plain, 3..4)[0];
    assert!(raw(&plain, entry).0 == page_of(3).0, "the test looks at the right place");
    let device = FileDevice::open(0, dir.path(), None).unwrap().with_encryption().unwrap();
    // The same content everywhere, then again in the same slots.
    let mut seen: HashSet<Vec<u8>> = HashSet::new();
    for _ in 0..2 {
        let page = page_of(3);
        let mut out = [None; 40];
        device.store_batch(&[(&page.0, check_of(3)); 40], &mut out).unwrap();
        for entry in out.into_iter().flatten() {
            let bytes = raw(&device, entry).0.to_vec();
            let equal = bytes.iter().zip(&page.0).filter(|(a, b)| a == b).count();
            assert!(equal < 100, "{equal} bytes are as they were");
            assert!(seen.insert(bytes), "encrypted in the same way twice");
            expect(&device, entry, 3);
            assert!(device.free(entry));
        }
    }
    // One bit of the disk changes one bit of the page, which the hash of the page finds.
    let key = ContentKey::random();
    device.check_contents(key);
    let page = page_of(5);
    let entry = device.store(&page.0, key.hash(&page.0)).unwrap();
    let mut back = Frame::boxed();
    device.load(entry, &mut back.0).unwrap();
    assert!(back.0 == page.0);
    let mut bytes = raw(&device, entry);
    bytes.0[77] ^= 1;
    let (file, slot, _) = device.tables.find(entry).unwrap();
    let backing = file.backing.get().unwrap();
    rustix::io::pwrite(backing.fd.borrow().unwrap(), &bytes.0, backing.at(slot)).unwrap();
    assert!(matches!(device.load(entry, &mut back.0), Err(LoadError::Corrupt { .. })));
}

/// The kernel's swap and core dumps do not get the key: here, and in a forked child, which does not inherit locks.
#[test]
fn device_file_keeps_its_key_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap().with_encryption().unwrap();
    let guarded = || device.seal.cipher.as_ref().unwrap().guards().len() == 2;
    assert!(guarded());
    let mut fds = Vec::new();
    device.fds(&mut fds);
    let map: Vec<_> = fds.iter().map(|&fd| (fd, fd)).collect();
    // SAFETY: the child uses the allocator of the C library only, which survives a fork, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        device.fork_child(&map);
        let ok = guarded();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place; the pid is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's copy");
}

#[test]
fn device_file_gives_the_space_of_empty_clusters_back() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap();
    let live = store_all(&device, 0..512 * 5);
    let backing = device.tables.own_backing().unwrap();
    let before = backing.disk_bytes();
    assert!(before >= 512 * 5 * 4096);
    assert!(!device.discard_one(), "everything is in use");
    // Of one cluster a single page stays; those behind it become empty.
    let (kept, freed): (Vec<_>, Vec<_>) =
        live.into_iter().partition(|(entry, _)| entry.slot() / 512 == 1 || entry.slot() == 2 * 512 + 7);
    freed.iter().for_each(|(entry, _)| assert!(device.free(*entry)));
    // Cluster 0 has a slot that is never given out. Which others were used depends on the CPUs this thread ran on.
    let clusters = |of: &[(Entry, _)]| of.iter().map(|(entry, _)| entry.slot() / 512).collect::<BTreeSet<_>>();
    let empty = clusters(&freed).difference(&clusters(&kept)).filter(|cluster| **cluster != 0).count();
    let done = std::iter::from_fn(|| device.discard_one().then_some(())).count();
    assert_eq!(done, empty);
    let after = backing.disk_bytes();
    println!("{before} bytes, then {after}; {done} clusters");
    assert_eq!(usage(&device).discarded_bytes, done as u64 * 512 * 4096);
    // The last cluster was only begun, by each CPU.
    assert!(done >= 2 && after + (done as u64 - 2) * 512 * 4096 <= before, "{before} {after}");
    kept.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
    // The space is used again.
    let again = store_all(&device, 9000..9000 + 512 * 4);
    again.iter().chain(&kept).for_each(|&(entry, seed)| expect(&device, entry, seed));
    let slots: HashSet<_> = again.iter().chain(&kept).map(|(entry, _)| entry).collect();
    assert_eq!(slots.len(), again.len() + kept.len());
}

#[test]
fn device_file_leaves_what_is_to_stay_free() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::open(0, dir.path(), None).unwrap().with_keep_free(Some(1 << 60));
    assert_eq!(device.store(&page_of(1).0, 0), Err(StoreError::Full));
    assert_eq!((usage(&device).devices_full, usage(&device).devices_failed), (1, 0));
    let device = FileDevice::open(0, dir.path(), None).unwrap().with_keep_free(Some(1));
    assert!(device.store(&page_of(1).0, 0).is_ok());
}

#[test]
fn device_file_a_full_disk_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults { full_after: Some(3), ..Faults::none(1) };
    let device = FileDevice::open(0, dir.path(), None).unwrap().with_faults(Arc::new(Injector::new(faults)));
    let live: Vec<_> = (1..4).map(|seed| (device.store(&page_of(seed).0, check_of(seed)).unwrap(), seed)).collect();
    for seed in 4..40 {
        assert_eq!(device.store(&page_of(seed).0, 0), Err(StoreError::Full));
    }
    let now = usage(&device);
    assert_eq!((now.devices_full, now.devices_failed, now.write_errors, now.bad_slots), (1, 0, 0, 0));
    assert_eq!((now.slots_in_use, device.take_warning()), (3, None));
    live.iter().for_each(|&(entry, seed)| expect(&device, entry, seed));
}
