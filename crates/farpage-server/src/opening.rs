//! Opening a connection, step by step: none of them waits.
//!
//! Owner: [`crate::link`]. No locks.

use crate::wire::Broken;
use farpage_base::sys::clock::watched_ms;
use farpage_ipc::conf::address::Endpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};
use std::time::Duration;

/// Most bytes of a server's answer to a greeting.
const GREETING_MAX: usize = 8 << 10;

/// What a connection begins with.
pub trait Greeting: Send + Sync {
    /// Everything that is sent at its beginning, in one go: no answer may be needed to know it.
    fn hello(&self) -> &[u8];

    /// What to think of the answer, of which these are the bytes so far. Allocates nothing.
    fn answer(&self, got: &[u8]) -> Answer;
}

/// What a server's answer to the greeting means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is not complete.
    More,
    /// The connection can be used.
    Welcome,
    /// Not now; perhaps later.
    Refused(&'static str),
    /// This is not the server that has our pages: they are lost.
    Another(&'static str),
}

/// Why a try came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failed {
    #[error("{0}")]
    Broken(Broken),
    #[error("{0}")]
    Refused(&'static str),
    #[error("{0}")]
    Another(&'static str),
}

/// A connection that is being opened.
pub(crate) struct OpeningSocket {
    pub(crate) socket: Option<OwnedFd>,
    /// The greeting was sent.
    greeted: bool,
    began_ms: i64,
    /// Since when something is waited for.
    waits_ms: i64,
    got: [u8; GREETING_MAX],
    len: usize,
}

impl OpeningSocket {
    pub(crate) fn none() -> OpeningSocket {
        OpeningSocket { socket: None, greeted: false, began_ms: 0, waits_ms: 0, got: [0; GREETING_MAX], len: 0 }
    }
}

impl OpeningSocket {
    /// When the present try began, or one that begins now.
    pub(crate) fn began_ms(&self) -> i64 {
        if self.socket.is_some() { self.began_ms } else { watched_ms() }
    }

    /// As far as it goes without waiting: whether the server has welcomed us.
    pub(crate) fn step(&mut self, to: &Endpoint, greeting: &dyn Greeting) -> Result<bool, Failed> {
        let failed = |errno| Failed::Broken(Broken::Io(errno));
        if self.socket.is_none() {
            self.began_ms = watched_ms();
            self.waits_ms = self.began_ms;
            (self.greeted, self.len) = (false, 0);
            self.socket = Some(connect(to).map_err(failed)?);
        }
        let Some(socket) = &self.socket else { return Ok(false) };
        if !self.greeted {
            let mut ready = [PollFd::new(socket, PollFlags::OUT)];
            if poll(&mut ready, Some(&Timespec::default())).map_err(failed)? == 0 {
                return Ok(false);
            }
            sockopt::socket_error(socket).map_err(failed)?.map_err(failed)?;
            let hello = greeting.hello();
            let flags = rustix::net::SendFlags::NOSIGNAL;
            let sent = rustix::net::send(socket, hello, flags).map_err(failed)?;
            if sent < hello.len() {
                return Err(Failed::Broken(Broken::Silent)); // Some hundred bytes to a new socket.
            }
            // From now on it may take its time: a thread may have looked late whether the socket is open.
            self.greeted = true;
            self.waits_ms = watched_ms();
        }
        loop {
            match greeting.answer(&self.got[..self.len]) {
                Answer::More if self.len == self.got.len() => {
                    return Err(Failed::Broken(Broken::Nonsense("its greeting has no end")));
                }
                Answer::More => {}
                Answer::Welcome => return Ok(true),
                Answer::Refused(why) => return Err(Failed::Refused(why)),
                Answer::Another(why) => return Err(Failed::Another(why)),
            }
            match rustix::io::read(socket, &mut self.got[self.len..]) {
                Ok(0) | Err(Errno::CONNRESET) => return Err(Failed::Broken(Broken::Closed)),
                Ok(n) => self.len += n,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Whether nothing has come of it for longer than the deadline.
    pub(crate) fn is_silent(&self, deadline: Duration) -> bool {
        watched_ms() - self.waits_ms >= deadline.as_millis() as i64
    }

    /// Waits until there is something to do, so long at most.
    pub(crate) fn wait(&self, ns: i64) {
        let Some(socket) = &self.socket else { return sleep(ns) };
        let what = if self.greeted { PollFlags::IN } else { PollFlags::OUT };
        let mut ready = [PollFd::from_borrowed_fd(socket.as_fd(), what)];
        let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: ns }));
    }
}

pub(crate) fn sleep(ns: i64) {
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: ns });
}

/// Begins to connect.
fn connect(to: &Endpoint) -> Result<OwnedFd, Errno> {
    let family = match to {
        Endpoint::Tcp(at) if at.is_ipv6() => AddressFamily::INET6,
        Endpoint::Tcp(_) => AddressFamily::INET,
        Endpoint::Unix(_) => AddressFamily::UNIX,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let result = match to {
        Endpoint::Tcp(at) => {
            sockopt::set_tcp_nodelay(&socket, true)?;
            rustix::net::connect(&socket, at)
        }
        Endpoint::Unix(path) => rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?),
    };
    match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    struct Hello;

    impl Greeting for Hello {
        fn hello(&self) -> &[u8] {
            b"hello"
        }

        fn answer(&self, got: &[u8]) -> Answer {
            if got.is_empty() { Answer::More } else { Answer::Welcome }
        }
    }

    /// A thread looks again only when it wants something of the server.
    #[test]
    fn the_time_for_an_answer_begins_when_it_was_asked_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let began_ms = watched_ms() - 90_000;
        let mut opening = OpeningSocket { socket: Some(ours.into()), began_ms, ..OpeningSocket::none() };
        let to = Endpoint::Unix("/nowhere".into());
        assert_eq!(opening.step(&to, &Hello), Ok(false));
        assert!(!opening.is_silent(Duration::from_secs(60)), "it has just been asked");
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert_eq!(opening.step(&to, &Hello), Ok(true));
    }
}
