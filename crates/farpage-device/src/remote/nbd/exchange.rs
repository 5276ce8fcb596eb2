//! Requests in flight on one connection: all are sent, then all are answered, in any order.
//!
//! A read is answered by a header and its data, which go to the memory of the request that the header names. A server
//! can answer wrongly; then the exchange ends and so does the connection. It cannot write anywhere but into memory of a
//! read that it has not answered yet.
//!
//! Owner: a thread, on its stack. No locks.

use super::greeting::{REPLY, request};
use crate::io::BATCH_MAX;
use crate::remote::wire::{Broken, Wire};
use libc::iovec;
use rustix::io::Errno;

/// Bytes of the head of a reply.
pub const HEAD: usize = 16;
/// Parts of memory of all requests, and their heads.
const PARTS: usize = 2 * BATCH_MAX;
/// The lower half of a handle is the request's number.
const MARK: u64 = 0x6661_7270 << 32;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum NbdCommand {
    /// Data come.
    Read = 0,
    /// Data are sent.
    Write = 1,
    /// Space is given back.
    Trim = 4,
}

#[derive(Clone, Copy)]
struct SentRequest {
    command: NbdCommand,
    /// `parts[first..last]` are its memory.
    first: usize,
    last: usize,
    outcome: Option<Result<(), Errno>>,
}

const NOTHING: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// See the module header.
pub struct Exchange {
    heads: [[u8; 28]; BATCH_MAX],
    asked: [SentRequest; BATCH_MAX],
    len: usize,
    parts: [iovec; BATCH_MAX],
    part_count: usize,
}

impl Exchange {
    /// Without requests.
    pub fn new() -> Exchange {
        let none = SentRequest { command: NbdCommand::Trim, first: 0, last: 0, outcome: None };
        Exchange {
            heads: [[0; 28]; BATCH_MAX],
            asked: [none; BATCH_MAX],
            len: 0,
            parts: [NOTHING; BATCH_MAX],
            part_count: 0,
        }
    }

    /// Adds a request; its number, or `None`: there is no room. `len`: bytes of a [`NbdCommand::Trim`].
    ///
    /// # Safety
    /// `memory` names memory that is the exchange's until it has been run.
    pub unsafe fn add(&mut self, command: NbdCommand, at: u64, memory: &[iovec], len: u32) -> Option<usize> {
        let number = self.len;
        let (first, last) = (self.part_count, self.part_count + memory.len());
        self.parts.get_mut(first..last)?.copy_from_slice(memory);
        let bytes = memory.iter().map(|part| part.iov_len as u32).sum::<u32>() + len;
        *self.heads.get_mut(number)? = head_of(command, number as u64, at, bytes);
        self.asked[number] = SentRequest { command, first, last, outcome: None };
        (self.len, self.part_count) = (number + 1, last);
        Some(number)
    }

    /// Requests.
    pub fn count(&self) -> usize {
        self.len
    }

    /// What the server said to a request; `None`: nothing.
    pub fn outcome(&self, number: usize) -> Option<Result<(), Errno>> {
        self.asked[..self.len].get(number)?.outcome
    }

    /// Sends all, and waits for all answers.
    ///
    /// # Errors
    /// The connection is of no more use; what was answered before has its outcome.
    pub fn run(&mut self, wire: &mut Wire) -> Result<(), Broken> {
        let mut parts = [NOTHING; PARTS];
        let mut count = 0;
        for (asked, head) in self.asked[..self.len].iter().zip(&self.heads) {
            parts[count] = iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() };
            count += 1;
            if asked.command == NbdCommand::Write {
                let memory = &self.parts[asked.first..asked.last];
                parts[count..count + memory.len()].copy_from_slice(memory);
                count += memory.len();
            }
        }
        // SAFETY: the heads are alive, and so is what is written (contract of `add`).
        unsafe { wire.send_vectors(&mut parts[..count]) }?;
        let mut head = [0; HEAD];
        let mut has_head = false;
        for left in (0..self.len).rev() {
            if !has_head {
                wire.receive(&mut head)?;
            }
            has_head = false;
            let (number, result) = self.reply(&head)?;
            let asked = &mut self.asked[number];
            if asked.command == NbdCommand::Read && result.is_ok() {
                // The data, and the next head with it.
                let memory = &self.parts[asked.first..asked.last];
                parts[..memory.len()].copy_from_slice(memory);
                parts[memory.len()] = iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEAD };
                has_head = left > 0;
                let count = memory.len() + usize::from(has_head);
                // SAFETY: the memory is the exchange's (contract of `add`); the head is alive.
                unsafe { wire.receive_vectors(&mut parts[..count]) }?;
            }
            self.asked[number].outcome = Some(result);
        }
        Ok(())
    }

    /// Which request a reply is to, and what it says.
    fn reply(&self, head: &[u8; HEAD]) -> Result<(usize, Result<(), Errno>), Broken> {
        let (number, result) = reply_of(head)?;
        match self.asked[..self.len].get(number as usize) {
            Some(SentRequest { outcome: None, .. }) => Ok((number as usize, result)),
            _ => Err(STRAY),
        }
    }
}

/// A reply that answers nothing.
pub const STRAY: Broken = Broken::Nonsense("a reply to what was not asked");

/// The head of a request with a number.
pub fn head_of(command: NbdCommand, number: u64, at: u64, bytes: u32) -> [u8; 28] {
    request(command as u16, MARK ^ number, at, bytes)
}

/// The number of the request that a reply is to, and what it says.
pub fn reply_of(head: &[u8; HEAD]) -> Result<(u64, Result<(), Errno>), Broken> {
    let [magic, error] = [0, 4].map(|at| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let mut handle = [0; 8];
    handle.copy_from_slice(&head[8..]);
    if magic != REPLY {
        return Err(Broken::Nonsense("no reply where one must be"));
    }
    let number = u64::from_be_bytes(handle) ^ MARK;
    match error {
        0 => Ok((number, Ok(()))),
        // It is shutting down.
        108 => Err(Broken::Closed),
        28 => Ok((number, Err(Errno::NOSPC))),
        12 => Ok((number, Err(Errno::NOMEM))),
        1 => Ok((number, Err(Errno::PERM))),
        _ => Ok((number, Err(Errno::IO))),
    }
}
