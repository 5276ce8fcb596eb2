//! A small kernel: the part of one that [`AddressSpace`] asks, and a program's memory on top of it.
//!
//! Pages of the program are content in a table, at addresses that nothing is mapped at. Frames are real memory; one
//! that has no page for the kernel cannot be touched, so a thread that touches it ends the test by SIGSEGV. Changes of
//! mappings are told as the kernel tells them: `madvise` before the pages go, `munmap` and `mremap` after; and while
//! one is under way, pages are neither copied nor moved.

use crate::shared::address_space::AddressSpace;
use farpage_base::mem::arena::{Arena, Part};
use farpage_base::mem::units::Page;
use farpage_base::sys::maps::{Kind, Mapping, Rights};
use farpage_base::sys::pagemap::PageKind;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::{Message, UffdError};
use farpage_swap::PAGE_SIZE;
use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

/// A page of the program that is there.
#[derive(Clone)]
struct Present {
    content: Box<Page>,
    /// The kernel's shared zero page: read and never written.
    zero: bool,
}

/// What is still to happen for a change that was told.
enum Doing {
    /// The pages of `madvise(MADV_DONTNEED)` go.
    Discard(usize, usize),
    /// The thread goes on.
    Nothing,
}

#[derive(Default)]
pub(super) struct State {
    present: BTreeMap<usize, Present>,
    /// Mappings, by start: end, and whether it is registered.
    mappings: BTreeMap<usize, (usize, bool)>,
    /// Frames that have a page.
    frames: BTreeSet<usize>,
    messages: VecDeque<Message>,
    /// Told and not read, or read and its thread has not woken up.
    doing: VecDeque<Doing>,
    /// Its thread has woken up: nothing is refused for it any more, and it has yet to be done.
    to_do: VecDeque<Doing>,
    unread: usize,
    /// Pages that cannot be moved: locked, or pinned by a device.
    stays: BTreeSet<usize>,
    /// Pages that a forked child shares.
    shared: BTreeSet<usize>,
    /// Addresses of pages for which a thread was woken.
    woken: BTreeSet<usize>,
    /// Addresses of faults; those for which a thread was woken go with the next one.
    faults: BTreeSet<usize>,
    /// How often threads were woken by themselves, and not because a page was placed.
    pub(super) wakes: u64,
    /// Pages that left the program, by the number of threads that waited.
    pub(super) left: [u64; 3],
    /// Pages that cannot be read: lost ones, and guards.
    poisoned: BTreeSet<usize>,
    guards: BTreeSet<usize>,
    random: u64,
    /// One request in so many is refused for no reason that the engine could know.
    refuse: u64,
    /// Refusals so far.
    pub(super) refused: u64,
    arena: Option<Arena>,
}

