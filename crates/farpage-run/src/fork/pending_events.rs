//! The pending events of a fork: which changes of mappings were not told yet when the process was copied, and its way
//! from the parent's pager to the child's monitor.

use farpage_base::sys::pass::{receive, send};
use farpage_base::sys::uffd::Message;
use rustix::fd::BorrowedFd;

/// Events that can be held: one for each thread that changes mappings during the few hundred microseconds of a fork,
/// and as many again where the message of the fork comes behind them.
const EVENTS_MAX: usize = 256;

/// Changes of mappings that were pending when the process was copied.
#[derive(Debug, Clone, Copy)]
pub struct PendingEvents {
    events: [[usize; 4]; EVENTS_MAX],
    n: usize,
    overflow: bool,
}

impl PendingEvents {
    pub(super) const EMPTY: PendingEvents = PendingEvents { events: [[0; 4]; EVENTS_MAX], n: 0, overflow: false };

    /// Notes an event; faults are none.
    pub(super) fn note(&mut self, m: Message) {
        let record = match m {
            Message::Unmap { start, end } => [1, start, end, 0],
            Message::Remap { from, to, len } => [2, from, to, len],
            Message::Remove { start, end } => [3, start, end, 0],
            Message::Fault { .. } => return,
        };
        match self.events.get_mut(self.n) {
            Some(slot) => {
                *slot = record;
                self.n += 1;
            }
            None => self.overflow = true,
        }
    }

    /// Half of the room is taken.
    pub(super) fn is_half_full(&self) -> bool {
        self.n >= EVENTS_MAX / 2
    }

    /// There is no room for so many more.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.n + more > EVENTS_MAX
    }

    /// More was pending than could be noted.
    pub fn overflowed(&self) -> bool {
        self.overflow
    }

    /// The pending events in order.
    pub fn events(&self) -> impl Iterator<Item = Message> + '_ {
        self.events[..self.n].iter().map(|r| match r[0] {
            1 => Message::Unmap { start: r[1], end: r[2] },
            3 => Message::Remove { start: r[1], end: r[2] },
            _ => Message::Remap { from: r[1], to: r[2], len: r[3] },
        })
    }
}

impl PendingEvents {
    /// Sends it to the child, which may be gone.
    pub(super) fn send(&self, to: BorrowedFd<'_>) {
        // SAFETY: a plain structure of integers, viewed as its bytes; the padding behind the flag is never read back.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<PendingEvents>()) };
        let _ = send(to, bytes, &[]);
    }

    /// Waits for it, in the child. The parent is dead: there is none, and nothing to be said.
    pub(super) fn receive(from: BorrowedFd<'_>) -> PendingEvents {
        let mut bytes = [0u8; size_of::<PendingEvents>()];
        let mut pending = PendingEvents::EMPTY;
        if !receive(from, &mut bytes).is_ok_and(|(n, _)| n == bytes.len()) {
            return pending;
        }
        let word = |i: usize| usize::from_ne_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
        for (i, event) in pending.events.iter_mut().enumerate() {
            *event = std::array::from_fn(|k| word(i * 4 + k));
        }
        pending.n = word(EVENTS_MAX * 4).min(EVENTS_MAX);
        pending.overflow = bytes[(EVENTS_MAX * 4 + 1) * 8] != 0;
        pending
    }
}

const _: () = assert!(
    std::mem::offset_of!(PendingEvents, events) == 0 && std::mem::offset_of!(PendingEvents, n) == EVENTS_MAX * 32
);
const _: () = assert!(std::mem::offset_of!(PendingEvents, overflow) == EVENTS_MAX * 32 + 8);
