//! Devices on exports, against a server in threads.

use crate::file::FileDevice;
use crate::testing::{Frame, page_of};
use crate::{Entry, LoadError, SwapDevice, SwapSpace, read_queue};
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_ipc::conf::{DeviceKind, SwapSpec};
use farpage_server::HolderLease;
use farpage_server::nbd::header::ExportHeader;
use farpage_server::nbd::{Export, FRONT};
use farpage_server::testing::nbd::{FakeServer, SIZE};
use farpage_swap::PAGE_SIZE;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn spec(path: &Path, options: &str) -> NbdSpec {
    match SwapSpec::parse(&format!("nbd+unix://{}{options}", path.display())).unwrap().kind {
        DeviceKind::Nbd(spec) => spec,
        _ => unreachable!(),
    }
}

fn open(path: &Path) -> (FileDevice, ContentKey) {
    let device = FileDevice::on_export(0, &spec(path, ""), None).unwrap().with_encryption().unwrap();
    let key = ContentKey::random();
    device.check_contents(key);
    (device, key)
}

fn store(device: &FileDevice, key: &ContentKey, seeds: std::ops::Range<u64>) -> Vec<Option<Entry>> {
    let pages: Vec<_> = seeds.map(page_of).collect();
    let pages: Vec<_> = pages.iter().map(|page| (&page.0, key.hash(&page.0))).collect();
    let mut out = vec![None; pages.len()];
    let _ = device.store_batch(&pages, &mut out);
    out
}

#[test]
fn pages_come_back_whatever_the_order_of_the_replies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    let (device, key) = open(&path);
    let entries = store(&device, &key, 0..300);
    let mut frame = Frame::boxed();
    for (seed, entry) in (0..).zip(&entries) {
        device.load(entry.unwrap(), &mut frame.0).unwrap();
        assert!(frame.0 == page_of(seed).0, "page {seed}");
    }
    // Every other one, so that each is a request of its own, all in flight.
    let rings = crate::io::Rings::default();
    let mut frames: Vec<_> = (0..32).map(|_| Frame::boxed()).collect();
    let mut batch = crate::io::Batch::new(crate::io::Direction::Read);
    for (i, frame) in frames.iter_mut().enumerate() {
        let place = device.place(entries[i * 2].unwrap()).unwrap();
        // SAFETY: the frames outlive the batch, which nobody else uses.
        unsafe { batch.push(&place, &mut frame.0) };
    }
    assert_eq!(batch.runs(), 32);
    rings.run(&mut batch, &mut || {});
    for (i, frame) in frames.iter_mut().enumerate() {
        assert!(device.complete(entries[i * 2].unwrap(), &mut frame.0) && frame.0 == page_of(i as u64 * 2).0);
    }
    let seven = page_of(7);
    let is_clear = server.data.lock().unwrap().chunks(PAGE_SIZE).any(|page| page == seven.0);
    assert!(!is_clear, "it is encrypted on the server");
    drop((batch, device));
    assert!(server.data.lock().unwrap().iter().all(|byte| *byte == 0), "emptied at the end");
}

#[test]
fn a_full_server_and_one_that_cannot_read_are_told_apart_from_one_that_is_out_of_reach() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    let (device, key) = open(&path);
    let kept = store(&device, &key, 0..10);
    server.faults.full.store(true, SeqCst);
    assert!(store(&device, &key, 10..20).iter().all(Option::is_none) && !device.accepts());
    server.faults.full.store(false, SeqCst);
    server.faults.unreadable.store(true, SeqCst);
    let mut frame = Frame::boxed();
    let error = device.load(kept[3].unwrap(), &mut frame.0).unwrap_err();
    assert!(matches!(error, LoadError::Io { errno: rustix::io::Errno::IO, .. }), "{error}");
    server.faults.unreadable.store(false, SeqCst);
    device.load(kept[3].unwrap(), &mut frame.0).unwrap();
    // As many pages as there is room for, and no more. It looks for some again after a second.
    while !device.accepts() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut stored = 10;
    loop {
        let now = store(&device, &key, 0..64).iter().flatten().count();
        stored += now;
        // Some may find room only in the next area.
        if now == 0 {
            break;
        }
    }
    assert!((2048..4096).contains(&stored), "{stored} pages of {SIZE} bytes");
}

