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
use crate::process;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use std::io;
use std::mem::MaybeUninit;

/// The number of what [`give_alone`] has given.
pub const ALONE: usize = 2;

/// Gives it a descriptor; the number that it has in the process, until the thread is given back. Its threads can write
/// to the memory that the numbers are read from: it may get the descriptor in another socket of its own, or another one
/// of its own closed. So this is for what it may have.
pub fn give(memory: &Memory, pid: u32, tracee: &mut Tracee<'_>, descriptor: BorrowedFd<'_>) -> Result<usize> {
    let failed = |error| cannot_give(pid, &error);
    let at = make_pair(pid, tracee)?;
    let mut ends = [0u8; 8];
    memory.read(at, &mut ends)?;
    let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap_or_default());
    let (here, there) = (number(&ends[..4]), number(&ends[4..]));
    [here, there].into_iter().for_each(|end| tracee.close_later(end as usize));
    fetch(pid, here).and_then(|end| send(&end, descriptor)).map_err(failed)?;
    let received = receive(memory, tracee, at, there)?;
    tracee.close_later(received);
    Ok(received)
}

fn cannot_give(pid: u32, error: &io::Error) -> Failure {
    Failure::new(format!("cannot give process {pid} a descriptor: {}", why(error)))
}

/// Has the process make a pair of sockets; where in its memory their numbers are.
fn make_pair(pid: u32, tracee: &mut Tracee<'_>) -> Result<usize> {
    let at = tracee.data()?;
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    let pair = [libc::AF_UNIX as usize, kind, 0, at, 0, 0];
    tracee.syscall(libc::SYS_socketpair, pair)?.map_err(|error| cannot_give(pid, &error))?;
    Ok(at)
}

/// Gives a descriptor to a process that has no other, and a table of its own: the number is [`ALONE`]. No other gets
/// it, whatever others write to the memory that they share with it, and whatever its seccomp filter says was done: the
/// kernel knows which process has made a pair of sockets, and no number is read from memory.
pub fn give_alone(memory: &Memory, pid: u32, tracee: &mut Tracee<'_>, descriptor: BorrowedFd<'_>) -> Result<()> {
    let failed = |error| cannot_give(pid, &error);
    let at = make_pair(pid, tracee)?;
    // The kernel takes the lowest numbers.
    let (here, there) = (0, 1);
    let end = fetch(pid, here).map_err(failed)?;
    if maker_of(&end).map_err(failed)? != pid as i32 {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    send(&end, descriptor).map_err(failed)?;
    ask_to_receive(memory, tracee, at, there)
}

/// The process that has made a pair of sockets, of which this is an end; 0: one that is not to be seen here.
fn maker_of(socket: &OwnedFd) -> io::Result<i32> {
    let mut maker = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let at = (&raw mut maker).cast();
    // SAFETY: the call fills the struct, which is as long as it says.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) } {
        0 => Ok(maker.pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A copy of a descriptor of a process.
pub fn fetch(pid: u32, number: i32) -> io::Result<OwnedFd> {
    Ok(pidfd_getfd(process::open(pid)?, number, PidfdGetfdFlags::empty())?)
}

fn send(socket: &OwnedFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    // It may be another one by now.
    if socket_domain(socket)? != AddressFamily::UNIX || socket_type(socket)? != SocketType::DGRAM {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let descriptors = [descriptor];
    if !message.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(socket.as_fd(), &[IoSlice::new(b"d")], &mut message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

const CONTROL: usize = 96;
const CONTROL_BYTES: usize = 24;

/// `struct msghdr`, then its vector, its control data, its byte, in the process's memory at `at`.
fn ask_to_receive(memory: &Memory, tracee: &mut Tracee<'_>, at: usize, end: i32) -> Result<()> {
    const VECTOR: usize = 64;
    const BYTE: usize = 160;
    let words = [0, 0, at + VECTOR, 1, at + CONTROL, CONTROL_BYTES, 0, 0, at + BYTE, 1];
    let bytes: Vec<u8> = words.iter().flat_map(|word: &usize| word.to_le_bytes()).collect();
    memory.write(at, &bytes)?;
    // Where its memory has changed meanwhile, there may be nothing to receive.
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as usize;
    tracee
        .syscall(libc::SYS_recvmsg, [end as usize, at, flags, 0, 0, 0])?
        .map(drop)
        .map_err(|error| Failure::new(format!("the process cannot receive a descriptor: {}", why(&error))))
}

fn receive(memory: &Memory, tracee: &mut Tracee<'_>, at: usize, end: i32) -> Result<usize> {
    ask_to_receive(memory, tracee, at, end)?;
    let mut control = [0u8; CONTROL_BYTES];
    memory.read(at + CONTROL, &mut control)?;
    let number = |from: usize| u32::from_le_bytes(control[from..from + 4].try_into().unwrap_or_default());
    // Length, level, kind, descriptor.
    match (number(0), number(8) as i32, number(12) as i32) {
        (20, libc::SOL_SOCKET, libc::SCM_RIGHTS) => Ok(number(16) as usize),
        _ => Err(Failure::new("the process has no room for another descriptor")),
    }
}
