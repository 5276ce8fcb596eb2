//! Bringing pages in from devices: the page that is missing, and those that `readahead` wants with it.
//!
//! Called by `fault` in the faulting thread (nothing is allocated then, and only one I/O is waited for), and by
//! `prefetch` in a thread of the pager, where whole windows are read at once. A page that no thread asked for and that
//! cannot be read stays where it is: if it is ever needed, its own fault will say so.

use super::alloc::FrameGrant;
use super::fault::{CHUNK, Claimed};
use super::pager_core::{PagerCore, count};
use super::readahead::{SLOT_WINDOW, SwapInPlan};
use super::word::{Access, BY_SLOT, PageState, Seen};
use super::write_protect_policy::WriteProtectPolicy;
use farpage_base::mem::units::FrameNo;
use farpage_base::mem::units::Page;
use farpage_base::sys::message::{fatal, message_fmt};
use farpage_device::{Entry, LoadError};
use farpage_swap::readahead::Window;
use farpage_swap::tuning::Controller;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

/// Most pages of a window that the faulting thread brings in itself: more would be a long wait.
const SYNC_MAX: u32 = 64;
/// A marker is one of the first so many pages of its chunk.
const MARKER_SPAN: usize = 16;
/// How often the background waits for frames before it gives a window up.
const WAITS: u32 = 4;

/// Why nothing of a claim came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nothing {
    /// There is no frame.
    NoFrame,
    /// The first page cannot be read.
    Unreadable(LoadError),
}

/// Which of the pages read ahead stay unmapped, and with which credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marks {
    /// One in each chunk, for all of it.
    One,
    /// Each for itself.
    All,
    /// Each, with this credit.
    Credit(u16),
    /// None.
    No,
}

impl Marks {
    fn of(exact: bool) -> Marks {
        if exact { Marks::All } else { Marks::One }
    }

    /// Of `loaded` pages, of which the first was asked for if `must`: those that stay unmapped, a bit each, and the
    /// credit of each.
    fn pick(self, first: u32, loaded: usize, must: bool) -> (u64, u16) {
        let ahead = loaded - usize::from(must && loaded > 0);
        let all = if ahead == 0 { 0 } else { u64::MAX >> (64 - ahead) } << usize::from(must);
        match self {
            Marks::No => (0, 0),
            Marks::All => (all, 1),
            Marks::Credit(n) => (all, n),
            Marks::One if ahead == 0 => (0, 0),
            Marks::One => {
                // Not always at the same place, so that programs that use every third page are seen in proportion;
                // early, so that the next window is asked for in time.
                let mixed = first.wrapping_mul(0x9e37_79b9);
                let at = (u64::from(mixed ^ mixed >> 15) * ahead.min(MARKER_SPAN) as u64) >> 32;
                (1 << (at as usize + usize::from(must)), ahead as u16)
            }
        }
    }
}

impl PagerCore {
    /// The swapped page in a slot, made busy; `None`: it is not there any more, or another thread has it busy.
    pub(super) fn claim_slot(&self, entry: Entry) -> Option<(u32, Seen)> {
        let page = self.readahead.page_of(entry);
        let word = self.space.word(page);
        let look = word.load();
        let same = !look.is_busy() && look.state() == PageState::Swapped(entry);
        // Compared again by the exchange: the slot is this page's, in whatever region of this pager it is.
        let seen = if same { word.try_lock_if(look) } else { None };
        seen.map(|seen| (page, seen))
    }

