//! A connection on which reads are in flight: what the protocols have in common.
//!
//! Owner: a queue's `Lines`. No locks but the link's.

use super::link::{AskedFor, Link, OwnWire};
use super::wire::Broken;
use crate::io::{Conversation, Received, RemoteRead};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::VecDeque;
use std::sync::Arc;

/// How replies are understood.
pub trait ReplyReader: Send {
    /// So many runs were asked for at once.
    fn asked(&mut self, runs: usize);

    /// Takes in what has come, until a run has ended or nothing more is there.
    ///
    /// # Errors
    /// The connection is of no more use.
    fn take_in(&mut self, own: &mut OwnWire, asked: &VecDeque<RemoteRead>) -> Result<Received, Broken>;
}

struct Talk<R> {
    link: Arc<Link>,
    own: OwnWire,
    replies: R,
}

/// Opens a connection; `None`: there is none now.
pub fn open<R: ReplyReader + 'static>(link: &Arc<Link>, replies: R) -> Option<Box<dyn Conversation>> {
    Some(Box::new(Talk { own: link.open_own()?, link: link.clone(), replies }))
}

impl<R> Talk<R> {
    fn lose(&self, oldest: Option<&RemoteRead>, broken: Broken) {
        let Some(oldest) = oldest else { return };
        self.link.lose(&self.own, AskedFor::Pages(&[oldest.range()]), oldest.since_ms, broken);
    }
}

impl<R: ReplyReader> Conversation for Talk<R> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.own.wire.as_fd()
    }

    fn send(&mut self, bytes: &[u8], asked: &[RemoteRead]) -> bool {
        self.replies.asked(asked.len());
        self.own.wire.begin(self.link.time());
        self.own.wire.send(&[bytes]).map_err(|broken| self.lose(asked.first(), broken)).is_ok()
    }

    fn receive(&mut self, asked: &VecDeque<RemoteRead>) -> Received {
        let received = self.replies.take_in(&mut self.own, asked).unwrap_or_else(|broken| {
            self.lose(asked.front(), broken);
            Received::Broken
        });
        if let Received::Ended(at, _) = received
            && let Some(ended) = asked.get(at)
        {
            self.link.heard_of(&self.own, AskedFor::Pages(&[ended.range()]));
        }
        received
    }

    fn is_good(&mut self, oldest: &RemoteRead) -> bool {
        self.link.is_good(&self.own, AskedFor::Pages(&[oldest.range()]), oldest.since_ms)
    }

    fn is_ready(&mut self) -> bool {
        self.link.is_ready(&mut self.own)
    }
}
