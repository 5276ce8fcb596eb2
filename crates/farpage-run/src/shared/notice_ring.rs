//! What program threads tell the engine: new thread control blocks, mappings that are about to be filled at once,
//! memory that is to be let go.
//!
//! A ring of fixed size, without a lock. A lock would be wrong twice here: another thread may fork while it is held,
//! and the child would find it held for ever; and its holder may fault on its own stack, which the pager serves, who
//! would wait for the lock. One thread takes notes out: the monitor before activation, the pager afterwards.

use farpage_base::sys::futex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Notes that wait at most; a power of two, so that tickets may wrap around.
const ROOM: u32 = 1024;
/// `from` of a slot that is empty, or being written.
const EMPTY: usize = 0;
/// `from` of a slot whose writer does not exist in this process.
const VOID: usize = 1;
/// Bit of `from`: the range is to be let go. (Ranges begin with a page.)
const LET_GO: usize = 2;

/// One note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The control block of a thread that was started is at this address.
    Thread(usize),
    /// A mapping (bytes, from and to) that may be filled faster than a thread looks.
    Mapping(usize, usize),
    /// What is managed of this range (bytes, from and to) is to be in memory and the program's alone.
    LetGo(usize, usize),
}

#[derive(Debug)]
struct Slot {
    from: AtomicUsize,
    to: AtomicUsize,
}

/// The ring.
#[derive(Debug)]
pub struct Notes {
    slots: [Slot; ROOM as usize],
    /// Ticket of the next note written.
    next: AtomicU32,
    /// Ticket of the next note taken.
    tail: AtomicU32,
    /// All before this ticket have been acted on.
    done: AtomicU32,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes {
            slots: [const { Slot { from: AtomicUsize::new(EMPTY), to: AtomicUsize::new(0) } }; ROOM as usize],
            next: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            done: AtomicU32::new(0),
        }
    }
}

impl Notes {
    fn slot(&self, ticket: u32) -> &Slot {
        &self.slots[(ticket % ROOM) as usize]
    }

    /// Leaves a note; any thread, also in a signal handler. Returns its ticket; `None`: no room.
    pub fn post(&self, note: Note) -> Option<u32> {
        let free = |next: u32| (next.wrapping_sub(self.tail.load(SeqCst)) < ROOM).then(|| next.wrapping_add(1));
        let ticket = self.next.fetch_update(SeqCst, SeqCst, free).ok()?;
        let (from, to) = match note {
            Note::Thread(block) => (block, 0),
            Note::Mapping(start, end) => (start, end),
            Note::LetGo(start, end) => (start | LET_GO, end),
        };
        let slot = self.slot(ticket);
        slot.to.store(to, SeqCst);
        slot.from.store(from, SeqCst);
        Some(ticket)
    }

    /// The oldest note, left where it is. Taking side only.
    pub fn peek(&self) -> Option<Note> {
        loop {
            let tail = self.tail.load(SeqCst);
            if tail == self.next.load(SeqCst) {
                return None;
            }
            let slot = self.slot(tail);
            match (slot.from.load(SeqCst), slot.to.load(SeqCst)) {
                (EMPTY, _) => return None, // being written
                (VOID, _) => self.drop_first(),
                (block, 0) => return Some(Note::Thread(block)),
                (start, end) if start & LET_GO != 0 => return Some(Note::LetGo(start & !LET_GO, end)),
                (start, end) => return Some(Note::Mapping(start, end)),
            }
        }
    }

    /// Calls `each` with the control block of every thread that is told of, and leaves the notes. Taking side only.
    pub fn threads(&self, mut each: impl FnMut(usize)) {
        let (mut ticket, next) = (self.tail.load(SeqCst), self.next.load(SeqCst));
        while ticket != next {
            let slot = self.slot(ticket);
            let (from, to) = (slot.from.load(SeqCst), slot.to.load(SeqCst));
            if from > VOID && to == 0 {
                each(from);
            }
            ticket = ticket.wrapping_add(1);
        }
    }

    /// Takes the oldest note. Taking side only.
    pub fn take(&self) -> Option<Note> {
        let note = self.peek()?;
        self.drop_first();
        Some(note)
    }

