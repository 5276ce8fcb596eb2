//! Memory that program threads were given and that no engine thread has looked at yet.
//!
//! An engine thread that waits for a CPU cannot see what the program fills meanwhile; the program's threads can see
//! what they are given. So they count it, and a thread that comes to more than is allowed waits for the next look: the
//! more they are in a hurry, the sooner they leave their CPUs to the engine. While there is no engine, that thread
//! looks itself ([`crate::dormant`]); before activation the monitor looks, and allows what is left until it has to act
//! ([`Allowance`]); afterwards the pager, which has to register what was given before it is filled.
//!
//! As in the kernel's memory cgroups, a thread charges a stock of its own first, and the common account a batch at a
//! time: else all that allocate would fight for one cache line.
//!
//! Counted on program threads ([`crate::mappings::discovery`]). No locks (why:
//! [`crate::shared::notice_ring`]).

use farpage_base::sys::thread::thread_pointer;
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stocks; threads that share one by chance do no harm.
const STOCKS: usize = 32;
/// Bytes that a stock takes before they are charged: filled in a fraction of the time that a look takes.
const CHARGE_BATCH: u64 = 8 * PAGE_SIZE as u64;
/// What is allowed where no thread needs to count.
pub const UNLIMITED: u64 = u64::MAX;

#[derive(Debug)]
#[repr(align(64))]
struct CacheLine(AtomicU64);

/// See the module header. All in bytes.
#[derive(Debug)]
pub struct Charges {
    stocks: [CacheLine; STOCKS],
    /// Charged since the last look.
    charged: CacheLine,
    /// Charged more than this, a look is due.
    limit: CacheLine,
}

impl Charges {
    /// Nothing was given, and nothing is counted.
    #[allow(clippy::new_without_default, reason = "it is for a static")]
    pub const fn new() -> Charges {
        Charges {
            stocks: [const { CacheLine(AtomicU64::new(0)) }; STOCKS],
            charged: CacheLine(AtomicU64::new(0)),
            limit: CacheLine(AtomicU64::new(UNLIMITED)),
        }
    }

    /// The calling thread is given `bytes`; whether it should wait for a look. Any thread.
    pub fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit.0.load(Relaxed);
        if limit == UNLIMITED {
            return false;
        }
        // Control blocks are at the upper ends of stacks, which are many MiB apart and begin anywhere.
        let thread = (thread_pointer() as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let stock = &self.stocks[(thread >> 32) as usize % STOCKS].0;
        if stock.fetch_add(bytes, Relaxed) + bytes < CHARGE_BATCH {
            return false;
        }
        let batch = stock.swap(0, Relaxed);
        self.charged.0.fetch_add(batch, Relaxed) + batch > limit
    }

    /// Before a look, which will see what was given until now; how much that was. One engine thread at a time.
    pub fn drain(&self) -> u64 {
        // Mostly there is nothing, and a pager that serves faults looks often.
        if self.charged.0.load(Relaxed) == 0 { 0 } else { self.charged.0.swap(0, Relaxed) }
    }

    /// What may be given until the next look. The looking thread.
    pub fn allow(&self, bytes: u64) {
        self.limit.0.store(bytes, Relaxed);
    }
}

/// What the monitor allows before activation.
///
/// Most programs are given the same memory again and again, and fill little that is new. Looking each time that they
/// were given what is left would cost them something just below the budget. So a program that does not grow is allowed
/// more.
#[derive(Debug, Default)]
pub struct Allowance {
    /// How often it was doubled.
    doubled: u32,
    /// Pages at the last look.
    resident: i64,
}

/// A program that was given more than this many times as much as it grew by has not filled it.
const UNFILLED: i64 = 8;
/// Fewer pages tell nothing.
const TOLD_LITTLE: i64 = 64;
/// So often at most what is allowed is doubled.
const DOUBLED_MAX: u32 = 6;

impl Allowance {
    /// The bytes that may be given until the next look. In pages: `given` were, since the last one, `resident` there
    /// are, `left` may be filled before memory is managed, `room` lies between that and the budget, `far` is more than
    /// a program could fill before the monitor looks by itself.
    pub fn next(&mut self, given: i64, resident: i64, left: i64, room: i64, far: i64) -> u64 {
        let grown = (resident - self.resident).max(0);
        self.resident = resident;
        if given > TOLD_LITTLE {
            self.doubled = if grown * UNFILLED < given { (self.doubled + 1).min(DOUBLED_MAX) } else { 0 };
        }
        if left > far {
            return UNLIMITED;
        }
        // Not less than a part of the room: very near to it, one would look at each piece.
        (left.max(room / 4).max(0) as u64 * PAGE_SIZE as u64) << self.doubled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    #[test]
    fn whoever_comes_to_more_than_is_allowed_waits_until_somebody_looked() {
        let charges = Charges::new();
        charges.allow(100 * PAGE);
        assert!(!charges.charge(90 * PAGE) && charges.charge(20 * PAGE) && charges.charge(20 * PAGE));
        assert_eq!(charges.drain(), 130 * PAGE);
        assert!(!charges.charge(20 * PAGE));
        charges.allow(0);
        assert!(charges.charge(20 * PAGE), "nothing is allowed");
        charges.allow(UNLIMITED);
        assert!(!charges.charge(1 << 40) && charges.drain() == 40 * PAGE, "not counted");
    }

    #[test]
    fn small_pieces_of_all_threads_add_up() {
        let charges = Charges::new();
        charges.allow(1 << 40);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert!(!charges.charge(PAGE))));
            }
        });
        let given = charges.drain();
        assert!(
            given <= 4000 * PAGE && given > 4000 * PAGE - 4 * CHARGE_BATCH,
            "all but what the stocks have: {given}"
        );
    }

    #[test]
    fn more_is_allowed_to_a_program_that_does_not_grow() {
        let mut allowance = Allowance::default();
        let (room, far) = (4000, 1 << 20);
        assert_eq!(allowance.next(0, 100, far + 1, room, far), UNLIMITED, "far away");
        assert_eq!(allowance.next(0, 1000, 5000, room, far), 5000 * PAGE);
        assert_eq!(allowance.next(5000, 5500, 500, room, far), 1000 * PAGE, "near: a part of the room");
        assert_eq!(allowance.next(1000, 5510, 490, room, far), 2000 * PAGE, "given, and not filled");
        assert_eq!(allowance.next(2000, 5510, 490, room, far), 4000 * PAGE);
        assert_eq!(allowance.next(0, 5510, 490, room, far), 4000 * PAGE, "nothing was given");
        (0..20).for_each(|_| _ = allowance.next(9000, 5510, 490, room, far));
        assert_eq!(allowance.next(9000, 5510, 490, room, far), (1000 * PAGE) << DOUBLED_MAX);
        assert_eq!(allowance.next(600, 5710, 290, room, far), 1000 * PAGE, "it grows again");
    }
}
