//! A link against servers of a line each: `hello` is answered by a word, and every byte by its successor.

use crate::in_flight::InFlight;
use crate::link::{AskedFor, InReach, Link, Patience, Unreachable};
use crate::nbd::NbdReplies;
use crate::opening::{Answer, Greeting};
use crate::wire::{Broken, Wire};
use farpage_base::sys::clock::watched_ms;
use farpage_ipc::conf::address::Endpoint;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const ABOUT: AskedFor<'_> = AskedFor::Pages(&[(0, 1)]);

struct Word;

impl Greeting for Word {
    fn hello(&self) -> &[u8] {
        b"hello"
    }

    fn answer(&self, got: &[u8]) -> Answer {
        match got {
            b"good" => Answer::Welcome,
            b"busy" => Answer::Refused("it is busy"),
            b"else" => Answer::Another("it is another server"),
            _ => Answer::More,
        }
    }
}

/// A server in a thread for each connection; all end when it is dropped.
struct WordServer {
    path: PathBuf,
    ended: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<UnixStream>>>,
    /// Says nothing while it is held.
    stopped: Arc<Mutex<()>>,
    accepts: Option<JoinHandle<()>>,
    /// Connections that it welcomes; with others it says nothing.
    most: Arc<AtomicUsize>,
}

impl WordServer {
    fn start(path: &Path, word: &'static [u8]) -> WordServer {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        let (ended, open, stopped) = <(Arc<AtomicBool>, Arc<Mutex<Vec<UnixStream>>>, Arc<Mutex<()>>)>::default();
        let (end, all, stop) = (ended.clone(), open.clone(), stopped.clone());
        let most = Arc::new(AtomicUsize::new(usize::MAX));
        let room = most.clone();
        let accepts = std::thread::spawn(move || {
            while let Ok((mut peer, _)) = listener.accept() {
                if end.load(SeqCst) {
                    return;
                }
                all.lock().unwrap().push(peer.try_clone().unwrap());
                if all.lock().unwrap().len() > room.load(SeqCst) {
                    continue;
                }
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut hello = [0; 5];
                    let mut byte = [0];
                    if peer.read_exact(&mut hello).is_err() || hello != *b"hello" {
                        return;
                    }
                    drop(stop.lock().unwrap());
                    let _ = peer.write_all(word);
                    while peer.read_exact(&mut byte).is_ok() {
                        drop(stop.lock().unwrap());
                        let _ = peer.write_all(&[byte[0] + 1]);
                    }
                });
            }
        });
        WordServer { path: path.into(), ended, open, stopped, accepts: Some(accepts), most }
    }
}

impl Drop for WordServer {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        let _ = UnixStream::connect(&self.path);
        let _ = self.accepts.take().map(JoinHandle::join);
        for peer in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = peer.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn link(path: &Path, timeout: Option<Duration>) -> Link {
    let link = Link::new("test://".into(), Endpoint::Unix(path.into()), Arc::new(Word), timeout);
    link.with_deadline(Duration::from_secs(60))
}

/// For servers that are silent.
fn hasty(path: &Path, timeout: Option<Duration>) -> Link {
    link(path, timeout).with_deadline(Duration::from_millis(100))
}

fn ask(wire: &mut Wire) -> Result<u8, Broken> {
    let mut answer = [0];
    wire.send(&[b"", b"a"])?;
    wire.receive(&mut answer, true)?;
    Ok(answer[0])
}

fn notes(link: &Link) -> Vec<String> {
    std::iter::from_fn(|| link.take_note(false)).collect()
}

#[test]
fn what_cannot_be_opened_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    assert!(link(&path, None).open().unwrap_err().to_string().contains("no such file"));
    for (word, why) in [(b"busy", "it is busy"), (b"else", "another")] {
        let _server = WordServer::start(&path, word);
        let error = link(&path, None).open().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let silent = WordServer::start(&path, b"what");
    assert!(hasty(&path, None).open().unwrap_err().to_string().contains("no answer"));
    drop(silent);
    let _server = WordServer::start(&path, Box::leak(vec![b'x'; 100_000].into()));
    assert!(link(&path, None).open().unwrap_err().to_string().contains("no end"));
}

/// However little comes, and however often.
#[test]
fn what_is_in_flight_has_a_time_in_which_it_must_be_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = WordServer::start(&dir.path().join("s"), b"good");
    let link = link(&server.path, Some(Duration::from_secs(60))).with_deadline(Duration::from_secs(2));
    let link = Arc::new(link);
    link.open().unwrap();
    let open = || InFlight::on(&link, Box::new(NbdReplies::default())).unwrap();
    let mut own = open();
    assert!(own.is_of_use());
    assert!(own.waits_since(watched_ms() - 18_000) && !own.waits_since(watched_ms() - 22_000) && !link.is_up());
    assert!(!own.is_of_use());
    while link.reach() != InReach::Up {}
    let mut own = open();
    server.open.lock().unwrap().iter().for_each(|peer| _ = peer.shutdown(std::net::Shutdown::Both));
    // Closed by the server while nothing was in flight: no reason to think that it is away.
    assert!(!own.is_of_use() && link.is_up());
}

