//! Where a page is on a queued device, and one request to the kernel.
//!
//! Callers: batches. No locks.

use super::inject::Injector;
use farpage_base::sys::raw::{nr, syscall};
use farpage_base::sys::table::Table;
use farpage_server::PageStore;
use libc::iovec;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use super::inject::Direction;

/// What pages are on.
#[derive(Clone)]
pub enum Medium {
    /// An open file, or a block device.
    File {
        /// Descriptor in the engine's table; stays open while the page's entry is in use.
        fd: RawFd,
        /// It wants aligned memory (O_DIRECT).
        direct: bool,
        /// Faults to inject, in tests.
        injector: Option<Arc<Injector>>,
    },
    /// A server.
    Server(Arc<dyn PageStore>),
}

impl Medium {
    /// Whether two pages side by side there are one run.
    pub(super) fn joins(&self, other: &Medium) -> bool {
        match (self, other) {
            (Medium::File { fd, .. }, Medium::File { fd: other, .. }) => fd == other,
            (Medium::Server(store), Medium::Server(_)) => !store.packs() && self.is(other),
            _ => false,
        }
    }

    /// Whether both are the same store on a server.
    pub(super) fn is(&self, other: &Medium) -> bool {
        let address = |medium: &Medium| match medium {
            Medium::Server(store) => Some(Arc::as_ptr(store).addr()),
            Medium::File { .. } => None,
        };
        address(self).is_some() && address(self) == address(other)
    }
}

/// Where a page is on a queued device.
#[derive(Clone)]
pub struct Place {
    /// On what.
    pub on: Medium,
    /// Byte in the file, or where the server has it.
    pub at: u64,
    /// Its number among all that were ever written there, for a server that needs it.
    pub count: u64,
    /// There is another copy: a server that is out of reach is not waited for.
    pub has_copy: bool,
}

impl Place {
    /// In a file.
    pub fn in_file(fd: RawFd, at: u64, direct: bool, injector: Option<Arc<Injector>>) -> Place {
        Place { on: Medium::File { fd, direct, injector }, at, count: 0, has_copy: false }
    }

    /// Whether memory must be aligned.
    pub fn is_direct(&self) -> bool {
        matches!(self.on, Medium::File { direct: true, .. })
    }
}

/// One request to the kernel.
#[derive(Clone, Copy)]
pub struct Request {
    pub fd: RawFd,
    pub at: u64,
    pub direction: Direction,
    /// Points into the batch: unchanged until the kernel has taken the request.
    pub vectors: *const iovec,
    pub count: usize,
    /// The whole of a single vector, or less (injected short transfers).
    pub single: Option<(*mut u8, usize)>,
}

impl Request {
    /// One `preadv` or `pwritev`, in the table that has the descriptor.
    pub fn run(&self, table: Option<&Table>) -> Result<usize, Errno> {
        if self.fd < 0 {
            return Err(Errno::BADF);
        }
        let one = self.single.map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
        let (vectors, count) = one.as_ref().map_or((self.vectors, self.count), |one| (std::ptr::from_ref(one), 1));
        let nr = if self.direction == Direction::Read { nr::PREADV } else { nr::PWRITEV };
        let args = [self.fd as usize, vectors as usize, count, self.at as usize, 0, 0];
        // SAFETY: the descriptor is open while the pages' entries are in use (see `Medium`). The memory is the batch's
        // alone until it has ended (contract of `Batch::push`); `vectors` points to `count` of them, in the batch or
        // here.
        unsafe {
            match table {
                Some(table) => table.transfer(nr, args),
                None => syscall(nr, args),
            }
        }
    }
}
