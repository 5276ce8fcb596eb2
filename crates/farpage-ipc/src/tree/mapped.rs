//! A segment that is looked at for a while: unlike that of a process's own tree, it is unmapped again.
//!
//! Callers: the command, which may look at many trees for a long time. No locks.

use super::Segment;
use farpage_base::sys::raw::Errno;
use rustix::fd::BorrowedFd;
use rustix::mm::munmap;
use std::ops::Deref;
use std::ptr::NonNull;

/// A segment of another process, mapped as long as this lives.
#[derive(Debug)]
pub struct MappedSegment(NonNull<Segment>);

/// Maps a segment of another process, to be read or to be given another budget.
///
/// # Errors
/// As [`super::open`].
pub fn open(fd: BorrowedFd<'_>) -> Result<MappedSegment, Errno> {
    super::open(fd).map(|segment| MappedSegment(NonNull::from(segment)))
}

impl Deref for MappedSegment {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        // SAFETY: mapped until this is dropped, and what is answered is borrowed from it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for MappedSegment {
    fn drop(&mut self) {
        // SAFETY: a mapping of this size, which is not used elsewhere: `open` made it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Segment>()) };
    }
}
