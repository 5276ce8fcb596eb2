//! Memory of the engine's own that becomes usable in steps.
//!
//! A *reservation* is mapped, and cannot be written yet (`PROT_NONE`, or `PROT_READ` where zeros are read): it takes
//! address space only. As writable memory it counts in full, touched or not: as commit where the kernel never
//! overcommits (`vm.overcommit_memory=2`, for which `MAP_NORESERVE` is nothing), and for `RLIMIT_DATA`. So it is opened
//! as it is needed.
//!
//! In the [`WINDOW`] not even that is mapped: a program may limit its address space (`RLIMIT_AS`), also later. Parts
//! there begin with nothing, and are mapped as they are needed, each from its beginning on. They grow by `mremap`: so
//! what is added is like the rest, registered with the same userfaultfd, and not locked because of the program's
//! `mlockall(MCL_FUTURE)`; and it never takes the place of what the program has mapped there.
//!
//! What the program needs of its limits goes first ([`within_limits`]).

use crate::sys::futex;
use crate::sys::raw::{gettid, is_thread_here};
use farpage_swap::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mmap_anonymous, mprotect, mremap, munlock, munmap};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Bytes that are opened at a time.
pub const STEP: usize = 1 << 20;

/// Addresses at which the kernel puts nothing by itself: it begins below the stack and goes downwards, or at a third of
/// all addresses and goes upwards (`ulimit -s unlimited`).
pub const WINDOW: Range<usize> = 0x2000_0000_0000..0x2800_0000_0000;

/// Bytes that are mapped there.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Whatever the limits are, an engine may have so much, bytes. It needs about half of it at its start.
const ALWAYS: u64 = 32 << 20;

/// Something that was wanted there could not be had.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether memory of the engine's was refused, by a limit or by the kernel.
pub fn was_refused() -> bool {
    REFUSED.load(Relaxed)
}

/// Whether the engine may have `more` bytes: where address space or data is limited, a third of the limit at most, and
/// a little. A program that has 1.5 times of what it needs gets it.
fn within_limits(more: usize) -> bool {
    let wanted = (MAPPED.load(Relaxed) + more) as u64;
    let most = |resource| getrlimit(resource).current.map_or(u64::MAX, |limit| limit / 3 + ALWAYS);
    wanted <= most(Resource::As).min(most(Resource::Data))
}

/// Makes every page that has one of these `len` bytes readable and writable.
///
/// # Safety
/// The pages are a reservation of the caller's own; or addresses in the [`WINDOW`] that are the caller's, and nothing
/// is mapped there.
///
/// # Errors
/// `ENOMEM`: the kernel's limit on commit, or this process's on data or address space. `EEXIST`: the program has mapped
/// something there.
pub unsafe fn open(at: usize, len: usize) -> Result<(), Errno> {
    let first = at & !(PAGE_SIZE - 1);
    let len = (at + len).next_multiple_of(PAGE_SIZE) - first;
    let ptr = first as *mut c_void;
    if WINDOW.contains(&at) {
        reserve(first, len)?;
    }
    // SAFETY: the caller's own memory, which nothing else than the caller uses; its content stays.
    let opened = unsafe { mprotect(ptr, len, MprotectFlags::READ | MprotectFlags::WRITE) };
    if opened.is_ok() || !WINDOW.contains(&at) {
        return opened;
    }
    // SAFETY: mapped just now.
    unsafe { close(std::slice::from_ref(&(first..first + len))) };
    opened
}

/// Maps `len` bytes at `at`, closed.
///
/// # Errors
/// As [`open`].
fn reserve(at: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: takes nothing's place.
    let ptr = unsafe { mmap_anonymous(at as *mut c_void, len, ProtFlags::empty(), flags) }?;
    // SAFETY: mapped just now. Huge pages would blur the page-wise accounting; with them, or locked, it still works.
    unsafe {
        let _ = munlock(ptr, len);
        let _ = madvise(ptr, len, Advice::LinuxNoHugepage);
    }
    note_opened(at, at, at + len);
    Ok(())
}

