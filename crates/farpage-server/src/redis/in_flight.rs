//! The replies on a connection as they come: the values of an MGET, one command after the other, and what is said to
//! SETs.
//!
//! Owner: a thread, on its stack, or a queue. No locks.

use super::keys::VALUE_MAX;
use super::resp::{LINE_MAX, NONSENSE, ReplyPart, ServerRefusal, part_of};
use crate::request::{Find, Received, ReplyReader, Transferred};
use crate::wire::{Broken, Wire};
use rustix::io::Errno;

/// Bytes of replies that are taken in at once: by a thread, on its stack, and by a queue.
pub const SMALL: usize = 8 << 10;
pub const LARGE: usize = 32 << 10;

const _: () = assert!(SMALL > LINE_MAX + VALUE_MAX + 2);

/// See the module header. With memory of at least [`SMALL`] bytes.
pub struct RedisReplies<B> {
    buffer: B,
    from: usize,
    to: usize,
    /// Values of the present reply that have not come.
    left: usize,
    /// The command of those that are left was refused.
    refused: Option<Transferred>,
}

impl<B: AsMut<[u8]>> RedisReplies<B> {
    /// Nothing has come.
    pub fn new(buffer: B) -> RedisReplies<B> {
        RedisReplies { buffer, from: 0, to: 0, left: 0, refused: None }
    }

    /// Takes in more; whether something has come.
    fn fill(&mut self, wire: &mut Wire, wait: bool) -> Result<bool, Broken> {
        let buffer = self.buffer.as_mut();
        buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let n = wire.receive(&mut buffer[self.to..], wait)?;
        self.to += n;
        Ok(n > 0)
    }
}

impl<B: AsMut<[u8]> + Send> ReplyReader for RedisReplies<B> {
    fn take_in(&mut self, wire: &mut Wire, wait: bool, asked: Find<'_>) -> Result<Received<'_>, Broken> {
        let Some(oldest) = asked(None) else { return Ok(Received::Nothing) };
        loop {
            if let Some(end) = self.refused.filter(|_| self.left > 0) {
                self.left -= 1;
                return Ok(Received::Ended(oldest.number, end));
            }
            self.refused = None;
            let Some((used, part)) = part_of(&self.buffer.as_mut()[self.from..self.to], VALUE_MAX)? else {
                match self.fill(wire, wait)? {
                    true => continue,
                    false => return Ok(Received::Nothing),
                }
            };
            let begin = self.from;
            self.from += used;
            let is_store = oldest.parts == 0;
            let end = match (self.left, part) {
                // It is to be asked again, as one that does not answer.
                (0, ReplyPart::Refused(ServerRefusal::Later)) => return Err(Broken::Busy),
                (0, ReplyPart::Array(parts)) if !is_store && parts == oldest.together => {
                    self.left = parts;
                    continue;
                }
                (0, ReplyPart::Refused(_)) if !is_store => {
                    (self.left, self.refused) = (oldest.together, Some(Transferred::Failed(Errno::PROTO)));
                    continue;
                }
                // Nothing but OK says that it is stored.
                (0, ReplyPart::Status(from, to)) if is_store && self.buffer.as_mut()[begin..][from..to] == *b"OK" => {
                    Transferred::Done
                }
                (0, ReplyPart::Refused(ServerRefusal::Full)) => Transferred::Failed(Errno::NOSPC),
                (0, ReplyPart::Refused(_)) => Transferred::Failed(Errno::ROFS),
                (1.., ReplyPart::NoValue) => {
                    self.left -= 1;
                    Transferred::Gone
                }
                (1.., ReplyPart::Value(from, to)) => {
                    self.left -= 1;
                    return Ok(Received::Value(oldest.number, &mut self.buffer.as_mut()[begin + from..begin + to]));
                }
                _ => return Err(NONSENSE),
            };
            return Ok(Received::Ended(oldest.number, end));
        }
    }

    fn has_more(&self) -> bool {
        self.from < self.to || self.left > 0
    }
}
