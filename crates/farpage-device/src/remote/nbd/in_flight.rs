//! Reads in flight on a connection: heads and data of replies as they come, in any order.
//!
//! As in [`super::exchange`], a server cannot write anywhere but into memory of a read that it has not answered yet.
//!
//! Owner: a queue's `Lines`. No locks but the link's.

use super::exchange::{HEAD, NbdCommand, STRAY, head_of, reply_of};
use crate::io::{BATCH_MAX, Received, RemoteRead, Transferred};
use crate::remote::conversation::ReplyReader;
use crate::remote::link::OwnWire;
use crate::remote::wire::{Broken, skip};
use libc::iovec;
use std::collections::VecDeque;

const NOTHING: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Appends requests to read.
pub fn ask(asked: &[RemoteRead], bytes: &mut Vec<u8>) {
    for one in asked {
        // SAFETY: the window's, until the run has ended.
        let memory = unsafe { std::slice::from_raw_parts(one.memory, one.parts) };
        let len = memory.iter().map(|part| part.iov_len as u32).sum();
        bytes.extend(head_of(NbdCommand::Read, one.number, one.at, len));
    }
}

/// The data of a reply, as far as they have not come.
struct Data {
    number: u64,
    parts: [iovec; BATCH_MAX],
    count: usize,
    at: usize,
}

/// See the module header.
#[derive(Default)]
pub struct NbdReplies {
    head: [u8; HEAD],
    head_len: usize,
    data: Option<Data>,
}

// SAFETY: the pointers in it are to memory lent for as long as a run is in flight, not to anything of a thread.
unsafe impl Send for NbdReplies {}

impl ReplyReader for NbdReplies {
    fn asked(&mut self, _runs: usize) {}

    fn take_in(&mut self, own: &mut OwnWire, asked: &VecDeque<RemoteRead>) -> Result<Received, Broken> {
        let place = |number| asked.iter().position(|asked| asked.number == number).ok_or(STRAY);
        loop {
            let Some(data) = &mut self.data else {
                let rest = &mut self.head[self.head_len..];
                let mut part = [iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() }];
                // SAFETY: borrowed for the call.
                match unsafe { own.wire.receive_now(&mut part) }? {
                    0 => return Ok(Received::Nothing),
                    n => self.head_len += n,
                }
                own.heard();
                if self.head_len < HEAD {
                    continue;
                }
                self.head_len = 0;
                let (number, result) = reply_of(&self.head)?;
                let at = place(number)?;
                if let Err(errno) = result {
                    return Ok(Received::Ended(at, Transferred::Failed(errno)));
                }
                let mut data = Data { number, parts: [NOTHING; BATCH_MAX], count: asked[at].parts, at: 0 };
                // SAFETY: the window's, until the run has ended, which is when `Lines` hears of it.
                let memory = unsafe { std::slice::from_raw_parts(asked[at].memory, asked[at].parts) };
                data.parts.get_mut(..data.count).ok_or(STRAY)?.copy_from_slice(memory);
                self.data = Some(data);
                continue;
            };
            // SAFETY: memory of a run that is in flight: nobody else's.
            match unsafe { own.wire.receive_now(&mut data.parts[data.at..data.count]) }? {
                0 => return Ok(Received::Nothing),
                n if skip(&mut data.parts[..data.count], &mut data.at, n) => own.heard(),
                _ => {
                    let at = place(data.number)?;
                    self.data = None;
                    own.heard();
                    return Ok(Received::Ended(at, Transferred::Done));
                }
            }
        }
    }
}
