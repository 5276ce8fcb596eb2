//! An export of an NBD server: transfers of pages over its connections.
//!
//! ```text
//!   | header, election | zeros up to 1 MiB | area 0 | area 1 | ...                                        | zeros, 64 KiB |
//! ```
//!
//! The header says whose pages these are, by a random number: a server that was started anew without its data, or that
//! somebody else uses by now, is recognised when it is connected to again. Areas are given to processes
//! ([`super::areas`]).
//!
//! | file | what |
//! | --- | --- |
//! | here | the export: batches of page I/O, discards, the header |
//! | [`greeting`] | what a connection begins with |
//! | [`header`] | the header page |
//! | `owner` | whose it is |
//! | [`exchange`] | requests on one connection, whose answers are waited for |
//! | [`in_flight`] | requests whose answers are not waited for |
//!
//! Callers: the file device, by `io` ([`RemoteRuns`]), and doctor. No locks of its own.

pub mod exchange;
pub mod greeting;
pub mod header;
mod in_flight;
mod owner;
#[cfg(test)]
pub mod tests;

use super::link::{AskedFor, Link, Patience, Unreachable};
use super::{HolderLease, conversation};
use crate::PAGE_SIZE;
use crate::conf::address::{Endpoint, TIMEOUT};
use crate::conf::nbd::{ExportId, NbdSpec};
use crate::swap::error::DeviceError;
use crate::swap::io::{BATCH_MAX, Batch, Conversation, Direction, RemoteRead, RemoteRuns, Transferred};
use crate::sys::mutex::Mutex;
use exchange::{Exchange, NbdCommand};
use greeting::{ExportInfo, NbdGreeting};
use header::{ExportHeader, OWNED, Wrong};
use in_flight::NbdReplies;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;

/// Bytes before the first area, and behind the last one.
pub const FRONT: u64 = 1 << 20;
/// See [`FRONT`].
pub const BACK: u64 = 64 << 10;
/// Many requests have so long at least.
const REQUESTS_LEAST: Duration = Duration::from_secs(10);
/// Most bytes of one request that carries no data.
const TRIM_MAX: u64 = 64 << 20;

/// See the module header.
pub struct Export {
    link: Arc<Link>,
    greeting: Arc<NbdGreeting>,
    info: ExportInfo,
    lease: HolderLease,
    /// What the owner has written last; `None`: nothing yet.
    header: Mutex<Option<ExportHeader>>,
    /// When the owner was seen to be us, when that is looked at again, and whether it was too late for a while.
    kept_ms: AtomicI64,
    look_ms: AtomicI64,
    was_late: AtomicBool,
}

impl Export {
    /// For processes that are started from here. The address is in numbers.
    ///
    /// # Errors
    /// It cannot be used, and what to do.
    pub fn of(spec: &NbdSpec) -> Result<Export, DeviceError> {
        let error = |reason: String, remedy: &str| DeviceError { name: spec.name(), reason, remedy: remedy.into() };
        let endpoint = spec.address.endpoint();
        let endpoint = endpoint.ok_or_else(|| error("its name was not looked up".into(), "give its address"))?;
        let export = Export::open(spec.name(), endpoint, &spec.export, spec.served.timeout, None, HolderLease::USUAL);
        export.map_err(|(reason, remedy)| error(reason, remedy))
    }

