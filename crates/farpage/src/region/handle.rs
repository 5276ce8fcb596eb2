//! What a program holds: pagers, regions, pins.
//!
//! Callers: the program, on any thread. No locks of its own: what it calls has them.

use super::error::{BUDGET_MAX, BUDGET_MIN, Error};
use super::fault::Served;
use super::owner::Owner;
use super::pager_core::PagerCore;
use super::places::RegionPlace;
use super::readahead::ReadaheadStats;
use super::stats::Stats;
use super::view::Plain;
use super::word::Hint;
use super::{blocked_threads, signal};
use farpage_swap::PAGE_SIZE;
use farpage_swap::readahead::Tuning as ReadaheadTuning;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A RAM budget, swap devices, and the threads that keep regions within it. Dropped when it and all its regions are.
#[derive(Debug, Clone)]
pub struct Pager {
    pub(super) owner: Arc<Owner>,
}

/// How a range of a region will be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing is known: farpage looks at the faults.
    Normal,
    /// In ascending order: read ahead at once.
    Sequential,
    /// In no order: do not read ahead.
    Random,
    /// Soon: brought in now, as [`Region::prefetch`].
    WillNeed,
    /// Not any more: the content is dropped, and reads as zeros. Whole pages inside of the range only, and not those
    /// that are pinned.
    DontNeed,
}

impl Pager {
    pub(super) fn of(owner: Arc<Owner>) -> Pager {
        Pager { owner }
    }

    /// New memory of `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::Forked`], or the kernel's ([`Error::Os`]: no memory, too
    /// many mappings).
    pub fn region(&self, bytes: usize) -> Result<Region, Error> {
        let e = self.core()?;
        let pages = bytes.div_ceil(PAGE_SIZE);
        if pages == 0 {
            return Err(Error::ZeroSize);
        }
        // Else the pager does not hear of threads that have blocked it since.
        if !farpage_syscalls::is_installed() {
            signal::take_back();
            blocked_threads::unblock_again();
        }
        let _inside = e.enter();
        let most = e.space.pages();
        let fits = u32::try_from(pages).ok().filter(|pages| (*pages as usize) < most);
        let place = fits.and_then(|pages| e.space.places.reserve(pages, most as u32));
        let Some(place) = place else { return Err(Error::TooLarge(bytes)) };
        e.open(place)?;
        Ok(Region { core: Arc::new(Core { owner: self.owner.clone(), place, bytes }) })
    }

    /// Changes the budget, bytes. A smaller one is reached by and by.
    ///
    /// # Errors
    /// [`Error::Budget`], [`Error::Forked`].
    pub fn resize_budget(&self, bytes: u64) -> Result<(), Error> {
        let e = self.core()?;
        if !(BUDGET_MIN..=BUDGET_MAX).contains(&bytes) {
            return Err(Error::Budget(bytes));
        }
        let _inside = e.enter();
        e.limit.store((bytes / PAGE_SIZE as u64) as i64, Relaxed);
        e.divide_anew(bytes);
        e.wake_reclaim(true);
        Ok(())
    }

    /// Numbers, now.
    ///
    /// # Errors
    /// Forked.
    pub fn stats(&self) -> Result<Stats, Error> {
        let e = self.core()?;
        let _inside = e.enter();
        e.update_overhead();
        Ok(Stats::of(&e.stat))
    }

    /// Whether it can be used in this process: in a forked child only if children have its regions.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.owner.core.is_here()
    }

    fn core(&self) -> Result<&PagerCore, Error> {
        if self.owner.core.is_here() { Ok(&self.owner.core) } else { Err(Error::Forked) }
    }
}

/// How often a page that is asked for is brought in, where others push it out at once.
const PREFETCH_TRIES: u32 = 4;

/// A region's place; goes when region and pins are gone.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) owner: Arc<Owner>,
    pub(super) place: RegionPlace,
    bytes: usize,
}

impl Drop for Core {
    fn drop(&mut self) {
        let e = &self.owner.core;
        if e.is_here() {
            let _inside = e.enter();
            e.close(self.place);
        }
    }
}

/// Memory of a [`Pager`]: a mutable byte slice that may be larger than the budget.
///
/// Dropping it while other threads still access it (through raw pointers; references cannot outlive it) ends the
/// process with SIGSEGV or SIGBUS, as after `munmap`.
#[derive(Debug)]
pub struct Region {
    pub(super) core: Arc<Core>,
}

impl Region {
    /// Advice on the bytes `range`.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`].
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Error> {
        let e = self.core()?;
        let (first, end) = self.pages(&range)?;
        let hint = match advice {
            Advice::Normal => Hint::Normal,
            Advice::Sequential => Hint::Sequential,
            Advice::Random => Hint::Random,
            Advice::WillNeed => return self.prefetch(range),
            Advice::DontNeed => {
                let _inside = e.enter();
                let first = self.core.place.first + range.start.div_ceil(PAGE_SIZE) as u32;
                let whole =
                    if range.end == self.core.bytes { range.end.next_multiple_of(PAGE_SIZE) } else { range.end };
                let end = self.core.place.first + (whole / PAGE_SIZE) as u32;
                if first < end {
                    e.discard(first, end, false);
                }
                return Ok(());
            }
        };
        let _inside = e.enter();
        let place = self.core.place;
        if (first, end) == (place.first, place.end()) {
            e.space.places.set_hint(place, hint);
        } else {
            e.space.touch_all(first..end);
        }
        for word in e.space.places.with_words(first..end).flat_map(|(_, pages)| pages).map(|page| e.space.word(page)) {
            let seen = word.lock();
            word.unlock(seen.with_hint(hint), seen.state());
        }
        Ok(())
    }

