//! What the engine asks of the program's address space: all of it, in one trait.
//!
//! [`Kernel`] is the process's own, by userfaultfd, `PAGEMAP_SCAN` and `/proc/self/maps`. Tests have a small kernel of
//! their own that can delay, refuse and count (`run/tests/fake.rs`), so that the pager runs step by step on one thread.
//!
//! Callers: the pager, on its thread; `store::release_runs` for the discard area, under its lock. Addresses and lengths
//! are bytes, multiples of a page.

use farpage_base::sys::futex::unshare_page;
use farpage_base::sys::maps::{self, Mapping, Rights};
use farpage_base::sys::pagemap::{self, PageKind};
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::{Message, Uffd, UffdError};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::mm::{MprotectFlags, mprotect};

/// See the module documentation. The methods are those of [`Uffd`], where they are explained, unless they say
/// something.
pub(crate) trait AddressSpace: Send + Sync {
    /// Registers `[start, start + len)` for missing pages.
    fn register(&self, start: usize, len: usize) -> Result<(), UffdError>;

    /// Undoes [`AddressSpace::register`].
    fn unregister(&self, start: usize, len: usize) -> Result<(), UffdError>;

    /// Moves pages; bytes moved, and why not more.
    ///
    /// # Safety
    /// As [`Uffd::move_pages`].
    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>);

    /// Copies engine memory into new pages; bytes copied, and why not more.
    ///
    /// # Safety
    /// As [`Uffd::copy_pages`].
    unsafe fn copy_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>);

    /// Makes an absent page one that cannot be read.
    fn poison(&self, page: usize, quiet: bool) -> Result<(), UffdError>;

    /// Wakes the threads that wait for a page in `[start, start + len)`.
    fn wake(&self, start: usize, len: usize);

    /// Whether a change of mappings is under way whose event has not been read, or whose thread has not gone on yet.
    /// `page` is any registered address.
    fn is_changing(&self, page: usize) -> bool;

    /// Reads messages without waiting.
    fn read(&self, out: &mut [Message]) -> Result<usize, Errno>;

    /// As [`Uffd::take_child`].
    fn take_child(&self) -> Option<OwnedFd> {
        None
    }

    /// Runs of pages in `[start, end)` where something is, and what. Until `each` says false.
    fn runs_by_kind(
        &self,
        start: usize,
        end: usize,
        each: &mut dyn FnMut(usize, usize, PageKind) -> bool,
    ) -> Result<(), Errno>;

    /// Makes a page that a forked child shares this process's alone, without touching one that is absent.
    fn unshare(&self, page: usize) -> Result<(), Errno>;

    /// No huge pages in `[start, end)`. Best effort.
    fn no_huge_pages(&self, start: usize, end: usize);

    /// The mapping that covers `addr`, or the next one.
    fn mapping_from(&self, addr: usize) -> Result<Option<Mapping>, Errno>;

    /// Whether the memory at `page` is registered; `None`: a change of mappings is under way.
    fn is_registered(&self, page: usize) -> Option<bool>;

    /// What may be done with the memory at `addr`; `None`: nothing is there, or the kernel does not say.
    fn rights(&self, addr: usize) -> Option<Rights>;

    /// Makes memory that may only be read writable, or read-only again.
    fn set_writable(&self, start: usize, len: usize, writable: bool) -> Result<(), Errno>;

    /// How far a mapping that ends at `end` could grow in place.
    fn free_until(&self, end: usize) -> usize;

    /// What is readable when there are messages; `None`: they come only while the pager asks.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// The process's own address space.
#[derive(Debug)]
pub(crate) struct Kernel {
    uffd: Uffd,
    /// `/proc/self/maps`.
    maps: OwnedFd,
}

impl Kernel {
    pub(crate) fn new(uffd: Uffd, maps: OwnedFd) -> Kernel {
        Kernel { uffd, maps }
    }
}

impl AddressSpace for Kernel {
    fn register(&self, start: usize, len: usize) -> Result<(), UffdError> {
        self.uffd.register(start, len)
    }

    fn unregister(&self, start: usize, len: usize) -> Result<(), UffdError> {
        self.uffd.unregister(start, len)
    }

    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>) {
        // SAFETY: caller's promise.
        unsafe { self.uffd.move_pages(dst, src, len, quiet) }
    }

    unsafe fn copy_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>) {
        // SAFETY: caller's promise.
        unsafe { self.uffd.copy_pages(dst, src, len, quiet) }
    }

    fn poison(&self, page: usize, quiet: bool) -> Result<(), UffdError> {
        self.uffd.poison(page, quiet)
    }

    fn wake(&self, start: usize, len: usize) {
        self.uffd.wake(start, len);
    }

    fn is_changing(&self, page: usize) -> bool {
        self.uffd.is_changing(page)
    }

    fn read(&self, out: &mut [Message]) -> Result<usize, Errno> {
        self.uffd.read(out)
    }

    fn take_child(&self) -> Option<OwnedFd> {
        self.uffd.take_child()
    }

    fn runs_by_kind(
        &self,
        start: usize,
        end: usize,
        each: &mut dyn FnMut(usize, usize, PageKind) -> bool,
    ) -> Result<(), Errno> {
        pagemap::runs_by_kind(self.uffd.pagemap(), start, end, each)
    }

    fn unshare(&self, page: usize) -> Result<(), Errno> {
        unshare_page(page)
    }

    fn no_huge_pages(&self, start: usize, end: usize) {
        // SAFETY: advice about the program's own memory that changes no content.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, rustix::mm::Advice::LinuxNoHugepage) };
    }

    fn mapping_from(&self, addr: usize) -> Result<Option<Mapping>, Errno> {
        maps::mapping_from(&self.maps, addr)
    }

    fn is_registered(&self, page: usize) -> Option<bool> {
        self.uffd.is_registered(page)
    }

    fn rights(&self, addr: usize) -> Option<Rights> {
        maps::rights(&self.maps, addr)
    }

    fn set_writable(&self, start: usize, len: usize, writable: bool) -> Result<(), Errno> {
        let write = if writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: memory of the program; the caller knows that no thread writes to it.
        unsafe { mprotect(start as *mut _, len, MprotectFlags::READ | write) }
    }

    fn free_until(&self, end: usize) -> usize {
        maps::free_until(&self.maps, end)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.uffd.borrow().ok()
    }
}
