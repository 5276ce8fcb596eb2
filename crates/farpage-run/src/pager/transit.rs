//! Taking executable memory out: by way of a place that is executable, too.
//!
//! `UFFDIO_MOVE` wants the same access rights on both sides, and frames cannot be executed (nor should they: nothing
//! else makes a page of a program that has no such memory executable and writable). So such pages are moved to the
//! *transit* part, which no other thread can write to, copied to frames from there, and given back to the kernel by way
//! of the *waste* part, as frames are through the discard area. In again they come by a copy, as into any mapping with
//! other access rights ([`crate::pager::fill`]).
//!
//! Both parts become executable when they are first wanted. What can be executed and not written is refused by the
//! kernel everywhere: it stays.
//!
//! Caller: `reclaim`, on the pager's thread. Locks: `discard_area`.

use crate::pager::cx::Cx;
use crate::shared::address_space::AddressSpace;
use crate::shared::page_table::Node;
use crate::store;
use farpage_base::mem::arena::{Part, TRANSIT_BYTES};
use farpage_base::mem::lock::lock;
use farpage_base::mem::open::{is_opened, open};
use farpage_base::mem::units::Vpn;
use farpage_base::mem::zeros::{ZERO_PAGES, zero_pages};
use farpage_base::sys::raw::discard;
use farpage_base::sys::uffd::UffdError;
use farpage_swap::PAGE_SIZE;
use rustix::mm::{MprotectFlags, mprotect};
use std::time::{Duration, Instant};

/// Most pages that go this way at a time.
pub(crate) const TRANSIT: usize = TRANSIT_BYTES / PAGE_SIZE;

/// How long a fork may copy that is made behind libc's back, and told; between two looks.
const FORK_MAX: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_micros(50);

const _: () = assert!(TRANSIT <= ZERO_PAGES);

/// Whether there is a way for executable memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transit {
    /// Not yet.
    Unwanted,
    Open,
    /// The system refuses such memory.
    Closed,
}

impl Transit {
    /// Whether there is a way for executable pages.
    pub(crate) fn open(&mut self, cx: &mut Cx) -> bool {
        if *self != Transit::Unwanted {
            return *self == Transit::Open;
        }
        let e = cx.e;
        let prepare = |part: Part, mm: &dyn AddressSpace| {
            let all = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
            // SAFETY: a part of the arena that holds nothing, and that only this file uses. In a forked child it may be
            // open; what else is mapped there is the program's.
            let is_ours = unsafe { open(part.base, part.len) }.is_ok() || is_opened(part.base);
            // SAFETY: as above.
            let allowed = || unsafe { mprotect(part.base as *mut _, part.len, all) };
            is_ours && allowed().is_ok() && mm.register(part.base, part.len).is_ok()
        };
        let waste = lock(&e.discard_area).as_ref().is_some_and(|discard_area| prepare(e.arena.waste, &**discard_area));
        let open = waste && prepare(e.arena.transit, &*cx.mm);
        *self = if open { Transit::Open } else { Transit::Closed };
        open
    }

    /// As `MoveOut::move_out`, for a run that may lie in executable memory.
    pub(crate) fn move_out(
        &mut self,
        cx: &mut Cx,
        vpn: Vpn,
        run: &[Node],
        unshare: impl Fn(&Cx, usize) -> bool,
    ) -> Option<(usize, usize)> {
        let e = cx.e;
        let (first, n) = cx.empty_frames(run.len().min(TRANSIT))?;
        let (frames, transit, src) = (e.frames.addr(first), e.arena.transit.base, vpn.addr());
        // Before, so that nothing can fail once the pages are on their way.
        // SAFETY: empty frames of the arena, owned; the zeros are engine memory.
        let (bytes, result) = unsafe { cx.mm.copy_pages(frames, zero_pages(), n * PAGE_SIZE, true) };
        let made = bytes / PAGE_SIZE;
        e.budget.add(made as i64);
        e.frames.put_empty(first + made, n - made);
        if made == 0 {
            return cx.refused(vpn, run, result.and(Err(UffdError::Retry)));
        }
        let (mut bytes, mut result, mut unshared) = (0, Ok(()), usize::MAX);
        while bytes < made * PAGE_SIZE {
            let left = made * PAGE_SIZE - bytes;
            // SAFETY: the transit part is empty from there on, and this file's; src is the program's memory, into which
            // the engine holds no reference.
            let (moved, stop) = unsafe { cx.mm.move_pages(transit + bytes, src + bytes, left, true) };
            bytes += moved;
            result = stop;
            if result == Err(UffdError::Busy) && unshared != bytes && unshare(cx, src + bytes) {
                unshared = bytes;
            } else if moved == 0 || result.is_ok() {
                break;
            }
        }
        // SAFETY: both sides are the engine's, and present as far as that: no other thread can write to either.
        unsafe { std::ptr::copy_nonoverlapping(transit as *const u8, frames as *mut u8, bytes) };
        let done = bytes / PAGE_SIZE;
        self.empty(cx, done);
        store::release_run(e, first + done, made - done, made - done);
        if done == 0 {
            return cx.refused(vpn, run, result);
        }
        cx.now_cached(&run[..done], first, unshared == 0);
        Some((done, done))
    }

    /// Gives the first `n` pages of the transit part back to the kernel.
    fn empty(&mut self, cx: &mut Cx, n: usize) {
        let e = cx.e;
        let discard_area = lock(&e.discard_area);
        let (waste, transit) = (e.arena.waste.base, e.arena.transit.base);
        let mut done = 0;
        let (since, mut tries) = (Instant::now(), 0);
        while tries < 2 {
            let at = done * PAGE_SIZE;
            let Some(mm) = discard_area.as_ref().filter(|_| done < n) else { break };
            // SAFETY: both parts are this file's, and their pages of no worth; the waste is empty.
            let (bytes, stop) = unsafe { mm.move_pages(waste + at, transit + at, (n - done) * PAGE_SIZE, true) };
            done += bytes / PAGE_SIZE;
            if stop == Err(UffdError::Retry) && since.elapsed() < FORK_MAX {
                // A fork that is told, of another thread's: until its message is read, and while it copies.
                cx.changes.hear_forks(cx.e, None);
                std::thread::sleep(NAP);
            } else {
                tries += 1;
            }
        }
        if n > 0 {
            // SAFETY: of no worth; its userfaultfd reports no events.
            let _ = unsafe { discard(waste as *mut _, n * PAGE_SIZE) };
        }
        e.budget.add(-(done as i64));
        if done < n {
            // Never seen: the pages were movable a moment ago, and no other thread has them. A page that stays here
            // would have the next ones refused.
            *self = Transit::Closed;
        }
    }
}