    /// Connects, and takes the export for the pages of `id`, whose header is there, or makes it ours.
    ///
    /// # Errors
    /// It cannot be reached, or holds something else.
    pub fn open(
        name: String,
        endpoint: Endpoint,
        export: &str,
        timeout: Option<Duration>,
        id: Option<ExportId>,
        lease: HolderLease,
    ) -> Result<Export, Wrong> {
        let begun = Export::clock();
        let greeting = Arc::new(NbdGreeting::new(export));
        if let Some(id) = id {
            greeting.expect(id);
        }
        let asking = Arc::new(NbdGreeting::asking(export));
        let link = Link::new(name, endpoint.clone(), greeting.clone(), timeout);
        link.open().map_err(|why| {
            let refused = Link::new(String::new(), endpoint, asking, None).refusal();
            (
                refused.map_or(why, String::from),
                "look whether the server runs, and whether host, port and export are right",
            )
        })?;
        let info =
            greeting.info().ok_or_else(|| (String::from("it says nothing of its size"), "use another server"))?;
        link.allow_many(info.many());
        let export = Export {
            link: Arc::new(link),
            greeting,
            info,
            lease,
            header: Mutex::new(None),
            kept_ms: AtomicI64::new(begun),
            look_ms: AtomicI64::new(begun),
            was_late: AtomicBool::new(false),
        };
        if info.read_only() {
            return Err(("it can only be read".into(), "let the server export it for writing"));
        }
        if info.size < FRONT + BACK + (4 << 20) {
            return Err(("it is too small".into(), "use one of 6 MiB or more"));
        }
        if id.is_none() {
            export.take_over()?;
        }
        Ok(export)
    }

    /// Whether another connection can be had while this one is open.
    pub fn allows_another(&self) -> bool {
        self.link.again().open().is_ok()
    }

    /// What the server says of it.
    pub fn info(&self) -> ExportInfo {
        self.info
    }

    /// The connections.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// In a forked child, whose only thread this is.
    pub fn fork_child(&self) {
        // SAFETY: one thread, without a guard; whoever held the lock has only looked, or changes a number.
        unsafe { self.header.free_in_child() };
        self.link.fork_child();
    }

    /// Whose pages are on it.
    pub fn id(&self) -> Option<ExportId> {
        self.greeting.expected()
    }

    /// Makes an export ours that is blank, or that nobody uses any more, and empties it.
    fn take_over(&self) -> Result<(), Wrong> {
        let unreachable = |_| (String::from("the server has stopped answering"), "try again");
        let until = self.until();
        let mut bytes = vec![0; 64 << 10];
        for at in (0..FRONT).step_by(bytes.len()).chain([self.info.size - BACK]) {
            if Export::clock() >= until {
                return Err((
                    "the server takes too long to answer".into(),
                    "look how it is reached, or give it more timeout=",
                ));
            }
            let errno = self.read(at, &mut bytes).map_err(unreachable)?;
            if let Err(errno) = errno {
                let reason = format!("it cannot be read: {}", crate::sys::raw::ErrnoText(errno));
                return Err((reason, "look at the server's messages"));
            }
            let ours = (OWNED as u64).saturating_sub(at).min(bytes.len() as u64) as usize;
            let (ours, others) = bytes.split_at(ours);
            if !ours.chunks(PAGE_SIZE).all(ExportHeader::may_be) || others.iter().any(|byte| *byte != 0) {
                let remedy = "use a blank export; if nothing on this one is needed, make its first 1 MiB zero";
                return Err(("it holds something that is not farpage's".into(), remedy));
            }
        }
        let header = self.become_owner()?;
        self.greeting.expect(header.id);
        self.was_kept(Some(header), Export::clock());
        self.trim(FRONT, self.info.size - FRONT - BACK).map_err(unreachable)?;
        Ok(())
    }

    /// When what consists of many requests, and begins now, must be over, however they are answered.
    fn until(&self) -> i64 {
        // However little time a page has, so many answers take some.
        Export::clock() + self.link.timeout().unwrap_or(TIMEOUT).max(REQUESTS_LEAST).as_millis() as i64
    }