/// A server that says anything: pages get lost, nothing else.
#[test]
fn a_hostile_server_can_lose_pages_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut lost = 0;
    for seed in 1..10 {
        let path = dir.path().join(seed.to_string());
        let server = FakeServer::start(&path);
        let mut spec = spec(&path, ",timeout=inf");
        spec.served.timeout = Some(Duration::ZERO);
        let device = FileDevice::on_export(0, &spec, None).unwrap().with_encryption().unwrap();
        let key = ContentKey::random();
        device.check_contents(key);
        let entries = store(&device, &key, 0..20);
        server.faults.seed.store(seed, SeqCst);
        for (page, entry) in (0..).zip(&entries) {
            let mut frame = Frame::boxed();
            match device.load(entry.unwrap(), &mut frame.0) {
                Ok(()) => assert!(frame.0 == page_of(page).0, "seed {seed}: page {page} is another one"),
                Err(_) => lost += 1,
            }
            let _ = store(&device, &key, 100 + page..101 + page);
            device.accepts();
        }
    }
    assert!(lost > 0, "nothing went wrong");
}

fn fd_len(fd: i32) -> u64 {
    std::fs::metadata(format!("/proc/self/fd/{fd}")).map_or(0, |file| if file.is_file() { file.len() } else { 0 })
}

/// Whatever becomes of the server: pages come from the mirror, in windows and alone, without waiting.
#[test]
fn a_mirror_has_what_the_server_has_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for encrypt in ["", ",noencrypt"] {
        let _ = std::fs::remove_file(&path);
        let server = FakeServer::start(&path);
        let text = format!("nbd+unix://{}{encrypt},mirror=file:/var/tmp,timeout=inf", path.display());
        // SAFETY: there is no memory device.
        let space =
            unsafe { SwapSpace::build(&[SwapSpec::parse(&text).unwrap()], std::ptr::null_mut(), 0, 0) }.unwrap();
        let key = ContentKey::random();
        space.check_contents(key);
        let store = |seed| space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap();
        let entries: Vec<_> = (0..150).map(store).collect();
        let all_right = || {
            for (seed, entry) in (0..).zip(&entries).take(20) {
                let mut frame = Frame::boxed();
                space.load(*entry, &mut frame.0).unwrap();
                assert!(frame.0 == page_of(seed).0, "page {seed}");
            }
            let mut frames: Vec<_> = entries.iter().map(|_| Frame::boxed()).collect();
            let mut pages: Vec<_> = frames.iter_mut().map(|frame| &mut frame.0).collect();
            assert_eq!(space.load_many(&entries, &mut pages), (150, None));
            assert!((0..).zip(&frames).all(|(seed, frame)| frame.0 == page_of(seed).0));
            let served = read_queue::tests::windows(&space, &entries, 6, true);
            assert_eq!(served.failed, 0);
        };
        all_right();
        server.faults.unreadable.store(true, SeqCst);
        all_right();
        server.faults.unreadable.store(false, SeqCst);
        server.data.lock().unwrap()[FRONT as usize..].fill(0);
        all_right();
        if !encrypt.is_empty() {
            continue;
        }
        let fresh = store(500);
        server.faults.silent.store(true, SeqCst);
        let mut frame = Frame::boxed();
        space.load(entries[7], &mut frame.0).unwrap();
        assert!(frame.0 == page_of(7).0);
        assert_eq!(space.load_in_reach(&entries[9..10], &mut [&mut frame.0]), (1, None));
        assert!(frame.0 == page_of(9).0);
        // What has no second copy is not lost while the server may come back.
        let mirror = space.fds().into_iter().find(|fd| fd_len(*fd) > PAGE_SIZE as u64).unwrap();
        // SAFETY: open, the space's, and a file of no name.
        rustix::fs::ftruncate(unsafe { std::os::fd::BorrowedFd::borrow_raw(mirror) }, 0).unwrap();
        let (loaded, error) = space.load_in_reach(&[fresh], &mut [&mut frame.0]);
        assert!(loaded == 0 && matches!(error, Some(LoadError::OutOfReach { .. })), "{error:?}");
        server.faults.silent.store(false, SeqCst);
        space.load(fresh, &mut frame.0).unwrap();
        assert!(frame.0 == page_of(500).0);
    }
}

