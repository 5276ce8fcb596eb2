//! Pages that stay: a program's pins, and what system calls hold.
//!
//! Callers: [`super::handle`], [`super::syscalls`]. Takes words, and `protecting`; allocates nothing.

use super::error::{Error, errno_of};
use super::fault::Served;
use super::pager_core::PagerCore;
use super::word::{PINS_MAX, PageState};
use farpage_base::sys::uffd::UffdError;
use farpage_device::LoadError;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Why a page could not be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotPinned {
    /// Three quarters of the budget are, or this page as often as can be.
    Limit,
    /// There is no region.
    Outside,
    /// It cannot be read back.
    Lost(LoadError),
    /// The kernel did not make it writable.
    Protected(UffdError),
}

impl PagerCore {
    /// Brings in pages one after the other and pins them, so that the kernel can read them and, if `write`, write them;
    /// the first one that is not pinned, and why. The caller is inside.
    pub(super) fn pin(&self, pages: Range<u32>, write: bool) -> (u32, Result<(), NotPinned>) {
        let most = self.limit.load(Relaxed) / 4 * 3;
        let mut at = pages.start;
        let mut result = Ok(());
        while at < pages.end && result.is_ok() {
            let word = self.space.word(at);
            if !self.space.touch(at) {
                result = Err(NotPinned::Outside);
                continue;
            }
            let seen = word.lock();
            if !matches!(seen.state(), PageState::Mapped(_)) {
                word.unlock(seen, seen.state());
                match self.serve(at, false, Some(false)) {
                    Served::Lost(why) => result = Err(NotPinned::Lost(why)),
                    Served::Outside => result = Err(NotPinned::Outside),
                    Served::Done => {}
                }
                continue;
            }
            let full = seen.pins() == PINS_MAX || (seen.pins() == 0 && self.pinned.load(Relaxed) >= most);
            if full {
                word.unlock(seen, seen.state());
                result = Err(NotPinned::Limit);
                continue;
            }
            let pinned = seen.with_pins(seen.pins() + 1);
            word.unlock(if write { pinned.writable() } else { pinned }, seen.state());
            self.pinned.fetch_add(i64::from(seen.pins() == 0), Relaxed);
            at += 1;
        }
        if write
            && pages.start < at
            && let Err(why) = self.unprotect_pinned(pages.start, at)
        {
            self.unpin(pages.start..at);
            return (pages.start, Err(NotPinned::Protected(why)));
        }
        (at, result)
    }

    /// Ends the pins of pages. The caller is inside.
    pub(super) fn unpin(&self, pages: Range<u32>) {
        for page in pages {
            let word = self.space.word(page);
            let seen = word.lock();
            word.unlock(seen.with_pins(seen.pins().saturating_sub(1)), seen.state());
            self.pinned.fetch_sub(i64::from(seen.pins() == 1), Relaxed);
        }
    }
}

impl NotPinned {
    /// As a program is told. `bytes`: what was to be pinned; `offset`: of the page, in its region.
    pub(super) fn error(self, bytes: usize, offset: usize) -> Error {
        match self {
            NotPinned::Limit => Error::PinLimit(bytes),
            NotPinned::Outside => Error::Range { start: offset, end: offset + bytes, len: offset },
            NotPinned::Lost(why) => Error::Unreadable { offset, why },
            NotPinned::Protected(why) => {
                Error::Os { what: "cannot make a pinned range writable", errno: errno_of(why) }
            }
        }
    }
}
