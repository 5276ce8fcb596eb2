//! Reads in flight to servers, while their thread does something else.
//!
//! A server is asked over a connection of the queue's own, for as much as there is to ask, and answers when it can. No
//! thread of the kernel's writes into the pages: bytes come in when [`Lines::next`] is called.
//!
//! Owner: a `ReadQueue`. Callers: it alone. No locks but those of a link when a connection is opened, or found broken.

use crate::io::{BATCH_MAX, Batch, Conversation, Received, RemoteRead, RemoteRuns, Transferred};
use farpage_base::sys::clock::now_ms;
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::sync::Arc;

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

struct ServerLine {
    server: usize,
    conversation: Box<dyn Conversation>,
    asked: VecDeque<RemoteRead>,
    next_number: u64,
    broken: bool,
}

/// The connections of a queue.
#[derive(Default)]
pub struct Lines {
    lines: Vec<ServerLine>,
    /// What is sent, for reuse.
    bytes: Vec<u8>,
}

impl Lines {
    /// Asks servers for the runs of a batch; how many are in flight now. The others have not been begun.
    ///
    /// # Safety
    /// Batch and memory stay where they are until [`Lines::next`] has named each of those runs, or [`Lines::clear`] was
    /// called; nobody else looks at the memory.
    pub unsafe fn send(&mut self, batch: &mut Batch, window: u32) -> usize {
        let mut flying = 0;
        for first in 0..batch.runs() {
            let Some(remote) = batch.remote_to_begin(first) else { continue };
            let Some(line) = self.line(&remote) else { continue };
            let line = &mut self.lines[line];
            let (from, since_ms) = (line.asked.len(), now_ms());
            for run in first..batch.runs() {
                let same = |other: &Arc<dyn RemoteRuns>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&remote));
                if !batch.remote_to_begin(run).is_some_and(|other| same(&other)) {
                    continue;
                }
                let Some(request) = batch.remote_request(run) else { continue };
                line.asked.push_back(RemoteRead {
                    remote: remote.clone(),
                    number: line.next_number,
                    at: request.at,
                    count: request.count,
                    memory: request.memory.as_ptr(),
                    parts: request.memory.len().min(BATCH_MAX),
                    pages: request.pages,
                    window,
                    run,
                    since_ms,
                });
                line.next_number += 1;
                batch.begun(run);
            }
            let runs = line.asked.len() - from;
            if runs == 0 {
                continue;
            }
            flying += runs;
            self.bytes.clear();
            let asked = &line.asked.make_contiguous()[from..];
            remote.ask(asked, &mut self.bytes);
            // What a broken line was asked for ends in `next`.
            line.broken |= !line.conversation.send(&self.bytes, asked);
        }
        flying
    }

    /// The connection to a server, opened if there is none.
    fn line(&mut self, remote: &Arc<dyn RemoteRuns>) -> Option<usize> {
        // Without those that nobody needs any more: their server was restarted, for example.
        self.lines.retain_mut(|line| !line.asked.is_empty() || (!line.broken && line.conversation.is_ready()));
        let there = self.lines.iter().position(|line| line.server == remote.server());
        if there.is_some() || self.lines.len() == LINES_MAX {
            return there;
        }
        let (server, conversation) = (remote.server(), remote.connect()?);
        self.lines.push(ServerLine { server, conversation, asked: VecDeque::new(), next_number: 0, broken: false });
        Some(self.lines.len() - 1)
    }

    /// The next run that has ended; does not wait.
    pub fn next(&mut self) -> Option<Landed> {
        for line in &mut self.lines {
            if let Some(oldest) = line.asked.front() {
                let received = if line.broken { Received::Broken } else { line.conversation.receive(&line.asked) };
                let (at, end) = match received {
                    Received::Ended(at, end) => (at, end),
                    Received::Nothing if line.conversation.is_good(oldest) => continue,
                    Received::Nothing | Received::Broken => (0, Transferred::OutOfReach),
                };
                line.broken |= end == Transferred::OutOfReach && received != Received::Ended(at, end);
                let Some(RemoteRead { window, run, .. }) = line.asked.remove(at) else { continue };
                return Some(Landed { window, run, end });
            }
        }
        self.lines.retain(|line| !line.broken || !line.asked.is_empty());
        None
    }

    /// Whether something is in flight.
    pub fn are_busy(&self) -> bool {
        self.lines.iter().any(|line| !line.asked.is_empty())
    }

    /// For a poll set; [`LINES_MAX`] at most.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lines.iter().filter(|line| !line.asked.is_empty()).map(|line| line.conversation.fd())
    }

    /// Closes all. What was in flight will never be written to.
    pub fn clear(&mut self) {
        self.lines.clear();
    }
}
