//! Gives a process a descriptor: its userfaultfds, for one that may not make any; the library as a file in memory, for
//! one that has another file system. What the process says is not believed: it may be another user's, and
//! its other threads run.
//!
//! The process makes a pair of sockets; one end is fetched from it, and what is sent there it receives at the other. So
//! no name is needed, and it does not matter in which namespaces the process is.
//!
//! Caller: [`super`]. No locks.

use super::memory::Memory;
use super::tracee::Tracee;
use crate::failure::{Failure, Result, why};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io;
use std::mem::MaybeUninit;

/// Gives it a descriptor; the number that it has in the process, until the thread is given back.
pub fn give(memory: &Memory, pid: u32, tracee: &mut Tracee<'_>, descriptor: BorrowedFd<'_>) -> Result<usize> {
    let failed =
        |error: io::Error| Failure::with_status(1, format!("cannot give process {pid} a descriptor: {}", why(&error)));
    let at = tracee.data()?;
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    let pair = [libc::AF_UNIX as usize, kind, 0, at, 0, 0];
    tracee.syscall(libc::SYS_socketpair, pair)?.map_err(failed)?;
    let mut ends = [0u8; 8];
    memory.read(at, &mut ends)?;
    let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap_or_default());
    let (here, there) = (number(&ends[..4]), number(&ends[4..]));
    [here, there].into_iter().for_each(|end| tracee.close_later(end as usize));
    send(pid, here, descriptor).map_err(failed)?;
    let received = receive(memory, tracee, at, there)?;
    tracee.close_later(received);
    Ok(received)
}

/// A copy of a descriptor of a process.
pub fn fetch(pid: u32, number: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?)
}

fn send(pid: u32, end: i32, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let socket = fetch(pid, end)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    // It may be another one by now.
    if socket_domain(&socket)? != AddressFamily::UNIX || socket_type(&socket)? != SocketType::DGRAM {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let descriptors = [descriptor];
    if !message.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(socket.as_fd(), &[IoSlice::new(b"d")], &mut message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// `struct msghdr`, then its vector, its control data, its byte, in the process's memory at `at`.
fn receive(memory: &Memory, tracee: &mut Tracee<'_>, at: usize, end: i32) -> Result<usize> {
    const VECTOR: usize = 64;
    const CONTROL: usize = 96;
    const CONTROL_BYTES: usize = 24;
    const BYTE: usize = 160;
    let words = [0, 0, at + VECTOR, 1, at + CONTROL, CONTROL_BYTES, 0, 0, at + BYTE, 1];
    let bytes: Vec<u8> = words.iter().flat_map(|word: &usize| word.to_le_bytes()).collect();
    memory.write(at, &bytes)?;
    let flags = libc::MSG_CMSG_CLOEXEC as usize;
    tracee.syscall(libc::SYS_recvmsg, [end as usize, at, flags, 0, 0, 0])?.map_err(|error| {
        Failure::with_status(1, format!("the process cannot receive a descriptor: {}", why(&error)))
    })?;
    let mut control = [0u8; CONTROL_BYTES];
    memory.read(at + CONTROL, &mut control)?;
    let number = |from: usize| u32::from_le_bytes(control[from..from + 4].try_into().unwrap_or_default());
    // Length, level, kind, descriptor.
    match (number(0), number(8) as i32, number(12) as i32) {
        (20, libc::SOL_SOCKET, libc::SCM_RIGHTS) => Ok(number(16) as usize),
        _ => Err(Failure::with_status(1, "the process has no room for another descriptor")),
    }
}
