//! What programs that are gone have left on a server: `farpage swapoff redis://...`.
//!
//! Callers: the command; a device that ends. No locks.

use super::keys::{MANY, SESSIONS, SessionId, pages_command};
use super::resp::Reply;
use super::server::{AskError, Server};
use crate::request::{nothing_written, written};

/// A session that the server knows.
#[derive(Debug, Clone)]
pub struct KnownSession {
    /// Its number.
    pub id: SessionId,
    /// There are no slots from this one on.
    pub end: u64,
    /// The program that it belongs to, in words.
    pub owner: String,
    /// Its process has been heard of lately.
    pub alive: bool,
}

/// All sessions.
///
/// # Errors
/// The server is out of reach, or refuses.
pub fn sessions(server: &Server) -> Result<Vec<KnownSession>, AskError> {
    let Reply::Array(parts) = server.ask(&[b"HGETALL", SESSIONS])? else { return Ok(Vec::new()) };
    let mut known = Vec::new();
    for pair in parts.chunks_exact(2) {
        let (Reply::Bulk(id), Reply::Bulk(text)) = (&pair[0], &pair[1]) else { continue };
        let Some(id) = SessionId::parse(id) else { continue };
        let text = String::from_utf8_lossy(text);
        let (end, owner) = text.split_once(' ').unwrap_or((&text, ""));
        // One that cannot be read has none that are known.
        let end = end.parse().unwrap_or(0).min(1 << 32);
        let alive = server.ask(&[b"EXISTS", &id.alive()])? != Reply::Number(0);
        known.push(KnownSession { id, end, owner: owner.into(), alive });
    }
    Ok(known)
}

/// Removes a session, and its pages, of which there are none from `end` on. `None`: not all of it.
pub fn remove(server: &Server, id: &SessionId, end: u64) -> Option<u64> {
    let mut removed = 0;
    let mut first = 1;
    while first < end {
        let n = (end - first).min(MANY as u64) as usize;
        let mut bytes = nothing_written();
        pages_command(&mut bytes, b"UNLINK", id, (0..n).map(|i| first + i as u64));
        let Ok(Reply::Number(n_removed)) = server.ask_bytes(written(&bytes)) else { return None };
        removed += u64::try_from(n_removed).unwrap_or(0);
        first += n as u64;
    }
    server.ask(&[b"UNLINK", &id.alive()]).ok()?;
    server.ask(&[b"HDEL", SESSIONS, &id.hex()]).ok()?;
    Some(removed)
}
