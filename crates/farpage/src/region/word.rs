//! One word per page of a region, which is also the page's lock.
//!
//! ```text
//!   63            16  15  14     8   7   6  5   4    3   2  0
//!  |   payload      | un  |  pins  | wr | hint | W | B | kind |
//!
//!   Outside  0   no region here, or no thread has needed the page's word yet (`places`)
//!   None     1   never touched, or zero: an absent page that reads as zeros
//!   Mapped   2   in the region; payload: entry of a copy on a device that may be the same (0: none)
//!   Cached   3   in the swap cache; payload: the frame (32 bits), above it the credit (16 bits)
//!   Swapped  4   on a device only; payload: the entry
//! ```
//! *B* (busy): one thread changes the page; no other changes the word then, except for *W* (a thread waits for it to
//! end). *Wr*: the page can be written without a fault; without it, a write is a fault, so the content is stable while
//! the page is busy. *Un* (unwritten): the page came in write-protected and was not written since, so it is what its
//! entry says; only without *wr*. *Pins* and *hint* stay over changes of kind. How hot a page is stands beside its
//! links (`space`). A thread may wait for a busy page only while it holds none, or in ascending order of pages (advise,
//! pin, drop); reclaim and readahead never wait: they leave busy pages alone.
//!
//! The *credit* of a page in the swap cache: so many pages were read ahead with it (itself included) that count as hits
//! when it is touched (the highest bit: in slot order); 0: it was not read ahead. A page with credit has not been
//! touched since it was read: its frame and its entry hold the same bytes.
//!
//! A page is linked on the list of its kind (`lists`) whenever it is Mapped or Cached and not busy; the thread that has
//! it busy links and unlinks it.

use farpage_base::mem::units::FrameNo;
use farpage_base::sys::futex;
use farpage_device::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BUSY: u64 = 1 << 3;
const WAITERS: u64 = 1 << 4;
const HINT_SHIFT: u32 = 5;
const HINT_MASK: u64 = 3 << HINT_SHIFT;
const WRITABLE: u64 = 1 << 7;
const PIN_SHIFT: u32 = 8;
const PIN_MASK: u64 = 0x7f << PIN_SHIFT;
const UNWRITTEN: u64 = 1 << 15;
const CREDIT_SHIFT: u32 = 48;
const CREDIT_MASK: u64 = 0xffff << CREDIT_SHIFT;
/// Added to the credit of a page that was read in slot order.
pub const BY_SLOT: u16 = 1 << 15;
/// Most pins of a page at a time.
pub const PINS_MAX: u32 = 127;

/// Decoded kind and payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// No region here, or one whose words around this page have not been needed yet.
    Outside,
    /// Reads as zeros.
    None,
    /// In the region, with a copy that may be the same.
    Mapped(Option<Entry>),
    /// In the swap cache.
    Cached(FrameNo),
    /// On a device.
    Swapped(Entry),
}

/// How a range will be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Nothing is known.
    Normal,
    /// In ascending order.
    Sequential,
    /// In no order.
    Random,
}

/// How a page has come in. What is less is safe to say of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// It can be written.
    Writable,
    /// It is write-protected, but was there for a moment before it was, and may have been written then.
    Protected,
    /// It was write-protected when it appeared.
    Unwritten,
}

impl PageState {
    fn encode(self) -> u64 {
        match self {
            PageState::Outside => 0,
            PageState::None => 1,
            PageState::Mapped(e) => e.map_or(0, Entry::raw) << 16 | 2,
            PageState::Cached(f) => u64::from(f.number()) << 16 | 3,
            PageState::Swapped(e) => e.raw() << 16 | 4,
        }
    }

    fn decode(word: u64) -> PageState {
        let payload = word >> 16;
        match word & 7 {
            1 => PageState::None,
            2 => PageState::Mapped(Entry::from_raw(payload)),
            3 => PageState::Cached(FrameNo::new(payload as u32)),
            4 => Entry::from_raw(payload).map_or(PageState::None, PageState::Swapped),
            _ => PageState::Outside,
        }
    }
}

/// The word of a page.
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU64);

