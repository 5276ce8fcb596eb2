//! Pages of a file device on a server.
//!
//! A value is a page as it was compressed, or one word, or the page as it is; its first byte says which. All of it is
//! encrypted, if the device encrypts. Whether what comes back is what was stored is decided by the page's keyed hash,
//! in the file device: a server can lose a page, and that is all.
//!
//! A slot is used again only when the server has answered to everything that was ever said of it. So an old command
//! that arrives late meets no new page.
//!
//! Callers: the device. Locks: `scratch`, a leaf; codec states; the link's.

use super::in_flight::{LARGE, RedisReplies, SMALL};
use super::keys::{ALIVE_S, KEY_LEN, MANY, SESSIONS, SessionId, VALUE_MAX, pages_command};
use super::resp::{Reply, command};
use super::server::Server;
use crate::HolderLease;
use crate::link::{AskedFor, Link, Patience};
use crate::page_store::{OutgoingPage, PageStore, PageStores, Seal};
use crate::request::{
    self, BATCH_MAX, Protocol, RemoteRequest, ReplyReader, RequestBytes, Transferred, nothing_written, written,
};
use crate::wire::Wire;
use farpage_base::mem::units::Page;
use farpage_base::sys::clock::now_ms;
use farpage_base::sys::mutex::Mutex;
use farpage_codec::codec::{Codec, fill, same_filled};
use farpage_ipc::conf::Alg;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// What a value is.
const WHOLE: u8 = 0;
const WORD: u8 = 1;
const LZ4: u8 = 2;

/// What the stores of a device have in common.
struct StoresShare {
    server: Server,
    codec: Codec,
    /// Memory of commands, for the next.
    scratch: Mutex<Vec<Vec<u8>>>,
    /// The name of this program there, for people who look at the server.
    owner: String,
}

/// The stores of one server.
pub struct RedisStores(Arc<StoresShare>);

impl RedisStores {
    /// For a server that will do. `owner`: the program that the pages belong to, in words, for people.
    pub fn new(server: Server, owner: String) -> RedisStores {
        let codec = Codec::new(Alg::Lz4);
        codec.warm();
        RedisStores(Arc::new(StoresShare { server, codec, scratch: Mutex::new(Vec::new()), owner }))
    }
}

impl PageStores for RedisStores {
    fn make(&self, seal: Option<Seal>) -> Result<Arc<dyn PageStore>, Errno> {
        let (id, made_by) = (SessionId::random()?, getpid());
        let next_look_ms = AtomicI64::new(0);
        let pages = RedisPages { shared: self.0.clone(), id, seal, next_look_ms, made_by };
        // The first look is due at once; before anything is stored.
        if pages.say_alive() && pages.say_end(0) { Ok(Arc::new(pages)) } else { Err(Errno::AGAIN) }
    }

    fn link(&self) -> &Arc<Link> {
        self.0.server.link()
    }

    fn fork_child(&self) {
        // SAFETY: the child has one thread, which is here and has no guard. What a thread of the parent's was doing
        // with a list of spare memory is of no interest: it is thrown away, without being freed.
        unsafe {
            self.0.scratch.free_in_child();
            self.0.codec.fork_child();
        }
        std::mem::forget(std::mem::take(&mut *self.0.scratch.lock()));
        self.0.server.link().fork_child();
    }
}

/// The pages of one process.
struct RedisPages {
    shared: Arc<StoresShare>,
    id: SessionId,
    seal: Option<Seal>,
    next_look_ms: AtomicI64,
    /// A copy of this in a child that knows nothing of it has nothing to say.
    made_by: Pid,
}

impl RedisPages {
    /// Appends what is stored for a page.
    fn encode(&self, leaving: &OutgoingPage<'_>, value: &mut Vec<u8>) {
        let from = value.len();
        if let Some(word) = same_filled(leaving.page) {
            value.push(WORD);
            value.extend(word.to_ne_bytes());
        } else {
            let packed = self.shared.codec.compress(leaving.page, |bytes| {
                let pays = bytes.len() < PAGE_SIZE;
                if pays {
                    value.push(LZ4);
                    value.extend_from_slice(bytes);
                }
                pays
            });
            if packed != Some(true) {
                value.push(WHOLE);
                value.extend_from_slice(leaving.page);
            }
        }
        if let (Some(seal), Some(value)) = (&self.seal, value.get_mut(from..)) {
            seal.apply(leaving.count, value);
        }
    }

    /// Whether the server has heard that we are there.
    fn say_alive(&self) -> bool {
        let (key, life) = (self.id.alive(), ALIVE_S.to_string());
        self.shared.server.ask(&[b"SET", &key, self.shared.owner.as_bytes(), b"EX", life.as_bytes()]).is_ok()
    }

    /// There may be slots up to this one from now on; whether the server knows that.
    fn say_end(&self, end: u64) -> bool {
        let what = format!("{end} {}", self.shared.owner);
        self.shared.server.ask(&[b"HSET", SESSIONS, &self.id.hex(), what.as_bytes()]).is_ok()
    }
}

