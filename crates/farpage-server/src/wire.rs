//! One connection to a server.
//!
//! The socket blocks, and the kernel ends a wait after the deadline: a request costs one call to send and one to
//! receive. A connection on which anything went wrong is given up: nothing that may still arrive on it is of use.
//!
//! Owner: [`crate::link`], which lends it to one thread at a time. No locks.

use farpage_base::sys::clock::watched_ms;
use farpage_base::sys::raw::{nr, syscall};
use libc::iovec;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::time::Duration;

/// Why a connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// No answer within the deadline.
    #[error("no answer")]
    Silent,
    /// The server has closed it.
    #[error("the server has closed the connection")]
    Closed,
    /// It does not do what it is asked for now.
    #[error("it is busy, loads its data, or has too many clients")]
    Busy,
    /// What the kernel said.
    #[error("{}", farpage_base::sys::raw::ErrnoText(*.0))]
    Io(Errno),
    /// The server does not keep to the protocol.
    #[error("the server sends what it must not: {0}")]
    Nonsense(&'static str),
}

/// A wait of a deadline is divided into so many: a process that stood still, perhaps together with the server, has
/// waited once.
const LOOKS: u32 = 4;
/// A server may take so many deadlines for one exchange, as long as bytes keep coming.
pub(crate) const PATIENCE: u32 = 10;
/// Parts of one message.
pub const PARTS_MAX: usize = 256;

/// An open connection. Closed on drop, if its number still is the socket's.
#[derive(Debug)]
pub struct Wire {
    fd: RawFd,
    /// Device and inode of the socket.
    file: (u64, u64),
    /// When the present exchange must be over.
    until_ms: i64,
    /// When something has come last.
    heard_ms: i64,
}

impl Wire {
    /// Takes over a connected socket; from now on it blocks until the server has said nothing for `deadline`.
    pub(crate) fn new(fd: OwnedFd, deadline: Duration) -> Result<Wire, Broken> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        let stat = rustix::fs::fstat(&fd).map_err(Broken::Io)?;
        let ready = [Timeout::Recv, Timeout::Send].map(|which| set_socket_timeout(&fd, which, Some(deadline / LOOKS)));
        ready.into_iter().collect::<Result<(), Errno>>().map_err(Broken::Io)?;
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(Broken::Io)?;
        rustix::fs::fcntl_setfl(&fd, flags - rustix::fs::OFlags::NONBLOCK).map_err(Broken::Io)?;
        Ok(Wire { fd: fd.into_raw_fd(), file: (stat.st_dev, stat.st_ino), until_ms: 0, heard_ms: watched_ms() })
    }

    /// An exchange begins: it has this time from now on.
    pub fn begin(&mut self, time: Duration) {
        self.until_ms = watched_ms() + time.as_millis() as i64;
    }

    /// Whether the calling thread's table still has the socket under its number.
    pub(crate) fn is_there(&self) -> bool {
        file_of(self.fd) == Some(self.file)
    }

    /// Sends all of `parts`, [`PARTS_MAX`] at most.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<(), Broken> {
        let mut vectors = [NOTHING; PARTS_MAX];
        for (vector, part) in vectors.iter_mut().zip(parts) {
            *vector = iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        // SAFETY: the parts are borrowed until the call is over, and are only read.
        unsafe { self.send_vectors(&mut vectors[..parts.len().min(PARTS_MAX)]) }
    }

    /// Sends what the vectors name, and uses them up.
    ///
    /// # Errors
    /// See [`Broken`].
    ///
    /// # Safety
    /// They name memory that does not change meanwhile.
    pub unsafe fn send_vectors(&mut self, vectors: &mut [iovec]) -> Result<(), Broken> {
        let mut at = 0;
        while skip(vectors, &mut at, 0) {
            // SAFETY: caller's promise.
            let sent = unsafe { self.message(nr::SENDMSG, &mut vectors[at..], true) }?;
            skip(vectors, &mut at, sent.unwrap_or(0));
        }
        Ok(())
    }

    /// Receives some bytes. With `wait`, one at least; else as many as there are, which may be none.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn receive(&mut self, into: &mut [u8], wait: bool) -> Result<usize, Broken> {
        let mut vectors = [iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() }];
        // SAFETY: borrowed until the call is over.
        unsafe { self.receive_vectors(&mut vectors, wait) }
    }

    /// As [`Wire::receive`], into what the vectors name.
    ///
    /// # Errors
    /// See [`Broken`].
    ///
    /// # Safety
    /// They name memory that nothing else uses meanwhile.
    pub unsafe fn receive_vectors(&mut self, vectors: &mut [iovec], wait: bool) -> Result<usize, Broken> {
        // SAFETY: caller's promise.
        match unsafe { self.message(nr::RECVMSG, vectors, wait) }? {
            None => Ok(0),
            Some(0) => Err(Broken::Closed),
            Some(n) => {
                self.heard_ms = watched_ms();
                Ok(n)
            }
        }
    }

    /// When something has come last, milliseconds.
    pub(crate) fn heard_ms(&self) -> i64 {
        self.heard_ms
    }

    /// As if something had come.
    #[cfg(test)]
    pub(crate) fn heard_now(&mut self) {
        self.heard_ms = watched_ms();
    }

    /// One call; `None`: it would have to wait, and may not. When the time of the exchange is over, it takes what is
    /// there and does not wait for more: a process that was late itself finds the answer, and a server that was does
    /// not.
    ///
    /// # Safety
    /// The vectors name memory as the call wants it.
    unsafe fn message(&self, nr: u32, vectors: &mut [iovec], wait: bool) -> Result<Option<usize>, Broken> {
        const NOSIGNAL: usize = 0x4000;
        const DONTWAIT: usize = 0x40;
        // SAFETY: all zero is a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len().min(PARTS_MAX);
        let mut looks = 1;
        loop {
            let waits = wait && watched_ms() <= self.until_ms;
            let flags = NOSIGNAL | if waits { 0 } else { DONTWAIT };
            let args = [self.fd as usize, &raw mut message as usize, flags, 0, 0, 0];
            // SAFETY: the message is alive, and so is what it names (caller's promise).
            return match unsafe { syscall(nr, args) } {
                Ok(n) => Ok(Some(n)),
                // A signal of the program's.
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if !wait => Ok(None),
                Err(Errno::AGAIN) if waits && looks < LOOKS => {
                    looks += 1;
                    continue;
                }
                Err(Errno::AGAIN) => Err(Broken::Silent),
                Err(Errno::PIPE | Errno::CONNRESET) => Err(Broken::Closed),
                Err(errno) => Err(Broken::Io(errno)),
            };
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open for as long as this value lives.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A program may have closed it, and opened something else under its number.
        if self.is_there() {
            // SAFETY: this value owns it.
            unsafe { rustix::io::close(self.fd) };
        }
    }
}

pub(crate) const NOTHING: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Takes `bytes` off the vectors from `at` on; whether anything is left, which begins at `at` then.
pub(crate) fn skip(vectors: &mut [iovec], at: &mut usize, mut bytes: usize) -> bool {
    while let Some(vector) = vectors.get_mut(*at) {
        let cut = bytes.min(vector.iov_len);
        vector.iov_base = vector.iov_base.cast::<u8>().wrapping_add(cut).cast();
        vector.iov_len -= cut;
        bytes -= cut;
        if vector.iov_len > 0 {
            return true;
        }
        *at += 1;
    }
    false
}

fn file_of(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: only asked what it is, which is no harm, whatever it is by now.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
