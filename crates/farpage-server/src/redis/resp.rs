//! The part of the Redis protocol (RESP2) that pages need: commands out, replies in.
//!
//! A server is believed nothing: every length is looked at before it is used, a line has a longest form, replies nest
//! two deep and have a size. What is not understood, or does not fit, is [`Broken::Nonsense`]; the connection is of no
//! use then, because nothing says where the next reply begins. An error that the server itself reports
//! ([`ReplyPart::Refused`]) is a reply like others, and the connection goes on.
//!
//! Callers: the other files here. No locks.

#[cfg(test)]
mod tests;

use crate::wire::Broken;
use std::io::Write;

/// The longest line: a status, an error, a number.
pub const LINE_MAX: usize = 512;
/// Bytes of one [`Reply`], and of the memory that it takes.
pub const REPLY_MAX: usize = 4 << 20;
/// Parts of one array.
const PARTS_MAX: usize = 1 << 18;

/// What a server answers instead of doing what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRefusal {
    /// `-OOM`: it has reached its `maxmemory`.
    Full,
    /// `-NOAUTH`, `-WRONGPASS`, or an `-ERR` about a password.
    Password,
    /// `-NOPERM`: the user may not give this command.
    Permission,
    /// `-ERR unknown command`: renamed or taken away.
    UnknownCommand,
    /// `-MOVED`, `-ASK`, `-CLUSTERDOWN`: a cluster.
    Cluster,
    /// `-LOADING`, `-MASTERDOWN`, `-BUSY`, `-TRYAGAIN`: later, perhaps.
    Later,
    /// `-MISCONF`, `-READONLY`, `-NOREPLICAS`: it takes no writes.
    ReadOnly,
    /// Anything else.
    Other,
}

impl ServerRefusal {
    /// Reads the text behind the minus.
    fn of(text: &[u8]) -> ServerRefusal {
        let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
        match text.split(|byte| *byte == b' ').next().unwrap_or(b"") {
            b"OOM" => ServerRefusal::Full,
            b"NOAUTH" | b"WRONGPASS" => ServerRefusal::Password,
            b"NOPERM" => ServerRefusal::Permission,
            b"MOVED" | b"ASK" | b"CLUSTERDOWN" | b"CROSSSLOT" => ServerRefusal::Cluster,
            b"LOADING" | b"MASTERDOWN" | b"BUSY" | b"TRYAGAIN" => ServerRefusal::Later,
            b"MISCONF" | b"READONLY" | b"NOREPLICAS" => ServerRefusal::ReadOnly,
            b"ERR" if has(b"unknown command") => ServerRefusal::UnknownCommand,
            b"ERR" if has(b"password") || has(b"AUTH") => ServerRefusal::Password,
            // Sent instead of an answer to a new connection, which is then closed.
            b"ERR" if has(b"max number of clients") => ServerRefusal::Later,
            _ => ServerRefusal::Other,
        }
    }
}

/// What came is no reply, or none to what was asked.
pub const NONSENSE: Broken = Broken::Nonsense("this is no reply");

/// Appends a command. (Memory that is full takes no more; what is written to it has been measured.)
pub fn command(out: &mut impl Write, words: &[&[u8]]) {
    let _ = write!(out, "*{}\r\n", words.len());
    words.iter().for_each(|bytes| word(out, bytes));
}

/// Appends the next word of a command.
pub fn word(out: &mut impl Write, bytes: &[u8]) {
    let _ =
        write!(out, "${}\r\n", bytes.len()).and_then(|()| out.write_all(bytes)).and_then(|()| out.write_all(b"\r\n"));
}

/// A part of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyPart {
    /// The beginning of an array: so many parts follow.
    Array(usize),
    /// There is no value, or no array.
    NoValue,
    /// A string between two places.
    Value(usize, usize),
    /// A word of success between two places.
    Status(usize, usize),
    /// A number.
    Number(i64),
    /// An error instead of all.
    Refused(ServerRefusal),
}

/// The part with which `bytes` begin, and its length; `None`: it has not come whole. A string has `longest` bytes at
/// most.
///
/// # Errors
/// It is none.
pub fn part_of(bytes: &[u8], longest: usize) -> Result<Option<(usize, ReplyPart)>, Broken> {
    let Some(end) = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE_MAX { Ok(None) } else { Err(NONSENSE) };
    };
    let (line, behind) = (bytes[..end].strip_suffix(b"\r").ok_or(NONSENSE)?, end + 1);
    let (kind, text) = line.split_first().ok_or(NONSENSE)?;
    let part = match (kind, text) {
        (b'+', text) => ReplyPart::Status(1, 1 + text.len()),
        (b':', text) => ReplyPart::Number(number(text)?),
        (b'-', text) => ReplyPart::Refused(ServerRefusal::of(text)),
        (b'*' | b'$', b"-1") => ReplyPart::NoValue,
        (b'*', text) => ReplyPart::Array(usize::try_from(number(text)?).map_err(|_| NONSENSE)?),
        (b'$', text) => {
            let len = usize::try_from(number(text)?).ok().filter(|len| *len <= longest).ok_or(NONSENSE)?;
            return match bytes.get(behind + len..behind + len + 2) {
                None => Ok(None),
                Some(b"\r\n") => Ok(Some((behind + len + 2, ReplyPart::Value(behind, behind + len)))),
                Some(_) => Err(NONSENSE),
            };
        }
        _ => return Err(NONSENSE),
    };
    Ok(Some((behind, part)))
}

fn number(text: &[u8]) -> Result<i64, Broken> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NONSENSE)
}

/// A reply to something that is asked rarely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+`
    Status(Vec<u8>),
    /// `-`
    Refused(ServerRefusal),
    /// `:`
    Number(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `*`
    Array(Vec<Reply>),
    /// There is no value, or no array.
    Nothing,
}

/// The reply with which `bytes` begin, and its length; `None`: it has not come whole.
///
/// # Errors
/// It is none.
pub fn reply_of(bytes: &[u8]) -> Result<Option<(usize, Reply)>, Broken> {
    nested(bytes, &mut REPLY_MAX.clone(), 0)
}

fn nested(bytes: &[u8], room: &mut usize, depth: usize) -> Result<Option<(usize, Reply)>, Broken> {
    let Some((mut used, part)) = part_of(bytes, REPLY_MAX - 1)? else { return Ok(None) };
    // Each part takes some memory, whatever is in it.
    *room = room.checked_sub(used + size_of::<Reply>()).ok_or(NONSENSE)?;
    let reply = match part {
        ReplyPart::Status(from, to) => Reply::Status(bytes[from..to].to_vec()),
        ReplyPart::Refused(refusal) => Reply::Refused(refusal),
        ReplyPart::Number(number) => Reply::Number(number),
        ReplyPart::NoValue => Reply::Nothing,
        ReplyPart::Value(from, to) => Reply::Bulk(bytes[from..to].to_vec()),
        ReplyPart::Array(parts) if depth < 2 && parts <= PARTS_MAX => {
            let mut array = Vec::new();
            for _ in 0..parts {
                let Some((more, part)) = nested(&bytes[used..], room, depth + 1)? else { return Ok(None) };
                used += more;
                array.push(part);
            }
            Reply::Array(array)
        }
        ReplyPart::Array(_) => return Err(NONSENSE),
    };
    Ok(Some((used, reply)))
}
