//! System calls on region memory: what `farpage_syscalls` asks for in the middle of a call.
//!
//! Callers: the program's threads, in any of libc's calls, also in signal handlers; the builder. The same locks as
//! [`super::pin`]; signals are blocked meanwhile.

use super::pager_core::PagerCore;
use super::registry::PAGERS;
use farpage_swap::PAGE_SIZE;
use farpage_syscalls::{InstallError, Memory};
use std::sync::atomic::Ordering::Relaxed;

/// A call holds a fourth of the budget at most, and so many pages.
const PAGES_MAX: i64 = 256;

/// The regions of all pagers.
struct Regions;

/// Has libc's calls looked at.
///
/// # Errors
/// They cannot be.
pub(super) fn install() -> Result<(), InstallError> {
    farpage_syscalls::install(&Regions).map(|_| ())
}

/// For the memory of a pager that can be found, too.
pub(super) fn cover(pager: &PagerCore) {
    farpage_syscalls::cover(pager.space.addr(0), pager.space.pages() * PAGE_SIZE);
}

/// A pager cannot be found any more. If it was the last one, calls cost what they did before.
pub(super) fn uncover() {
    farpage_syscalls::cover_nothing(|| PAGERS.iter().all(|entry| entry.with(|_| ()).is_none()));
}

/// Runs `f` with the pager that has this address, and the page.
fn with_page<R>(addr: usize, f: impl Fn(&PagerCore, u32) -> R) -> Option<R> {
    let run = |pager: &PagerCore| pager.space.page_at(addr).map(|page| f(pager, page));
    PAGERS.iter().find_map(|entry| entry.with(run).flatten())
}

impl Memory for Regions {
    fn contains(&self, addr: usize) -> bool {
        with_page(addr, |_, _| ()).is_some()
    }

    fn hold(&self, addr: usize, len: usize, write: bool, note: &dyn Fn(usize)) -> usize {
        let pin = |pager: &PagerCore, first: u32| {
            let pages = (addr % PAGE_SIZE).saturating_add(len).div_ceil(PAGE_SIZE);
            let end = (first as usize + pages).min(pager.space.pages()) as u32;
            let _inside = pager.enter();
            let (end, _) = pager.pin(first..end, write);
            let held = len.min(((end - first) as usize * PAGE_SIZE).saturating_sub(addr % PAGE_SIZE));
            if held > 0 {
                note(held);
            }
            held
        };
        with_page(addr, pin).unwrap_or(0)
    }

    fn release(&self, addr: usize, len: usize, note: &dyn Fn()) {
        let unpin = |pager: &PagerCore, first: u32| {
            let _inside = pager.enter();
            note();
            pager.unpin(first..first + (addr % PAGE_SIZE + len).div_ceil(PAGE_SIZE) as u32);
        };
        if with_page(addr, unpin).is_none() {
            note(); // the pager is gone
        }
    }

    fn most(&self, addr: usize) -> usize {
        let most = |pager: &PagerCore, _| (pager.limit.load(Relaxed) / 4).clamp(1, PAGES_MAX) as usize * PAGE_SIZE;
        with_page(addr, most).unwrap_or(PAGE_SIZE)
    }
}