/// What a look at a word, or the lock of it, says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// Kind and payload.
    #[inline]
    pub fn state(self) -> PageState {
        PageState::decode(self.0)
    }

    /// A thread changes the page.
    #[inline]
    pub fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Pins.
    #[inline]
    pub fn pins(self) -> u32 {
        ((self.0 & PIN_MASK) >> PIN_SHIFT) as u32
    }

    /// How the page's range will be used.
    #[inline]
    pub fn hint(self) -> Hint {
        match (self.0 & HINT_MASK) >> HINT_SHIFT {
            1 => Hint::Sequential,
            2 => Hint::Random,
            _ => Hint::Normal,
        }
    }

    /// The page can be written without a fault.
    #[inline]
    pub fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    /// It holds what its entry holds: it came in write-protected and was not written since.
    #[inline]
    pub fn is_unwritten(self) -> bool {
        matches!(self.state(), PageState::Mapped(Some(_))) && self.0 & (UNWRITTEN | WRITABLE) == UNWRITTEN
    }

    /// Pages read ahead that count as hits when this one is touched.
    #[inline]
    pub fn credit(self) -> u32 {
        u32::from(self.raw_credit() & !BY_SLOT)
    }

    /// It was read ahead in slot order.
    #[inline]
    pub fn is_by_slot(self) -> bool {
        self.raw_credit() & BY_SLOT != 0
    }

    fn raw_credit(self) -> u16 {
        if matches!(self.state(), PageState::Cached(_)) { (self.0 >> CREDIT_SHIFT) as u16 } else { 0 }
    }

    fn with_state(self, to: PageState) -> u64 {
        // A page that stays in the swap cache stays what it was there.
        let credit = if matches!(to, PageState::Cached(_)) { u64::from(self.raw_credit()) << CREDIT_SHIFT } else { 0 };
        self.0 & (PIN_MASK | HINT_MASK | WRITABLE | UNWRITTEN) | to.encode() | credit
    }

    /// The same of a page that can be written.
    pub fn writable(self) -> Seen {
        Seen(self.0 & !UNWRITTEN | WRITABLE)
    }

    /// The same of a page that is present and has no copy.
    pub fn without_copy(self) -> Seen {
        Seen(self.with_state(PageState::Mapped(None)))
    }

    /// The same of a page that has just come in.
    pub fn with_access(self, access: Access) -> Seen {
        match access {
            Access::Writable => self.writable(),
            Access::Protected => Seen(self.0 & !(WRITABLE | UNWRITTEN)),
            Access::Unwritten => Seen(self.0 & !WRITABLE | UNWRITTEN),
        }
    }

    /// The same with another number of pins.
    pub fn with_pins(self, pins: u32) -> Seen {
        Seen(self.0 & !PIN_MASK | u64::from(pins.min(PINS_MAX)) << PIN_SHIFT)
    }

    /// The same with another hint.
    pub fn with_hint(self, hint: Hint) -> Seen {
        Seen(self.0 & !HINT_MASK | (hint as u64) << HINT_SHIFT)
    }
}

impl PageWord {
    /// The first word of a page of a region. For [`super::places`], under its lock: the page is Outside, and no thread
    /// makes such a page busy.
    pub fn begin(&self, hint: Hint) {
        self.0.store(Seen(PageState::None.encode()).with_hint(hint).0, Ordering::Release);
    }