/// What was opened in the [`WINDOW`]: from, to; zeros: nothing. Others may be mapped there, too.
static OPENED: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

/// What was open from `start` on, up to `end`, is so up to `to`.
fn note_opened(start: usize, end: usize, to: usize) {
    MAPPED.fetch_add(to - end, Relaxed);
    let grows = |place: &&[AtomicUsize; 2]| end > start && place[1].load(SeqCst) == end;
    let is_free = |place: &&[AtomicUsize; 2]| place[0].compare_exchange(0, start, SeqCst, SeqCst).is_ok();
    let place = OPENED.iter().find(grows).or_else(|| OPENED.iter().find(|place| end == start && is_free(place)));
    place.into_iter().for_each(|place| place[1].store(to, SeqCst));
}

/// Whether what begins at `start`, in the [`WINDOW`], was opened: by this process, or before it was forked.
pub fn is_opened(start: usize) -> bool {
    OPENED.iter().any(|place| place[0].load(SeqCst) == start)
}

/// What lies below `end`, to its last page, becomes `more` bytes longer.
///
/// # Safety
/// That page is the caller's, and open.
///
/// # Errors
/// As [`open`].
unsafe fn extend(end: usize, more: usize) -> Result<(), Errno> {
    let last = (end - PAGE_SIZE) as *mut c_void;
    // SAFETY: caller's promise. It stays where it is, and takes nothing's place.
    unsafe { mremap(last, PAGE_SIZE, PAGE_SIZE + more, MremapFlags::empty()) }?;
    note_opened(end - PAGE_SIZE, end, end + more);
    Ok(())
}

/// What was opened of these parts of the [`WINDOW`] is unmapped, and nothing else: the program may have something
/// there, too.
///
/// # Safety
/// They are the caller's, and nothing of them is used any more.
pub unsafe fn close(parts: &[Range<usize>]) {
    for [from, to] in opened_of(parts) {
        let (start, end) = (from.load(SeqCst), to.load(SeqCst));
        // SAFETY: caller's promise.
        let _ = unsafe { munmap(start as *mut c_void, end - start) };
        MAPPED.fetch_sub(end - start, Relaxed);
        to.store(0, SeqCst);
        from.store(0, SeqCst);
    }
}

/// What was opened of these parts of the [`WINDOW`] stays mapped, and is zeros.
///
/// # Safety
/// They are the caller's, who can do with zeros.
pub unsafe fn empty(parts: &[Range<usize>]) {
    for [from, to] in opened_of(parts) {
        let (start, end) = (from.load(SeqCst), to.load(SeqCst));
        // SAFETY: caller's promise.
        let _ = unsafe { madvise(start as *mut c_void, end - start, Advice::LinuxDontNeed) };
    }
}

/// What was opened of this part of the [`WINDOW`] is not looked for any more.
pub fn forget(part: &Range<usize>) {
    for [from, to] in opened_of(std::slice::from_ref(part)) {
        to.store(0, SeqCst);
        from.store(0, SeqCst);
    }
}

fn opened_of(parts: &[Range<usize>]) -> impl Iterator<Item = &'static [AtomicUsize; 2]> {
    OPENED.iter().filter(|[from, _]| parts.iter().any(|part| part.contains(&from.load(SeqCst))))
}

/// Memory that is opened from its beginning on.
#[derive(Debug)]
pub struct Opening {
    base: usize,
    /// The first byte that is closed. Only grows.
    closed: AtomicUsize,
    end: usize,
    /// In the [`WINDOW`]: so much is open beyond what is used, if it can be had.
    ahead: usize,
    gives_way: bool,
    /// In the [`WINDOW`]: the thread that opens something, 0: none.
    busy: AtomicU32,
}

