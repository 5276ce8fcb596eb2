//! The part of the Redis protocol (RESP2) that pages need: commands out, replies in.
//!
//! A server is believed nothing: every length is looked at before it is used, a line has a longest form, replies nest
//! two deep and have a size. What is not understood, or does not fit, is [`Broken::Nonsense`]; the connection is of no
//! use then, because nobody knows where the next reply begins. An error that the server itself reports
//! ([`RespError::Refused`]) is a reply like others, and the connection goes on.
//!
//! Reading pages allocates nothing ([`Reader::value`]); what is asked rarely does ([`Reader::reply`]).
//!
//! Callers: `server`, `greeting`. No locks.

#[cfg(test)]
mod tests;

use crate::remote::wire::{Broken, Wire};

/// The longest line: a status, an error, a number.
pub const LINE_MAX: usize = 512;
/// Bytes of all strings of one [`Reply`].
const REPLY_MAX: usize = 4 << 20;
/// Parts of one array.
const PARTS_MAX: usize = 1 << 18;

/// Where replies come from, with a deadline of its own.
pub trait Replies {
    /// Reads some bytes, at least one.
    ///
    /// # Errors
    /// The connection is of no use any more; its end, too.
    fn receive(&mut self, into: &mut [u8]) -> Result<usize, Broken>;
}

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

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespError {
    /// The connection is of no use any more.
    Broken(Broken),
    /// The server refused; the connection goes on.
    Refused(ServerRefusal),
}

/// What came is no reply, or none to what was asked.
const NONSENSE: RespError = RespError::Broken(Broken::Nonsense("this is no reply"));

impl From<Broken> for RespError {
    fn from(broken: Broken) -> RespError {
        RespError::Broken(broken)
    }
}

impl Replies for Wire {
    fn receive(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        self.receive_some(into)
    }
}

/// Commands, one after the other, as they are sent.
#[derive(Default)]
pub struct Commands(Vec<u8>);

impl Commands {
    /// None, in memory that has been used for others.
    pub fn in_memory(mut bytes: Vec<u8>) -> Commands {
        bytes.clear();
        Commands(bytes)
    }

    /// One command.
    pub fn one(words: &[&[u8]]) -> Commands {
        let mut commands = Commands::default();
        commands.push(words);
        commands
    }

    /// Another command.
    pub fn push(&mut self, words: &[&[u8]]) {
        self.begin(words.len());
        words.iter().for_each(|word| self.word(word));
    }

    /// Begins a command of so many words.
    pub fn begin(&mut self, words: usize) {
        self.number(b'*', words);
    }

    /// The next word of the command.
    pub fn word(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len());
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    /// What is to be sent.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Their memory, for others.
    pub fn into_memory(self) -> Vec<u8> {
        self.0
    }

    fn number(&mut self, kind: u8, number: usize) {
        let (text, from) = digits(kind, number);
        self.0.extend_from_slice(&text[from..]);
    }
}

/// A line of a kind and a number, from a place in the array on.
pub fn digits(kind: u8, number: usize) -> ([u8; 24], usize) {
    let mut text = [0; 24];
    let mut at = text.len() - 2;
    text[at..].copy_from_slice(b"\r\n");
    let mut left = number;
    loop {
        at -= 1;
        text[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    at -= 1;
    text[at] = kind;
    (text, at)
}

/// A reply to something that is asked rarely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+`
    Status(Vec<u8>),
    /// `-`, with its text.
    Error(ServerRefusal, Vec<u8>),
    /// `:`
    Number(i64),
    /// `$`; `None`: there is none.
    Bulk(Option<Vec<u8>>),
    /// `*`; `None`: there is none.
    Array(Option<Vec<Reply>>),
}

/// A part of the reply to an MGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MgetPart {
    /// Its beginning: so many parts follow.
    Array(usize),
    /// The server has none.
    NoValue,
    /// A string between two places.
    Value(usize, usize),
    /// An error instead of all.
    Refused(ServerRefusal),
}

