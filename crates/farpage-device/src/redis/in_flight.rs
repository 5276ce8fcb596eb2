//! Reads in flight on a connection: the values of an MGET as they come, one command after the other.
//!
//! Owner: a queue's `Lines`. No locks but the link's.

use super::keys::VALUE_MAX;
use super::resp::{LINE_MAX, MgetPart, RespError, ServerRefusal, part_of};
use crate::io::{Received, RemoteRead, Transferred};
use crate::remote::conversation::ReplyReader;
use crate::remote::link::OwnWire;
use crate::remote::wire::Broken;
use farpage_base::mem::units::Page;
use libc::iovec;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Bytes of replies that are taken in at once.
const BUFFER: usize = 32 << 10;

const _: () = assert!(BUFFER > LINE_MAX + VALUE_MAX + 2);

/// See the module header.
pub struct RedisReplies {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// Values of each command that was not answered.
    commands: VecDeque<usize>,
    /// Values of the present reply that have not come.
    left: usize,
    /// The command of those that are left was refused.
    refused: Option<Transferred>,
}

impl RedisReplies {
    /// Of a new connection.
    pub fn new() -> RedisReplies {
        let (buffer, commands) = (vec![0; BUFFER].into_boxed_slice(), VecDeque::new());
        RedisReplies { buffer, from: 0, to: 0, commands, left: 0, refused: None }
    }

    /// Takes in more; whether something has come.
    fn fill(&mut self, own: &mut OwnWire) -> Result<bool, Broken> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let room = &mut self.buffer[self.to..];
        let mut part = [iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
        // SAFETY: borrowed for the call.
        let n = unsafe { own.wire.receive_now(&mut part) }?;
        self.to += n;
        if n > 0 {
            own.heard();
        }
        Ok(n > 0)
    }
}

impl ReplyReader for RedisReplies {
    fn asked(&mut self, runs: usize) {
        self.commands.push_back(runs);
    }

    fn take_in(&mut self, own: &mut OwnWire, asked: &VecDeque<RemoteRead>) -> Result<Received, Broken> {
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
                Ok(None) => match self.fill(own)? {
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
                (0, MgetPart::Array(parts)) if Some(parts) == self.commands.pop_front() => {
                    self.left = parts;
                    continue;
                }
                (0, MgetPart::Refused(ServerRefusal::Later)) => return Err(Broken::Busy),
                (0, MgetPart::Refused(_)) => {
                    self.left = self.commands.pop_front().unwrap_or(0);
                    self.refused = Some(Transferred::Failed(Errno::PROTO));
                    continue;
                }
                (1.., MgetPart::NoValue) => Transferred::Gone,
                (1.., MgetPart::Value(from, to)) => {
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
}
