//! Requests on a connection, and their replies as they come, in any order.
//!
//! A read is answered by a head and its data, which go to the memory of the request that the head names. A server can
//! answer wrongly; then the connection is given up. It cannot write anywhere but into memory of a read that it has not
//! answered yet.
//!
//! Owner: a thread, on its stack, or a queue. No locks.

use super::greeting::{REPLY, request};
use crate::request::{BATCH_MAX, Find, Received, RemoteRequest, ReplyReader, RequestBytes, STRAY, Transferred};
use crate::wire::{Broken, NOTHING, Wire, skip};
use libc::iovec;
use rustix::io::Errno;
use std::io::Write;

/// Bytes of the head of a request, and of a reply.
const ASK: usize = 28;
const HEAD: usize = 16;
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

fn head_of(command: NbdCommand, request: &RemoteRequest) -> [u8; ASK] {
    self::request(command as u16, MARK ^ request.number, request.at, request.len as u32)
}

/// Appends requests to read.
pub fn ask(requests: &[RemoteRequest], bytes: &mut RequestBytes) {
    // There is room for a batch.
    requests.iter().for_each(|request| _ = bytes.write_all(&head_of(NbdCommand::Read, request)));
}

/// Sends requests, [`BATCH_MAX`] at most, with what is to be written.
///
/// # Errors
/// The connection is of no more use.
pub fn send(wire: &mut Wire, command: NbdCommand, requests: &[RemoteRequest]) -> Result<(), Broken> {
    let (mut heads, mut parts, mut count) = ([[0; ASK]; BATCH_MAX], [NOTHING; 2 * BATCH_MAX], 0);
    for (request, head) in requests.iter().zip(&mut heads) {
        *head = head_of(command, request);
        // SAFETY: it has not ended.
        let memory: &[iovec] = if command == NbdCommand::Write { unsafe { request.memory() } } else { &[] };
        let head = [iovec { iov_base: head.as_mut_ptr().cast(), iov_len: ASK }];
        for part in head.iter().chain(memory) {
            // The pages of a batch have as many parts at most.
            *parts.get_mut(count).ok_or(Broken::Nonsense("too many parts"))? = *part;
            count += 1;
        }
    }
    // SAFETY: the heads are alive, and what is written is not changed before its run has ended.
    unsafe { wire.send_vectors(&mut parts[..count]) }
}

/// See the module header.
#[derive(Default)]
pub struct NbdReplies {
    /// Replies are heads alone, as those to writes.
    without_data: bool,
    head: [u8; HEAD],
    head_len: usize,
    /// Data of this read are next, of which so many bytes have come.
    data: Option<(u64, usize)>,
}

impl NbdReplies {
    /// The replies to commands of a kind.
    pub fn to(command: NbdCommand) -> NbdReplies {
        NbdReplies { without_data: command != NbdCommand::Read, ..NbdReplies::default() }
    }
}

impl ReplyReader for NbdReplies {
    fn take_in(&mut self, wire: &mut Wire, wait: bool, asked: Find<'_>) -> Result<Received<'_>, Broken> {
        loop {
            let Some((number, got)) = self.data else {
                if self.head_len < HEAD {
                    match wire.receive(&mut self.head[self.head_len..], wait)? {
                        0 => return Ok(Received::Nothing),
                        n => self.head_len += n,
                    }
                    continue;
                }
                self.head_len = 0;
                let (number, result) = reply_of(&self.head)?;
                asked(Some(number)).ok_or(STRAY)?;
                match result {
                    Err(errno) => return Ok(Received::Ended(number, Transferred::Failed(errno))),
                    Ok(()) if self.without_data => return Ok(Received::Ended(number, Transferred::Done)),
                    Ok(()) => self.data = Some((number, 0)),
                }
                continue;
            };
            let request = asked(Some(number)).ok_or(STRAY)?;
            // SAFETY: it has not ended.
            let memory = unsafe { request.memory() };
            let mut parts = [NOTHING; BATCH_MAX + 1];
            let (parts, mut at) = (parts.get_mut(..=memory.len()).ok_or(STRAY)?, 0);
            parts[..memory.len()].copy_from_slice(memory);
            // The next head may come with them.
            let left = memory.iter().map(|part| part.iov_len).sum::<usize>() - got;
            parts[memory.len()] = iovec { iov_base: self.head.as_mut_ptr().cast(), iov_len: HEAD };
            skip(parts, &mut at, got);
            // SAFETY: memory of a run that has not ended, which is this connection's alone, and the head.
            match unsafe { wire.receive_vectors(&mut parts[at..], wait) }? {
                0 => return Ok(Received::Nothing),
                n if n < left => self.data = Some((number, got + n)),
                n => {
                    (self.data, self.head_len) = (None, n - left);
                    return Ok(Received::Ended(number, Transferred::Done));
                }
            }
        }
    }

    fn has_more(&self) -> bool {
        self.head_len > 0
    }
}

/// The number of the request that a reply is to, and what it says.
fn reply_of(head: &[u8; HEAD]) -> Result<(u64, Result<(), Errno>), Broken> {
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
