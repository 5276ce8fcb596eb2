//! In which order changes of mappings were made.
//!
//! The kernel tells of a change when it is made and the lock of the address space is given up. By then the place that
//! became free may be another thread's, and what that thread does with it may be told first. A move even takes two
//! messages (that it is done, then that the old place is unmapped), and its thread must get a CPU between them:
//!
//! ```text
//!   thread 1   moves X to Y            tells it ... it is read, the thread wakes    tells that X is unmapped
//!   thread 2                moves Z to X                                tells it
//! ```
//! Taken in the order of reading, the last message would drop the pages that were at Z. So:
//!
//! * *Left*: a place that was moved away from and to which something else was moved since. The message that it is
//!   unmapped is that of the first move, and means nothing any more.
//! * *Early*: something was moved to a place of which we know that something else is mapped there. So somebody has yet
//!   to tell how that went away; until then this message waits, and those about the same places behind it.
//! * *Fresh*: a place that was looked at while a change was pending. What was seen there may be what the next message
//!   tells of, or may be gone again. It does not become known before no change is pending; something that is moved
//!   there is early at most until its own thread has told the rest. And a place of which anything is known or told is
//!   not even registered then: else the unmapping of what is there now could be taken for that of what was.
//! * *Opened*: a place that was told to be unmapped although something is there: a move to it has yet to be told, and
//!   was made before. An early move whose own thread has told the rest waits for that, not for the next move from its
//!   place, which may be its own thread's.
//!
//! While any of this goes on, a change is pending for the kernel, which then moves and copies no page. When none is
//! pending, all has been told.
//!
//! What this cannot know is whose message it is if the thread that is missing has been overtaken by one that took its
//! place, told both its messages and moved on. So nobody may get that far: when a message is missing, or may be,
//! [`Order::push`] says so, and [`crate::run::mappings::grace_period`] has the next one read only when all that could
//! be on their way have had time to arrive.
//!
//! Caller: the pager, with each message it reads. No locks.

use crate::sys::uffd::Message;
use farpage_swap::range::RangeSet;

/// Messages that can be noted without an allocation.
const ROOM: usize = 128;

/// A place is in no more parts, as far as is told.
const PARTS: usize = 8;

/// A place that was moved away from, and whose unmapping was not told yet.
#[derive(Debug)]
struct Left {
    start: usize,
    end: usize,
    /// Something was moved to it since.
    retaken: bool,
}

/// Why a move waits itself, not just behind others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Early {
    /// Something is mapped at its place: until that is freed.
    Surely,
    /// Its place is fresh: until it is freed, or the rest of the move is told.
    Perhaps,
}

/// A change that was read and not applied yet.
#[derive(Debug)]
struct Waiting {
    m: Message,
    early: Option<Early>,
    /// When the rest of it was told, in messages.
    told: Option<u64>,
}

/// A place that was told to be unmapped, perhaps because something was moved there; that was not told yet.
#[derive(Debug)]
struct Opened {
    place: (usize, usize),
    /// When, in messages.
    read: u64,
    /// A move to a larger or smaller place was told since, which what is there may come from: the next move to this
    /// place is another one.
    taken: bool,
}

impl Waiting {
    /// Where something was moved to.
    fn place(&self) -> (usize, usize) {
        match self.m {
            Message::Remap { to, len, .. } => (to, to + len),
            _ => (0, 0),
        }
    }

    /// Whether both are about the same place, so that their order matters.
    fn concerns(&self, other: &Waiting) -> bool {
        let places = |w: &Waiting| match w.m {
            Message::Remove { start, end } => [(start, end), (0, 0)],
            m => [freed_by(m), w.place()],
        };
        places(self).iter().any(|a| places(other).iter().any(|b| a.0 < b.1 && b.0 < a.1))
    }

