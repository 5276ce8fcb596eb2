//! One open swap file: how it is opened and created, and page I/O on it.
//!
//! Owns descriptors and nothing else. Descriptors are plain numbers here, because a forked child must be able to
//! exchange them (the engine lives in its own descriptor table), and they are closed by a raw system call.
//! No locks; called by the file device without its lock held.

use super::Page;
use crate::PAGE_SIZE;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};

/// Pages in one system call at most; the vector lies on the stack.
pub const RUN_MAX: usize = 64;

/// Page 0 of a swap file with a name begins with this. The file is ours to overwrite.
pub const MAGIC: &[u8; 16] = b"FARPAGE-SWAP 1\n\0";

/// A descriptor that can be exchanged for another. Closed on drop.
pub struct Fd(AtomicI32);

impl Fd {
    pub fn new(fd: OwnedFd) -> Fd {
        Fd(AtomicI32::new(fd.into_raw_fd()))
    }

    /// The number; `None`: gone (a child that got no copy).
    pub fn raw(&self) -> Option<RawFd> {
        Some(self.0.load(Relaxed)).filter(|&fd| fd >= 0)
    }

    pub fn borrow(&self) -> Result<BorrowedFd<'_>, Errno> {
        let raw = self.raw().ok_or(Errno::BADF)?;
        // SAFETY: the number is an open descriptor owned by this value; `replace` is only called while the engine
        // is quiet (contract of `SwapDevice::replace_fds` and `fork_child`), so it stays open during the borrow.
        Ok(unsafe { BorrowedFd::borrow_raw(raw) })
    }

    /// Uses the number that `map` gives for the present one, without closing that. If there is none: keeps it, or
    /// with `or_lose` forgets it.
    pub fn replace(&self, map: &[(RawFd, RawFd)], or_lose: bool) {
        let Some(old) = self.raw() else { return };
        match map.iter().find(|pair| pair.0 == old) {
            Some(pair) => self.0.store(pair.1, Relaxed),
            None if or_lose => self.0.store(-1, Relaxed),
            None => {}
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if let Some(raw) = self.raw() {
            // SAFETY: this value owns the descriptor and nobody can borrow it any more.
            unsafe { rustix::io::close(raw) };
        }
    }
}

/// An open swap file.
pub struct Backing {
    pub fd: Fd,
    /// O_DIRECT is set: buffers must be aligned.
    direct: AtomicBool,
}

/// A page to go through when the caller's is not aligned.
#[repr(align(4096))]
struct Bounce(Page);

impl Backing {
    /// Takes over an open file; switches O_DIRECT on if the filesystem takes it.
    pub fn new(fd: OwnedFd) -> Backing {
        let direct = set_direct(fd.as_fd(), true).is_ok();
        Backing { fd: Fd::new(fd), direct: AtomicBool::new(direct) }
    }