/// Windows in flight, without io_uring, of two servers and a file, in any order; then with a server that says anything,
/// and one that says nothing any more.
#[test]
fn pages_in_flight_come_back_right_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let servers = paths.clone().map(|path| FakeServer::start(&path));
    let text = |path: &Path| format!("nbd+unix://{},size=3M,timeout=inf", path.display());
    let mut specs = paths.each_ref().map(|path| SwapSpec::parse(&text(path)).unwrap()).to_vec();
    specs.push(SwapSpec::file("/var/tmp"));
    // SAFETY: there is no memory device.
    let space = unsafe { SwapSpace::build(&specs, std::ptr::null_mut(), 0, 0) }.unwrap();
    let key = ContentKey::random();
    space.check_contents(key);
    space.rings().refuse();
    let store = |seed| space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap();
    let entries: Vec<_> = (0..1600).map(store).collect();
    assert!((0..3).all(|device| entries.iter().any(|entry| entry.device() == device)));
    let away: Vec<_> = entries.iter().copied().filter(|entry| entry.device() < 2).collect();
    let served = read_queue::tests::windows(&space, &away, 40, true);
    assert!(served.deferred == 40, "{served:?}");
    // A window that is in a file, too, is read at once where there is no ring.
    let served = read_queue::tests::windows(&space, &entries, 40, true);
    assert!(served.deferred > 0 && served.at_once > 0, "{served:?}");
    servers[0].faults.seed.store(7, SeqCst);
    let served = read_queue::tests::windows(&space, &away, 60, false);
    assert!(served.failed > 0 && served.failed < 60, "{served:?}");
    servers[0].faults.seed.store(0, SeqCst);
    while read_queue::tests::windows(&space, &away, 20, false).failed > 0 {}
    servers[1].faults.silent.store(true, SeqCst);
    let served = read_queue::tests::windows(&space, &away, 20, false);
    assert!(served.failed > 0 && served.failed < 20, "{served:?}");
}

#[test]
fn an_owner_that_was_stopped_for_too_long_writes_nothing_before_it_knows_that_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    let export = open_export(&path);
    let device = FileDevice::on_export(0, &NbdSpec { id: export.id(), ..spec(&path, "") }, None).unwrap();
    device.share_areas(|_| farpage_server::areas::of_process());
    let key = ContentKey::random();
    device.check_contents(key);
    let kept = store(&device, &key, 0..5);
    device.export().unwrap().grow_old();
    let before = server.data.lock().unwrap()[FRONT as usize..].to_vec();
    assert!(store(&device, &key, 5..10).iter().all(Option::is_none));
    assert!(server.data.lock().unwrap()[FRONT as usize..] == before);
    device.look_after_server();
    assert!(store(&device, &key, 5..10).iter().all(Option::is_none), "somebody may be about to take it");
    while store(&device, &key, 5..10).iter().any(Option::is_none) {
        device.export().unwrap().grow_old();
        device.look_after_server();
    }
    let mut frame = Frame::boxed();
    device.load(kept[3].unwrap(), &mut frame.0).unwrap();
    // Somebody has taken it.
    put(&server, &ExportHeader::new(2).unwrap());
    device.export().unwrap().grow_old();
    device.look_after_server();
    assert!(!device.accepts() && device.load(kept[3].unwrap(), &mut frame.0).is_err());
    let said = device.take_warning().unwrap();
    assert!(said.contains("somebody else has taken the export over: all pages on it are lost"), "{said}");
}

/// A short lease, for tests.
const LEASE: HolderLease = HolderLease { look_ms: 200, end_ms: 300 };

fn open_export(path: &Path) -> Export {
    let endpoint = farpage_ipc::conf::address::Endpoint::Unix(path.into());
    Export::open("x".into(), endpoint, "", Some(Duration::from_secs(60)), None, LEASE).ok().unwrap()
}

fn put(server: &FakeServer, header: &ExportHeader) {
    server.data.lock().unwrap()[..PAGE_SIZE].copy_from_slice(&header.page());
}
