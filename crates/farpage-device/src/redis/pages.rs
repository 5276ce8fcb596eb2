//! Pages of a file device on a server.
//!
//! A value is a page as it was compressed, or one word, or the page as it is; its first byte says which. All of it is
//! encrypted, if the device encrypts. Whether what comes back is what was stored is decided by the page's keyed hash,
//! in the file device: a server can lose a page, and that is all.
//!
//! A slot is used again only when the server has answered to everything that was ever said of it. So an old command
//! that arrives late meets no new page.
//!
//! Callers: the file device. Locks: `scratch`, a leaf; codec states; the link's.

use super::in_flight::RedisReplies;
use super::keys::{ALIVE_S, KEY_LEN, MANY, PagesCommand, SESSIONS, SessionId, VALUE_MAX};
use super::resp::{Commands, Reader, RespError, ServerRefusal};
use super::server::Server;
use crate::io::{BATCH_MAX, Batch, Conversation, Direction, RemoteRead, RemoteRuns, Transferred};
use crate::remote::link::{AskedFor, Link, Patience, Unreachable};
use crate::remote::page_store::{OutgoingPage, PageStore, PageStores, Seal};
use crate::remote::wire::Wire;
use crate::remote::{HolderLease, conversation};
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
    /// Who we are, for those who look at the server.
    owner: String,
}

/// The stores of one server.
pub struct RedisStores(Arc<StoresShare>);

impl RedisStores {
    /// For a server that will do. `owner`: whose pages they are, in words, for people.
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
        if pages.say_alive() && pages.say_end(0) { Ok(Arc::new(Arc::new(pages))) } else { Err(Errno::AGAIN) }
    }

    fn link(&self) -> &Link {
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
}

impl RedisPages {
    /// There may be slots up to this one from now on; whether the server knows that.
    fn say_end(&self, end: u64) -> bool {
        let what = format!("{end} {}", self.shared.owner);
        self.shared.server.ask(&[b"HSET", SESSIONS, &self.id.hex(), what.as_bytes()]).is_ok()
    }
}

impl RemoteRuns for RedisPages {
    fn merges(&self) -> bool {
        false
    }

    fn server(&self) -> usize {
        std::ptr::from_ref(&*self.shared).addr()
    }

    fn connect(&self) -> Option<Box<dyn Conversation>> {
        conversation::open(self.shared.server.link(), RedisReplies::new())
    }

    fn ask(&self, asked: &[RemoteRead], bytes: &mut Vec<u8>) {
        let command = PagesCommand::new(b"MGET", &self.id, asked.iter().map(|asked| asked.at));
        bytes.extend_from_slice(command.bytes());
    }

