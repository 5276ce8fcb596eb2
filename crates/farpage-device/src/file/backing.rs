//! One open swap file, or what stands for it on a server: how it is opened and created. The I/O is in
//! [`crate::io`].
//!
//! Owns descriptors, and nothing else. No locks.

use farpage_base::sys::fd::Fd;
use farpage_base::sys::raw::syscall;
use farpage_base::sys::raw::{nr, random_bytes};
use farpage_codec::crypt::Salt;
use farpage_server::PageStore;
use farpage_swap::PAGE_SIZE;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The header page of a block device begins with this: it is ours to overwrite. So did files with a name in earlier
/// versions.
pub const MAGIC: &[u8; 16] = b"FARPAGE-SWAP 1\n\0";

/// An open swap file or block device.
pub struct Backing {
    pub fd: Fd,
    /// O_DIRECT is set: buffers must be aligned.
    direct: AtomicBool,
    /// Byte of slot 0.
    base: u64,
    is_block: bool,
    /// What is below does not take space back.
    pub(super) keeps_space: AtomicBool,
    /// Part of the nonce of every page in this file.
    salt: Salt,
    /// It is no file: the pages are on a server.
    store: Option<Arc<dyn PageStore>>,
    /// Second copies of what is on a server.
    mirror: Option<Mirror>,
}

/// Second copies, each at the slot that the first one has on the server.
pub struct Mirror {
    /// Their file.
    pub file: Box<Backing>,
    /// Slots that there is room for on the disk.
    pub end: AtomicU64,
}

impl Backing {
    /// Takes over an open file; switches O_DIRECT on if the filesystem takes it.
    pub fn new(fd: OwnedFd) -> Result<Backing, Errno> {
        let salt = Salt::random()?;
        let direct = AtomicBool::new(set_direct(fd.as_fd(), true).is_ok());
        Ok(Backing {
            fd: Fd::new(fd),
            direct,
            base: 0,
            is_block: false,
            keeps_space: AtomicBool::new(false),
            salt,
            store: None,
            mirror: None,
        })
    }

    fn of_file(fd: OwnedFd) -> Result<Backing, Errno> {
        let _ = rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH);
        Backing::new(fd)
    }

    /// Pages on a server.
    pub fn of_store(store: Arc<dyn PageStore>) -> Result<Backing, Errno> {
        Ok(Backing {
            fd: Fd::none(),
            direct: AtomicBool::new(false),
            base: 0,
            is_block: false,
            keeps_space: AtomicBool::new(!store.discards()),
            salt: Salt::random()?,
            store: Some(store),
            mirror: None,
        })
    }

    /// Takes over an open block device whose first `base` bytes are not for pages.
    pub fn of_block(fd: OwnedFd, base: u64) -> Result<Backing, Errno> {
        Ok(Backing { base, is_block: true, ..Backing::new(fd)? })
    }

    /// The same with second copies, if there is room for them.
    pub fn with_mirror(self, mirror: Option<Backing>) -> Backing {
        Backing { mirror: mirror.map(|file| Mirror { file: Box::new(file), end: AtomicU64::new(0) }), ..self }
    }

    /// Shows the descriptors.
    pub fn each_fd(&self, look: &mut dyn FnMut(&Fd)) {
        look(&self.fd);
        self.mirror.iter().for_each(|mirror| look(&mirror.file.fd));
    }

    /// Whether what is stored is packed, and encrypted after that, by a server's store.
    pub fn packs(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.packs())
    }

    /// Where second copies are.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.mirror.as_ref()
    }

    /// The pages on a server.
    pub fn store(&self) -> Option<&Arc<dyn PageStore>> {
        self.store.as_ref()
    }

    /// Where a slot is, in a file: the byte.
    pub fn at(&self, slot: u64) -> u64 {
        self.store.as_ref().map_or_else(|| self.base + slot * PAGE_SIZE as u64, |store| store.at(slot))
    }

    /// Whether it is a block device.
    pub fn is_block(&self) -> bool {
        self.is_block
    }

    /// Part of the nonce of every page in this file.
    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    /// Gives the space of `count` slots back to what is below, and of their second copies: whether any of it did that.
    /// It is new space when it is written again. `None`: it may still happen, and the slots must not be
    /// used again.
    pub fn discard(&self, slot: u64, count: u64) -> Option<bool> {
        let done = self.discards() && self.discard_below(slot, count)?;
        self.keeps_space.store(!done, Relaxed);
        let of_copies = self.mirror().and_then(|mirror| mirror.file.discard(slot, count));
        Some(done || of_copies == Some(true))
    }

    /// A hole in a file, a discard of a block device, a trim of a server's space. `Some(false)`: that is refused.
    fn discard_below(&self, slot: u64, count: u64) -> Option<bool> {
        if let Some(store) = &self.store {
            return store.discard(slot, count);
        }
        let (at, len) = (self.at(slot), count * PAGE_SIZE as u64);
        let result = self.fd.borrow().and_then(|fd| {
            if self.is_block {
                return discard_device(fd, at, len);
            }
            rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
        });
        Some(result.is_ok())
    }

    /// Whether what is below takes space back, as far as is known.
    pub fn discards(&self) -> bool {
        !self.keeps_space.load(Relaxed)
    }

    /// Bytes of the filesystem that the file takes.
    pub fn disk_bytes(&self) -> u64 {
        self.fd.borrow().and_then(rustix::fs::fstat).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// A new unnamed file in a directory. No other process can open it, whatever its mode: that lets this process open
    /// it once more for a child, also when it has become another user's ([`farpage_base::sys::proc::for_reading`]).
    pub fn create_in(dir: BorrowedFd<'_>, use_tmpfile: bool) -> Result<Backing, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
        if use_tmpfile {
            match rustix::fs::openat(dir, c".", flags | OFlags::TMPFILE, mode) {
                Ok(fd) => return Backing::of_file(fd),
                // Not supported by this filesystem.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        for _ in 0..100 {
            // No process can guess it and be there first.
            let mut name = [0; 8];
            random_bytes(&mut name)?;
            let name = format!(".farpage-swap-{:016x}", u64::from_ne_bytes(name));
            match rustix::fs::openat(dir, name.as_str(), flags | OFlags::CREATE | OFlags::NOFOLLOW, mode) {
                Ok(fd) => {
                    rustix::fs::unlinkat(dir, name.as_str(), AtFlags::empty())?;
                    return Backing::of_file(fd);
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    /// Some filesystems take the flag and refuse the I/O: switches it off, for the caller to try once more.
    pub fn give_up_direct(&self) -> Result<(), Errno> {
        const F_GETFL: usize = 3;
        const F_SETFL: usize = 4;
        self.direct.store(false, Relaxed);
        // A thread of the program may be the first to notice.
        // SAFETY: neither touches memory.
        unsafe {
            let flags = self.fd.transfer(nr::FCNTL, [F_GETFL, 0, 0, 0, 0])?;
            let flags = flags & !(OFlags::DIRECT.bits() as usize);
            self.fd.transfer(nr::FCNTL, [F_SETFL, flags, 0, 0, 0]).map(drop)
        }
    }

    /// Whether O_DIRECT is in use: memory must be aligned.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }
}

fn set_direct(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, on);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// `_IO(0x12, 119)`.
const BLKDISCARD: usize = 0x1277;

/// Tells the device that `len` bytes from `at` on have no content any more.
fn discard_device(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let range = [at, len];
    let args = [fd.as_raw_fd() as usize, BLKDISCARD, range.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the request reads two words; the device is ours alone (opened exclusively), and the range holds no page.
    unsafe { syscall(nr::IOCTL, args) }.map(drop)
}