/// The part with which `bytes` begin, and its length; `None`: it has not come whole. A string has `longest` bytes at
/// most.
///
/// # Errors
/// It is none.
pub fn part_of(bytes: &[u8], longest: usize) -> Result<Option<(usize, MgetPart)>, RespError> {
    let Some(end) = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE_MAX { Ok(None) } else { Err(NONSENSE) };
    };
    let (line, behind) = (bytes[..end].strip_suffix(b"\r").ok_or(NONSENSE)?, end + 1);
    let (kind, text) = line.split_first().ok_or(NONSENSE)?;
    let part = match kind {
        b'-' => MgetPart::Refused(ServerRefusal::of(text)),
        b'*' => MgetPart::Array(usize::try_from(number(text)?).map_err(|_| NONSENSE)?),
        b'$' => match number(text)? {
            -1 => MgetPart::NoValue,
            len => {
                let len = usize::try_from(len).ok().filter(|len| *len <= longest).ok_or(NONSENSE)?;
                return match bytes.get(behind + len..behind + len + 2) {
                    None => Ok(None),
                    Some(b"\r\n") => Ok(Some((behind + len + 2, MgetPart::Value(behind, behind + len)))),
                    Some(_) => Err(NONSENSE),
                };
            }
        },
        _ => return Err(NONSENSE),
    };
    Ok(Some((behind, part)))
}

/// The replies of one exchange as they come in, through memory of the caller's, which has room for a line.
pub struct Reader<'a> {
    buffer: &'a mut [u8],
    from: usize,
    to: usize,
}

