//! A server in threads, that answers as it should, in any order, with errors, or with anything.

use super::greeting::{HAVE_OPTION, MAGIC, NbdGreeting, OPTION_REPLY, REPLY};
use super::header::{ExportHeader, Wrong};
use super::{Export, FRONT};
use crate::file::FileDevice;
use crate::remote::HolderLease;
use crate::remote::opening::{Answer, Greeting};
use crate::testing::{Frame, page_of};
use crate::{Entry, LoadError, SwapDevice, SwapSpace, read_queue};
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::address::Endpoint;
use farpage_ipc::conf::nbd::{ExportId, NbdSpec};
use farpage_ipc::conf::{DeviceKind, SwapSpec};
use farpage_swap::PAGE_SIZE;
use farpage_swap::sim::Random;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: usize = 16 << 20;
const FLAGS: u16 = 1 | 1 << 5 | 1 << 8;

/// What goes wrong.
#[derive(Default)]
struct Faults {
    /// Start of the random numbers; 0: nothing goes wrong.
    seed: AtomicU64,
    /// Writes find no room.
    full: AtomicBool,
    /// Reads fail.
    unreadable: AtomicBool,
    /// Reads are not answered.
    silent: AtomicBool,
    /// Answers take some time.
    slow: AtomicBool,
}

struct FakeServer {
    data: Arc<Mutex<Vec<u8>>>,
    faults: Arc<Faults>,
}

fn handshake(size: u64) -> Vec<u8> {
    let mut out = [MAGIC.as_slice(), HAVE_OPTION, &3u16.to_be_bytes()].concat();
    let mut piece = |kind: u32, data: &[u8]| {
        out.extend(OPTION_REPLY.to_be_bytes());
        out.extend([7, kind, data.len() as u32].iter().flat_map(|word| word.to_be_bytes()));
        out.extend(data);
    };
    piece(3, &[&0u16.to_be_bytes(), size.to_be_bytes().as_slice(), &FLAGS.to_be_bytes()].concat());
    piece(3, &[&3u16.to_be_bytes(), [1u32, 4096, 32 << 20].map(u32::to_be_bytes).as_flattened()].concat());
    piece(1, &[]);
    out
}

fn reply(error: u32, handle: u64) -> Vec<u8> {
    [REPLY.to_be_bytes().as_slice(), &error.to_be_bytes(), &handle.to_be_bytes()].concat()
}

impl FakeServer {
    fn start(path: &Path) -> FakeServer {
        let server = FakeServer { data: Arc::new(Mutex::new(vec![0; SIZE])), faults: Arc::default() };
        let listener = UnixListener::bind(path).unwrap();
        let (data, faults) = (server.data.clone(), server.faults.clone());
        std::thread::spawn(move || {
            for peer in listener.incoming() {
                let (peer, data, faults) = (peer.unwrap(), data.clone(), faults.clone());
                std::thread::spawn(move || serve(peer, &data, &faults));
            }
        });
        server
    }
}

/// An honest server; the result ends it.
pub fn begin(path: &Path) -> Box<dyn FnOnce()> {
    let server = FakeServer::start(path);
    Box::new(move || drop(server))
}

