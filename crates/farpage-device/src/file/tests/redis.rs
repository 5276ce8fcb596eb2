//! Devices on a Redis server in threads, which can be told to misbehave.

use crate::file::FileDevice;
use crate::io::{BATCH_MAX, Batch, Direction, Rings, Transferred};
use crate::testing::{Frame, Region, page_of};
use crate::{Entry, LoadError, StoreError, SwapDevice, SwapSpace, Usage};
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::SwapSpec;
use farpage_server::redis::pages::RedisStores;
use farpage_server::redis::server::Server;
use farpage_server::redis::sweep;
use farpage_server::testing::redis::{FakeServer, Wrong};
use farpage_swap::PAGE_SIZE;

fn device_on(server: &FakeServer, encrypt: bool) -> (FileDevice, ContentKey) {
    device_of(server, encrypt, None)
}

fn device_of(server: &FakeServer, encrypt: bool, size: Option<u64>) -> (FileDevice, ContentKey) {
    let known = Server::of(&server.redis(), None).unwrap();
    known.open().unwrap();
    let mut device = FileDevice::on_store(0, "r".into(), size, Box::new(RedisStores::new(known, "me 1".into())));
    if encrypt {
        device = device.with_encryption().unwrap();
    }
    let key = ContentKey::random();
    device.check_contents(key);
    (device, key)
}

fn store(device: &FileDevice, key: &ContentKey, seeds: std::ops::Range<u64>) -> Vec<(Entry, u64)> {
    let frames: Vec<_> = seeds.clone().map(page_of).collect();
    let pages: Vec<_> = frames.iter().map(|frame| (&frame.0, key.hash(&frame.0))).collect();
    let mut out = vec![None; pages.len()];
    device.store_batch(&pages, &mut out).unwrap();
    out.into_iter().map(Option::unwrap).zip(seeds).collect()
}

fn usage(device: &FileDevice) -> Usage {
    let mut usage = Usage::default();
    device.add_usage(&mut usage);
    usage
}

#[test]
fn device_redis_gives_back_what_it_was_given_and_the_server_cannot_read_it() {
    for encrypt in [true, false] {
        let server = FakeServer::start();
        let (device, key) = device_on(&server, encrypt);
        let live = store(&device, &key, 0..200);
        assert_eq!((server.pages(), usage(&device).slots_in_use), (200, 200));
        let mut frames: Vec<_> = live.iter().map(|_| Frame::boxed()).collect();
        for (live, frames) in live.chunks(BATCH_MAX).zip(frames.chunks_mut(BATCH_MAX)) {
            let mut batch = Batch::new(Direction::Read);
            for ((entry, _), frame) in live.iter().zip(frames.iter_mut()) {
                let place = device.place(*entry).unwrap();
                // SAFETY: the frames are borrowed until the batch has been run, and nobody looks at them.
                unsafe { batch.push(&place, &raw mut frame.0) }.unwrap();
            }
            Rings::default().run(&mut batch, &mut || {});
            assert!((0..batch.len()).all(|i| batch.outcome(i) == Transferred::Done));
            assert!(live.iter().zip(frames).all(|((entry, _), frame)| device.complete(*entry, &mut frame.0)));
        }
        assert!(frames.iter().zip(&live).all(|(frame, (_, seed))| frame.0 == page_of(*seed).0));
        let sizes: usize = server.content().values.values().map(Vec::len).sum();
        assert!(sizes < 200 * PAGE_SIZE * 3 / 4, "they are compressed: {sizes}");
        // A word that is in the pages of this kind as it is.
        let word = page_of(7).0[64..80].to_vec();
        let is_there = |value: &Vec<u8>| value.windows(16).any(|window| window == word);
        assert_eq!(server.content().values.values().any(is_there), !encrypt);
    }
}