/// The kernel; clones are the same one.
#[derive(Clone)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl State {
    fn draw(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % n
    }

    fn parts(&self) -> [Part; 2] {
        let arena = self.arena.as_ref().unwrap();
        [arena.frames, arena.discard_area]
    }

    fn is_engine(&self, at: usize) -> bool {
        self.parts().iter().any(|part| part.contains(at))
    }

    fn is_changing(&self) -> bool {
        self.unread > 0 || !self.doing.is_empty()
    }

    /// The next thread that has woken up does what it told, or another one wakes up.
    fn go_on(&mut self) {
        match self.to_do.pop_front() {
            Some(Doing::Discard(start, end)) => self.drop_pages(start, end),
            Some(Doing::Nothing) => {}
            None => self.to_do.extend(self.doing.pop_front()),
        }
    }

    fn is_marked(&self, at: usize) -> bool {
        self.poisoned.contains(&at) || self.guards.contains(&at)
    }

    fn drop_pages(&mut self, start: usize, end: usize) {
        let gone: Vec<usize> = self.present.range(start..end).map(|(at, _)| *at).collect();
        for at in gone {
            self.present.remove(&at);
            self.shared.remove(&at);
        }
        self.poisoned.retain(|at| !(start..end).contains(at));
    }

    fn refuses(&mut self) -> Option<UffdError> {
        if self.is_changing() {
            // A thread that has been told may go on at any moment.
            if self.unread == 0 && self.draw(2) == 0 {
                self.go_on();
            }
            self.refused += 1;
            return Some(UffdError::Retry);
        }
        if !self.to_do.is_empty() && self.draw(4) == 0 {
            self.go_on();
        }
        if self.refuse > 0 && self.draw(self.refuse) == 0 {
            self.refused += 1;
            return Some(UffdError::Retry);
        }
        None
    }

    fn is_registered(&self, at: usize) -> bool {
        self.mapping(at).is_some_and(|(_, _, registered)| registered)
    }

    fn mapping(&self, at: usize) -> Option<(usize, usize, bool)> {
        let (start, (end, registered)) = self.mappings.range(..=at).next_back()?;
        (at < *end).then_some((*start, *end, *registered))
    }

    /// Cuts mappings at `at`.
    fn split(&mut self, at: usize) {
        if let Some((start, end, registered)) = self.mapping(at)
            && start < at
        {
            self.mappings.insert(start, (at, registered));
            self.mappings.insert(at, (end, registered));
        }
    }

    fn unmap(&mut self, start: usize, end: usize) {
        self.split(start);
        self.split(end);
        self.mappings.retain(|from, _| !(start..end).contains(from));
        self.drop_pages(start, end);
        self.guards.retain(|at| !(start..end).contains(at));
        self.stays.retain(|at| !(start..end).contains(at));
    }

    /// Gives a frame a page, or takes it away.
    fn set_frame(&mut self, at: usize, has: bool) {
        if has == self.frames.contains(&at) {
            return;
        }
        let rights = if has { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: a page of the arena's frames, which belong to this kernel.
        unsafe {
            if !has {
                madvise(at as *mut c_void, PAGE_SIZE, Advice::LinuxDontNeed).unwrap();
            }
            mprotect(at as *mut c_void, PAGE_SIZE, rights).unwrap();
        }
        if has {
            self.frames.insert(at)
        } else {
            self.frames.remove(&at)
        };
    }

    /// One page; the threads that wait for `dst` are woken unless `quiet`.
    fn move_one(&mut self, dst: usize, src: usize, quiet: bool) -> Result<(), UffdError> {
        if let Some(why) = self.refuses() {
            return Err(why);
        }
        let out = self.is_engine(dst);
        if out && self.is_engine(src) {
            // Into the discard area. A byte there says that a page is in its place, until the area is emptied.
            // SAFETY: the area is mapped, and belongs to the thread that moves into it.
            let place = unsafe { &mut *(dst as *mut u8) };
            if !self.frames.contains(&src) {
                return Err(UffdError::Absent);
            }
            if std::mem::replace(place, 1) != 0 {
                return Err(UffdError::Present);
            }
            self.set_frame(src, false);
            return Ok(());
        }
        if out {
            if self.is_marked(src) {
                return Err(UffdError::Other(Errno::FAULT));
            }
            let Some(page) = self.present.get(&src).cloned() else { return Err(UffdError::Absent) };
            if self.frames.contains(&dst) {
                return Err(UffdError::Present);
            }
            if self.stays.contains(&src) || self.shared.contains(&src) {
                return Err(UffdError::Busy);
            }
            self.present.remove(&src);
            let waiting = self.faults.difference(&self.woken).count();
            self.left[waiting.min(2)] += 1;
            self.set_frame(dst, true);
            // SAFETY: the frame has just been given memory, and is no other's.
            unsafe { *(dst as *mut Page) = *page.content };
            return Ok(());
        }
        if self.present.contains_key(&dst) || self.is_marked(dst) {
            return Err(UffdError::Present);
        }
        if !self.is_registered(dst) {
            return Err(UffdError::Absent);
        }
        assert!(self.frames.contains(&src), "a frame without a page is moved into the program");
        // SAFETY: the frame has memory, and is the caller's.
        let content = Box::new(unsafe { *(src as *const Page) });
        self.set_frame(src, false);
        self.present.insert(dst, Present { content, zero: false });
        if !quiet {
            self.woken.insert(dst);
        }
        Ok(())
    }

    fn copy_one(&mut self, dst: usize, src: usize, quiet: bool) -> Result<(), UffdError> {
        if let Some(why) = self.refuses() {
            return Err(why);
        }
        if self.is_engine(dst) {
            if self.frames.contains(&dst) {
                return Err(UffdError::Present);
            }
            self.set_frame(dst, true);
            return Ok(()); // zeros, as the memory is
        }
        if self.present.contains_key(&dst) {
            return Err(UffdError::Present);
        }
        if !self.is_registered(dst) {
            return Err(UffdError::Absent);
        }
        // As the real one: over whatever mark there is.
        self.poisoned.remove(&dst);
        self.guards.remove(&dst);
        // SAFETY: readable engine memory (caller's promise).
        let content = Box::new(unsafe { *(src as *const Page) });
        self.present.insert(dst, Present { content, zero: false });
        if !quiet {
            self.woken.insert(dst);
        }
        Ok(())
    }

    fn tell(&mut self, messages: &[Message], doing: Doing) {
        self.messages.extend(messages);
        self.unread += messages.len();
        self.doing.push_back(doing);
    }
}