    /// Brings a swapped page in, and what is to be read with it; `write`: to be written at once.
    ///
    /// # Errors
    /// It cannot be read back; it stays on its device, and a message has said so.
    pub(super) fn swap_in(&self, page: u32, seen: Seen, write: bool) -> Result<(), LoadError> {
        let PageState::Swapped(entry) = seen.state() else {
            self.space.word(page).unlock(seen, seen.state());
            return Ok(());
        };
        let queued = !self.swap.is_synchronous(entry);
        let rotational = queued && self.swap.is_rotational(entry);
        let protect = !write && self.stays_unwritten(page);
        let is_there = |page: u64| {
            matches!(self.space.word(page as u32).load().state(), PageState::Mapped(_) | PageState::Cached(_))
        };
        let result = match self.readahead.on_miss(page, entry, seen.hint(), queued, rotational, is_there) {
            SwapInPlan::Slots(slots) => self.swap_in_slots(page, seen, entry, slots),
            SwapInPlan::Pages(window) if window.stride > 1 => {
                let result = self.swap_in_window(page, seen, Window::single(page.into()), queued, protect);
                self.read_strided(&window, false, protect);
                result
            }
            SwapInPlan::Pages(window) => self.swap_in_window(page, seen, window, queued, protect),
        };
        count(&self.stat.pgmajfault, 1);
        if queued {
            count(&self.stat.pgmajfault_file, 1);
        }
        if let Err(error) = &result {
            let (at, device) = (self.space.addr(page), self.swap.name_of(error.device()));
            match self.swap.count_lost(error.device()) {
                Some(1) => {
                    message_fmt(format_args!(
                        "the page at {at:#x} of a region cannot be read back: {error} ({device})"
                    ));
                }
                Some(so_far) => message_fmt(format_args!(
                    "{so_far} reads of a region's pages have failed by now, the last at {at:#x}: {error} ({device})"
                )),
                None => {}
            }
        }
        result
    }

    /// Brings in a window of neighbours, or as much of it as the faulting thread should wait for; `protect`: as in
    /// [`PagerCore::load`].
    fn swap_in_window(
        &self,
        page: u32,
        seen: Seen,
        whole: Window,
        queued: bool,
        protect: bool,
    ) -> Result<(), LoadError> {
        let mut window = whole;
        if window.pages > SYNC_MAX {
            let first = u64::from(page);
            let from = if whole.down { (first + 1).saturating_sub(SYNC_MAX.into()) } else { first };
            window = Window { start: from.max(whole.start), pages: SYNC_MAX, ..whole };
        }
        let marks = if whole.pages > 1 { Marks::of(self.readahead.is_exact(page)) } else { Marks::No };
        let mut waited = false;
        let mut lost = Ok(());
        let (start, pages) = self.walk(page, seen, window, true, |first, seen, n| {
            let must = seen.is_some();
            if queued && waited {
                return 0; // one I/O; the rest is for the background
            }
            let mut claimed = self.claim(first, seen, n, |state| matches!(state, PageState::Swapped(_)));
            waited |= claimed.len > 0;
            match self.load(&mut claimed, must, marks, false, protect) {
                Ok(n) => n,
                Err(Nothing::Unreadable(error)) if must => {
                    lost = Err(error);
                    0
                }
                Err(_) => 0,
            }
        });
        lost?;
        if whole.pages > 1 {
            self.readahead.on_served(page, start, pages);
            let rest = if whole.down {
                whole.clipped(whole.start, start.into())
            } else {
                whole.clipped((start + pages).into(), whole.end())
            };
            if let Some(rest) = rest.filter(|_| queued) {
                self.prefetch_posts.post(rest);
            }
        }
        Ok(())
    }

