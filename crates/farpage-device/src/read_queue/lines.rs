//! Reads in flight to servers, while their thread does something else.
//!
//! A server is asked over a connection of the queue's own, for as much as there is to ask, and answers when it can. No
//! thread of the kernel's writes into the pages: bytes come in when [`Lines::next`] is called.
//!
//! Owner: a `ReadQueue`. Callers: it alone. No locks but those of a link when a connection is opened, or found broken.

use crate::io::{BATCH_MAX, Batch, Transferred};
use farpage_server::RemoteRequest;
use farpage_server::in_flight::InFlight;
use rustix::fd::BorrowedFd;

/// Servers that can be asked at the same time; others are read synchronously.
pub const LINES_MAX: usize = 8;

/// A run that has ended.
pub struct Landed {
    /// As given to [`Lines::send`].
    pub window: u32,
    /// Its number in the batch.
    pub run: usize,
    /// What became of it.
    pub end: Transferred,
}

/// The connections of a queue, one for each server.
#[derive(Default)]
pub struct Lines(Vec<InFlight>);

impl Lines {
    /// Asks servers for the runs of a batch; how many are in flight now. The others have not been begun.
    ///
    /// # Safety
    /// Batch and memory stay where they are until [`Lines::next`] has named each of those runs, or [`Lines::clear`] was
    /// called; nothing else looks at the memory.
    pub unsafe fn send(&mut self, batch: &mut Batch, window: u32) -> usize {
        let mut flying = 0;
        for first in 0..batch.runs() {
            let Some(store) = batch.store_to_ask(first) else { continue };
            // Without those that are of no use any more: their server was restarted, for example.
            self.0.retain_mut(|line| line.is_of_use());
            let at = self.0.iter().position(|line| line.is_to(store.as_ref())).or_else(|| {
                let line = if self.0.len() < LINES_MAX { InFlight::open(store.as_ref())? } else { return None };
                self.0.push(line);
                Some(self.0.len() - 1)
            });
            let Some(line) = at.and_then(|at| self.0.get_mut(at)) else { continue };
            let mut asked = [(RemoteRequest::NONE, 0); BATCH_MAX];
            let count = batch.begin_remotely(first, &mut asked);
            let asked = asked.map(|(request, run)| (request, (window, run)));
            // SAFETY: caller's promise.
            unsafe { line.send(&store, &asked[..count]) };
            flying += count;
        }
        flying
    }

    /// The next run that has ended; does not wait.
    pub fn next(&mut self) -> Option<Landed> {
        let landed = self.0.iter_mut().find_map(|line| line.take_ended());
        if landed.is_none() {
            self.0.retain_mut(|line| line.is_busy() || !line.is_broken());
        }
        landed.map(|((window, run), end)| Landed { window, run, end })
    }

    /// Whether something is in flight.
    pub fn are_busy(&self) -> bool {
        self.0.iter().any(|line| line.is_busy())
    }

    /// For a poll set; [`LINES_MAX`] at most.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter(|line| line.is_busy()).map(|line| line.fd())
    }

    /// Closes all. What was in flight will never be written to.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