impl PageStore for RedisPages {
    fn packs(&self) -> bool {
        true
    }

    fn at(&self, slot: u64) -> u64 {
        slot
    }

    fn link(&self) -> &Arc<Link> {
        self.shared.server.link()
    }

    fn replies(&self) -> Box<dyn ReplyReader> {
        Box::new(RedisReplies::new(vec![0; LARGE]))
    }

    fn ask(&self, requests: &[RemoteRequest], bytes: &mut RequestBytes) {
        pages_command(bytes, b"MGET", &self.id, requests.iter().map(|request| request.at));
    }

    fn decode(&self, request: &RemoteRequest, value: &mut [u8]) -> bool {
        // SAFETY: it has not ended.
        let [memory] = (unsafe { request.memory() }) else { return false };
        // SAFETY: a page that is the requester's alone until the run has ended, as it is one of a store that packs.
        let into = unsafe { &mut *memory.iov_base.cast::<Page>() };
        if let Some(seal) = &self.seal {
            seal.apply(request.count, value);
        }
        // What is something else will be found to have another hash, or is told here.
        match value.split_first() {
            Some((&WHOLE, bytes)) => bytes.try_into().is_ok_and(|page: &Page| {
                *into = *page;
                true
            }),
            Some((&WORD, bytes)) => bytes.try_into().is_ok_and(|word| {
                fill(into, u64::from_ne_bytes(word));
                true
            }),
            Some((&LZ4, bytes)) => self.shared.codec.decompress(bytes, into),
            _ => false,
        }
    }

    fn read(&self, patience: Patience, requests: &[RemoteRequest], ends: &mut [Transferred]) {
        let send = |wire: &mut Wire, requests: &[RemoteRequest]| {
            let mut bytes = nothing_written();
            self.ask(requests, &mut bytes);
            wire.send(&[written(&bytes)])
        };
        let decode = |request: &RemoteRequest, value: &mut [u8]| self.decode(request, value);
        let protocol = Protocol { send: &send, replies: &on_stack, decode: &decode };
        let link = self.shared.server.link();
        request::read(requests, ends, |about, ends| {
            request::exchange(link, (patience, about), requests, ends, &protocol)
        });
    }

    fn store(&self, pages: &[OutgoingPage<'_>], out: &mut [Transferred]) {
        let shared = &*self.shared;
        let mut commands = shared.scratch.lock().pop().unwrap_or_default();
        commands.clear();
        let mut value = Vec::with_capacity(VALUE_MAX + PAGE_SIZE / 16);
        for leaving in pages {
            value.clear();
            self.encode(leaving, &mut value);
            command(&mut commands, &[b"SET", &self.id.page(leaving.slot), &value]);
        }
        // If the connection breaks in between, the first may be confirmed and the others not. None is sent again.
        let (requests, mut ends) = ([RemoteRequest::NONE; BATCH_MAX], [None; BATCH_MAX]);
        let (requests, ends) = (&requests[..pages.len()], &mut ends[..pages.len()]);
        let send = |wire: &mut Wire, _: &[RemoteRequest]| wire.send(&[&commands]);
        let protocol = Protocol { send: &send, replies: &on_stack, decode: &|_, _| false };
        let about = (Patience::Now, AskedFor::Stores);
        let _ = request::exchange(shared.server.link(), about, requests, ends, &protocol);
        for (out, end) in out.iter_mut().zip(ends) {
            *out = end.unwrap_or(Transferred::Failed(Errno::HOSTUNREACH));
        }
        shared.scratch.lock().push(commands);
    }

    fn forgets(&self) -> bool {
        true
    }

    fn forget(&self, slots: &[u64]) -> bool {
        slots.chunks(MANY).all(|slots| {
            let mut bytes = nothing_written();
            pages_command(&mut bytes, b"UNLINK", &self.id, slots.iter().copied());
            matches!(self.shared.server.ask_bytes(written(&bytes)), Ok(Reply::Number(_)))
        })
    }

    fn grow(&self, end: u64, step: u64) -> u64 {
        if self.say_end(end + step) { end + step } else { end }
    }

    fn tick(&self) -> Option<&'static str> {
        let link = self.shared.server.link();
        if !link.is_up() {
            // A step towards it.
            link.reach();
        }
        let (now, due) = (now_ms(), self.next_look_ms.load(Relaxed));
        let mine = now >= due
            && self.next_look_ms.compare_exchange(due, now + HolderLease::USUAL.look_ms, Relaxed, Relaxed).is_ok();
        if !mine || !link.is_up() {
            return None;
        }
        self.say_alive();
        self.shared.server.unfit()
    }

    fn remove(&self, end: u64) {
        if getpid() == self.made_by {
            super::sweep::remove(&self.shared.server, &self.id, end);
        }
    }
}

const _: () = assert!(BATCH_MAX <= MANY && KEY_LEN == 20);

fn on_stack() -> RedisReplies<[u8; SMALL]> {
    RedisReplies::new([0; SMALL])
}
