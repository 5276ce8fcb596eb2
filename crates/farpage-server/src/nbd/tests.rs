//! What a server says at first, and which of several processes has an export.

use super::greeting::NbdGreeting;
use super::header::{ExportHeader, Wrong};
use super::{Export, FRONT};
use crate::HolderLease;
use crate::opening::{Answer, Greeting};
use crate::testing::nbd::{FakeServer, SIZE, handshake, reply};
use farpage_ipc::conf::address::Endpoint;
use farpage_ipc::conf::nbd::ExportId;
use farpage_swap::PAGE_SIZE;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

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