    /// A new unnamed file in a directory, readable by its owner only.
    pub fn create_in(dir: BorrowedFd<'_>, use_tmpfile: bool) -> Result<Backing, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
        if use_tmpfile {
            match rustix::fs::openat(dir, c".", flags | OFlags::TMPFILE, mode) {
                Ok(fd) => return Ok(Backing::new(fd)),
                // Not supported by this filesystem.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        for _ in 0..100 {
            let serial = SERIAL.fetch_add(1, Relaxed);
            let name = format!(".farpage-swap-{}-{serial}", rustix::process::getpid().as_raw_nonzero());
            match rustix::fs::openat(dir, name.as_str(), flags | OFlags::CREATE | OFlags::NOFOLLOW, mode) {
                Ok(fd) => {
                    rustix::fs::unlinkat(dir, name.as_str(), AtFlags::empty())?;
                    return Ok(Backing::new(fd));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    /// Writes pages to consecutive slots from `first` on.
    pub fn write_run(&self, first: u64, pages: &[(&Page, u128)]) -> Result<(), Errno> {
        for (i, chunk) in pages.chunks(RUN_MAX).enumerate() {
            let at = (first + (i * RUN_MAX) as u64) * PAGE_SIZE as u64;
            if self.direct.load(Relaxed) && chunk.iter().any(|(page, _)| !aligned(page)) {
                let mut bounce = bounce();
                for (j, (page, _)) in chunk.iter().enumerate() {
                    bounce.0.copy_from_slice(&page[..]);
                    self.write_all(at + (j * PAGE_SIZE) as u64, &mut [IoSlice::new(&bounce.0)])?;
                }
                continue;
            }
            let mut vector = [IoSlice::new(&[]); RUN_MAX];
            for (slice, (page, _)) in vector.iter_mut().zip(chunk) {
                *slice = IoSlice::new(&page[..]);
            }
            self.write_all(at, &mut vector[..chunk.len()])?;
        }
        Ok(())
    }

    fn write_all(&self, mut at: u64, mut vector: &mut [IoSlice<'_>]) -> Result<(), Errno> {
        let mut refused = false;
        while !vector.is_empty() {
            match rustix::io::pwritev(self.fd.borrow()?, vector, at) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut vector, n);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::INVAL) if !refused => {
                    refused = true;
                    self.give_up_direct()?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Reads pages from consecutive slots. `Ok(n)`: the file ended after `n` whole pages.
    pub fn read_run(&self, first: u64, into: &mut [&mut Page]) -> Result<usize, Errno> {
        let mut done = 0;
        for chunk in into.chunks_mut(RUN_MAX) {
            let at = (first + done as u64) * PAGE_SIZE as u64;
            let want = chunk.len();
            let got = if self.direct.load(Relaxed) && chunk.iter().any(|page| !aligned(page)) {
                self.read_bounced(at, chunk)?
            } else {
                let mut vector: [IoSliceMut<'_>; RUN_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
                for (slice, page) in vector.iter_mut().zip(chunk.iter_mut()) {
                    *slice = IoSliceMut::new(&mut page[..]);
                }
                self.read_all(at, &mut vector[..want])? / PAGE_SIZE
            };
            done += got;
            if got < want {
                break;
            }
        }
        Ok(done)
    }

    fn read_bounced(&self, at: u64, chunk: &mut [&mut Page]) -> Result<usize, Errno> {
        let mut bounce = bounce();
        for (i, page) in chunk.iter_mut().enumerate() {
            let at = at + (i * PAGE_SIZE) as u64;
            if self.read_all(at, &mut [IoSliceMut::new(&mut bounce.0)])? < PAGE_SIZE {
                return Ok(i);
            }
            page.copy_from_slice(&bounce.0);
        }
        Ok(chunk.len())
    }

    /// Bytes read; less than asked for only at the end of the file.
    fn read_all(&self, mut at: u64, mut vector: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let (mut done, mut refused) = (0, false);
        while !vector.is_empty() {
            match rustix::io::preadv(self.fd.borrow()?, vector, at) {
                Ok(0) => break,
                Ok(n) => {
                    (at, done) = (at + n as u64, done + n);
                    IoSliceMut::advance_slices(&mut vector, n);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::INVAL) if !refused => {
                    refused = true;
                    self.give_up_direct()?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Some filesystems take the flag and refuse the I/O: switches it off, for the caller to try once more.
    fn give_up_direct(&self) -> Result<(), Errno> {
        self.direct.store(false, Relaxed);
        set_direct(self.fd.borrow()?, false)
    }

    /// Whether O_DIRECT is in use.
    #[cfg(test)]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }
}

fn set_direct(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, on);
    rustix::fs::fcntl_setfl(fd, flags)
}

fn aligned(page: &Page) -> bool {
    page.as_ptr().addr().is_multiple_of(PAGE_SIZE)
}

fn bounce() -> Box<Bounce> {
    Box::new(Bounce([0; PAGE_SIZE]))
}
