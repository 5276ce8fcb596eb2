//! The last events of an engine: what it did to which pages, when. For people who look at one that hangs, and for
//! [`fatal`](farpage_base::sys::message::fatal), which prints the last ones.
//!
//! A ring in the statistics page. Writing is a look at the clock and three stores: no lock, no allocation, any thread.
//! An event that is being overwritten while it is read is left out.
//!
//! Written by pager, writer and forking threads. Read by `farpage stat PID --events`.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Events that are kept.
pub const EVENTS: usize = 4096;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $word:literal;)+) => {
        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum EventKind {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl EventKind {
            /// One word for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$name => $word,)+
                }
            }

            fn of(number: u64) -> Option<EventKind> {
                match number {
                    $($number => Some(EventKind::$name),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// A fault was served.
    Fault = 1, "fault";
    /// A fault has to be served later: its page is with the writer, or there is no room.
    Later = 2, "later";
    /// Pages were read from a device.
    Load = 3, "load";
    /// Pages were taken out of the program. (The page of the first is not kept.)
    Evict = 4, "evict";
    /// Pages were stored.
    Store = 5, "store";
    /// The program gave the content of pages up.
    Discard = 6, "discard";
    /// It unmapped pages.
    Unmap = 7, "unmap";
    /// It moved pages; the event has the old place.
    Remap = 8, "remap";
    /// A fault waits until there is room.
    Reclaim = 9, "reclaim";
    /// The program forked.
    Fork = 10, "fork";
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// When: microseconds of the monotonic clock.
    pub us: u64,
    /// To which page, by address divided by the page size; 0: to none in particular.
    pub vpn: u64,
    /// To how many.
    pub pages: u64,
}

/// The two words of an event.
const VPN_BITS: u32 = 36;
const PAGES_BITS: u32 = 20;
/// The second word holds the time, and the low bits of the event's number: those of another one mean that it is new.
const NUMBER_BITS: u32 = 20;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// See the module header.
#[repr(C)]
pub struct Events {
    /// Events so far.
    next: AtomicU64,
    ring: [[AtomicU64; 2]; EVENTS],
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Events {
    /// Notes an event that happens now, to `pages` pages from `vpn` on.
    pub fn note(&self, kind: EventKind, vpn: u64, pages: usize) {
        let now = clock_gettime(ClockId::Monotonic);
        self.note_at(kind, vpn, pages, now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000);
    }

    fn note_at(&self, kind: EventKind, vpn: u64, pages: usize, us: u64) {
        let number = self.next.fetch_add(1, Relaxed);
        let [what, when] = &self.ring[number as usize % EVENTS];
        let pages = (pages as u64).min(mask(PAGES_BITS));
        what.store((kind as u64) << (VPN_BITS + PAGES_BITS) | pages << VPN_BITS | vpn & mask(VPN_BITS), Relaxed);
        when.store(us << NUMBER_BITS | number & mask(NUMBER_BITS), Relaxed);
    }

    /// Calls `each` with the last `most` events, the oldest first.
    pub fn last(&self, most: usize, mut each: impl FnMut(Event)) {
        let next = self.next.load(Relaxed);
        for number in next.saturating_sub(most.min(EVENTS) as u64)..next {
            let [what, when] = &self.ring[number as usize % EVENTS];
            let (what, when) = (what.load(Relaxed), when.load(Relaxed));
            let kind = EventKind::of(what >> (VPN_BITS + PAGES_BITS));
            if let Some(kind) = kind.filter(|_| when & mask(NUMBER_BITS) == number & mask(NUMBER_BITS)) {
                let (vpn, pages) = (what & mask(VPN_BITS), what >> VPN_BITS & mask(PAGES_BITS));
                each(Event { kind, us: when >> NUMBER_BITS, vpn, pages });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Events> {
        // SAFETY: atomics only, for which zeros are valid.
        Box::new(unsafe { std::mem::zeroed() })
    }

    fn all(events: &Events, most: usize) -> Vec<Event> {
        let mut list = Vec::new();
        events.last(most, |event| list.push(event));
        list
    }

    #[test]
    fn the_last_ones_are_kept_in_order() {
        let events = empty();
        assert_eq!(all(&events, 10), []);
        for i in 0..5000 {
            events.note_at(EventKind::Fault, i, 1, 1000 + i);
        }
        let list = all(&events, usize::MAX);
        assert_eq!(list.len(), EVENTS);
        assert!(list.iter().map(|event| event.vpn).eq(5000 - EVENTS as u64..5000));
        let last = Event { kind: EventKind::Fault, us: 5999, vpn: 4999, pages: 1 };
        assert_eq!(all(&events, 1), [last]);
    }

    #[test]
    fn fields_have_room_and_do_not_spill() {
        let events = empty();
        let (vpn, us) = ((1 << 35) - 1, (1 << 43) + 5);
        events.note_at(EventKind::Fork, vpn, usize::MAX, us);
        let event = Event { kind: EventKind::Fork, us, vpn, pages: (1 << 20) - 1 };
        assert_eq!(all(&events, 2), [event]);
    }

    #[test]
    fn one_that_is_being_overwritten_is_left_out() {
        let events = empty();
        (0..3).for_each(|i| events.note_at(EventKind::Evict, i, 8, i));
        // The number of the ring's next round, without its words.
        events.next.store(EVENTS as u64 + 3, Relaxed);
        assert_eq!(all(&events, 3), []);
    }
}
