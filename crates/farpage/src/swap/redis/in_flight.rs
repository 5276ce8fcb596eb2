//! Reads in flight on a connection: the values of an MGET as they come, one command after the other.
//!
//! Owner: a queue's `Lines`. No locks but the link's.

use super::pages::VALUE_MAX;
use super::resp::{LINE_MAX, Part, RespError, ServerRefusal, part_of};
use crate::mem::units::Page;
use crate::swap::io::Transferred;
use crate::swap::io::in_flight::{Asked, Conversation, Received};
use crate::swap::remote::link::{Link, OwnWire};
use crate::swap::remote::wire::Broken;
use libc::iovec;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of replies that are taken in at once.
const BUFFER: usize = 32 << 10;

const _: () = assert!(BUFFER > LINE_MAX + VALUE_MAX + 2);

/// See the module header.
pub struct RedisConversation {
    link: Arc<Link>,
    own: OwnWire,
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// Values of the present reply that have not come.
    left: usize,
    /// The command of those that are left was refused.
    refused: Option<Transferred>,
}

impl RedisConversation {
    /// Opens a connection; `None`: there is none now.
    pub fn open(link: &Arc<Link>) -> Option<RedisConversation> {
        let (link, own, buffer) = (link.clone(), link.open_own()?, vec![0; BUFFER].into_boxed_slice());
        Some(RedisConversation { link, own, buffer, from: 0, to: 0, left: 0, refused: None })
    }

    fn take_in(&mut self, asked: &VecDeque<Asked>) -> Result<Received, Broken> {
        const NONSENSE: Broken = Broken::Nonsense("this is no reply");
        let Some(oldest) = asked.front() else { return Ok(Received::Nothing) };
        loop {
            if let Some(end) = self.refused.filter(|_| self.left > 0) {
                self.left -= 1;
                return Ok(Received::Ended(0, end));
            }
            self.refused = None;
            let (used, part) = match part_of(&self.buffer[self.from..self.to], VALUE_MAX) {
                Ok(Some(found)) => found,
                Ok(None) => match self.fill()? {
                    true => continue,
                    false => return Ok(Received::Nothing),
                },
                Err(RespError::Broken(broken)) => return Err(broken),
                // Cannot be: it is a part.
                Err(RespError::Refused(_)) => return Err(NONSENSE),
            };
            let begin = self.from;
            self.from += used;
            let end = match (self.left, part) {
                (0, Part::Array(parts)) if parts == oldest.group => {
                    self.left = parts;
                    continue;
                }
                (0, Part::Refused(refusal)) => {
                    self.left = oldest.group;
                    self.refused = Some(match refusal {
                        ServerRefusal::Later => Transferred::OutOfReach,
                        _ => Transferred::Failed(Errno::PROTO),
                    });
                    continue;
                }
                (1.., Part::NoValue) => Transferred::Gone,
                (1.., Part::Value(from, to)) => {
                    let value = &mut self.buffer[begin + from..begin + to];
                    // SAFETY: the window's memory, a page, and nobody else's until the run has ended.
                    let page = unsafe { &mut *(*oldest.memory).iov_base.cast::<Page>() };
                    match oldest.remote.decode(oldest.count, value, page) {
                        true => Transferred::Done,
                        false => Transferred::Failed(Errno::BADMSG),
                    }
                }
                _ => return Err(NONSENSE),
            };
            self.left -= 1;
            return Ok(Received::Ended(0, end));
        }
    }

    /// Takes in more; whether something has come.
    fn fill(&mut self) -> Result<bool, Broken> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let room = &mut self.buffer[self.to..];
        let mut part = [iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
        // SAFETY: borrowed for the call.
        let n = unsafe { self.own.wire.receive_now(&mut part) }?;
        self.to += n;
        if n > 0 {
            self.own.heard();
        }
        Ok(n > 0)
    }
}

impl Conversation for RedisConversation {
    fn fd(&self) -> BorrowedFd<'_> {
        self.own.wire.as_fd()
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        self.own.wire.begin();
        let sent = self.own.wire.send(&[bytes]);
        sent.map_err(|broken| self.link.lose(&self.own, broken)).is_ok()
    }

    fn receive(&mut self, asked: &VecDeque<Asked>) -> Received {
        self.take_in(asked).unwrap_or_else(|broken| {
            self.link.lose(&self.own, broken);
            Received::Broken
        })
    }

    fn is_good(&mut self, waiting_since_ms: i64) -> bool {
        self.link.is_good(&self.own, waiting_since_ms)
    }
}
