//! The pending events of a fork: which changes of mappings were not told yet when the process was copied, and its way
//! from the parent's pager to the child's monitor. Mostly there are none, and a message of two words.

use farpage_base::sys::pass::{receive, send};
use farpage_base::sys::uffd::Message;
use rustix::fd::BorrowedFd;

/// Events that can be held: one for each thread that changes mappings during the few hundred microseconds of a fork,
/// and as many again where the message of the fork comes behind them.
const EVENTS_MAX: usize = 256;

/// Events in one message.
const EVENTS_SENT: usize = 32;

const WORD: usize = size_of::<usize>();
/// Words before the events of a message: how many events are left for others, whether there were too many.
const HEAD: usize = 2;

type EventWords = [usize; 4];

/// Changes of mappings that were pending when the process was copied.
#[derive(Debug, Clone)]
pub struct PendingEvents {
    events: Vec<EventWords>,
    overflow: bool,
}

impl PendingEvents {
    /// None yet; has all the memory that it will need.
    pub(super) fn new() -> PendingEvents {
        PendingEvents { events: Vec::with_capacity(EVENTS_MAX), overflow: false }
    }

    /// None any more.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.overflow = false;
    }

    /// Notes an event; faults are none.
    pub(super) fn note(&mut self, m: Message) {
        let record = match m {
            Message::Unmap { start, end } => [1, start, end, 0],
            Message::Remap { from, to, len } => [2, from, to, len],
            Message::Remove { start, end } => [3, start, end, 0],
            Message::Fault { .. } => return,
        };
        match self.events.len() < EVENTS_MAX {
            true => self.events.push(record),
            false => self.overflow = true,
        }
    }

    /// Half of the room is taken.
    pub(super) fn is_half_full(&self) -> bool {
        self.events.len() >= EVENTS_MAX / 2
    }

    /// There is no room for so many more.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.events.len() + more > EVENTS_MAX
    }

    /// More was pending than could be noted.
    pub fn overflowed(&self) -> bool {
        self.overflow
    }

    /// The pending events in order.
    pub fn events(&self) -> impl Iterator<Item = Message> + '_ {
        self.events.iter().map(|r| match r[0] {
            1 => Message::Unmap { start: r[1], end: r[2] },
            3 => Message::Remove { start: r[1], end: r[2] },
            _ => Message::Remap { from: r[1], to: r[2], len: r[3] },
        })
    }
}

impl PendingEvents {
    /// Sends it to the child, which may be gone.
    pub(super) fn send(&self, to: BorrowedFd<'_>) {
        let mut left = self.events.as_slice();
        loop {
            let (now, later) = left.split_at(left.len().min(EVENTS_SENT));
            let head = [later.len(), usize::from(self.overflow)];
            let words = head.iter().chain(now.iter().flatten());
            let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
            left = later;
            if send(to, &bytes, &[]).is_err() || left.is_empty() {
                return;
            }
        }
    }

    /// Waits for it, in the child. The parent is dead: there is none, and nothing to be said.
    pub(super) fn receive(from: BorrowedFd<'_>) -> PendingEvents {
        let mut pending = PendingEvents { events: Vec::new(), overflow: false };
        let mut bytes = [0u8; (HEAD + EVENTS_SENT * 4) * WORD];
        loop {
            let n = receive(from, &mut bytes).map_or(0, |(n, _)| n);
            let word = |i: usize| usize::from_ne_bytes(std::array::from_fn(|k| bytes[i * WORD + k]));
            let records = match n.checked_sub(HEAD * WORD) {
                Some(rest) => rest / size_of::<EventWords>(),
                None => {
                    // It has died in the middle.
                    pending.overflow |= !pending.events.is_empty();
                    return pending;
                }
            };
            pending
                .events
                .extend((0..records).map(|r| -> EventWords { std::array::from_fn(|k| word(HEAD + r * 4 + k)) }));
            pending.overflow |= word(1) != 0;
            if word(0) == 0 {
                return pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_base::sys::pass::pair;
    use rustix::fd::AsFd;

    #[test]
    fn all_events_arrive_in_their_order() {
        for n in [0, 1, EVENTS_SENT, EVENTS_SENT + 1, EVENTS_MAX, EVENTS_MAX + 1] {
            let (here, there) = pair().unwrap();
            let mut sent = PendingEvents::new();
            (0..n).for_each(|i| match i % 3 {
                0 => sent.note(Message::Unmap { start: i << 12, end: (i + 1) << 12 }),
                1 => sent.note(Message::Remap { from: i << 12, to: i << 20, len: 4096 }),
                _ => sent.note(Message::Remove { start: i << 12, end: (i + 2) << 12 }),
            });
            sent.send(here.as_fd());
            let got = PendingEvents::receive(there.as_fd());
            assert_eq!((got.events, got.overflow), (sent.events, n > EVENTS_MAX));
        }
    }

    #[test]
    fn a_parent_that_is_dead_has_said_nothing() {
        let (here, there) = pair().unwrap();
        drop(here);
        let got = PendingEvents::receive(there.as_fd());
        assert!(got.events.is_empty() && !got.overflow);
    }
}