    /// Brings a page in with those that lie beside it on its device: one I/O.
    fn swap_in_slots(&self, page: u32, seen: Seen, entry: Entry, slots: Range<u64>) -> Result<(), LoadError> {
        let mut taken: [Option<(u32, Seen, Entry)>; SLOT_WINDOW] = [None; SLOT_WINDOW];
        let mut n = 1;
        taken[0] = Some((page, seen, entry));
        // What was passed on to another device does not lie side by side there.
        let beside = |slot: u64| Entry::new(entry.device(), slot).filter(|e| !self.swap.is_moved(*e));
        let mut claim = |slot: u64| {
            let one = beside(slot).and_then(|e| self.claim_slot(e).map(|(page, seen)| (page, seen, e)));
            if let (Some(one), Some(place)) = (one, taken.get_mut(n)) {
                *place = Some(one);
                n += 1;
                return true;
            }
            if let Some((page, seen, _)) = one {
                self.space.word(page).unlock(seen, seen.state());
            }
            false
        };
        // Without a gap: a second request would have to wait for the first.
        let _ = (entry.slot() + 1..slots.end).all(&mut claim);
        let _ = (slots.start..entry.slot()).rev().all(&mut claim);
        let Some(FrameGrant { first, len: got, copies }) = self.alloc_frames(n, true) else {
            fatal("a fault found no frame")
        };
        let mut entries = [entry; SLOT_WINDOW];
        for (to, (_, _, e)) in entries.iter_mut().zip(taken.iter().flatten()) {
            *to = *e;
        }
        let timed = self.begin_load(entry);
        let (loaded, error) =
            self.with_pages(first, got.min(n), |pages| self.swap.load_plainly(&entries[..pages.len()], pages));
        if n == 1 {
            self.end_load(timed);
        }
        for (i, (at, _, e)) in taken.iter().flatten().take(loaded).enumerate() {
            self.verify_loaded(*at, *e, first + i);
        }
        self.frames.put_free(first + loaded, got - loaded);
        if copies {
            self.held.fetch_sub((got - loaded.min(1)) as i64, Relaxed); // the others stay in their frames
        }
        if let (0, Some(error)) = (loaded, error) {
            taken.iter().flatten().for_each(|(at, seen, _)| self.space.word(*at).unlock(*seen, seen.state()));
            return Err(error);
        }
        self.bring_in(page, first, 1, copies, false);
        count(&self.stat.pswpin, loaded);
        count(&self.stat.swap_ra, loaded - 1);
        for (i, (at, seen, e)) in (0..).zip(taken.into_iter().flatten()) {
            let mut claimed = Claimed { first: at, seen: [None; CHUNK], len: 1, touched: i == 0 };
            claimed.seen[0] = Some(seen);
            let f = first + i;
            if i == 0 {
                let kept = self.kept(e);
                self.finish_claim_as(&mut claimed, 1, Access::Writable, |_| (PageState::Mapped(kept), 0));
            } else {
                let done = usize::from(i < loaded);
                if done > 0 {
                    self.frame_entries.set(f, Some(e));
                    self.readahead.read(at, 1);
                }
                self.finish_claim_as(&mut claimed, done, Access::Writable, |_| (PageState::Cached(f), 1 | BY_SLOT));
            }
        }
        Ok(())
    }

    /// Brings the swapped pages of a window in, in a thread of the pager; waits a little for frames.
    pub fn read_ahead(&self, window: &Window) {
        if window.stride > 1 {
            return self.read_strided(window, true, self.stays_unwritten(window.start as u32));
        }
        let (low, high) = (window.start as u32, window.end().min(self.space.pages() as u64) as u32);
        let marks = Marks::of(self.readahead.is_exact(low));
        let protect = self.stays_unwritten(low);
        let chunks = (high - low.min(high)).div_ceil(CHUNK as u32);
        for chunk in 0..chunks {
            // The program comes from the other side if it goes down.
            let chunk = if window.down { chunks - 1 - chunk } else { chunk };
            let mut at = low + chunk * CHUNK as u32;
            let end = high.min(at + CHUNK as u32);
            let mut waits = 0;
            while at < end {
                if self.wakeups.stop.load(SeqCst) {
                    return;
                }
                let want = (end - at) as usize;
                let mut claimed = self.claim(at, None, want, |state| matches!(state, PageState::Swapped(_)));
                if claimed.len == 0 {
                    at += 1; // present, or busy: another thread brings it in
                    continue;
                }
                match self.load(&mut claimed, false, marks, true, protect) {
                    Ok(n) => at += n as u32,
                    Err(Nothing::Unreadable(_)) => at += 1,
                    Err(Nothing::NoFrame) if waits < WAITS => {
                        waits += 1;
                        self.wait_for_frames();
                    }
                    Err(Nothing::NoFrame) => return,
                }
            }
        }
    }