impl Opening {
    /// Of `base..end`, all closed.
    ///
    /// # Safety
    /// The range is a reservation of the caller's own, or addresses in the [`WINDOW`] that are the caller's, and stays
    /// so as long as this is used.
    pub const unsafe fn new(base: usize, end: usize) -> Opening {
        let (closed, busy) = (AtomicUsize::new(base), AtomicU32::new(0));
        Opening { base, closed, end, ahead: 0, gives_way: false, busy }
    }

    /// Of `base..end`, all of it mapped by the caller before it is used.
    pub const fn opened(base: usize, end: usize) -> Opening {
        Opening { base, closed: AtomicUsize::new(end), end, ahead: 0, gives_way: false, busy: AtomicU32::new(0) }
    }

    /// Where nothing may fail: `bytes` beyond what is used are open, as long as they can be had.
    pub const fn ahead(mut self, bytes: usize) -> Opening {
        self.ahead = if self.base < WINDOW.start || self.base >= WINDOW.end { 0 } else { bytes };
        self
    }

    /// Where the program's need of address space goes first.
    pub const fn giving_way(mut self) -> Opening {
        self.gives_way = true;
        self
    }

    /// Whether everything below `to` can be written now: opens it if need be, by whole steps. Any thread.
    #[inline]
    pub fn reach(&self, to: usize) -> bool {
        to + self.ahead <= self.closed.load(Relaxed) || self.grow(to)
    }

    /// Whether, when everything below `to` is used, less is open beyond than there should be by far, and no more is to
    /// be had.
    pub fn is_short(&self, to: usize) -> bool {
        let _ = self.reach(to);
        self.closed.load(Relaxed).saturating_sub(to) < self.ahead / 2
    }

    #[cold]
    fn grow(&self, to: usize) -> bool {
        let is_mapped = !WINDOW.contains(&self.base);
        if to > self.end || !is_mapped && !self.begin() {
            return to <= self.closed.load(Relaxed);
        }
        let from = self.closed.load(Relaxed);
        let wish = (to + self.ahead).min(self.end);
        // A whole step if it can be had.
        for end in [wish.next_multiple_of(STEP).min(self.end), to.next_multiple_of(PAGE_SIZE).min(self.end)] {
            if wish <= from || end <= from {
                break;
            }
            // Two threads may open the same pages of a reservation: the second changes nothing.
            let opened = if !is_mapped && self.gives_way && !within_limits(end - from) {
                Err(Errno::NOMEM)
            } else if is_mapped || from == self.base {
                // SAFETY: what was promised to `new`; in the window, by one thread at a time.
                unsafe { open(from, end - from) }
            } else {
                // SAFETY: as above; what lies below is open.
                unsafe { extend(from, end - from) }
            };
            if opened.is_ok() {
                self.closed.fetch_max(end, Relaxed);
                break;
            }
        }
        if !is_mapped {
            self.busy.store(0, SeqCst);
            futex::wake_all(&self.busy);
        }
        let reached = to <= self.closed.load(Relaxed);
        REFUSED.fetch_or(!reached, Relaxed);
        reached
    }