    /// Brings the bytes `range` in, as far as the budget allows, before it returns. In
    /// [`FaultMode::Thread`](super::FaultMode::Thread) some may be in the swap cache by then: a fault each, but nothing
    /// to read.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`]; [`Error::Unreadable`]: pages before that one have been brought in.
    pub fn prefetch(&self, range: Range<usize>) -> Result<(), Error> {
        let e = self.core()?;
        let (first, end) = self.pages(&range)?;
        // More than half of the budget would push its own beginning out.
        let most = (e.limit.load(Relaxed) / 2).max(1) as u64;
        let end = end.min((u64::from(first) + most) as u32);
        let _inside = e.enter();
        // Twice: what comes later may have pushed some out again, at least into the swap cache.
        for page in (first..end).chain(first..end) {
            // On probation the last of many would push the first ones out.
            let mut tries = 0;
            while !e.make_hot(page) && tries < PREFETCH_TRIES {
                self.bring_in(e, page)?;
                tries += 1;
            }
        }
        Ok(())
    }

    /// Makes the bytes `range` resident and keeps them so as long as the guard exists: system calls on them work.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`], [`Error::PinLimit`] (three quarters of the budget can be pinned),
    /// [`Error::Unreadable`], [`Error::Os`]. Nothing is pinned then.
    pub fn pin(&self, range: Range<usize>) -> Result<Pin, Error> {
        let e = self.core()?;
        let (first, end) = self.pages(&range)?;
        // Dropped after the gate is left: its drop passes it too.
        let mut guard = Pin { core: self.core.clone(), first, end: first };
        let _inside = e.enter();
        let (pinned, result) = e.pin(first..end, true);
        guard.end = pinned; // what was pinned goes with the guard
        let offset = || e.space.addr(pinned) - self.as_ptr() as usize;
        result.map_err(|why| why.error(range.end - range.start, offset()))?;
        Ok(guard)
    }

    /// The bytes as numbers: as many whole ones as there are.
    pub fn view<T: Plain>(&self) -> &[T] {
        const { assert!(size_of::<T>() > 0, "a type without bytes") };
        // SAFETY: T is plain: any bytes are a value; page-aligned; the lifetime is that of self.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.core.bytes / size_of::<T>()) }
    }

    /// The bytes as numbers that can be changed.
    pub fn view_mut<T: Plain>(&mut self) -> &mut [T] {
        const { assert!(size_of::<T>() > 0, "a type without bytes") };
        let n = self.core.bytes / size_of::<T>();
        // SAFETY: as for `view`; exclusive, because self is.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), n) }
    }

    /// Changes how pages of this region are read ahead; [`Region::advise`] still comes first. Starts from nothing: what
    /// was learned of the region's accesses, and its counters, are forgotten.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn set_readahead(&self, tuning: ReadaheadTuning) -> Result<(), Error> {
        let e = self.core()?;
        let _inside = e.enter();
        e.readahead.tune(self.core.place.first, tuning);
        Ok(())
    }

    /// How well reading ahead in this region went so far.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn readahead_stats(&self) -> Result<ReadaheadStats, Error> {
        let e = self.core()?;
        let _inside = e.enter();
        Ok(e.readahead.stats(self.core.place.first))
    }

    /// Makes a page present, as for a read.
    fn bring_in(&self, e: &PagerCore, page: u32) -> Result<(), Error> {
        match e.serve(page, false, Some(false)) {
            Served::Lost(why) => Err(Error::Unreadable { offset: e.space.addr(page) - self.as_ptr() as usize, why }),
            Served::Done | Served::Outside => Ok(()),
        }
    }

    fn core(&self) -> Result<&PagerCore, Error> {
        let e = &self.core.owner.core;
        if e.is_here() { Ok(e) } else { Err(Error::Forked) }
    }

    /// The pages that a range of bytes touches.
    fn pages(&self, range: &Range<usize>) -> Result<(u32, u32), Error> {
        let (start, end, len) = (range.start, range.end, self.core.bytes);
        if start > end || end > len {
            return Err(Error::Range { start, end, len });
        }
        let end_page = if start == end { start / PAGE_SIZE } else { end.div_ceil(PAGE_SIZE) };
        Ok((self.core.place.first + (start / PAGE_SIZE) as u32, self.core.place.first + end_page as u32))
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let base = self.core.owner.core.space.addr(self.core.place.first);
        // SAFETY: the region's pages are mapped as long as core lives; what is absent is brought in when touched and
        // reads as zeros before the first write.
        unsafe { std::slice::from_raw_parts(base as *const u8, self.core.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        let base = self.core.owner.core.space.addr(self.core.place.first);
        // SAFETY: as for `deref`; exclusive, because self is.
        unsafe { std::slice::from_raw_parts_mut(base as *mut u8, self.core.bytes) }
    }
}

/// Keeps a range resident, see [`Region::pin`].
#[derive(Debug)]
pub struct Pin {
    core: Arc<Core>,
    first: u32,
    /// First page behind those that are pinned.
    end: u32,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let e = &self.core.owner.core;
        if !e.is_here() {
            return;
        }
        let _inside = e.enter();
        e.unpin(self.first..self.end);
    }
}
