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
//! * That the old place of a move is unmapped says nothing new: the first such message after a move is its *rest*, and
//!   is not applied. (If it is another thread's, that thread's counts when the rest comes: they are the same.)
//! * A change of places of which nothing else was told is applied at once.
//! * One that touches a place of a move whose rest is missing, of a change that waits, or that is *fresh*, and a move
//!   to a place where something is known, *waits* until no change is pending. Nothing is lost by that: until then the
//!   kernel moves and copies no page. A place is *fresh* if it was looked at while a change was pending: what was seen
//!   there may be what the next message tells of, or may be gone again.
//!
//! When no change is pending, all has been told, and this puts what waits into an order in which something comes to
//! each place, and leaves it, by turns. What came is taken in the order in which it was told, and so is what left:
//!
//! * A thread that takes something away from a place has been told that its move to it is complete. So of two moves to
//!   one place the second was made, and told, when the first had been told.
//! * The first of them left the place before the second came. That may have been told later; but when the second one is
//!   read, [`Order::push`] says that it waits, and [`crate::mappings::grace_period`] has nothing read before what
//!   was made by then is at least on the queue. Only then can the second be told to go on, and leave in its turn.
//! * Of a fresh place it is not known whether what was seen there is what was moved there. Whether there is something
//!   in the end, as many changes came as went, or one more, or one less; so that is counted, and the kernel asked.
//!
//! docs/dev/events.md says what cannot be known: when a move to a place that is managed itself was told by halves.
//!
//! Caller: the pager, with each message it reads. No locks.

use farpage_base::sys::uffd::Message;
use farpage_swap::range::RangeSet;

/// Messages that can be noted without an allocation.
const ROOM: usize = 128;

/// A place is in no more parts, as far as is told.
const PARTS: usize = 8;

/// First byte, first byte behind; (0, 0) is nowhere.
type ByteSpan = (usize, usize);

/// What is to be done with a change that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// It is to be applied.
    Now,
    /// It waits until no change is pending; one that was made before may not have been told.
    Later,
    /// It was applied with the message before it.
    Done,
}

/// A change that was read.
#[derive(Debug, Clone, Copy)]
struct Told {
    m: Message,
    applied: bool,
    /// No rest of it is to come.
    whole: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Order {
    /// What waits, and moves whose rest is missing, as they were read.
    told: Vec<Told>,
    /// Bytes.
    fresh: RangeSet,
    /// Where there is something that nothing is known of, among what is fresh; while what waits is applied.
    there: Option<RangeSet>,
}

impl Default for Order {
    fn default() -> Order {
        Order { told: Vec::with_capacity(ROOM), fresh: RangeSet::new(), there: None }
    }
}

/// Where nothing is mapped any more after this change, unless something else has come there.
fn freed_by(m: Message) -> ByteSpan {
    m.left().unwrap_or_default()
}

/// Where something is mapped after this change.
fn taken_by(m: Message) -> ByteSpan {
    match m {
        Message::Remap { to, len, .. } => (to, to + len),
        _ => (0, 0),
    }
}

/// Where something stays mapped, without its pages.
fn emptied_by(m: Message) -> ByteSpan {
    match m {
        Message::Remove { start, end } => (start, end),
        _ => (0, 0),
    }
}

/// What is in both places.
fn common(a: ByteSpan, b: ByteSpan) -> Option<ByteSpan> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 < both.1).then_some(both)
}

/// Whether the change is about a part of this place.
fn concerns(m: Message, place: ByteSpan) -> bool {
    [freed_by(m), taken_by(m), emptied_by(m)].into_iter().any(|of| common(of, place).is_some())
}

/// Whether some of `set` is in this place.
fn has_some(set: &RangeSet, (start, end): ByteSpan) -> bool {
    let (start, end) = (start as u64, end as u64);
    start < end && set.gaps(start, end).next() != Some((start, end))
}