/// Requests of one connection; what is there is answered from the last to the first.
fn serve(mut peer: UnixStream, data: &Mutex<Vec<u8>>, faults: &Faults) -> Option<()> {
    peer.write_all(&handshake(SIZE as u64)).ok()?;
    let mut hello = [0; 24 + 4];
    peer.read_exact(&mut hello).ok()?;
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let mut random = Random(faults.seed.load(SeqCst).max(1));
    let mut delays = Random(std::os::fd::AsRawFd::as_raw_fd(&peer) as u64);
    loop {
        let mut head = [0; 28];
        peer.set_read_timeout(Some(Duration::from_millis(2))).ok()?;
        if answers.is_empty() {
            peer.set_read_timeout(None).ok()?;
        }
        match peer.read(&mut head) {
            Ok(0) => return None,
            Ok(n) => {
                peer.set_read_timeout(None).ok()?;
                peer.read_exact(&mut head[n..]).ok()?;
            }
            Err(_) => {
                for mut answer in answers.drain(..).rev() {
                    let len = answer.len();
                    if faults.seed.load(SeqCst) != 0 {
                        spoil(&mut answer, &mut random);
                    }
                    peer.write_all(&answer).ok()?;
                    if answer.len() < len {
                        return None;
                    }
                }
                continue;
            }
        }
        let number = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().unwrap());
        let (kind, handle, at) = (head[7], number(8), number(16) as usize);
        let len = u32::from_be_bytes(head[24..].try_into().unwrap()) as usize;
        let mut sent = vec![0; if kind == 1 { len } else { 0 }];
        peer.read_exact(&mut sent).ok()?;
        if faults.slow.load(SeqCst) {
            std::thread::sleep(Duration::from_micros(delays.index(2000) as u64));
        }
        let mut data = data.lock().unwrap();
        let answer = match kind {
            0 if faults.unreadable.load(SeqCst) && at > 0 => reply(5, handle),
            0 => [reply(0, handle), data[at..at + len].to_vec()].concat(),
            1 if faults.full.load(SeqCst) => reply(28, handle),
            1 => {
                data[at..at + len].copy_from_slice(&sent);
                reply(0, handle)
            }
            _ => {
                data[at..at + len].fill(0);
                reply(0, handle)
            }
        };
        if kind == 0 && at > 0 && faults.silent.load(SeqCst) {
            continue;
        }
        answers.push(answer);
    }
}

/// Bits change, bytes are missing or too many; now and then nothing is wrong.
fn spoil(answer: &mut Vec<u8>, random: &mut Random) {
    match random.index(6) {
        0 => {
            let at = random.index(answer.len());
            answer[at] ^= 1 << random.index(8);
        }
        1 => answer.truncate(random.index(answer.len())),
        2 => answer.extend((0..random.index(40)).map(|i| i as u8)),
        3 => answer.iter_mut().for_each(|byte| *byte = random.index(256) as u8),
        _ => {}
    }
}

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
    drop(device);
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
fn a_greeting_is_understood_whole_and_in_parts_and_nothing_is_believed() {
    let header = ExportHeader::new(1).unwrap();
    let good = [handshake(1 << 30), reply(0, u64::from_be_bytes(*b"header..")), header.page().to_vec()].concat();
    for len in 0..good.len() {
        assert_eq!(NbdGreeting::new("x").answer(&good[..len]), Answer::More, "{len} bytes");
    }
    let greeting = NbdGreeting::new("x");
    assert_eq!(greeting.answer(&good), Answer::Welcome);
    let info = greeting.info().unwrap();
    assert!(info.size == 1 << 30 && info.many() && info.trims() && !info.read_only());
    greeting.expect(header.id);
    assert_eq!(greeting.answer(&good), Answer::Welcome);
    let mut other = good.clone();
    let at = other.len() - PAGE_SIZE;
    other[at + 17] ^= 1;
    assert!(matches!(greeting.answer(&other), Answer::Another(why) if why.contains("another farpage")));
    other[at..].fill(0);
    assert!(matches!(greeting.answer(&other), Answer::Another(why) if why.contains("not kept")));
    let smaller = [handshake(1 << 29), good[handshake(0).len()..].to_vec()].concat();
    assert!(matches!(greeting.answer(&smaller), Answer::Another(why) if why.contains("smaller")));
    let start = at - 16;
    bolero::check!().with_type().for_each(|changes: &Vec<(u16, u8)>| {
        let mut bytes = good.clone();
        let len = bytes.len();
        changes.iter().for_each(|(at, byte)| bytes[usize::from(*at) % start.min(len)] = *byte);
        let _ = NbdGreeting::new("x").answer(&bytes);
        let _ = NbdGreeting::new("x").answer(&changes.iter().map(|change| change.1).collect::<Vec<u8>>());
    });
}

/// As [`HolderLease::USUAL`], for those who wait for its end.
const LEASE: HolderLease = HolderLease { look_ms: 200, end_ms: 300 };

fn open_export(path: &Path, id: Option<ExportId>) -> Result<Export, Wrong> {
    Export::open("x".into(), Endpoint::Unix(path.into()), "", Some(Duration::from_secs(60)), id, LEASE)
}