impl<'a> Reader<'a> {
    /// Nothing has come in.
    pub fn new(buffer: &'a mut [u8]) -> Reader<'a> {
        debug_assert!(buffer.len() >= LINE_MAX);
        Reader { buffer, from: 0, to: 0 }
    }

    /// The exchange is over: whether nothing has come in that nobody has asked for.
    ///
    /// # Errors
    /// Something has.
    pub fn end(&self) -> Result<(), Broken> {
        if self.from == self.to { Ok(()) } else { Err(Broken::Nonsense("it answers more than it is asked")) }
    }

    /// The next line without its end, as a range of the buffer.
    fn line(&mut self, stream: &mut impl Replies) -> Result<(usize, usize), RespError> {
        let mut seen = 0;
        loop {
            let there = &self.buffer[self.from..self.to];
            if let Some(at) = there[seen..].iter().position(|byte| *byte == b'\n').map(|at| at + seen) {
                if at == 0 || there[at - 1] != b'\r' {
                    return Err(NONSENSE);
                }
                let line = (self.from, self.from + at - 1);
                self.from += at + 1;
                return Ok(line);
            }
            seen = there.len();
            if seen >= LINE_MAX {
                return Err(NONSENSE);
            }
            self.fill(stream)?;
        }
    }

    /// Reads more; what is there already moves to the front if there is no room behind it.
    fn fill(&mut self, stream: &mut impl Replies) -> Result<(), RespError> {
        if self.to == self.buffer.len() {
            self.buffer.copy_within(self.from..self.to, 0);
            self.to -= self.from;
            self.from = 0;
        }
        let n = stream.receive(&mut self.buffer[self.to..])?;
        self.to = Some(self.to + n).filter(|to| n != 0 && *to <= self.buffer.len()).ok_or(NONSENSE)?;
        Ok(())
    }

    /// Takes exactly so many bytes.
    fn exactly(&mut self, stream: &mut impl Replies, mut into: &mut [u8]) -> Result<(), RespError> {
        while !into.is_empty() {
            if self.from == self.to {
                if into.len() >= self.buffer.len() {
                    let n = stream.receive(into)?;
                    into = into.get_mut(n..).ok_or(NONSENSE)?;
                    continue;
                }
                (self.from, self.to) = (0, 0);
                self.fill(stream)?;
            }
            let n = into.len().min(self.to - self.from);
            let (now, later) = into.split_at_mut(n);
            now.copy_from_slice(&self.buffer[self.from..self.from + n]);
            self.from += n;
            into = later;
        }
        Ok(())
    }

    fn end_of_string(&mut self, stream: &mut impl Replies) -> Result<(), RespError> {
        let mut end = [0; 2];
        self.exactly(stream, &mut end)?;
        if &end == b"\r\n" { Ok(()) } else { Err(NONSENSE) }
    }

    /// The kind of the next reply, and its line. An error is an error here.
    fn head(&mut self, stream: &mut impl Replies) -> Result<(u8, &[u8]), RespError> {
        let (from, to) = self.line(stream)?;
        match self.buffer[from..to].split_first() {
            Some((b'-', text)) => Err(RespError::Refused(ServerRefusal::of(text))),
            Some((kind, text)) => Ok((*kind, text)),
            None => Err(NONSENSE),
        }
    }

    /// The reply to a command that says OK, or how many.
    ///
    /// # Errors
    /// See [`RespError`].
    pub fn done(&mut self, stream: &mut impl Replies) -> Result<(), RespError> {
        match self.head(stream)? {
            (b'+', _) => Ok(()),
            (b':', text) => number(text).map(drop),
            _ => Err(NONSENSE),
        }
    }

    /// The reply to a SET: nothing but OK says that it is stored.
    ///
    /// # Errors
    /// See [`RespError`].
    pub fn stored(&mut self, stream: &mut impl Replies) -> Result<(), RespError> {
        match self.head(stream)? {
            (b'+', b"OK") => Ok(()),
            _ => Err(NONSENSE),
        }
    }

    /// The beginning of an array that must have `parts` parts.
    ///
    /// # Errors
    /// See [`RespError`].
    pub fn array_of(&mut self, stream: &mut impl Replies, parts: usize) -> Result<(), RespError> {
        match self.head(stream)? {
            (b'*', text) if usize::try_from(number(text)?) == Ok(parts) => Ok(()),
            _ => Err(NONSENSE),
        }
    }

    /// A string that has room in `into`: its length. `None`: the server has none.
    ///
    /// # Errors
    /// See [`RespError`]; a longer one is [`NONSENSE`].
    pub fn value(&mut self, stream: &mut impl Replies, into: &mut [u8]) -> Result<Option<usize>, RespError> {
        let len = match self.head(stream)? {
            (b'$', text) => number(text)?,
            _ => return Err(NONSENSE),
        };
        if len == -1 {
            return Ok(None);
        }
        let into = usize::try_from(len).ok().and_then(|len| into.get_mut(..len)).ok_or(NONSENSE)?;
        self.exactly(stream, into)?;
        self.end_of_string(stream)?;
        Ok(Some(into.len()))
    }

    /// Any reply.
    ///
    /// # Errors
    /// The connection failed, or it is none; what the server refuses is a [`Reply::Error`].
    pub fn reply(&mut self, stream: &mut impl Replies) -> Result<Reply, RespError> {
        let mut room = REPLY_MAX;
        self.part(stream, &mut room, 0)
    }

    fn part(&mut self, stream: &mut impl Replies, room: &mut usize, depth: usize) -> Result<Reply, RespError> {
        let (from, to) = self.line(stream)?;
        let (kind, text) = self.buffer[from..to].split_first().ok_or(NONSENSE)?;
        // Each part takes some memory, whatever is in it.
        *room = room.checked_sub(text.len() + size_of::<Reply>()).ok_or(NONSENSE)?;
        match kind {
            b'+' => Ok(Reply::Status(text.to_vec())),
            b'-' => Ok(Reply::Error(ServerRefusal::of(text), text.to_vec())),
            b':' => number(text).map(Reply::Number),
            b'$' => match number(text)? {
                -1 => Ok(Reply::Bulk(None)),
                len => {
                    let len = usize::try_from(len).map_err(|_| NONSENSE)?;
                    *room = room.checked_sub(len).ok_or(NONSENSE)?;
                    let mut bytes = vec![0; len];
                    self.exactly(stream, &mut bytes)?;
                    self.end_of_string(stream)?;
                    Ok(Reply::Bulk(Some(bytes)))
                }
            },
            b'*' if depth < 2 => match number(text)? {
                -1 => Ok(Reply::Array(None)),
                parts => {
                    let parts = usize::try_from(parts).ok().filter(|n| *n <= PARTS_MAX);
                    let parts = parts.ok_or(NONSENSE)?;
                    let mut array = Vec::new();
                    for _ in 0..parts {
                        array.push(self.part(stream, room, depth + 1)?);
                    }
                    Ok(Reply::Array(Some(array)))
                }
            },
            _ => Err(NONSENSE),
        }
    }
}

fn number(text: &[u8]) -> Result<i64, RespError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NONSENSE)
}