    /// Brings the swapped pages of a strided window in, one by one; the last of them is the marker.
    fn read_strided(&self, window: &Window, background: bool, protect: bool) {
        let exact = self.readahead.is_exact(window.start as u32);
        let claim = |page: u64, marks: Marks| -> usize {
            let wanted = |state| matches!(state, PageState::Swapped(_));
            if page >= self.space.pages() as u64 {
                return 0;
            }
            let mut claimed = self.claim(page as u32, None, 1, wanted);
            if claimed.len == 0 { 0 } else { self.load(&mut claimed, false, marks, background, protect).unwrap_or(0) }
        };
        // A quarter of the way in: early enough for the next window.
        let order = || window.iter().map(Some).chain([None]);
        let early = u64::from(window.pages / 4) * u64::from(window.stride);
        let marker = if window.down { window.end() - 1 - early } else { window.start + early };
        let mut read = 0;
        for page in order().flatten().filter(|page| exact || *page != marker) {
            read += claim(page, if exact { Marks::All } else { Marks::No });
        }
        if !exact {
            claim(marker, Marks::Credit(read as u16 + 1));
        }
    }

    /// Loads and places the pages of a claim, as many as there are frames for; at least the first if `must`. How many.
    /// Without `background`, no more than one I/O is waited for. `protect`: write-protected, if that can be had.
    fn load(
        &self,
        claimed: &mut Claimed,
        must: bool,
        marks: Marks,
        background: bool,
        protect: bool,
    ) -> Result<usize, Nothing> {
        let n = claimed.len;
        let grant = if n > 0 { self.alloc_frames(n, must) } else { None };
        let Some(FrameGrant { first, len: got, copies }) = grant else {
            self.finish_claim_as(claimed, 0, Access::Writable, |_| (PageState::None, 0));
            return Err(Nothing::NoFrame);
        };
        let mut entries: [Option<Entry>; CHUNK] = [None; CHUNK];
        for (place, seen) in entries.iter_mut().zip(&claimed.seen).take(got) {
            let Some(PageState::Swapped(entry)) = seen.map(Seen::state) else { break };
            *place = Some(entry);
        }
        let timed = entries[0].filter(|_| must && n == 1).map(|entry| self.begin_load(entry));
        let (loaded, error) = self.fetch(&entries, first, background);
        if let Some(timed) = timed {
            self.end_load(timed);
        }
        for (i, entry) in entries.iter().flatten().take(loaded).enumerate() {
            self.verify_loaded(claimed.first + i as u32, *entry, first + i);
        }
        self.frames.put_free(first + loaded, got - loaded);
        let (markers, credit) = marks.pick(claimed.first, loaded, must);
        if copies {
            // What stays in a frame has no copy.
            self.held.fetch_sub((got - loaded) as i64 + i64::from(markers.count_ones()), Relaxed);
        }
        let (mut i, mut access) = (0, Access::Unwritten);
        while i < loaded {
            let is_marker = |i: usize| markers >> i & 1 == 1;
            if is_marker(i) {
                self.frame_entries.set(first + i, entries[i]);
                i += 1;
                continue;
            }
            let run = (i..loaded).take_while(|i| !is_marker(*i)).count();
            let (at, from) = (claimed.first + i as u32, first + i);
            access = access.min(self.bring_in(at, from, run, copies, protect));
            i += run;
        }
        let kept = |i: usize| entries[i].and_then(|entry| self.kept(entry));
        let mut mapped: [Option<Entry>; CHUNK] = [None; CHUNK];
        for i in (0..loaded).filter(|i| markers >> i & 1 == 0) {
            mapped[i] = kept(i);
        }
        // Before the program can touch them: a hit is never counted before its read.
        let ahead = loaded - usize::from(must && loaded > 0);
        count(&self.stat.pswpin, loaded);
        count(&self.stat.swap_ra, ahead);
        if ahead > 0 {
            self.readahead.read(claimed.first, ahead);
        }
        self.finish_claim_as(claimed, loaded, access, |i| match markers >> i & 1 {
            1 => (PageState::Cached(first + i), credit),
            _ => (PageState::Mapped(mapped[i]), 0),
        });
        match error {
            Some(error) if loaded == 0 => Err(Nothing::Unreadable(error)),
            _ => Ok(loaded),
        }
    }