    /// Reads some bytes.
    ///
    /// # Errors
    /// The server is out of reach; within: what it says.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<Result<(), Errno>, Unreachable> {
        let part = [libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() }];
        self.link.talk(Patience::Now, AskedFor::Other, &mut |wire| {
            let mut exchange = Exchange::new();
            // SAFETY: borrowed mutably until the exchange is over.
            unsafe { exchange.add(NbdCommand::Read, at, &part, 0) };
            exchange.run(wire)?;
            Ok(exchange.outcome(0).unwrap_or(Err(Errno::IO)))
        })
    }

    /// Writes some bytes that are not in an area.
    ///
    /// # Errors
    /// As [`Export::read`].
    fn write_front(&self, at: u64, bytes: &[u8]) -> Result<Result<(), Errno>, Unreachable> {
        let part = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        self.link.talk(Patience::Now, AskedFor::Other, &mut |wire| {
            let mut exchange = Exchange::new();
            // SAFETY: borrowed until the exchange is over, and only read.
            unsafe { exchange.add(NbdCommand::Write, at, &part, 0) };
            exchange.run(wire)?;
            Ok(exchange.outcome(0).unwrap_or(Err(Errno::IO)))
        })
    }

    /// Gives space back; whether the server does that.
    ///
    /// # Errors
    /// The server is out of reach: it may still do that at any later time.
    pub fn trim(&self, at: u64, len: u64) -> Result<bool, Unreachable> {
        if !self.info.trims() || !self.is_kept() {
            return Ok(false);
        }
        let (mut from, end, until) = (at, at + len, self.until());
        while from < end && Export::clock() < until {
            let part = (end - from).min(TRIM_MAX);
            let done = self.link.talk(Patience::Now, AskedFor::Other, &mut |wire| {
                let mut exchange = Exchange::new();
                // SAFETY: no memory.
                unsafe { exchange.add(NbdCommand::Trim, from, &[], part as u32) };
                exchange.run(wire)?;
                Ok(exchange.outcome(0) == Some(Ok(())))
            });
            if !done? {
                return Ok(false);
            }
            from += part;
        }
        Ok(from == end)
    }
}

impl RemoteRuns for Export {
    fn server(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn connect(&self) -> Option<Box<dyn Conversation>> {
        conversation::open(&self.link, NbdReplies::default())
    }

    fn ask(&self, asked: &[RemoteRead], bytes: &mut Vec<u8>) {
        in_flight::ask(asked, bytes);
    }

    fn run(&self, batch: &mut Batch, mine: &[bool]) {
        let patience = if batch.is_patient() { Patience::Wait } else { Patience::Now };
        let mut results = [None; BATCH_MAX];
        let (mut ranges, mut len, mut stores) = ([(0, 0); BATCH_MAX], 0, false);
        for i in (0..batch.runs()).filter(|i| mine[*i]) {
            let Some(request) = batch.remote_request(i) else { continue };
            ranges[len] = (request.at, request.at + (request.pages * PAGE_SIZE) as u64);
            stores |= request.direction == Direction::Write;
            len += 1;
        }
        if stores && !self.is_kept() {
            // What has no owner is as full: it may have one again.
            for i in (0..batch.runs()).filter(|i| mine[*i]) {
                batch.remote_ended(i, Transferred::Failed(Errno::NOSPC));
            }
            return;
        }
        let about = if stores { AskedFor::Stores } else { AskedFor::Pages(&ranges[..len]) };
        let talked = self.link.talk(patience, about, &mut |wire| {
            let mut exchange = Exchange::new();
            let mut runs = [0; BATCH_MAX];
            for i in (0..batch.runs()).filter(|i| mine[*i]) {
                if results[i].is_some() {
                    continue;
                }
                let Some(request) = batch.remote_request(i) else { continue };
                let command = match request.direction {
                    Direction::Read => NbdCommand::Read,
                    Direction::Write => NbdCommand::Write,
                };
                // SAFETY: the memory is the batch's until it has ended.
                if let Some(number) = unsafe { exchange.add(command, request.at, request.memory, 0) } {
                    runs[number] = i;
                }
            }
            let ended = exchange.run(wire);
            for number in 0..exchange.len() {
                results[runs[number]] = exchange.outcome(number);
            }
            ended
        });
        let without = match talked {
            // What was written may yet get there.
            _ if stores => Transferred::OutOfReach,
            Err(Unreachable::Later) => Transferred::OutOfReach,
            Err(Unreachable::Nonsense) => Transferred::Failed(Errno::PROTO),
            _ => Transferred::Failed(Errno::TIMEDOUT),
        };
        for (i, result) in results.into_iter().enumerate().take(batch.runs()).filter(|(i, _)| mine[*i]) {
            let answered = result.map(|result| result.map_or_else(Transferred::Failed, |()| Transferred::Done));
            batch.remote_ended(i, answered.unwrap_or(without));
        }
    }
}