    fn drop_first(&self) {
        let tail = self.tail.load(SeqCst);
        self.slot(tail).from.store(EMPTY, SeqCst);
        self.tail.store(tail.wrapping_add(1), SeqCst);
    }

    /// What was taken has been acted on: the threads that wait for it go on.
    pub fn finish(&self) {
        let tail = self.tail.load(SeqCst);
        if self.done.swap(tail, SeqCst) != tail {
            futex::wake_all(&self.done);
        }
    }

    /// Waits until the note has been acted on, but not longer than `limit`: the engine may be holding still for a fork
    /// whose thread waits for a lock that the caller holds. Whether it has been.
    pub fn wait(&self, ticket: u32, limit: Duration) -> bool {
        let since = Instant::now();
        loop {
            let done = self.done.load(SeqCst);
            let left = limit.saturating_sub(since.elapsed());
            // Tickets wrap around; the distance tells which comes first.
            let acted = (done.wrapping_sub(ticket) as i32) > 0;
            if acted || left.is_zero() {
                return acted;
            }
            futex::wait(&self.done, done, Some(left.as_nanos() as u64));
        }
    }

    /// In a forked child, before anything is taken: notes that other threads were writing will never be complete.
    pub fn fork_child(&self) {
        let mut ticket = self.tail.load(SeqCst);
        while ticket != self.next.load(SeqCst) {
            let _ = self.slot(ticket).from.compare_exchange(EMPTY, VOID, SeqCst, SeqCst);
            ticket = ticket.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn notes_arrive_once_from_several_threads() {
        const EACH: usize = 20_000;
        let notes = Notes::default();
        // Tickets wrap around during the test.
        notes.next.store(u32::MAX - 5000, SeqCst);
        notes.tail.store(u32::MAX - 5000, SeqCst);
        notes.done.store(u32::MAX - 5000, SeqCst);
        let over = AtomicBool::new(false);
        let mut seen = std::thread::scope(|scope| {
            for writer in 0..3usize {
                let notes = &notes;
                scope.spawn(move || {
                    for i in 0..EACH {
                        let start = 4096 * (1 + writer * EACH + i);
                        let ticket = loop {
                            match notes.post(Note::Mapping(start, start + 4096)) {
                                Some(ticket) => break ticket,
                                None => std::thread::yield_now(),
                            }
                        };
                        if i % 1000 == 0 {
                            assert!(notes.wait(ticket, Duration::from_secs(3600)));
                        }
                    }
                });
            }
            let taker = scope.spawn(|| {
                let mut seen = Vec::new();
                while seen.len() < 3 * EACH {
                    while let Some(Note::Mapping(start, end)) = notes.take() {
                        assert_eq!(end, start + 4096);
                        seen.push(start / 4096 - 1);
                    }
                    notes.finish();
                    std::thread::yield_now();
                }
                over.store(true, SeqCst);
                seen
            });
            taker.join().unwrap()
        });
        assert!(over.load(SeqCst) && notes.take().is_none());
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..3 * EACH));
    }

    #[test]
    fn a_full_ring_refuses_and_a_waiter_gives_up() {
        let notes = Notes::default();
        let last = (0..ROOM).map(|i| notes.post(Note::Thread(4096 + i as usize)).unwrap()).last().unwrap();
        assert_eq!(notes.post(Note::Thread(4096)), None);
        assert!(!notes.wait(last, Duration::from_micros(10)));
        assert_eq!(notes.take(), Some(Note::Thread(4096)));
        assert!(notes.post(Note::LetGo(8192, 12288)).is_some());
        let rest: Vec<Note> = std::iter::from_fn(|| notes.take()).collect();
        assert_eq!(rest.last(), Some(&Note::LetGo(8192, 12288)));
    }

    #[test]
    fn a_half_written_note_does_not_block_a_child() {
        let notes = Notes::default();
        notes.post(Note::Thread(4096)).unwrap();
        notes.next.fetch_add(1, SeqCst); // another thread has its ticket, and is not copied
        notes.post(Note::Mapping(8192, 12288)).unwrap();
        assert_eq!(notes.take(), Some(Note::Thread(4096)));
        assert_eq!(notes.take(), None);
        notes.fork_child();
        assert_eq!(notes.take(), Some(Note::Mapping(8192, 12288)));
        assert_eq!(notes.take(), None);
    }
}