#[test]
fn device_redis_believes_a_server_nothing() {
    for encrypt in [true, false] {
        let server = FakeServer::start();
        let (device, key) = device_on(&server, encrypt);
        // Slots that are used for the second time, so that there is something old.
        let first = store(&device, &key, 1000..1064);
        first.iter().for_each(|(entry, _)| assert!(device.free(*entry)));
        while device.look_after_server() {}
        let live = store(&device, &key, 0..64);
        for wrong in [
            Wrong::Foreign,
            Wrong::Old,
            Wrong::Zeros,
            Wrong::Cut,
            Wrong::Flipped,
            Wrong::Long,
            Wrong::Other,
            Wrong::Empty,
            Wrong::Nothing,
        ] {
            server.content().wrong = wrong;
            let mut lost = 0;
            // After what is no answer there are pauses.
            let few = if matches!(wrong, Wrong::Long | Wrong::Other) { 2 } else { live.len() };
            for (entry, seed) in &live[..few] {
                let mut frame = Frame::boxed();
                match device.load(*entry, &mut frame.0) {
                    Ok(()) => assert!(frame.0 == page_of(*seed).0, "{wrong:?}"),
                    Err(LoadError::NotInUse { .. }) => panic!("{wrong:?}"),
                    Err(_) => lost += 1,
                }
            }
            assert_eq!(lost > 0, wrong != Wrong::Nothing, "{wrong:?}: {lost}");
        }
    }
}

#[test]
fn device_redis_a_full_server_is_a_full_device() {
    let server = FakeServer::start();
    let (device, key) = device_on(&server, true);
    let live = store(&device, &key, 0..10);
    server.content().wrong = Wrong::Full;
    let page = page_of(11);
    assert_eq!(device.store(&page.0, key.hash(&page.0)), Err(StoreError::Full));
    let told = usage(&device);
    assert_eq!((told.devices_full, told.devices_failed, told.bad_slots, told.slots_in_use), (1, 0, 0, 10));
    server.content().wrong = Wrong::Nothing;
    assert!(device.free(live[0].0));
    while device.look_after_server() {}
    assert!(device.accepts());
    store(&device, &key, 20..30);
    assert_eq!((server.pages(), usage(&device).slots_in_use), (19, 19));
}

/// What is freed goes from the server, and no slot is used again before.
#[test]
fn device_redis_tells_the_server_what_it_need_not_keep() {
    let server = FakeServer::start();
    let (device, key) = device_of(&server, true, Some(512 * PAGE_SIZE as u64));
    let live = store(&device, &key, 0..40);
    live[..10].iter().for_each(|(entry, _)| assert!(device.free(*entry)));
    assert_eq!((server.pages(), usage(&device).slots_in_use), (40, 30));
    store(&device, &key, 100..100 + 511 - 40);
    let page = page_of(9);
    assert_eq!(device.store(&page.0, key.hash(&page.0)), Err(StoreError::Full), "it was not told yet");
    assert!(device.look_after_server() && !device.look_after_server());
    assert_eq!((server.pages(), server.content().unlinked), (501, 10));
    let again = store(&device, &key, 900..910);
    assert!(again.iter().all(|(entry, _)| live[..10].iter().any(|(old, _)| old == entry)));
    assert_eq!((server.pages(), usage(&device).slots_in_use, usage(&device).bad_frees), (511, 511, 0));
}

#[test]
fn device_redis_keeps_what_a_child_may_want() {
    let server = FakeServer::start();
    let (device, key) = device_on(&server, true);
    let live = store(&device, &key, 0..40);
    device.fork_parent();
    live[10..20].iter().for_each(|(entry, _)| assert!(device.free(*entry)));
    let late = store(&device, &key, 300..310);
    late.iter().for_each(|(entry, _)| assert!(device.free(*entry)));
    while device.look_after_server() {}
    assert_eq!(server.pages(), 40, "what was stored after the fork is no child's");
    device.end_lease(0);
    while device.look_after_server() {}
    assert_eq!((server.pages(), usage(&device).slots_in_use, usage(&device).bad_frees), (30, 30, 0));
}

#[test]
fn device_redis_a_child_reads_what_its_parent_has_stored_and_has_a_session_of_its_own() {
    let server = FakeServer::start();
    let (device, key) = device_on(&server, true);
    let live = store(&device, &key, 0..20);
    assert!(device.free(live[0].0));
    // From here on it is the child's.
    device.fork_child(&[]);
    let mut fds = Vec::new();
    device.fds(&mut fds);
    assert!(fds.is_empty());
    let own = store(&device, &key, 50..60);
    assert_eq!(server.content().sessions.len(), 2);
    for (entry, seed) in live[1..].iter().chain(&own) {
        let mut frame = Frame::boxed();
        device.load(*entry, &mut frame.0).unwrap();
        assert!(frame.0 == page_of(*seed).0);
        assert!(device.free(*entry));
    }
    while device.look_after_server() {}
    assert_eq!(server.pages(), 20, "the parent's are the parent's to free");
}