    /// What its thread tells next.
    fn rest(&self) -> Option<Message> {
        match self.m {
            Message::Remap { from, len, .. } => Some(Message::Unmap { start: from, end: from + len }),
            _ => None,
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Order {
    left: Vec<Left>,
    waiting: Vec<Waiting>,
    opened: Vec<Opened>,
    /// Bytes.
    fresh: RangeSet,
    /// Messages so far.
    read: u64,
}

impl Default for Order {
    fn default() -> Order {
        Order {
            left: Vec::with_capacity(ROOM),
            waiting: Vec::with_capacity(ROOM),
            opened: Vec::with_capacity(ROOM),
            fresh: RangeSet::new(),
            read: 0,
        }
    }
}

/// Where nothing is mapped any more after this change, unless something else has come there.
fn freed_by(m: Message) -> (usize, usize) {
    match m {
        Message::Unmap { start, end } => (start, end),
        Message::Remap { from, len, .. } => (from, from + len),
        _ => (0, 0),
    }
}

/// Whether something that was at this place is not there any more after this change.
fn frees(m: Message, place: (usize, usize)) -> bool {
    let freed = freed_by(m);
    freed.0 < place.1 && place.0 < freed.1
}

/// The parts of a place (some empty) that none of the changes in `told`, the last one first, is about. `None`:
/// something has come to a part of it, or may have.
fn left_of(place: (usize, usize), told: impl Iterator<Item = Message>) -> Option<[(usize, usize); PARTS]> {
    let mut parts = [(0, 0); PARTS];
    parts[0] = place;
    for m in told {
        let overlaps = |place: (usize, usize)| move |part: &(usize, usize)| part.0 < place.1 && place.0 < part.1;
        if matches!(m, Message::Remap { to, len, .. } if parts.iter().any(overlaps((to, to + len)))) {
            return None;
        }
        let freed = freed_by(m);
        while let Some(at) = parts.iter().position(overlaps(freed)) {
            let part = std::mem::take(&mut parts[at]);
            for rest in [(part.0, freed.0), (freed.1, part.1)].into_iter().filter(|rest| rest.0 < rest.1) {
                *parts.iter_mut().find(|part| part.0 == part.1)? = rest;
            }
        }
    }
    Some(parts)
}

/// Whether, after the changes in `told`, the last one first, something is mapped in `[start, end)`, if `is_known` says
/// so of the time before.
pub(crate) fn is_known_after(
    (start, end): (usize, usize),
    told: impl Iterator<Item = Message>,
    is_known: impl Fn(usize, usize) -> bool,
) -> bool {
    left_of((start, end), told).is_none_or(|parts| parts.iter().any(|part| is_known(part.0, part.1)))
}

impl Order {
    /// A change was read. To be followed by [`Order::next`] until that has nothing. `is_known(start, end)`: after all
    /// that was applied, something is mapped in that range (bytes). `is_mapped`: whether something is mapped at an
    /// address now. `true`: a change that was made before has not been told, or may not have been.
    pub(crate) fn push(
        &mut self,
        m: Message,
        is_known: impl Fn(usize, usize) -> bool,
        is_mapped: impl Fn(usize) -> bool,
    ) -> bool {
        self.read += 1;
        let now = self.read;
        let opened = match m {
            Message::Remap { to, len, .. } => {
                let place = (to, to + len);
                self.opened.iter().position(|o| o.place == place && !o.taken)
            }
            _ => None,
        };
        let opened = opened.map(|at| self.opened.swap_remove(at).read);
        if let Message::Remap { to, len, .. } = m {
            // What was there is what was moved there, although that is larger or smaller.
            self.opened.iter_mut().filter(|o| (to..to + len).contains(&o.place.0)).for_each(|o| o.taken = true);
        }
        let is_open = |opened: &[Opened], told| opened.iter().any(|o| o.read < told);
        let waits_for = |w: &Waiting| {
            let may_be_its_own = |told| opened.is_none_or(|read| read > told) && is_open(&self.opened, told);
            w.early.is_some() && frees(m, w.place()) && !w.told.is_some_and(may_be_its_own)
        };
        let at = self.waiting.iter().position(waits_for).unwrap_or(self.waiting.len());
        let early = self.is_early(m, &self.waiting[..at], &is_known);
        self.waiting.insert(at, Waiting { m, early, told: None });
        if let Some(w) = self.waiting.get(at + 1) {
            // It waits for no other if this frees all of its place.
            let early = self.is_early(w.m, &self.waiting[..at + 1], &is_known);
            self.waiting[at + 1].early = early;
        }
        if let Message::Unmap { start, end } = m {
            // Of two moves from the same place one cannot know whose rest it is.
            let mut is_rest = false;
            for w in self.waiting.iter_mut().filter(|w| w.told.is_none() && Some(m) == w.rest()) {
                (w.told, is_rest) = (Some(now), true);
            }
            match is_rest {
                true => {}
                _ if self.left.iter().any(|left| (left.start, left.end) == (start, end)) => {}
                // Something is there, or may be on its way.
                _ if is_mapped(start) => self.opened.push(Opened { place: (start, end), read: now, taken: false }),
                _ => {}
            }
        }
        for w in self.waiting.iter_mut().filter(|w| w.early == Some(Early::Perhaps)) {
            if w.told.is_some_and(|told| !is_open(&self.opened, told)) {
                w.early = None;
            }
        }
        let is_early = |at: usize| self.waiting.get(at).is_some_and(|w| w.early.is_some());
        is_early(at) || is_early(at + 1) || self.opened.last().is_some_and(|opened| opened.read == now)
    }

    /// The next change to be applied. `is_known` as in [`Order::push`].
    pub(crate) fn next(&mut self, is_known: impl Fn(usize, usize) -> bool) -> Option<Message> {
        loop {
            let is_next = |at: &usize| {
                let w = &self.waiting[*at];
                let is_early = match w.early {
                    Some(Early::Perhaps) => true,
                    Some(Early::Surely) => is_known(w.place().0, w.place().1),
                    None => false,
                };
                !is_early && !self.waiting[..*at].iter().any(|before| before.concerns(w))
            };
            let at = (0..self.waiting.len()).find(is_next)?;
            let m = self.waiting.remove(at).m;
            if !self.is_over(m) {
                return Some(m);
            }
        }
    }

    /// The next change, whatever it waits for: when no change is pending. `is_known` as in [`Order::push`].
    pub(crate) fn next_forced(&mut self, is_known: impl Fn(usize, usize) -> bool) -> Option<Message> {
        for at in 0..self.waiting.len() {
            let place = self.waiting[at].place();
            if self.waiting[at].early.take() == Some(Early::Surely)
                && is_known(place.0, place.1)
                && let Some(behind) = self.waiting[at..].iter().position(|w| frees(w.m, place))
            {
                let m = self.waiting.remove(at + behind);
                self.waiting.insert(at, m);
            }
        }
        self.next(|_, _| false)
    }

    /// Whether `m`, after what is `before` it, takes a place where something is mapped.
    fn is_early(&self, m: Message, before: &[Waiting], is_known: impl Fn(usize, usize) -> bool) -> Option<Early> {
        let Message::Remap { to, len, .. } = m else { return None };
        let Some(parts) = left_of((to, to + len), before.iter().rev().map(|w| w.m)) else { return Some(Early::Surely) };
        if parts.iter().any(|part| is_known(part.0, part.1)) {
            return Some(Early::Surely);
        }
        parts.iter().any(|part| self.is_fresh(part.0, part.1)).then_some(Early::Perhaps)
    }

    /// Takes note of a change whose turn it is; `true`: it is about something that has been replaced since.
    fn is_over(&mut self, m: Message) -> bool {
        match m {
            Message::Unmap { start, end } => {
                let told = self.left.iter().position(|left| (left.start, left.end) == (start, end));
                told.is_some_and(|at| self.left.swap_remove(at).retaken)
            }
            Message::Remap { from, to, len } => {
                let retaken = self.left.iter_mut().filter(|left| left.start < to + len && to < left.end);
                retaken.for_each(|left| left.retaken = true);
                self.left.push(Left { start: from, end: from + len, retaken: false });
                if !self.fresh.is_empty() {
                    let [from, to, len] = [from, to, len].map(|at| at as u64);
                    // What is at `from` by now may be fresh too.
                    let moved = self.fresh.overlaps(from, from + len);
                    moved.iter().for_each(|(start, end)| _ = self.fresh.insert(start - from + to, end - from + to));
                }
                false
            }
            _ => false,
        }
    }

    /// Whether something was told of `[start, end)` (bytes) since no change was pending.
    pub(crate) fn names(&self, start: usize, end: usize) -> bool {
        let overlaps = |place: (usize, usize)| place.0 < end && start < place.1;
        self.is_fresh(start, end)
            || self.left.iter().any(|left| overlaps((left.start, left.end)))
            || self.waiting.iter().any(|w| overlaps(w.place()) || overlaps(freed_by(w.m)))
    }

    /// `[start, end)` (bytes) was looked at just now, while a change was pending.
    pub(crate) fn add_fresh(&mut self, start: usize, end: usize) {
        self.fresh.insert(start as u64, end as u64);
    }

    /// Whether something in `[start, end)` (bytes) was looked at while a change was pending.
    pub(crate) fn is_fresh(&self, start: usize, end: usize) -> bool {
        start < end && self.fresh.gaps(start as u64, end as u64).next() != Some((start as u64, end as u64))
    }

    /// Some changes have yet to be applied.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// [`Order::forget`] would have no effect.
    pub(crate) fn is_settled(&self) -> bool {
        self.left.is_empty() && self.waiting.is_empty() && self.opened.is_empty() && self.fresh.is_empty()
    }

    /// Messages that were read and not applied yet.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Another message can be noted without an allocation.
    pub(crate) fn has_room(&self) -> bool {
        self.left.len().max(self.waiting.len()).max(self.opened.len()) < ROOM
    }

    /// No change is pending, and what waited has been applied: from here on all is as it is told. Returns what was
    /// fresh.
    pub(crate) fn forget(&mut self) -> RangeSet {
        self.left.clear();
        self.waiting.clear();
        self.opened.clear();
        std::mem::take(&mut self.fresh)
    }
}

#[cfg(test)]
mod tests;
