//! A server of exports in threads, that answers as it should, in any order, with errors, or with anything.

use crate::nbd::greeting::{HAVE_OPTION, MAGIC, OPTION_REPLY, REPLY};
use farpage_swap::sim::Random;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of the export.
pub const SIZE: usize = 16 << 20;
const FLAGS: u16 = 1 | 1 << 5 | 1 << 8;

/// What goes wrong.
#[derive(Default)]
pub struct Faults {
    /// Start of the random numbers; 0: nothing goes wrong.
    pub seed: AtomicU64,
    /// Writes find no room.
    pub full: AtomicBool,
    /// Reads fail.
    pub unreadable: AtomicBool,
    /// Reads are not answered.
    pub silent: AtomicBool,
    /// Answers take some time.
    pub slow: AtomicBool,
}

/// The server.
pub struct FakeServer {
    /// The export's bytes.
    pub data: Arc<Mutex<Vec<u8>>>,
    /// What goes wrong.
    pub faults: Arc<Faults>,
}

/// What it says to a new connection.
pub fn handshake(size: u64) -> Vec<u8> {
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

/// The head of a reply.
pub fn reply(error: u32, handle: u64) -> Vec<u8> {
    [REPLY.to_be_bytes().as_slice(), &error.to_be_bytes(), &handle.to_be_bytes()].concat()
}

impl FakeServer {
    /// Listens there.
    pub fn start(path: &Path) -> FakeServer {
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
