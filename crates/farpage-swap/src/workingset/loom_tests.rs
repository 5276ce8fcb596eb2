//! Cached pages: pager and writer want the same page. The writer takes, stores and publishes it while the pager
//! brings it back, or drops it because the program discarded it. Each frame and each slot is given back once, and none
//! that is in use.

use super::*;
use crate::lru::NIL;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering};
use loom::thread;

const NONE: u64 = 0;
const MAPPED: u64 = 1;
const CACHED: u64 = 2;
const WRITEBACK: u64 = 3;
const SWAPPED: u64 = 4;

/// One page.
struct Page {
    word: AtomicU64,
    links: [AtomicU32; 2],
    set: Mutex<WorkingSet>,
    /// Frames and slots given back.
    frames: AtomicU32,
    slots: AtomicU32,
}

impl Links for Page {
    fn prev(&self, _: u32) -> u32 {
        self.links[0].load(Ordering::Relaxed)
    }
    fn next(&self, _: u32) -> u32 {
        self.links[1].load(Ordering::Relaxed)
    }
    fn set_prev(&self, _: u32, to: u32) {
        self.links[0].store(to, Ordering::Relaxed);
    }
    fn set_next(&self, _: u32, to: u32) {
        self.links[1].store(to, Ordering::Relaxed);
    }
}

impl Pages for Page {
    fn rank(&self, _: u32) -> Rank {
        Rank::HOT
    }
    fn set_rank(&self, _: u32, _: Rank) {}
}

impl Page {
    fn change(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn cached() -> Arc<Page> {
        let zero = || AtomicU32::new(0);
        let word = AtomicU64::new(CACHED);
        let page =
            Page { word, links: [zero(), zero()], set: Mutex::new(WorkingSet::new()), frames: zero(), slots: zero() };
        page.set.lock().unwrap().recache(&page, 0, Rank::HOT, false);
        Arc::new(page)
    }

    fn frame_is_free(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    fn slot_is_free(&self) {
        self.slots.fetch_add(1, Ordering::Relaxed);
    }

    /// The writer; whether it used a slot. `fails`: the device is full.
    fn write_out(&self, fails: bool) -> bool {
        // The shadow has the place of a link, as in the page table.
        let may = |n, shadow: Shadow| {
            self.set_prev(n, shadow.bits());
            assert!(self.change(CACHED, WRITEBACK), "what is on a cached list is cached");
            true
        };
        let taken = self.set.lock().unwrap().evict_one_if(self, &mut 0, may);
        if taken.is_none() {
            return false;
        }
        if fails {
            let mut set = self.set.lock().unwrap();
            if self.change(WRITEBACK, CACHED) {
                set.recache(self, 0, Rank::HOT, true);
            } else {
                self.frame_is_free();
            }
            return false;
        }
        if !self.change(WRITEBACK, SWAPPED) {
            self.slot_is_free();
        }
        self.frame_is_free();
        true
    }

    /// The pager serves a fault.
    fn refault(&self) {
        loop {
            match self.word.load(Ordering::Acquire) {
                CACHED => {
                    let mut set = self.set.lock().unwrap();
                    if self.change(CACHED, MAPPED) {
                        set.refault(self, 0, Rank::HOT);
                        return self.frame_is_free();
                    }
                }
                SWAPPED => {
                    self.word.store(MAPPED, Ordering::Release);
                    self.set.lock().unwrap().map(self, 0, Rank::HOT);
                    return self.slot_is_free();
                }
                WRITEBACK => thread::yield_now(),
                word => panic!("{word}"),
            }
        }
    }

    /// The pager applies an event: the program discarded the page.
    fn discard(&self) {
        loop {
            let done = match self.word.load(Ordering::Acquire) {
                CACHED => {
                    let mut set = self.set.lock().unwrap();
                    let won = self.change(CACHED, NONE);
                    if won {
                        set.uncache(self, 0, Rank::HOT);
                        self.frame_is_free();
                    }
                    won
                }
                WRITEBACK => self.change(WRITEBACK, NONE),
                SWAPPED => {
                    self.word.store(NONE, Ordering::Release);
                    self.slot_is_free();
                    true
                }
                word => panic!("{word}"),
            };
            if done {
                return;
            }
        }
    }

    /// The same, and the program touches the page again at once. It is linked into a batch without the lock.
    fn discard_and_touch(&self) {
        self.discard();
        self.word.store(MAPPED, Ordering::Release);
        let mut batch = Batch::default();
        batch.push(self, 0, Rank::HOT);
        self.set.lock().unwrap().map_batch(self, &mut batch);
        assert_eq!((self.prev(0), self.next(0)), (NIL, NIL), "its links are the list's");
    }

    fn check(&self, word: u64, slot_used: bool) {
        assert_eq!(self.word.load(Ordering::Relaxed), word);
        assert_eq!(self.frames.load(Ordering::Relaxed), 1, "the frame is given back once");
        assert_eq!(self.slots.load(Ordering::Relaxed), u32::from(slot_used), "a slot that was used is given back once");
        let set = self.set.lock().unwrap();
        assert_eq!((set.mapped(), set.cached()), (u32::from(word == MAPPED), 0));
    }
}

fn against_writer(pager: fn(&Page), word: u64, fails: bool) {
    loom::model(move || {
        let page = Page::cached();
        let other = page.clone();
        let thread = thread::spawn(move || other.write_out(fails));
        pager(&page);
        let slot_used = thread.join().unwrap();
        page.check(word, slot_used);
    });
}

#[test]
fn refault_against_write_out() {
    against_writer(Page::refault, MAPPED, false);
}

#[test]
fn discard_against_write_out() {
    against_writer(Page::discard, NONE, false);
}

#[test]
fn discard_and_touch_against_write_out() {
    against_writer(Page::discard_and_touch, MAPPED, false);
}

#[test]
fn refault_against_a_write_that_fails() {
    against_writer(Page::refault, MAPPED, true);
}

#[test]
fn discard_against_a_write_that_fails() {
    against_writer(Page::discard, NONE, true);
}
