//! What a server is asked for, what comes back, and requests whose answers are waited for: the same for all protocols.
//!
//! Owner of a request: a thread, or a queue. No locks but the link's.

use crate::link::{AskedFor, Link, Patience, Unreachable};
use crate::wire::{Broken, Wire};
use libc::iovec;
use rustix::io::Errno;
use std::io::Cursor;

/// Most pages, and requests, in a batch.
pub const BATCH_MAX: usize = 64;
/// Bytes of what asks for a batch of runs.
const BYTES_MAX: usize = 2048;

/// What asks a server for runs, without the heap. What has no room is not there: no protocol needs more.
pub type RequestBytes = Cursor<[u8; BYTES_MAX]>;

/// What of them is to be sent.
pub fn written(bytes: &RequestBytes) -> &[u8] {
    &bytes.get_ref()[..bytes.position() as usize]
}

/// No bytes.
pub fn nothing_written() -> RequestBytes {
    Cursor::new([0; BYTES_MAX])
}

/// A run of pages, or of bytes, that a server is asked for.
#[derive(Clone, Copy)]
pub struct RemoteRequest {
    /// Where it is, in whatever the store counts in ([`crate::PageStore::at`]).
    pub at: u64,
    /// The number of its first page among all that were ever written there, if the server needs it.
    pub count: u64,
    /// Its memory, `parts` of them; the requester's alone until the run has ended. What is written is only read.
    pub memory: *const iovec,
    /// See `memory`.
    pub parts: usize,
    /// How long it is, in what `at` counts in.
    pub len: u64,
    /// Its number among those on a connection, and how many were asked for together with it.
    pub(crate) number: u64,
    pub(crate) together: usize,
}

impl RemoteRequest {
    /// Nothing.
    pub const NONE: RemoteRequest =
        RemoteRequest { at: 0, count: 0, memory: std::ptr::null(), parts: 0, len: 0, number: 0, together: 0 };

    /// For pages from number `count` on, into this memory.
    pub fn new(at: u64, count: u64, memory: &[iovec], len: u64) -> RemoteRequest {
        RemoteRequest { at, count, memory: memory.as_ptr(), parts: memory.len(), len, ..RemoteRequest::NONE }
    }

    /// Its memory.
    ///
    /// # Safety
    /// The run has not ended.
    pub(crate) unsafe fn memory(&self) -> &[iovec] {
        match self.parts {
            0 => &[],
            // SAFETY: caller's promise.
            parts => unsafe { std::slice::from_raw_parts(self.memory, parts) },
        }
    }

    /// From where to where it goes.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.at, self.at + self.len)
    }
}

/// What became of a page, or a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transferred {
    /// Transferred whole.
    Done,
    /// The file ends before the page does.
    EndOfFile,
    /// A server does not have it any more.
    Gone,
    /// What the kernel, or the server, said.
    Failed(Errno),
    /// The server is out of reach. What was to be written may yet be, at any later time.
    OutOfReach,
}

/// What has come in.
pub enum Received<'a> {
    /// Nothing that ends a run.
    Nothing,
    /// The run of this number has ended.
    Ended(u64, Transferred),
    /// What the server keeps for the run of this number has come, to be made a page.
    Value(u64, &'a mut [u8]),
}

/// Finds what was asked for and has not ended: by number, or the oldest.
pub type Find<'a> = &'a dyn Fn(Option<u64>) -> Option<RemoteRequest>;

/// How replies are understood.
pub trait ReplyReader: Send {
    /// Takes in what has come, until a run has ended or nothing more is there; with `wait`, waits for more.
    ///
    /// # Errors
    /// The connection is of no more use.
    fn take_in(&mut self, wire: &mut Wire, wait: bool, asked: Find<'_>) -> Result<Received<'_>, Broken>;

    /// Whether something has come that nothing was asked for.
    fn has_more(&self) -> bool;
}

/// A reply that answers nothing.
pub(crate) const STRAY: Broken = Broken::Nonsense("a reply to what was not asked");

/// Sends requests, or what asks for them.
type SendRequests<'a> = &'a dyn Fn(&mut Wire, &[RemoteRequest]) -> Result<(), Broken>;

/// How a protocol asks for runs and understands what comes.
pub(crate) struct Protocol<'a, R> {
    /// Sends what asks for these.
    pub send: SendRequests<'a>,
    /// Understands the replies to one sending.
    pub replies: &'a dyn Fn() -> R,
    /// Makes a value the page that was asked for; whether it is one.
    pub decode: &'a dyn Fn(&RemoteRequest, &mut [u8]) -> bool,
}

/// What became of a run whose value has come.
pub(crate) fn decoded(is_page: bool) -> Transferred {
    if is_page { Transferred::Done } else { Transferred::Failed(Errno::BADMSG) }
}

/// Sends requests, [`BATCH_MAX`] at most, and waits for the answers; after a failure those without one are sent again,
/// if `patience` says so. Allocates nothing.
///
/// # Errors
/// The server is out of reach; what was answered before has its end.
pub(crate) fn exchange<R: ReplyReader>(
    link: &Link,
    (patience, about): (Patience, AskedFor<'_>),
    requests: &[RemoteRequest],
    ends: &mut [Option<Transferred>],
    protocol: &Protocol<'_, R>,
) -> Result<(), Unreachable> {
    link.talk(patience, about, &mut |wire| {
        let (mut open, mut count) = ([RemoteRequest::NONE; BATCH_MAX], 0);
        let together = ends.iter().filter(|end| end.is_none()).count();
        for (number, request) in (0..).zip(requests).filter(|(number, _)| ends[*number as usize].is_none()) {
            open[count] = RemoteRequest { number, together, ..*request };
            count += 1;
        }
        let open = &open[..count];
        (protocol.send)(wire, open)?;
        let mut replies = (protocol.replies)();
        while ends.iter().any(Option::is_none) {
            let is_open = |number: u64| ends.get(number as usize).is_some_and(Option::is_none);
            let find = |number: Option<u64>| {
                let wanted = |one: &&RemoteRequest| number.is_none_or(|n| n == one.number) && is_open(one.number);
                open.iter().find(wanted).copied()
            };
            let (number, end) = match replies.take_in(wire, true, &find)? {
                Received::Nothing => continue,
                Received::Ended(number, end) => (number, end),
                Received::Value(number, value) => {
                    (number, decoded((protocol.decode)(&requests[number as usize], value)))
                }
            };
            ends[number as usize] = Some(end);
        }
        if replies.has_more() { Err(Broken::Nonsense("it answers more than it is asked")) } else { Ok(()) }
    })
}

/// Reads runs by `exchange`, and waits for them; `ends` says what became of each. Allocates nothing.
pub(crate) fn read(
    requests: &[RemoteRequest],
    ends: &mut [Transferred],
    exchange: impl FnOnce(AskedFor<'_>, &mut [Option<Transferred>]) -> Result<(), Unreachable>,
) {
    let (mut ranges, mut answers) = ([(0, 0); BATCH_MAX], [None; BATCH_MAX]);
    ranges.iter_mut().zip(requests).for_each(|(range, request)| *range = request.range());
    let answers = &mut answers[..requests.len()];
    let without = match exchange(AskedFor::Pages(&ranges[..requests.len()]), answers) {
        Err(Unreachable::Later) => Transferred::OutOfReach,
        Err(Unreachable::Nonsense) => Transferred::Failed(Errno::PROTO),
        Err(Unreachable::Lost) | Ok(()) => Transferred::Failed(Errno::TIMEDOUT),
    };
    answers.iter().zip(ends).for_each(|(answer, end)| *end = answer.unwrap_or(without));
}
