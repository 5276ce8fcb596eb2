//! The names under which things are on a server.
//!
//! | key | what |
//! | --- | --- |
//! | [`IDENTITY`] | a random word of the first program: a server with another, or none, has lost our pages |
//! | [`SESSIONS`] | a hash of all sessions: number -> slots that there may be, and their owner |
//! | `farpage:alive:NUMBER` | goes by itself when its session's process has not been heard of for [`ALIVE_S`] |
//! | 16 bytes of the session's number and 4 of the slot | a page; these never go by themselves |
//!
//! Callers: the other files here. No locks.

use super::resp::word;
use crate::HolderLease;
use crate::request::RequestBytes;
use farpage_base::sys::raw::random_bytes;
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use std::io::Write;

/// See the module header.
pub const IDENTITY: &[u8] = b"farpage:server";
/// See the module header.
pub const SESSIONS: &[u8] = b"farpage:sessions";
/// Seconds.
pub const ALIVE_S: i64 = HolderLease::USUAL.end_ms / 1000;
/// Bytes of a page's key.
pub const KEY_LEN: usize = 20;
/// Most pages that are asked for at once.
pub const MANY: usize = 64;

/// Longest value of a page: what it is, and all of it.
pub const VALUE_MAX: usize = PAGE_SIZE + 1;

/// The number of a session: the pages of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionId([u8; 16]);

/// 16 bytes as people read them.
pub type Hex = [u8; 32];

impl SessionId {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn random() -> Result<SessionId, Errno> {
        let mut id = [0; 16];
        random_bytes(&mut id)?;
        Ok(SessionId(id))
    }

    /// From [`SessionId::hex`].
    pub fn parse(text: &[u8]) -> Option<SessionId> {
        let digits: &Hex = text.try_into().ok()?;
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(SessionId(id))
    }

    /// As people read it.
    pub fn hex(&self) -> Hex {
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        }
        text
    }

    /// The key that says that its process is there.
    pub fn alive(&self) -> Vec<u8> {
        [b"farpage:alive:", &self.hex()[..]].concat()
    }

    /// The key of a page. Slots have 32 bits.
    pub fn page(&self, slot: u64) -> [u8; KEY_LEN] {
        let mut key = [0; KEY_LEN];
        key[..16].copy_from_slice(&self.0);
        key[16..].copy_from_slice(&(slot as u32).to_be_bytes());
        key
    }
}

/// Appends a command about the pages of some slots, [`MANY`] at most.
pub fn pages_command(out: &mut RequestBytes, name: &[u8], id: &SessionId, slots: impl ExactSizeIterator<Item = u64>) {
    // A batch has room.
    let _ = write!(out, "*{}\r\n", slots.len() + 1);
    word(out, name);
    slots.for_each(|slot| word(out, &id.page(slot)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::resp::command;
    use crate::request::{nothing_written, written};

    #[test]
    fn a_session_is_read_as_it_is_written() {
        let id = SessionId::random().unwrap();
        assert_eq!(SessionId::parse(&id.hex()), Some(id));
        assert!(SessionId::parse(&id.hex()[1..]).is_none() && SessionId::parse(&[b'g'; 32]).is_none());
        assert_eq!(id.page(0x0102_0304)[16..], [1, 2, 3, 4]);
        assert_ne!(SessionId::random().unwrap(), id);
    }

    #[test]
    fn a_command_about_pages_is_what_the_protocol_wants() {
        let id = SessionId::random().unwrap();
        for slots in [1..2, 7..7 + MANY as u64] {
            let keys: Vec<_> = slots.clone().map(|slot| id.page(slot)).collect();
            let words: Vec<&[u8]> = [&b"UNLINK"[..]].into_iter().chain(keys.iter().map(|key| &key[..])).collect();
            let n = (slots.end - slots.start) as usize;
            let (mut bytes, mut plain) = (nothing_written(), Vec::new());
            pages_command(&mut bytes, b"UNLINK", &id, (0..n).map(|i| slots.start + i as u64));
            command(&mut plain, &words);
            assert_eq!(written(&bytes), plain);
        }
    }
}