#[test]
fn device_redis_is_left_when_the_server_would_throw_pages_away() {
    let server = FakeServer::start();
    let dir = tempfile::tempdir().unwrap();
    let specs = [SwapSpec::parse(&server.spec()).unwrap(), SwapSpec::file(dir.path())];
    // SAFETY: there is no memory device.
    let space = unsafe { SwapSpace::build(&specs, std::ptr::null_mut(), 0, 0) }.unwrap();
    let key = ContentKey::random();
    space.check_contents(key);
    let live: Vec<_> =
        (0..100).map(|seed| (space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap(), seed)).collect();
    assert_eq!((server.pages(), space.take_warning()), (100, None));
    server.content().policy = "allkeys-lru";
    // It is looked at every few seconds: the first time is now.
    while space.usage().devices_failed == 0 {
        space.tend(false);
    }
    assert!(space.take_warning().unwrap().contains("maxmemory-policy"));
    while space.tend(false) {}
    assert!(live.iter().all(|(entry, _)| space.is_moved(*entry)));
    server.content().values.clear();
    for (entry, seed) in live {
        let mut frame = Frame::boxed();
        space.load(entry, &mut frame.0).unwrap();
        assert!(frame.0 == page_of(seed).0 && space.free(entry));
    }
    let error = Server::of(&server.redis(), None).unwrap().open().unwrap_err();
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
}

#[test]
fn device_redis_takes_compressed_pages_that_move_on_and_leaves_nothing_behind() {
    let server = FakeServer::start();
    let region = Region::new(16 << 20);
    let specs = [SwapSpec::zram(farpage_ipc::conf::Alg::Lz4), SwapSpec::parse(&server.spec()).unwrap()];
    // SAFETY: the region is the test's and outlives the space.
    let space = unsafe { SwapSpace::build(&specs, region.base().as_ptr(), region.bytes(), 4 << 20) }.unwrap();
    let key = ContentKey::random();
    space.check_contents(key);
    let live: Vec<_> =
        (0..1200).map(|seed| (space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap(), seed)).collect();
    space.set_pool_limit(1 << 20);
    while space.writeback(64) > 0 {}
    assert!(server.pages() > 500, "{}", server.pages());
    for window in live.chunks(32) {
        let entries: Vec<_> = window.iter().map(|(entry, _)| *entry).collect();
        let mut frames: Vec<_> = window.iter().map(|_| Frame::boxed()).collect();
        let loaded = space.load_many(&entries, &mut frames.iter_mut().map(|f| &mut f.0).collect::<Vec<_>>());
        assert_eq!(loaded, (window.len(), None));
        assert!(window.iter().zip(&frames).all(|((_, seed), frame)| frame.0 == page_of(*seed).0));
    }
    assert_eq!(server.content().sessions.len(), 1);
    drop(space);
    assert_eq!((server.pages(), server.content().sessions.len()), (0, 0));
}

#[test]
fn device_redis_pages_in_flight_come_back_right_or_not_at_all() {
    let servers = [FakeServer::start(), FakeServer::start()];
    let specs = servers.each_ref().map(|server| SwapSpec::parse(&format!("{},size=3M", server.spec())).unwrap());
    // SAFETY: there is no memory device.
    let space = unsafe { SwapSpace::build(&specs, std::ptr::null_mut(), 0, 0) }.unwrap();
    let key = ContentKey::random();
    space.check_contents(key);
    space.rings().refuse();
    let store = |seed| space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap();
    let entries: Vec<_> = (0..1000).map(store).collect();
    assert!((0..2).all(|device| entries.iter().any(|entry| entry.device() == device)));
    let served = crate::read_queue::tests::windows(&space, &entries, 100, true);
    assert!(served.deferred == 100, "{served:?}");
    for wrong in [Wrong::Foreign, Wrong::Zeros, Wrong::Cut, Wrong::Flipped, Wrong::Long, Wrong::Other, Wrong::Empty] {
        servers[0].content().wrong = wrong;
        let served = crate::read_queue::tests::windows(&space, &entries, 20, false);
        assert!(served.failed > 0, "{wrong:?}: {served:?}");
    }
    servers[0].content().wrong = Wrong::Nothing;
    let served = crate::read_queue::tests::windows(&space, &entries, 20, false);
    assert!(served.failed < 20, "{served:?}");
}

