//! A connection of a queue's own, on which reads are in flight: what was asked, and what has come.
//!
//! Owner: a queue. No locks but the link's.

use crate::link::{AskedFor, Link};
use crate::page_store::PageStore;
use crate::request::{BATCH_MAX, Received, RemoteRequest, ReplyReader, Transferred, decoded, nothing_written, written};
use crate::wire::{Broken, Wire};
use farpage_base::sys::clock::watched_ms;
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::VecDeque;
use std::sync::Arc;

/// A run that has been asked for.
struct RunInFlight {
    request: RemoteRequest,
    store: Arc<dyn PageStore>,
    /// As given to [`InFlight::send`].
    tag: (u32, usize),
    /// Since when it is waited for, milliseconds.
    since_ms: i64,
}

// SAFETY: the pointer in it is to memory lent for as long as the run is in flight (contract of `send`), not to anything
// of a thread.
unsafe impl Send for RunInFlight {}

/// See the module header.
pub struct InFlight {
    link: Arc<Link>,
    wire: Wire,
    /// The link's life in which it was opened.
    life: u32,
    replies: Box<dyn ReplyReader>,
    asked: VecDeque<RunInFlight>,
    next_number: u64,
    broken: bool,
}

impl InFlight {
    /// Opens a connection to the server of a store; `None`: there is none now.
    pub fn open(store: &dyn PageStore) -> Option<InFlight> {
        InFlight::on(store.link(), store.replies())
    }

    pub(crate) fn on(link: &Arc<Link>, replies: Box<dyn ReplyReader>) -> Option<InFlight> {
        let (wire, life) = link.open_own()?;
        let link = link.clone();
        Some(InFlight { link, wire, life, replies, asked: VecDeque::new(), next_number: 0, broken: false })
    }

    /// Whether it goes to the server of a store.
    pub fn is_to(&self, store: &dyn PageStore) -> bool {
        Arc::ptr_eq(&self.link, store.link())
    }

    /// Asks for runs of a store's, [`BATCH_MAX`] at most; each has a tag.
    ///
    /// # Safety
    /// Memory and its list stay where they are until [`InFlight::take_ended`] has named the run, or this value is
    /// dropped; nothing else looks at the memory.
    pub unsafe fn send(&mut self, store: &Arc<dyn PageStore>, runs: &[(RemoteRequest, (u32, usize))]) {
        let (since_ms, mut requests) = (watched_ms(), [RemoteRequest::NONE; BATCH_MAX]);
        for ((request, tag), place) in runs.iter().zip(&mut requests) {
            *place = RemoteRequest { number: self.next_number, together: runs.len(), ..*request };
            self.asked.push_back(RunInFlight { request: *place, store: store.clone(), tag: *tag, since_ms });
            self.next_number += 1;
        }
        let (requests, mut bytes) = (&requests[..runs.len().min(BATCH_MAX)], nothing_written());
        store.ask(requests, &mut bytes);
        self.wire.begin(self.link.time());
        if let Err(broken) = self.wire.send(&[written(&bytes)]) {
            // What it was asked for ends in `take_ended`.
            self.lose(since_ms, &requests[..1], broken);
        }
    }

    /// The next run that has ended, by its tag; does not wait.
    pub fn take_ended(&mut self) -> Option<((u32, usize), Transferred)> {
        let oldest = self.asked.front()?;
        let (since_ms, first) = (oldest.since_ms, [oldest.request]);
        let find = |number: Option<u64>| match number {
            None => self.asked.front().map(|asked| asked.request),
            Some(number) => self.asked.iter().map(|asked| asked.request).find(|one| one.number == number),
        };
        let received = match self.broken {
            true => Ok(Received::Nothing),
            false => self.replies.take_in(&mut self.wire, false, &find),
        };
        let place = |number| self.asked.iter().position(|asked| asked.request.number == number);
        let ended = received.map(|received| match received {
            Received::Nothing => None,
            Received::Ended(number, end) => place(number).map(|at| (at, end)),
            Received::Value(number, value) => place(number).map(|at| {
                let RunInFlight { store, request, .. } = &self.asked[at];
                (at, decoded(store.decode(request, value)))
            }),
        });
        let ended = match ended {
            Ok(None) if !self.broken && self.is_good(since_ms, &first) => return None,
            Ok(ended) => ended,
            Err(broken) => {
                self.lose(since_ms, &first, broken);
                None
            }
        };
        self.broken |= ended.is_none();
        let (at, end) = ended.unwrap_or((0, Transferred::OutOfReach));
        let asked = self.asked.remove(at)?;
        if !self.broken {
            self.link.answered(self.life, AskedFor::Pages(&[asked.request.range()]));
        }
        Some((asked.tag, end))
    }

    /// Whether something is in flight.
    pub fn is_busy(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether it is of no use any more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether it is to be kept: something is in flight, or it is as it was when it was opened.
    pub fn is_of_use(&mut self) -> bool {
        self.is_busy() || (!self.broken && self.is_ready())
    }

    /// Readable when something has come in.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }

    /// Whether nothing has come, nor the end, where nothing is in flight.
    fn is_ready(&mut self) -> bool {
        let nothing = self.wire.receive(&mut [0], false) == Ok(0);
        nothing && !self.replies.has_more() && self.life == self.link.life()
    }

    /// Whether it is of use although nothing has come since `since_ms`. If that is too long, the server is out of
    /// reach.
    fn is_good(&mut self, since_ms: i64, oldest: &[RemoteRequest]) -> bool {
        let (now, deadline) = (watched_ms(), self.link.deadline().as_millis() as i64);
        let silent = now - self.wire.heard_ms().max(since_ms) > deadline;
        let late = silent || now - since_ms > self.link.time().as_millis() as i64;
        if late {
            self.lose(since_ms, oldest, Broken::Silent);
        }
        !late && self.life == self.link.life()
    }

    /// The connection is of no more use, on which this was waited for: the server is out of reach.
    fn lose(&mut self, since_ms: i64, oldest: &[RemoteRequest], broken: Broken) {
        self.broken = true;
        if let Some(oldest) = oldest.first() {
            self.link.lose(self.life, AskedFor::Pages(&[oldest.range()]), since_ms, broken);
        }
    }

    /// As if the oldest were waited for since then.
    #[cfg(test)]
    pub(crate) fn waits_since(&mut self, since_ms: i64) -> bool {
        self.wire.heard_now();
        self.is_good(since_ms, &[RemoteRequest { len: 1, ..RemoteRequest::NONE }])
    }
}