    /// The calling thread is the one that opens something. False: it is already, and was interrupted.
    fn begin(&self) -> bool {
        /// Looks again whether that thread is there, nanoseconds: it is not in a child that was forked meanwhile.
        const LOOK_NS: u64 = 10_000_000;
        let me = gettid();
        let mut seen = 0;
        loop {
            match self.busy.compare_exchange(seen, me, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(holder) if holder == me => return false,
                Err(0) => seen = 0,
                Err(holder) if is_thread_here(holder) => {
                    futex::wait(&self.busy, holder, Some(LOOK_NS));
                    seen = 0;
                }
                Err(holder) => seen = holder,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The access rights of the mapping at `addr`; none: nothing is mapped there.
    fn protection(addr: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let number = |s| usize::from_str_radix(s, 16).unwrap();
            (number(start)..number(end)).contains(&addr)
        });
        line.map(|line| line.split(' ').nth(1).unwrap().to_owned())
    }

    #[test]
    fn what_is_reached_can_be_written_and_the_rest_is_closed() {
        let len = 4 * STEP;
        // SAFETY: new memory.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE) }.unwrap();
        let at = base as usize;
        // SAFETY: the memory above.
        let opening = unsafe { Opening::new(at, at + len) };
        let protection = |addr: usize| protection(addr).unwrap();
        assert!(opening.reach(at + 1));
        // SAFETY: reached.
        unsafe { *(at as *mut u8) = 1 };
        assert_eq!(protection(at + 2 * STEP), "---p");
        assert!(opening.reach(at + 3 * STEP) && opening.reach(at + STEP));
        assert_eq!(protection(at + 3 * STEP - 1), "rw-p");
        assert!(opening.reach(at + len) && !opening.reach(at + len + 1));
        // SAFETY: mapped above.
        unsafe { munmap(base, len) }.unwrap();
    }

    /// Addresses in the window that no arena has.
    const UNUSED: usize = WINDOW.end - (1 << 30);

    #[test]
    fn in_the_window_nothing_is_mapped_before_it_is_reached() {
        let at = UNUSED;
        // SAFETY: addresses that nothing else uses.
        let opening = unsafe { Opening::new(at, at + 8 * STEP) };
        assert_eq!(protection(at), None);
        assert!(opening.reach(at + 1));
        // SAFETY: reached.
        unsafe { *(at as *mut u8) = 7 };
        assert!(opening.reach(at + 2 * STEP) && !opening.reach(at + 8 * STEP + 1));
        assert_eq!(
            [at, at + 2 * STEP - 1, at + 2 * STEP].map(protection),
            [Some("rw-p".into()), Some("rw-p".into()), None]
        );
        // What the program has put there stays, and is not used.
        reserve(at + 4 * STEP, PAGE_SIZE).unwrap();
        assert!(!opening.reach(at + 4 * STEP + 1) && opening.reach(at + 3 * STEP) && opening.reach(at + 4 * STEP));
        assert_eq!(protection(at + 4 * STEP), Some("---p".into()));
        // SAFETY: as above.
        assert_eq!(unsafe { *(at as *const u8) }, 7);
    }

    #[test]
    fn what_is_wanted_ahead_may_be_missing() {
        let at = UNUSED + (64 << 20);
        // SAFETY: addresses that nothing else uses.
        let opening = unsafe { Opening::new(at, at + 8 * STEP) }.ahead(STEP);
        assert!(!opening.is_short(at) && opening.reach(at + 1) && !opening.is_short(at + 1));
        assert_eq!(protection(at + STEP), Some("rw-p".into()));
        reserve(at + 2 * STEP, PAGE_SIZE).unwrap();
        assert!(opening.reach(at + 2 * STEP) && opening.is_short(at + 2 * STEP));
        assert!(!opening.reach(at + 2 * STEP + 1));
    }

    #[test]
    fn many_threads_reach_the_same() {
        let at = UNUSED + (128 << 20);
        // SAFETY: addresses that nothing else uses.
        let opening = unsafe { Opening::new(at, at + 64 * STEP) };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let opening = &opening;
                scope.spawn(move || {
                    for to in (1..64 * STEP).step_by(STEP / 4) {
                        assert!(opening.reach(at + to));
                        // SAFETY: reached; each thread has a byte of its own in the word.
                        unsafe { ((at + to / 8 * 8 - 8 * (to / 8).min(1) + thread) as *mut u8).write(1) };
                    }
                });
            }
        });
    }

    /// As in a child that was forked while another thread of its parent opened something.
    #[test]
    fn a_thread_that_is_gone_holds_up_no_other() {
        let at = UNUSED + (256 << 20);
        // SAFETY: addresses that nothing else uses.
        let opening = unsafe { Opening::new(at, at + 8 * STEP) };
        opening.busy.store(std::thread::spawn(gettid).join().unwrap(), SeqCst);
        assert!(opening.reach(at + 1));
        // Its own thread, interrupted, does not wait for itself.
        opening.busy.store(gettid(), SeqCst);
        assert!(!opening.reach(at + 2 * STEP) && opening.reach(at + STEP));
    }
}