#[test]
fn device_redis_a_mirror_has_what_the_server_has_lost() {
    for encrypt in ["", ",noencrypt"] {
        let server = FakeServer::start();
        let text = format!("{}{encrypt},mirror=file:/var/tmp", server.spec());
        // SAFETY: there is no memory device.
        let space =
            unsafe { SwapSpace::build(&[SwapSpec::parse(&text).unwrap()], std::ptr::null_mut(), 0, 0) }.unwrap();
        let key = ContentKey::random();
        space.check_contents(key);
        let store = |seed| space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap();
        let entries: Vec<_> = (0..400).map(store).collect();
        for wrong in [Wrong::Nothing, Wrong::Empty, Wrong::Foreign, Wrong::Other] {
            server.content().wrong = wrong;
            let served = crate::read_queue::tests::windows(&space, &entries, 10, true);
            assert_eq!(served.failed, 0, "{wrong:?}");
        }
    }
}

/// The server is told of every page; the disk of the second copies gets whole clusters back.
#[test]
fn device_redis_a_mirror_gives_back_what_is_freed() {
    let server = FakeServer::start();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (device, key) = device_on(&server, true);
    let device = device.with_mirror(dir.path()).unwrap();
    let live = store(&device, &key, 0..512 * 5);
    let on_disk = || {
        let mut fds = Vec::new();
        device.fds(&mut fds);
        // SAFETY: the device's, which is there.
        let stat = |fd| rustix::fs::fstat(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }).unwrap();
        fds.into_iter().map(|fd| stat(fd).st_blocks as u64 * 512).max().unwrap()
    };
    let before = on_disk();
    assert!(before >= 512 * 5 * PAGE_SIZE as u64 && !device.discard_one());
    live.iter().for_each(|(entry, _)| assert!(device.free(*entry)));
    assert!(!device.discard_one(), "the server was not told yet");
    while device.look_after_server() {}
    while device.discard_one() {}
    let (discarded, after) = (usage(&device).discarded_bytes, on_disk());
    // The last clusters were only begun, by each CPU.
    assert!(discarded >= 512 * 2 * PAGE_SIZE as u64 && after * 2 <= before, "{before} {after} {discarded}");
}

#[test]
fn device_redis_what_is_left_behind_can_be_found_and_removed() {
    let server = FakeServer::start();
    let (device, key) = device_on(&server, true);
    store(&device, &key, 0..100);
    let (other, other_key) = device_on(&server, false);
    let live = store(&other, &other_key, 0..50);
    let seen = Server::of(&server.redis(), None).unwrap();
    seen.open().unwrap();
    let known = sweep::sessions(&seen).unwrap();
    assert!(known.len() == 2 && known.iter().all(|session| session.alive && session.owner == "me 1"));
    // The first has not been heard of for a minute.
    let gone = known.iter().find(|session| session.end > 100).unwrap().clone();
    let first = server.content().values.keys().find(|key| key.len() == 20).cloned().unwrap();
    let id = farpage_server::redis::keys::SessionId::parse(&gone.id.hex()).unwrap();
    server.content().values.remove(&id.alive());
    let known = sweep::sessions(&seen).unwrap();
    assert_eq!(known.iter().filter(|session| session.alive).count(), 1);
    let removed = sweep::remove(&seen, &id, gone.end).unwrap();
    assert!(removed == 100 || removed == 50, "{removed} {first:?}");
    assert_eq!((server.pages() as u64, server.content().sessions.len()), (150 - removed, 1));
    if removed == 100 {
        let mut frame = Frame::boxed();
        assert!(live.iter().all(|(entry, _)| other.load(*entry, &mut frame.0).is_ok()));
    }
}