    fn decode(&self, count: u64, value: &mut [u8], into: &mut Page) -> bool {
        if let Some(seal) = &self.seal {
            seal.apply(count, value);
        }
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

    fn run(&self, batch: &mut Batch, mine: &[bool]) {
        let patience = if batch.is_patient() { Patience::Wait } else { Patience::Now };
        let (mut wanted, mut n) = ([Wanted::NOTHING; BATCH_MAX], 0);
        for run in (0..batch.runs()).filter(|run| mine[*run]) {
            let Some(request) = batch.remote_request(run) else { continue };
            // Pages are stored by `store`.
            if request.direction == Direction::Write {
                batch.remote_ended(run, Transferred::Failed(Errno::INVAL));
                continue;
            }
            let [memory] = request.memory else { continue };
            wanted[n] = Wanted { run, slot: request.at, count: request.count, page: memory.iov_base.cast() };
            n += 1;
        }
        let mut ends = [Transferred::Failed(Errno::IO); BATCH_MAX];
        self.read(patience, &wanted[..n], &mut ends[..n]);
        for (wanted, end) in wanted[..n].iter().zip(ends) {
            batch.remote_ended(wanted.run, end);
        }
    }
}

/// A page that is read.
#[derive(Clone, Copy)]
struct Wanted {
    run: usize,
    slot: u64,
    count: u64,
    /// The run's memory.
    page: *mut Page,
}

impl Wanted {
    const NOTHING: Wanted = Wanted { run: 0, slot: 0, count: 0, page: std::ptr::null_mut() };
}

impl RedisPages {
    /// Reads pages of a batch; allocates nothing.
    fn read(&self, patience: Patience, wanted: &[Wanted], ends: &mut [Transferred]) {
        let command = PagesCommand::new(b"MGET", &self.id, wanted.iter().map(|wanted| wanted.slot));
        let mut read = |reader: &mut Reader<'_>, wire: &mut Wire| -> Result<(), RespError> {
            let mut value = [0; VALUE_MAX];
            reader.array_of(wire, wanted.len())?;
            for (wanted, end) in wanted.iter().zip(ends.iter_mut()) {
                *end = match reader.value(wire, &mut value)? {
                    None => Transferred::Gone,
                    Some(len) => {
                        // SAFETY: a page of the batch's, and nobody else's until its run has ended (contract of
                        // `Batch::push`).
                        let page = unsafe { &mut *wanted.page };
                        // What is something else will be found to have another hash, or is told here.
                        match self.decode(wanted.count, &mut value[..len], page) {
                            true => Transferred::Done,
                            false => Transferred::Failed(Errno::BADMSG),
                        }
                    }
                };
            }
            Ok(())
        };
        let mut ranges = [(0, 0); BATCH_MAX];
        ranges.iter_mut().zip(wanted).for_each(|(range, wanted)| *range = (wanted.slot, wanted.slot + 1));
        let about = AskedFor::Pages(&ranges[..wanted.len()]);
        let end = match self.shared.server.exchange(patience, about, command.bytes(), &mut read) {
            Ok(Ok(())) => return,
            Err(Unreachable::Later) => Transferred::OutOfReach,
            Ok(Err(_)) | Err(Unreachable::Nonsense) => Transferred::Failed(Errno::PROTO),
            Err(Unreachable::Lost) => Transferred::Failed(Errno::HOSTUNREACH),
        };
        ends.fill(end);
    }
}

impl PageStore for Arc<RedisPages> {
    fn runs(&self) -> Arc<dyn RemoteRuns> {
        self.clone()
    }

    fn at(&self, slot: u64) -> u64 {
        slot
    }

    fn store(&self, pages: &[OutgoingPage<'_>], out: &mut [Transferred]) {
        let shared = &*self.shared;
        out.fill(Transferred::Failed(Errno::HOSTUNREACH));
        let spare = shared.scratch.lock().pop().unwrap_or_default();
        let mut value = Vec::with_capacity(VALUE_MAX + PAGE_SIZE / 16);
        let mut commands = Commands::in_memory(spare);
        for leaving in pages {
            value.clear();
            self.encode(leaving, &mut value);
            commands.push(&[b"SET", &self.id.page(leaving.slot), &value]);
        }
        // If the connection breaks in between, the first may be confirmed and the others not.
        let mut read = |reader: &mut Reader<'_>, wire: &mut Wire| -> Result<(), RespError> {
            for out in out.iter_mut().take(pages.len()) {
                *out = match reader.stored(wire) {
                    Ok(()) => Transferred::Done,
                    Err(RespError::Refused(ServerRefusal::Full)) => Transferred::Failed(Errno::NOSPC),
                    Err(RespError::Refused(_)) => Transferred::Failed(Errno::ROFS),
                    Err(RespError::Broken(broken)) => return Err(RespError::Broken(broken)),
                };
            }
            Ok(())
        };
        // What became of each is in `out`.
        let _ = shared.server.exchange(Patience::Now, AskedFor::Stores, commands.bytes(), &mut read);
        shared.scratch.lock().push(commands.into_memory());
    }

    fn forgets(&self) -> bool {
        true
    }

    fn forget(&self, slots: &[u64]) -> bool {
        slots.chunks(MANY).all(|slots| {
            let command = PagesCommand::new(b"UNLINK", &self.id, slots.iter().copied());
            let mut read = |reader: &mut Reader<'_>, wire: &mut Wire| reader.done(wire);
            let done = self.shared.server.exchange(Patience::Now, AskedFor::Other, command.bytes(), &mut read);
            matches!(done, Ok(Ok(())))
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