    /// The word now; it may be another the next moment.
    #[inline]
    pub fn load(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Makes the page busy, unless it is.
    #[inline]
    pub fn try_lock(&self) -> Option<Seen> {
        let seen = self.0.load(Ordering::Relaxed);
        self.try_lock_if(Seen(seen))
    }

    /// Makes the page busy if its word still is `seen` (and not busy).
    #[inline]
    pub fn try_lock_if(&self, seen: Seen) -> Option<Seen> {
        let word = seen.0;
        debug_assert!(seen.state() != PageState::Outside, "no thread makes such a page busy (`places`)");
        let free = word & BUSY == 0;
        let locked = || self.0.compare_exchange(word, word | BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
        (free && locked()).then_some(seen)
    }

    /// Makes the page busy, waiting for the thread that has it. See the module's rule about waiting.
    pub fn lock(&self) -> Seen {
        loop {
            if let Some(seen) = self.try_lock() {
                return seen;
            }
            self.wait();
        }
    }

    /// Waits until the page is not busy (or at least no longer busy in the same way).
    pub fn wait(&self) {
        // What makes a page busy mostly takes some microseconds, less than to sleep and be woken.
        for _ in 0..200 {
            if !self.load().is_busy() {
                return;
            }
            std::hint::spin_loop();
        }
        let seen = self.0.load(Ordering::Relaxed);
        if seen & BUSY == 0 {
            return;
        }
        let waiting = seen | WAITERS;
        if seen == waiting || self.0.compare_exchange(seen, waiting, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            futex::wait(self.low_half(), waiting as u32, None);
        }
    }

    /// Ends the busy state that gave `seen`, with a new kind; pins and hint as in `seen`.
    #[inline]
    pub fn unlock(&self, seen: Seen, to: PageState) {
        self.end(seen.with_state(to));
    }

    /// Ends the busy state of a page that was read ahead into frame `f`, where it waits for its first touch.
    pub fn unlock_ahead(&self, seen: Seen, f: FrameNo, credit: u16) {
        self.end(seen.with_state(PageState::Cached(f)) & !CREDIT_MASK | u64::from(credit) << CREDIT_SHIFT);
    }

    #[inline]
    fn end(&self, new: u64) {
        let old = self.0.swap(new, Ordering::AcqRel);
        debug_assert!(old & BUSY != 0);
        if old & WAITERS != 0 {
            futex::wake_all(self.low_half());
        }
    }

    /// Says that a Mapped page cannot be written without a fault any more; to be made true right after. Pages that are
    /// busy or pinned stay as they are.
    pub fn clear_writable(&self) {
        let seen = self.load();
        let wanted =
            seen.is_writable() && seen.pins() == 0 && !seen.is_busy() && matches!(seen.state(), PageState::Mapped(_));
        if wanted {
            // Another thread's change wins: the page then stays writable as far as the word goes.
            let _ = self.0.compare_exchange(seen.0, seen.0 & !WRITABLE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Half of the word that has the flags, as the futex wants it.
    fn low_half(&self) -> &AtomicU32 {
        // SAFETY: the first four bytes of an aligned u64, which lives as long; x86-64 is little-endian. Mixed-size
        // access happens in the kernel only (futex compares the value).
        unsafe { &*self.0.as_ptr().cast::<AtomicU32>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_what_they_are_told() {
        let entry = Entry::from_raw(0x1234_5678_9abc).unwrap();
        let states = [
            PageState::None,
            PageState::Mapped(None),
            PageState::Mapped(Some(entry)),
            PageState::Cached(FrameNo::new(77)),
            PageState::Swapped(entry),
        ];
        let word = PageWord(AtomicU64::new(0));
        assert_eq!(word.load().state(), PageState::Outside);
        word.begin(Hint::Sequential);
        assert_eq!((word.load().state(), word.load().hint()), (PageState::None, Hint::Sequential));
        for state in states {
            let seen = word.lock();
            assert!(word.load().is_busy() && word.try_lock().is_none());
            word.unlock(seen.with_pins(9).with_hint(Hint::Random).writable(), state);
            let seen = word.load();
            assert!(seen.is_writable());
            assert_eq!((seen.state(), seen.pins(), seen.hint(), seen.is_busy()), (state, 9, Hint::Random, false));
        }
        let seen = word.lock();
        word.unlock_ahead(seen, FrameNo::new(77), 900 | BY_SLOT);
        assert_eq!((word.load().state(), word.load().credit()), (PageState::Cached(FrameNo::new(77)), 900));
        assert!(word.load().is_by_slot());
        let seen = word.lock();
        word.unlock(seen.with_hint(Hint::Random), seen.state());
        assert_eq!(
            (word.load().state(), word.load().credit()),
            (PageState::Cached(FrameNo::new(77)), 900),
            "it has not been touched"
        );
        let seen = word.lock();
        word.unlock(seen, PageState::Swapped(entry));
        assert_eq!((word.load().state(), word.load().credit()), (PageState::Swapped(entry), 0));
        let seen = word.lock();
        word.unlock(seen, PageState::Cached(FrameNo::new(5)));
        assert_eq!(
            (word.load().state(), word.load().credit()),
            (PageState::Cached(FrameNo::new(5)), 0),
            "an entry's bits are no credit"
        );
        let seen = word.lock();
        word.unlock(seen.with_pins(0).with_hint(Hint::Sequential), PageState::None);
        assert_eq!((word.load().pins(), word.load().hint()), (0, Hint::Sequential));
        let seen = word.lock();
        word.unlock(seen, PageState::Outside);
        assert_eq!(word.load().state(), PageState::Outside);
    }

    #[test]
    fn unwritten_is_what_came_in_protected_and_stayed_so() {
        let entry = Entry::from_raw(0x1234_5678_9abc).unwrap();
        let word = PageWord(AtomicU64::new(PageState::Swapped(entry).encode()));
        word.unlock(word.lock().with_access(Access::Unwritten), PageState::Mapped(Some(entry)));
        assert!(word.load().is_unwritten() && !word.load().is_writable());
        word.clear_writable();
        assert!(word.load().is_unwritten(), "a sweep changes nothing of it");
        word.unlock(word.lock(), PageState::Mapped(None));
        assert!(!word.load().is_unwritten(), "without its entry it is worth nothing");
        word.unlock(word.lock().with_access(Access::Unwritten), PageState::Mapped(Some(entry)));
        word.unlock(word.lock().writable(), PageState::Mapped(Some(entry)));
        word.clear_writable();
        assert!(!word.load().is_unwritten() && !word.load().is_writable(), "it may have been written before the sweep");
        word.unlock(word.lock().with_access(Access::Unwritten), PageState::Mapped(Some(entry)));
        word.unlock(word.lock().with_access(Access::Protected), PageState::Mapped(Some(entry)));
        assert!(!word.load().is_unwritten() && !word.load().is_writable());
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let word = PageWord(AtomicU64::new(PageState::None.encode()));
        let held = word.lock();
        std::thread::scope(|s| {
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        let seen = word.lock();
                        word.unlock(seen.with_pins(seen.pins() + 1), seen.state());
                    })
                })
                .collect();
            while word.0.load(Ordering::Relaxed) & WAITERS == 0 {
                std::thread::yield_now();
            }
            word.unlock(held, PageState::Mapped(None));
            waiters.into_iter().for_each(|w| w.join().unwrap());
        });
        assert_eq!((word.load().state(), word.load().pins()), (PageState::Mapped(None), 4));
    }
}