    /// A single page is about to be loaded, because a thread waits for it: whether from a file, and since when.
    fn begin_load(&self, entry: Entry) -> (bool, Instant) {
        (!self.swap.is_synchronous(entry), Instant::now())
    }

    /// It was loaded.
    fn end_load(&self, (from_file, since): (bool, Instant)) {
        self.load_times.note(from_file, since.elapsed().as_nanos() as u64);
    }

    /// A page was loaded into a frame of the caller's: compares it with what was stored, if that is wanted.
    fn verify_loaded(&self, page: u32, entry: Entry, f: FrameNo) {
        if self.verify {
            // SAFETY: the frame is the caller's and has a page.
            self.swap.verify(entry, unsafe { self.frame(f) }, &self.key, self.space.addr(page));
            count(&self.stat.verified, 1);
        }
    }

    /// Reads entries into frames from `first` on: how many, and why not all.
    fn fetch(&self, entries: &[Option<Entry>; CHUNK], first: FrameNo, background: bool) -> (usize, Option<LoadError>) {
        let mut done = 0;
        while let Some(Some(entry)) = entries.get(done).copied() {
            let f = first + done;
            if self.swap.is_synchronous(entry) {
                // SAFETY: a free frame that was taken: present, ours.
                if let Err(error) = self.swap.load(entry, unsafe { self.frame(f) }) {
                    return (done, Some(error));
                }
                done += 1;
                continue;
            }
            // The faulting thread waits for one request; the others are for the thread that reads ahead.
            let is_next =
                |i: usize, e: Entry| background || i == 0 || (entry.offset(i) == Some(e) && !self.swap.is_moved(entry));
            let run = entries[done..].iter().flatten().enumerate().take_while(|(i, e)| is_next(*i, **e)).count();
            let mut list = [entry; CHUNK];
            list.iter_mut().zip(entries[done..].iter().flatten()).for_each(|(to, e)| *to = *e);
            let (n, error) = self.with_pages(f, run, |pages| match background {
                true => self.swap.load_many(&list[..run], pages),
                false => self.swap.load_plainly(&list[..run], pages),
            });
            done += n;
            if error.is_some() || !background {
                return (done, error);
            }
        }
        (done, None)
    }

    /// `f` with the pages of `n` (at most [`CHUNK`]) owned, present frames.
    fn with_pages<R>(&self, first: FrameNo, n: usize, f: impl FnOnce(&mut [&mut Page]) -> R) -> R {
        let mut pages = [const { MaybeUninit::<&mut Page>::uninit() }; CHUNK];
        let n = n.min(CHUNK);
        for (i, place) in pages.iter_mut().enumerate().take(n) {
            // SAFETY: frames that the caller has taken: present, ours, each named once.
            place.write(unsafe { self.frame(first + i) });
        }
        // SAFETY: the first n were just written, and a MaybeUninit has the layout of its content.
        f(unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<&mut Page>(), n) })
    }

    /// Whether a page that comes in to be read shall come in write-protected.
    pub(super) fn stays_unwritten(&self, page: u32) -> bool {
        let own = || self.readahead.write_protect(page, WriteProtectPolicy::stays_unwritten).unwrap_or(false);
        self.wp_sweeps && self.controls.decide(Controller::Protect, own())
    }

    /// The entry of a page that is in memory again, if its slot is kept; otherwise it will be freed.
    fn kept(&self, entry: Entry) -> Option<Entry> {
        (self.keep_clean() || !self.free_later(entry)).then_some(entry)
    }
}