/// The parts of a place (some empty) that none of the changes in `told`, the last one first, is about. `None`:
/// something has come to a part of it, or may have.
fn left_of(place: ByteSpan, told: impl Iterator<Item = Message>) -> Option<[ByteSpan; PARTS]> {
    let mut parts = [(0, 0); PARTS];
    parts[0] = place;
    for m in told {
        if parts.iter().any(|part| common(*part, taken_by(m)).is_some()) {
            return None;
        }
        let freed = freed_by(m);
        while let Some(at) = parts.iter().position(|part| common(*part, freed).is_some()) {
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
    (start, end): ByteSpan,
    told: impl Iterator<Item = Message>,
    is_known: impl Fn(usize, usize) -> bool,
) -> bool {
    left_of((start, end), told).is_none_or(|parts| parts.iter().any(|part| is_known(part.0, part.1)))
}

impl Order {
    /// A change was read. `is_known(start, end)`: after all that was applied, something is mapped in that range
    /// (bytes).
    pub(crate) fn push(&mut self, m: Message, is_known: impl Fn(usize, usize) -> bool) -> When {
        let is_rest = |t: &Told| !t.whole && matches!(m, Message::Unmap { .. }) && freed_by(t.m) == freed_by(m);
        if let Some(at) = self.told.iter().position(is_rest) {
            if self.told[at].applied {
                self.told.remove(at);
            } else {
                self.told[at].whole = true;
            }
            return When::Done;
        }
        let (taken, is_move) = (taken_by(m), matches!(m, Message::Remap { .. }));
        let places = [freed_by(m), taken, emptied_by(m)];
        let waits = places.iter().any(|place| self.names(place.0, place.1)) || is_move && is_known(taken.0, taken.1);
        if waits || is_move {
            self.told.push(Told { m, applied: !waits, whole: !is_move });
        }
        if waits { When::Later } else { When::Now }
    }

    /// The next of the changes that waited, once no change is pending. `is_known` as in [`Order::push`].
    /// `is_registered`: whether there is something registered at an address; `None`: a change is pending again. Then,
    /// and when all is done, there is no next one.
    pub(crate) fn next_settled(
        &mut self,
        is_known: impl Fn(usize, usize) -> bool,
        is_registered: impl Fn(usize) -> Option<bool>,
    ) -> Option<Message> {
        self.told.retain(|t| !t.applied);
        if self.told.is_empty() {
            self.there = None;
            return None;
        }
        let mut there = match self.there.take() {
            Some(there) => there,
            None => self.find_fresh(is_registered)?,
        };
        let is_there = |place: ByteSpan| is_known(place.0, place.1) || has_some(&there, place);
        // Nothing fits only if the program changes what another thread has not been given yet.
        let at = (0..self.told.len()).find(|at| self.is_next(*at, is_there)).unwrap_or(0);
        let m = self.told.remove(at).m;
        if !self.fresh.is_empty() {
            let (freed, taken) = (freed_by(m), taken_by(m));
            let is_unknown = has_some(&there, freed) || !is_known(freed.0, freed.1);
            there.remove(freed.0 as u64, freed.1 as u64);
            if is_unknown && taken.0 < taken.1 {
                there.insert(taken.0 as u64, taken.1 as u64);
            }
        }
        self.there = Some(there);
        Some(m)
    }

    /// Where something was that is fresh before all that waits: more has left than has come since.
    fn find_fresh(&self, is_registered: impl Fn(usize) -> Option<bool>) -> Option<RangeSet> {
        let mut there = RangeSet::new();
        if self.fresh.is_empty() {
            return Some(there);
        }
        let told = self.told.iter().flat_map(|t| [freed_by(t.m), taken_by(t.m)]);
        let fresh = self.fresh.iter().map(|(start, end)| (start as usize, end as usize));
        let mut borders: Vec<usize> = told.chain(fresh).flat_map(|place| [place.0, place.1]).collect();
        borders.sort_unstable();
        borders.dedup();
        for part in borders.windows(2).map(|w| (w[0], w[1])).filter(|part| has_some(&self.fresh, *part)) {
            let count =
                |of: fn(Message) -> ByteSpan| self.told.iter().filter(|t| common(of(t.m), part).is_some()).count();
            if count(freed_by) + usize::from(is_registered(part.0)?) > count(taken_by) {
                there.insert(part.0 as u64, part.1 as u64);
            }
        }
        Some(there)
    }

    /// Whether no other change that waits has to be applied before this one.
    fn is_next(&self, at: usize, is_there: impl Fn(ByteSpan) -> bool) -> bool {
        let m = self.told[at].m;
        let (freed, taken) = (freed_by(m), taken_by(m));
        // What was discarded is what had come there by then.
        let has_come = |i: usize| {
            let place = emptied_by(self.told[i].m);
            !self.told[..i].iter().any(|t| common(taken_by(t.m), place).is_some())
        };
        let waits_for = |(i, other): (usize, &Told)| {
            let (other_freed, other_taken) = (freed_by(other.m), taken_by(other.m));
            // As it was told.
            let is_before = common(freed, other_freed).is_some()
                || common(taken, other_taken).is_some()
                || concerns(other.m, emptied_by(m))
                || concerns(m, emptied_by(other.m)) && has_come(i);
            // By turns.
            i < at && is_before
                || common(taken, other_freed).is_some_and(&is_there)
                || common(freed, other_taken).is_some_and(|place| !is_there(place))
        };
        !self.told.iter().enumerate().any(|(i, other)| i != at && waits_for((i, other)))
    }

    /// Whether something was told of `[start, end)` (bytes) that has yet to be applied, or of which more is to come, or
    /// something there was looked at while a change was pending.
    pub(crate) fn names(&self, start: usize, end: usize) -> bool {
        has_some(&self.fresh, (start, end)) || self.told.iter().any(|t| concerns(t.m, (start, end)))
    }

    /// `[start, end)` (bytes) was looked at just now, while a change was pending.
    pub(crate) fn add_fresh(&mut self, start: usize, end: usize) {
        self.fresh.insert(start as u64, end as u64);
    }

    /// Some changes have yet to be applied.
    pub(crate) fn waits(&self) -> bool {
        self.len() > 0
    }

    /// [`Order::forget`] would have no effect.
    pub(crate) fn is_settled(&self) -> bool {
        self.told.is_empty() && self.fresh.is_empty()
    }

    /// Messages that were read and not applied yet.
    pub(crate) fn len(&self) -> usize {
        self.told.iter().filter(|t| !t.applied).count()
    }

    /// Another message can be noted without an allocation.
    pub(crate) fn has_room(&self) -> bool {
        self.told.len() < ROOM
    }

    /// No change is pending, and what waited has been applied: from here on all is as it is told. Returns what was
    /// fresh.
    pub(crate) fn forget(&mut self) -> RangeSet {
        self.told.clear();
        self.there = None;
        std::mem::take(&mut self.fresh)
    }
}

#[cfg(test)]
mod tests;
