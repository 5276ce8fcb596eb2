//! A server that has keys and values, and can be told to misbehave.

use crate::redis::resp::{Reply, reply_of};
use farpage_ipc::conf::redis::RedisSpec;
use farpage_ipc::conf::{DeviceKind, SwapSpec};
use farpage_swap::PAGE_SIZE;
use farpage_swap::sim::Random;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

/// What the server does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Nothing.
    Nothing,
    /// `-OOM` to every SET.
    Full,
    /// Values of other keys.
    Foreign,
    /// What was there before.
    Old,
    /// Zeros of the right length.
    Zeros,
    /// The first half.
    Cut,
    /// A bit is another one.
    Flipped,
    /// Longer than any value.
    Long,
    /// It has nothing.
    Empty,
    /// A reply to something else.
    Other,
}

/// What is in it.
pub struct Content {
    /// By key.
    pub values: HashMap<Vec<u8>, Vec<u8>>,
    old: HashMap<Vec<u8>, Vec<u8>>,
    /// Of processes.
    pub sessions: HashMap<Vec<u8>, Vec<u8>>,
    /// See [`Wrong`].
    pub wrong: Wrong,
    /// What it does when it is full.
    pub policy: &'static str,
    /// Keys that were removed.
    pub unlinked: usize,
}

/// The server.
pub struct FakeServer {
    path: PathBuf,
    content: Arc<Mutex<Content>>,
    ended: Arc<AtomicBool>,
}

/// An honest server; the result ends it.
pub fn begin(path: &Path) -> Box<dyn FnOnce()> {
    let server = FakeServer::start_at(path);
    Box::new(move || drop(server))
}

impl FakeServer {
    /// At a path of its own.
    pub fn start() -> FakeServer {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("farpage-redis-{}-{}", std::process::id(), NUMBER.fetch_add(1, SeqCst));
        FakeServer::start_at(&std::env::temp_dir().join(name))
    }

    /// Listens there.
    pub fn start_at(path: &Path) -> FakeServer {
        let listener = UnixListener::bind(path).unwrap();
        let content = Content {
            values: HashMap::new(),
            old: HashMap::new(),
            sessions: HashMap::new(),
            wrong: Wrong::Nothing,
            policy: "noeviction",
            unlinked: 0,
        };
        let (content, ended) = (Arc::new(Mutex::new(content)), Arc::new(AtomicBool::new(false)));
        let (shared, stop) = (content.clone(), ended.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !stop.load(SeqCst)).flatten() {
                let content = shared.clone();
                std::thread::spawn(move || serve(stream, &content));
            }
        });
        FakeServer { path: path.into(), content, ended }
    }

    /// What is in it.
    pub fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// As a user writes it.
    pub fn spec(&self) -> String {
        format!("redis+unix://{}", self.path.display())
    }

    /// The same, understood.
    pub fn redis(&self) -> RedisSpec {
        let DeviceKind::Redis(spec) = SwapSpec::parse(&self.spec()).unwrap().kind else { panic!() };
        spec
    }

    /// Pages that it has.
    pub fn pages(&self) -> usize {
        self.content().values.keys().filter(|key| key.len() == 20).count()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        let _ = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(mut stream: UnixStream, content: &Mutex<Content>) {
    let (mut bytes, mut rng) = (Vec::new(), Random(3));
    loop {
        while let Ok(Some((used, Reply::Array(words)))) = reply_of(&bytes) {
            bytes.drain(..used);
            let words: Vec<Vec<u8>> = words
                .into_iter()
                .filter_map(|word| if let Reply::Bulk(word) = word { Some(word) } else { None })
                .collect();
            let mut reply = Vec::new();
            answer(&mut content.lock().unwrap(), &words, &mut reply, &mut rng);
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
        let mut piece = [0; 1 << 16];
        match stream.read(&mut piece) {
            Ok(n @ 1..) => bytes.extend(&piece[..n]),
            _ => return,
        }
    }
}

fn bulk(reply: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => {
            reply.extend(format!("${}\r\n", value.len()).bytes());
            reply.extend(value);
            reply.extend(b"\r\n");
        }
        None => reply.extend(b"$-1\r\n"),
    }
}

fn answer(content: &mut Content, words: &[Vec<u8>], reply: &mut Vec<u8>, rng: &mut Random) {
    match (words[0].as_slice(), content.wrong) {
        (b"SET", Wrong::Full) if words[1].len() == 20 => reply.extend(b"-OOM command not allowed\r\n"),
        (b"SET", _) => {
            if words.last().is_some_and(|word| word == b"NX") && content.values.contains_key(&words[1]) {
                return bulk(reply, None);
            }
            let before = content.values.insert(words[1].clone(), words[2].clone());
            content.old.extend(before.map(|before| (words[1].clone(), before)));
            reply.extend(b"+OK\r\n");
        }
        (b"GET", _) => bulk(reply, content.values.get(&words[1]).map(Vec::as_slice)),
        (b"MGET", Wrong::Other) => reply.extend(b"+OK\r\n+OK\r\n"),
        (b"MGET", wrong) => {
            reply.extend(format!("*{}\r\n", words.len() - 1).bytes());
            for key in &words[1..] {
                let value = content.values.get(key);
                let other = || content.values.iter().find(|(other, _)| other.len() == 20 && *other != key);
                let changed = match wrong {
                    Wrong::Empty => None,
                    Wrong::Foreign => other().map(|(_, value)| value.clone()),
                    Wrong::Old => content.old.get(key).cloned(),
                    Wrong::Zeros => value.map(|value| vec![0; value.len()]),
                    Wrong::Cut => value.map(|value| value[..value.len() / 2].to_vec()),
                    Wrong::Long => Some(vec![7; PAGE_SIZE + 2]),
                    Wrong::Flipped => value.cloned().map(|mut value| {
                        let at = rng.index(value.len());
                        value[at] ^= 1 << rng.index(8);
                        value
                    }),
                    Wrong::Nothing | Wrong::Full | Wrong::Other => value.cloned(),
                };
                bulk(reply, changed.as_deref());
            }
        }
        (b"UNLINK", _) => {
            let gone = words[1..].iter().filter(|key| content.values.remove(*key).is_some()).count();
            content.unlinked += gone;
            reply.extend(format!(":{gone}\r\n").bytes());
        }
        (b"EXISTS", _) => reply.extend(format!(":{}\r\n", u8::from(content.values.contains_key(&words[1]))).bytes()),
        (b"HSET", _) => {
            content.sessions.insert(words[2].clone(), words[3].clone());
            reply.extend(b":1\r\n");
        }
        (b"HDEL", _) => {
            content.sessions.remove(&words[2]);
            reply.extend(b":1\r\n");
        }
        (b"HGETALL", _) => {
            reply.extend(format!("*{}\r\n", 2 * content.sessions.len()).bytes());
            for (name, value) in &content.sessions {
                bulk(reply, Some(name));
                bulk(reply, Some(value));
            }
        }
        (b"INFO", _) => {
            let info =
                format!("# Memory\r\nused_memory:1\r\nmaxmemory:1000\r\nmaxmemory_policy:{}\r\n", content.policy);
            bulk(reply, Some(info.as_bytes()));
        }
        _ => reply.extend(b"-ERR unknown command\r\n"),
    }
}
