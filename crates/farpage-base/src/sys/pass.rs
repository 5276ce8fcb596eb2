//! Descriptors from one table of this process to another: as messages of sockets.
//!
//! The kernel copies a descriptor from another thread's table by `pidfd_getfd`, which kernels before 6.9 (no
//! descriptors of threads) and many a seccomp filter refuse, those of container runtimes among them. So descriptors are
//! sent; and where the two tables have no socket in common yet, that is made as a connection in the abstract namespace,
//! whose two ends make sure that the other one belongs to this process.
//!
//! Any thread. No locks.

use super::futex;
use super::raw::{Errno, gettid};
use super::thread::fetch_fd;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, getsockname,
    listen, recvmsg, sendmsg, socket_with, socketpair, sockopt,
};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Where a process listens.
pub type Address = SocketAddrUnix;

/// Descriptors in one message; the kernel takes 253.
const FDS_MAX: usize = 128;
/// Room for the ancillary data of one message.
const CONTROL: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));

/// A user may have so many descriptors on their way as one process may have open: for so long others' arrive.
const SEND_WAIT_MAX: Duration = Duration::from_secs(10);

/// A pair of connected sockets that keep messages apart.
///
/// # Errors
/// No descriptors left, or not allowed.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Puts descriptors into a socket, `FDS_MAX` a message, each with the number by which it is asked for: in a message the
/// first word says how many are left.
///
/// # Errors
/// `TOOMANYREFS`: the user has too many on their way, also after a wait.
pub fn send_all(to: BorrowedFd<'_>, fds: &[(RawFd, RawFd)]) -> Result<(), Errno> {
    let mut left = fds;
    loop {
        let (now, later) = left.split_at(left.len().min(FDS_MAX));
        let words: Vec<u8> =
            std::iter::once(later.len() as i32).chain(now.iter().map(|fd| fd.0)).flat_map(i32::to_ne_bytes).collect();
        // SAFETY: open in the engine's table, which only engine threads change, and these wait for this fork.
        let borrowed: Vec<BorrowedFd<'_>> = now.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(fd.1) }).collect();
        let since = Instant::now();
        loop {
            match send(to, &words, &borrowed) {
                Err(Errno::TOOMANYREFS) if since.elapsed() < SEND_WAIT_MAX => {
                    futex::wait(&AtomicU32::new(0), 0, Some(1_000_000));
                }
                sent => break sent?,
            }
        }
        left = later;
        if left.is_empty() {
            return Ok(());
        }
    }
}

/// Takes out what [`send_all`] has put in: number there, number here.
///
/// # Errors
/// `MFILE`: no room for them here. `PIPE`: there is no such message, and there will be none.
pub fn receive_all(from: BorrowedFd<'_>) -> Result<Vec<(RawFd, RawFd)>, Errno> {
    let mut all = Vec::new();
    loop {
        let mut words = [0u8; (FDS_MAX + 1) * 4];
        let (n, fds) = receive(from, &mut words)?;
        let mut numbers = words[..n].chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let left = numbers.next().ok_or(Errno::PIPE)?;
        let numbers: Vec<RawFd> = numbers.collect();
        if numbers.len() != fds.len() {
            return Err(Errno::MFILE);
        }
        all.extend(numbers.into_iter().zip(fds.into_iter().map(rustix::fd::IntoRawFd::into_raw_fd)));
        if left == 0 {
            return Ok(all);
        }
    }
}

/// Sends a message, without waiting.
///
/// # Errors
/// `AGAIN`: no room.
pub fn send(to: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// Waits for a message: its length, and the descriptors that came along. `MFILE`: there was no room for these. Nothing:
/// the other end is closed.
///
/// # Errors
/// `MFILE`, see above.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) { Err(Errno::MFILE) } else { Ok((got.bytes, fds)) }
}

/// The other end of a connection belongs to this process.
fn is_ours(socket: &OwnedFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.pid == rustix::process::getpid())
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A listening socket with a name that the kernel has chosen.
///
/// # Errors
/// As [`pair`].
pub fn listening() -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let socket = unix_socket()?;
    bind(&socket, &SocketAddrUnix::new_unnamed())?;
    listen(&socket, 8)?;
    let address = SocketAddrUnix::try_from(getsockname(&socket)?)?;
    Ok((socket, address))
}

/// Sends a descriptor to the process that listens at `address`, if it is this one.
///
/// # Errors
/// As [`pair`]; `CONNREFUSED`: it is not.
pub fn send_to(address: &Address, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let socket = unix_socket()?;
    connect(&socket, address)?;
    if !is_ours(&socket) {
        return Err(Errno::CONNREFUSED);
    }
    send(socket.as_fd(), &[0], &[fd])
}

/// Takes the descriptor that [`send_to`] has sent. Connections of others are nothing.
///
/// # Errors
/// `AGAIN`: it has sent none.
pub fn take_from(listening: &OwnedFd) -> Result<OwnedFd, Errno> {
    loop {
        let socket = accept_with(listening, SocketFlags::CLOEXEC)?;
        if is_ours(&socket) {
            return receive(socket.as_fd(), &mut [0])?.1.pop().ok_or(Errno::MFILE);
        }
    }
}

/// Whether a forking thread can come by its end of a channel here.
#[derive(Debug, Clone, Copy)]
pub struct Ways {
    /// By `pidfd_getfd`.
    pub fetched: Result<(), Errno>,
    /// Sent over a connection.
    pub sent: Result<(), Errno>,
}

/// Tries both ways. On any thread.
pub fn ways() -> Ways {
    let round = |take: &dyn Fn(OwnedFd) -> Result<OwnedFd, Errno>| {
        let (here, there) = pair()?;
        send_all(here.as_fd(), &[(here.as_raw_fd(), here.as_raw_fd())])?;
        let given = receive_all(take(there)?.as_fd())?;
        // SAFETY: just received.
        given.into_iter().for_each(|(_, fd)| drop(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok(())
    };
    let fetched = round(&|there| fetch_fd(gettid(), there.as_raw_fd()));
    let sent = round(&|there| {
        let (socket, address) = listening()?;
        send_to(&address, there.as_fd())?;
        take_from(&socket)
    });
    Ways { fetched, sent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    #[test]
    fn a_connection_with_ourselves_brings_the_end_over() {
        assert_eq!(ways().sent, Ok(()));
    }

    #[test]
    fn any_number_of_descriptors_arrives_in_order() {
        let files: Vec<_> = (0..FDS_MAX as i32 * 2 + 7).map(|_| tempfile::tempfile().unwrap()).collect();
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        for n in [0, 1, FDS_MAX, FDS_MAX + 1, numbers.len()] {
            let (here, there) = pair().unwrap();
            send_all(here.as_fd(), &numbers[..n].iter().map(|fd| (*fd, *fd)).collect::<Vec<_>>()).unwrap();
            // The parent may be dead by the time that the child looks.
            drop(here);
            let given = receive_all(there.as_fd()).unwrap();
            assert!(given.iter().map(|(old, _)| *old).eq(numbers[..n].iter().copied()));
            for (file, (_, new)) in files.iter().zip(given) {
                // SAFETY: just received.
                let new = unsafe { OwnedFd::from_raw_fd(new) };
                assert_eq!(fstat(file).unwrap().st_ino, fstat(&new).unwrap().st_ino);
            }
            assert_eq!(receive(there.as_fd(), &mut [0; 8]).unwrap().0, 0, "the end");
        }
    }
}
