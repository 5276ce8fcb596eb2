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
//! | `owner` | how it is opened, and whose it is |
//! | [`space`] | its areas, as a place for pages |
//! | [`exchange`] | requests on one connection, whose answers are waited for |
//! | [`in_flight`] | requests whose answers are not waited for |
//!
//! Callers: the file device, by `io` ([`RemoteRuns`]), and doctor. No locks of its own.

pub mod exchange;
pub mod greeting;
pub mod header;
mod in_flight;
mod owner;
pub mod space;
#[cfg(test)]
pub mod tests;

use super::link::{AskedFor, Link, Patience, Unreachable};
use super::{HolderLease, conversation};
use crate::io::{BATCH_MAX, Batch, Conversation, Direction, RemoteRead, RemoteRuns, Transferred};
use exchange::{Exchange, NbdCommand};
use farpage_base::sys::clock::now_us;
use farpage_base::sys::mutex::Mutex;
use farpage_ipc::conf::address::TIMEOUT;
use farpage_ipc::conf::nbd::ExportId;
use farpage_swap::PAGE_SIZE;
use greeting::{ExportInfo, NbdGreeting};
use header::ExportHeader;
use in_flight::NbdReplies;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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

    /// Whether pages may be written: nobody can have taken the export over.
    fn is_kept(&self) -> bool {
        Export::clock() - self.kept_ms.load(Relaxed) <= self.lease.end_ms / 2
    }

    /// It is ours, as was seen in an exchange that began then.
    fn was_kept(&self, header: Option<ExportHeader>, begun: i64) {
        *self.header.lock() = header;
        self.kept_ms.store(begun, Relaxed);
        self.look_ms.store(begun + self.lease.look_ms, Relaxed);
    }

    /// Milliseconds of the clock that goes on while the machine sleeps.
    fn clock() -> i64 {
        (now_us() / 1000) as i64
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
            for number in 0..exchange.count() {
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
