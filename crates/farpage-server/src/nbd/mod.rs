//! An export of an NBD server: transfers of pages over its connections.
//!
//! ```text
//!   | header, election | zeros up to 1 MiB | area 0 | area 1 | ...          | zeros, 64 KiB |
//! ```
//!
//! The header says which program's pages these are, by a random number: a server that was started anew without its
//! data, or that another program uses by now, is recognised when it is connected to again. Areas are given to processes
//! ([`crate::areas`]).
//!
//! | file | what |
//! | --- | --- |
//! | here | the export: requests, discards, the header |
//! | [`greeting`] | what a connection begins with |
//! | [`header`] | the header page |
//! | `owner` | how it is opened, and which process it belongs to |
//! | [`space`] | its areas, as a place for pages |
//! | `exchange` | requests on one connection, and their replies |
//!
//! Callers: `space`, and doctor. No locks of its own.

mod exchange;
pub mod greeting;
pub mod header;
mod owner;
pub mod space;
#[cfg(test)]
mod tests;

use crate::HolderLease;
use crate::link::{AskedFor, Link, Patience, Unreachable};
use crate::request::{self, Protocol, RemoteRequest, Transferred};
use crate::wire::Wire;
use exchange::NbdCommand;
pub(crate) use exchange::NbdReplies;
use farpage_base::sys::clock::now_us;
use farpage_base::sys::mutex::Mutex;
use farpage_ipc::conf::address::TIMEOUT;
use farpage_ipc::conf::nbd::ExportId;
use greeting::{ExportInfo, NbdGreeting};
use header::ExportHeader;
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

    /// In a forked child, which has this thread alone.
    pub fn fork_child(&self) {
        // SAFETY: one thread, without a guard; the thread that held the lock has only looked, or changes a number.
        unsafe { self.header.free_in_child() };
        self.link.fork_child();
    }

    /// The id of the program that has its pages on it.
    pub fn id(&self) -> Option<ExportId> {
        self.greeting.expected()
    }

    /// Whether pages may be written: no other program can have taken the export over.
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

    /// Requests of one kind; what has an end is not asked for (again).
    ///
    /// # Errors
    /// The server is out of reach; what was answered before has its end.
    fn exchange(
        &self,
        about: (Patience, AskedFor<'_>),
        command: NbdCommand,
        requests: &[RemoteRequest],
        ends: &mut [Option<Transferred>],
    ) -> Result<(), Unreachable> {
        let send = |wire: &mut Wire, requests: &[RemoteRequest]| exchange::send(wire, command, requests);
        let (replies, decode) = (|| NbdReplies::to(command), |_: &RemoteRequest, _: &mut [u8]| false);
        let protocol = Protocol { send: &send, replies: &replies, decode: &decode };
        request::exchange(&self.link, about, requests, ends, &protocol)
    }

    /// One request that is not about pages.
    ///
    /// # Errors
    /// The server is out of reach; within: what it says.
    fn one(&self, command: NbdCommand, request: RemoteRequest) -> Result<Result<(), Errno>, Unreachable> {
        let mut ends = [None];
        self.exchange((Patience::Now, AskedFor::Other), command, &[request], &mut ends)?;
        Ok(match ends[0] {
            Some(Transferred::Done) => Ok(()),
            Some(Transferred::Failed(errno)) => Err(errno),
            _ => Err(Errno::IO),
        })
    }

    /// Reads some bytes.
    ///
    /// # Errors
    /// As [`Export::one`].
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<Result<(), Errno>, Unreachable> {
        let part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        self.one(NbdCommand::Read, bytes(at, &part))
    }

    /// Writes some bytes that are not in an area.
    ///
    /// # Errors
    /// As [`Export::one`].
    fn write_front(&self, at: u64, from: &[u8]) -> Result<Result<(), Errno>, Unreachable> {
        let part = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        self.one(NbdCommand::Write, bytes(at, &part))
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
            if self.one(NbdCommand::Trim, RemoteRequest { at: from, len: part, ..RemoteRequest::NONE })?.is_err() {
                return Ok(false);
            }
            from += part;
        }
        Ok(from == end)
    }
}

/// A request for bytes in one piece of memory.
fn bytes(at: u64, part: &libc::iovec) -> RemoteRequest {
    RemoteRequest { at, memory: part, parts: 1, len: part.iov_len as u64, ..RemoteRequest::NONE }
}
