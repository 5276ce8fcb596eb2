//! Servers of both kinds that welcome everybody, and then lie: whoever wants a page hears in time that it is lost.

use super::testing::{Frame, page_of};
use super::{LoadError, SwapSpace};
use farpage_codec::page_hash::ContentKey;
use farpage_ipc::conf::SwapSpec;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is wrong with what the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Connections are accepted, and that is all.
    NoGreeting,
    /// They are closed at once.
    NoWelcome,
    /// After the greeting nothing is answered.
    NoAnswer,
    /// Whatever is asked, the connection is closed.
    BreaksOff,
    /// An answer ends in its middle.
    HalfAnAnswer,
    /// A byte of it comes now and then.
    Drips,
    /// Something comes, and it is no answer.
    Nonsense,
}

const LIES: [Lie; 7] =
    [Lie::NoGreeting, Lie::NoWelcome, Lie::NoAnswer, Lie::BreaksOff, Lie::HalfAnAnswer, Lie::Drips, Lie::Nonsense];

/// Stands before an honest server, and lies from some time on.
struct Liar {
    path: PathBuf,
    lies: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl Liar {
    fn start(dir: &Path, honest: &Path, lie: Lie) -> Liar {
        let (lies, open) = <(Arc<AtomicBool>, Arc<Mutex<Vec<UnixStream>>>)>::default();
        let liar = Liar { path: dir.join(format!("{lie:?}")), lies: lies.clone(), open: open.clone() };
        let (listener, honest) = (UnixListener::bind(&liar.path).unwrap(), honest.to_path_buf());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, Ok(server)) = (client.unwrap(), UnixStream::connect(&honest)) else { return };
                open.lock().unwrap().push(client.try_clone().unwrap());
                let lies = lies.clone();
                std::thread::spawn(move || carry(client, server, lie, &lies));
            }
        });
        liar
    }

    /// From now on.
    fn lie(&self) {
        self.lies.store(true, SeqCst);
        self.open.lock().unwrap().drain(..).for_each(|client| _ = client.shutdown(Shutdown::Both));
    }
}

/// Carries the bytes of a connection to and fro.
fn carry(client: UnixStream, server: UnixStream, lie: Lie, lies: &Arc<AtomicBool>) -> Option<()> {
    if lie == Lie::NoWelcome && lies.load(SeqCst) {
        return None;
    }
    // Whoever greets does that in one go; what comes afterwards is asked for.
    let asked = Arc::new(AtomicBool::new(false));
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    let (has_asked, is_lying) = (asked.clone(), lies.clone());
    std::thread::spawn(move || {
        let (mut bytes, mut pieces) = (vec![0; 1 << 20], 0);
        while let Some(n) = from.read(&mut bytes).ok().filter(|n| *n > 0) {
            pieces += 1;
            has_asked.store(pieces > 1, SeqCst);
            if pieces > 1 && is_lying.load(SeqCst) && lie == Lie::BreaksOff {
                let _ = from.shutdown(Shutdown::Both);
                break;
            }
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to, mut bytes) = (server, client, vec![0; 1 << 20]);
    while let Some(n) = from.read(&mut bytes).ok().filter(|n| *n > 0) {
        let lying = lies.load(SeqCst) && (asked.load(SeqCst) || lie == Lie::NoGreeting);
        match lie {
            Lie::NoGreeting | Lie::NoAnswer if lying => {}
            Lie::HalfAnAnswer if lying => {
                to.write_all(&bytes[..n / 2]).ok()?;
                break;
            }
            Lie::Drips if lying => {
                for byte in &bytes[..n] {
                    to.write_all(&[*byte]).ok()?;
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            Lie::Nonsense if lying => to.write_all(&vec![b'?'; n]).ok()?,
            _ => to.write_all(&bytes[..n]).ok()?,
        }
    }
    to.shutdown(Shutdown::Both).ok()
}

/// All pages are stored, and one of them is wanted, by a thread that waits or by one that comes again.
fn page_of_a_liar_is_lost(dir: &Path, honest: &Path, scheme: &str, lie: Lie, patient: bool) {
    let liar = Liar::start(dir, honest, lie);
    let text = format!("{scheme}://{},timeout=2s", liar.path.display());
    // SAFETY: there is no memory device.
    let space = unsafe { SwapSpace::build(&[SwapSpec::parse(&text).unwrap()], std::ptr::null_mut(), 0, 0) }.unwrap();
    let key = ContentKey::random();
    space.check_contents(key);
    let store = |seed| space.store(&page_of(seed).0, key.hash(&page_of(seed).0)).unwrap();
    let entries: Vec<_> = (0..20).map(store).collect();
    liar.lie();
    let mut frame = Frame::boxed();
    let error = loop {
        if patient {
            break space.load(entries[3], &mut frame.0).unwrap_err();
        }
        match space.load_in_reach(&entries[3..4], &mut [&mut frame.0]) {
            (_, Some(LoadError::OutOfReach { .. })) => std::thread::sleep(Duration::from_millis(1)),
            (_, error) => break error.unwrap(),
        }
    };
    assert!(matches!(error, LoadError::Io { .. }), "{text} {lie:?}: {error}");
    let tries = liar.open.lock().unwrap().len();
    assert!(tries < 30, "{text} {lie:?}: {tries} connections");
    let said: Vec<_> = std::iter::from_fn(|| space.take_warning()).collect();
    let is_given_up = said.iter().any(|said| said.contains("is given up"));
    assert!(is_given_up || lie == Lie::Nonsense, "{text} {lie:?}: {said:?}");
    // Nor does a start wait for ever.
    // SAFETY: as above.
    let again = unsafe { SwapSpace::build(&[SwapSpec::parse(&text).unwrap()], std::ptr::null_mut(), 0, 0) };
    assert!(again.is_err(), "{text} {lie:?}");
    liar.lies.store(false, SeqCst);
}

fn all_lies(begin: fn(&Path) -> Box<dyn FnOnce()>, scheme: &str) {
    std::thread::scope(|threads| {
        for (lie, patient) in LIES.into_iter().flat_map(|lie| [(lie, true), (lie, false)]) {
            threads.spawn(move || {
                let dir = tempfile::tempdir().unwrap();
                let honest = dir.path().join("honest");
                let end = begin(&honest);
                page_of_a_liar_is_lost(dir.path(), &honest, scheme, lie, patient);
                end();
            });
        }
    });
}

#[test]
fn a_page_of_an_nbd_server_that_lies_is_lost_in_time() {
    all_lies(farpage_server::testing::nbd::begin, "nbd+unix");
}

#[test]
fn a_page_of_a_redis_server_that_lies_is_lost_in_time() {
    all_lies(farpage_server::testing::redis::begin, "redis+unix");
}