impl Fake {
    pub(super) fn new(seed: u64, refuse: u64, arena: Arena) -> Fake {
        let state = State { random: seed, refuse, arena: Some(arena), ..State::default() };
        Fake(Arc::new(Mutex::new(state)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Pages that count: of the program, and of frames.
    pub(super) fn resident(&self) -> usize {
        let state = self.lock();
        state.present.values().filter(|page| !page.zero).count() + state.frames.len()
    }

    /// Maps `[start, end)`, not registered.
    pub(super) fn map(&self, start: usize, end: usize) {
        self.lock().mappings.insert(start, (end, false));
    }

    /// The program reads the page at `at`; `None`: it waits for it.
    pub(super) fn load(&self, at: usize) -> Option<Page> {
        let mut state = self.lock();
        if !state.present.contains_key(&at) && !state.is_registered(at) {
            state.present.insert(at, Present { content: Box::new([0; PAGE_SIZE]), zero: true });
        }
        state.present.get(&at).map(|page| *page.content)
    }

    /// The program writes a page; false: it waits for it.
    pub(super) fn store(&self, at: usize, content: &Page) -> bool {
        let mut state = self.lock();
        if !state.present.contains_key(&at) && state.is_registered(at) {
            return false;
        }
        state.shared.remove(&at);
        state.present.insert(at, Present { content: Box::new(*content), zero: false });
        true
    }

    /// Whether the page at `at` is there.
    pub(super) fn is_there(&self, at: usize) -> bool {
        self.lock().present.contains_key(&at)
    }

    /// A thread has a fault at `at`.
    pub(super) fn fault(&self, at: usize, write: bool, tid: u32) {
        let mut state = self.lock();
        let state = &mut *state;
        state.faults.retain(|at| !state.woken.contains(at));
        state.faults.insert(at);
        state.woken.remove(&at);
        state.messages.push_back(Message::Fault { addr: at, write, tid });
    }

    /// Whether the thread that waits for the page at `at` was woken since its fault.
    pub(super) fn was_woken(&self, at: usize) -> bool {
        self.lock().woken.contains(&at)
    }

    /// `madvise(MADV_DONTNEED)`: told now; the pages go when its thread goes on.
    pub(super) fn discard(&self, start: usize, end: usize) {
        let mut state = self.lock();
        state.tell(&[Message::Remove { start, end }], Doing::Discard(start, end));
    }

    /// `madvise(MADV_GUARD_INSTALL)`, which the pager is not told.
    pub(super) fn guard(&self, start: usize, end: usize) {
        let mut state = self.lock();
        state.drop_pages(start, end);
        state.guards.extend((start..end).step_by(PAGE_SIZE));
    }

    /// `madvise(MADV_GUARD_REMOVE)`, which the pager is not told.
    pub(super) fn unguard(&self, start: usize, end: usize) {
        self.lock().guards.retain(|at| !(start..end).contains(at));
    }

    /// Whether an access to the page at `at` is a signal.
    pub(super) fn is_guard(&self, at: usize) -> bool {
        self.lock().guards.contains(&at)
    }

    /// `munmap`, and at once `mmap` of the same place, which the pager is not told.
    pub(super) fn replace(&self, start: usize, end: usize) {
        let mut state = self.lock();
        state.unmap(start, end);
        state.mappings.insert(start, (end, false));
        state.tell(&[Message::Unmap { start, end }], Doing::Nothing);
    }

    /// `mremap` of a whole mapping to a free place.
    pub(super) fn remap(&self, start: usize, end: usize, to: usize) {
        let mut state = self.lock();
        let registered = state.is_registered(start);
        let moved: Vec<usize> = state.present.range(start..end).map(|(at, _)| *at).collect();
        let pages: Vec<_> = moved.iter().map(|at| (at - start + to, state.present[at].clone())).collect();
        let stays: Vec<usize> = state.stays.range(start..end).map(|at| at - start + to).collect();
        let guards: Vec<usize> = state.guards.range(start..end).map(|at| at - start + to).collect();
        state.unmap(start, end);
        state.guards.extend(guards);
        state.mappings.insert(to, (to + (end - start), registered));
        state.present.extend(pages);
        state.stays.extend(stays);
        let remap = Message::Remap { from: start, to, len: end - start };
        state.tell(&[remap, Message::Unmap { start, end }], Doing::Nothing);
    }

    /// The page at `at` stays from now on, or may go again.
    pub(super) fn lock_page(&self, at: usize, stays: bool) {
        let mut state = self.lock();
        if stays {
            state.stays.insert(at)
        } else {
            state.stays.remove(&at)
        };
    }

    /// A child shares the pages of `[start, end)` that are there.
    pub(super) fn share(&self, start: usize, end: usize) {
        let mut state = self.lock();
        let pages: Vec<usize> = state.present.range(start..end).map(|(at, _)| *at).collect();
        state.shared.extend(pages);
    }

    /// All that was told has been read and done.
    pub(super) fn is_quiet(&self) -> bool {
        let mut state = self.lock();
        let quiet = !state.is_changing() && state.messages.is_empty() && state.to_do.is_empty();
        if state.unread == 0 {
            state.go_on();
        }
        quiet
    }
}

impl AddressSpace for Fake {
    fn register(&self, start: usize, len: usize) -> Result<(), UffdError> {
        let mut state = self.lock();
        if state.is_engine(start) {
            // SAFETY: frames that have just been opened, which are this kernel's.
            unsafe { mprotect(start as *mut c_void, len, MprotectFlags::empty()) }.unwrap();
            return Ok(());
        }
        let whole = state.mapping(start).filter(|(from, end, _)| *from <= start && start + len <= *end);
        let Some((from, end, _)) = whole else { return Err(UffdError::Incompatible) };
        assert!((from, end) == (start, start + len), "a mapping is to be registered whole");
        state.mappings.insert(start, (end, true));
        Ok(())
    }

    fn unregister(&self, start: usize, _len: usize) -> Result<(), UffdError> {
        let mut state = self.lock();
        if let Some(mapping) = state.mappings.get_mut(&start) {
            mapping.1 = false;
        }
        Ok(())
    }

    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>) {
        let mut state = self.lock();
        for done in (0..len).step_by(PAGE_SIZE) {
            if let Err(why) = state.move_one(dst + done, src + done, quiet) {
                return (done, Err(why));
            }
        }
        (len, Ok(()))
    }

    unsafe fn copy_pages(&self, dst: usize, src: usize, len: usize, quiet: bool) -> (usize, Result<(), UffdError>) {
        let mut state = self.lock();
        for done in (0..len).step_by(PAGE_SIZE) {
            if let Err(why) = state.copy_one(dst + done, src + done, quiet) {
                return (done, Err(why));
            }
        }
        (len, Ok(()))
    }

    fn poison(&self, page: usize, quiet: bool) -> Result<(), UffdError> {
        let mut state = self.lock();
        if let Some(why) = state.refuses() {
            return Err(why);
        }
        state.poisoned.insert(page);
        if !quiet {
            state.woken.insert(page);
        }
        Ok(())
    }

    fn wake(&self, start: usize, len: usize) {
        let mut state = self.lock();
        state.wakes += 1;
        state.woken.extend((start..start + len).step_by(PAGE_SIZE));
    }

    fn is_changing(&self, _page: usize) -> bool {
        let mut state = self.lock();
        if state.unread == 0 && !state.doing.is_empty() && state.draw(2) == 0 {
            state.go_on();
        }
        state.is_changing()
    }

    fn read(&self, out: &mut [Message]) -> Result<usize, Errno> {
        let mut state = self.lock();
        let mut n = 0;
        while n < out.len()
            && let Some(message) = state.messages.pop_front()
        {
            state.unread -= usize::from(!matches!(message, Message::Fault { .. }));
            out[n] = message;
            n += 1;
        }
        Ok(n)
    }

    fn runs_by_kind(
        &self,
        start: usize,
        end: usize,
        each: &mut dyn FnMut(usize, usize, PageKind) -> bool,
    ) -> Result<(), Errno> {
        let state = self.lock();
        let kind = |zero| if zero { PageKind::Zero } else { PageKind::Page };
        let mut pages: Vec<(usize, PageKind)> =
            state.present.range(start..end).map(|(at, page)| (*at, kind(page.zero))).collect();
        pages.extend(state.poisoned.range(start..end).map(|at| (*at, PageKind::Page)));
        pages.extend(state.guards.range(start..end).map(|at| (*at, PageKind::Guard)));
        drop(state);
        pages.sort_unstable_by_key(|(at, _)| *at);
        for run in pages.chunk_by(|a, b| a.0 + PAGE_SIZE == b.0 && a.1 == b.1) {
            if !each(run[0].0, run[run.len() - 1].0 + PAGE_SIZE, run[0].1) {
                break;
            }
        }
        Ok(())
    }

    fn unshare(&self, page: usize) -> Result<(), Errno> {
        let mut state = self.lock();
        state.shared.remove(&page);
        if state.present.contains_key(&page) { Ok(()) } else { Err(Errno::FAULT) }
    }

    fn no_huge_pages(&self, _start: usize, _end: usize) {}

    fn mapping_from(&self, addr: usize) -> Result<Option<Mapping>, Errno> {
        let state = self.lock();
        let found = state.mapping(addr).map(|(start, end, _)| (start, end));
        let next = || state.mappings.range(addr..).next().map(|(start, (end, _))| (*start, *end));
        Ok(found.or_else(next).map(|(start, end)| Mapping { start, end, kind: Kind::Plain }))
    }

    fn is_registered(&self, page: usize) -> Option<bool> {
        let state = self.lock();
        (!state.is_changing()).then(|| state.is_registered(page))
    }

    fn rights(&self, _addr: usize) -> Option<Rights> {
        None
    }

    fn set_writable(&self, _start: usize, _len: usize, _writable: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn free_until(&self, end: usize) -> usize {
        end
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