/// More threads than connections: they wait for each other, and the server is in reach.
#[test]
fn a_server_may_have_fewer_connections_than_there_are_threads() {
    let dir = tempfile::tempdir().unwrap();
    let server = WordServer::start(&dir.path().join("s"), b"good");
    server.most.store(2, SeqCst);
    let link = link(&server.path, Some(Duration::ZERO)).with_deadline(Duration::from_secs(2));
    link.open().unwrap();
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                for _ in 0..20 {
                    let mut talk = |wire: &mut Wire| {
                        std::thread::sleep(Duration::from_millis(1));
                        ask(wire)
                    };
                    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut talk), Ok(b'b'));
                }
            });
        }
    });
    assert!(link.is_up() && link.open_own().is_none());
    assert!(notes(&link).is_empty());
}

#[test]
fn threads_have_connections_of_their_own_unless_there_may_be_only_one() {
    let dir = tempfile::tempdir().unwrap();
    for many in [true, false] {
        let server = WordServer::start(&dir.path().join("s"), b"good");
        let link = link(&server.path, None);
        link.open().unwrap();
        link.allow_many(many);
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let mut talk = |wire: &mut Wire| {
                        if many {
                            both.wait();
                        }
                        ask(wire)
                    };
                    assert_eq!(link.talk(Patience::Now, ABOUT, &mut talk), Ok(b'b'));
                });
            }
        });
        assert_eq!(server.open.lock().unwrap().len(), if many { 2 } else { 1 });
    }
}

#[test]
fn a_server_that_ends_and_begins_again_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = WordServer::start(&path, b"good");
    let link = link(&path, None);
    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut ask), Ok(b'b'));
    drop(server);
    assert_eq!(link.talk(Patience::Now, ABOUT, &mut ask), Err(Unreachable::Later));
    assert!(!link.is_up() && link.reach() == InReach::Waiting);
    let _server = WordServer::start(&path, b"good");
    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut ask), Ok(b'b'));
    assert!(link.is_up() && notes(&link).is_empty(), "too short to be worth a word");
}

#[test]
fn a_silent_server_is_waited_for_and_that_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = WordServer::start(&dir.path().join("s"), b"good");
    let link = hasty(&server.path, None);
    while link.talk(Patience::Now, ABOUT, &mut ask) != Ok(b'b') {}
    let silence = server.stopped.lock().unwrap();
    assert_eq!(link.talk(Patience::Now, ABOUT, &mut ask), Err(Unreachable::Later));
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| link.talk(Patience::Wait, ABOUT, &mut ask));
        while link.notes_pending() == 0 {
            assert_eq!(link.talk(Patience::Now, ABOUT, &mut ask), Err(Unreachable::Later), "does not wait");
        }
        drop(silence);
        assert_eq!(reader.join().unwrap(), Ok(b'b'));
    });
    let notes = notes(&link);
    assert!(notes.len() == 2 && notes[0].contains("no answer") && notes[1].contains("back"), "{notes:?}");
}

#[test]
fn what_is_out_of_reach_for_too_long_is_given_up_and_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = WordServer::start(&path, b"good");
    let link = link(&path, Some(Duration::from_millis(300)));
    link.open().unwrap();
    drop(server);
    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut ask), Err(Unreachable::Lost));
    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut ask), Err(Unreachable::Lost));
    assert!(notes(&link).last().unwrap().contains("given up"));
    let _server = WordServer::start(&path, b"good");
    while link.reach() != InReach::Up {}
    assert!(link.is_lost(), "it takes no more pages");
    assert_eq!(link.talk(Patience::Now, ABOUT, &mut ask), Ok(b'b'));
}

#[test]
fn a_server_that_is_back_before_anybody_asks_is_not_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = WordServer::start(&path, b"good");
    let link = link(&path, Some(Duration::from_millis(1)));
    link.open().unwrap();
    drop(server);
    assert_eq!(link.talk(Patience::Now, ABOUT, &mut ask), Err(Unreachable::Later));
    let _server = WordServer::start(&path, b"good");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut ask), Ok(b'b'));
}

#[test]
fn another_server_in_the_same_place_means_that_all_is_lost_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let server = WordServer::start(&path, b"good");
    let link = link(&path, None);
    link.open().unwrap();
    drop(server);
    let _server = WordServer::start(&path, b"else");
    assert_eq!(link.talk(Patience::Wait, ABOUT, &mut ask), Err(Unreachable::Lost));
    assert_eq!(link.reach(), InReach::Lost);
    let notes = notes(&link);
    assert!(notes.len() == 1 && notes[0].contains("another server: all pages on it are lost"), "{notes:?}");
}

#[test]
fn a_descriptor_that_is_another_file_by_now_is_not_closed() {
    let dir = tempfile::tempdir().unwrap();
    let server = WordServer::start(&dir.path().join("s"), b"good");
    let link = link(&server.path, None);
    let mut number = -1;
    let mut look = |wire: &mut Wire| {
        number = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(wire));
        Ok(())
    };
    link.talk(Patience::Now, ABOUT, &mut look).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the number is the link's, as a program may close it.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&file), number) }, number);
    link.fork_child();
    // SAFETY: only asked for its flags.
    assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
    assert_eq!(link.talk(Patience::Now, ABOUT, &mut ask), Ok(b'b'), "by a new connection");
    // SAFETY: nobody else has it.
    unsafe { libc::close(number) };
}