fn put(server: &FakeServer, header: &ExportHeader) {
    server.data.lock().unwrap()[..PAGE_SIZE].copy_from_slice(&header.page());
}

#[test]
fn an_export_is_taken_if_it_is_blank_or_nobody_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    let open = |id| open_export(&path, id);
    let first = open(None).ok().unwrap();
    let Err((why, _)) = open(None) else { panic!("taken twice") };
    assert!(why.contains(&format!("process {} swaps to it", std::process::id())), "{why}");
    // What it starts uses it, too.
    assert!(open(first.id()).is_ok());
    let Err((why, _)) = open(Some([7; 16])) else { panic!("taken with another id") };
    assert!(why.contains("another farpage"), "{why}");
    first.empty();
    assert!(server.data.lock().unwrap().iter().all(|byte| *byte == 0));
    open(None).ok().unwrap().empty();
    // Who has lost it leaves it as it is.
    let header = ExportHeader::new(2).unwrap();
    put(&server, &header);
    first.empty();
    assert!(server.data.lock().unwrap().starts_with(&header.page()));
    server.data.lock().unwrap()[..PAGE_SIZE].fill(0);
    for at in [PAGE_SIZE, FRONT as usize - 1, SIZE - 1] {
        server.data.lock().unwrap()[at] = 1;
        let Err((why, _)) = open(None) else { panic!("taken with somebody's data") };
        assert!(why.contains("not farpage's"), "{why}");
        server.data.lock().unwrap()[at] = 0;
    }
}

/// A process of a machine of the same name, after another boot, has it: whether it is there shows in its header alone.
#[test]
fn an_export_is_taken_over_only_if_its_owner_says_nothing_for_the_length_of_a_lease() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    let mut header = ExportHeader::new(3).unwrap();
    header.is_of_another_boot();
    put(&server, &header);
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !ended.load(SeqCst) {
                header.beat += 1;
                put(&server, &header);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let Err((why, _)) = open_export(&path, None) else { panic!("taken from its owner") };
        assert!(why.contains("swaps to it"), "{why}");
        ended.store(true, SeqCst);
    });
    let new = open_export(&path, None).ok().unwrap();
    let there = ExportHeader::parse(&server.data.lock().unwrap()[..PAGE_SIZE]).unwrap();
    assert!(Some(there.id) == new.id() && there.generation == 4);
    // The old one may be late with what it writes, once: the new one says again that it is there.
    put(&server, &header);
    new.grow_old();
    assert_eq!(new.keep(), None);
    let there = ExportHeader::parse(&server.data.lock().unwrap()[..PAGE_SIZE]).unwrap();
    assert!(Some(there.id) == new.id());
}

#[test]
fn of_those_who_begin_at_the_same_time_one_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    server.faults.slow.store(true, SeqCst);
    let (mut won, mut old) = (0, None);
    for round in 0..12 {
        // Blank, or left by somebody.
        server.data.lock().unwrap()[..FRONT as usize].fill(0);
        old.iter().filter(|_| round % 2 == 0).for_each(|old| put(&server, old));
        let begin = std::sync::Barrier::new(3);
        let open = || {
            begin.wait();
            open_export(&path, None).ok()
        };
        let winners: Vec<_> = std::thread::scope(|threads| {
            let all = [(); 3].map(|()| threads.spawn(open));
            all.into_iter().filter_map(|one| one.join().unwrap()).collect()
        });
        assert!(winners.len() < 2, "{} have it in round {round}", winners.len());
        for winner in winners {
            won += 1;
            winner.grow_old();
            assert_eq!(winner.keep(), None, "it has it still");
            let mut header = ExportHeader::new(round).unwrap();
            header.is_of_another_boot();
            old = Some(header);
        }
    }
    assert!(won > 6, "{won} of 12");
}

#[test]
fn an_owner_that_was_stopped_for_too_long_writes_nothing_before_it_knows_that_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = FakeServer::start(&path);
    let export = open_export(&path, None).ok().unwrap();
    let device = FileDevice::on_export(0, &NbdSpec { id: export.id(), ..spec(&path, "") }, None).unwrap();
    device.share_areas(|_| crate::remote::areas::of_process());
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
