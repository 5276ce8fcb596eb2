//! A process that is idle can be *parked*: all that can be swapped out goes, and what it claimed of its tree's budget
//! is there for others.
//!
//! ```text
//!   none --command, or idle for long--> ASKED --monitor--> PARKED --used again, or command--> none
//! ```
//! While it is parked it is promised its floor, and asks for no more: a few pages for what idle programs do now and
//! then. When it reads [`USED`] pages again within a second it is not idle any more, and asks as ever. A command may
//! have its pages brought back before that ([`UNPARK`]).
//!
//! Callers: the monitor; `farpage park` and `farpage unpark`, from outside. No locks.

use crate::shared::budget::Budget;
use farpage_base::sys::clock::now_us;
use farpage_ipc::tree::Member;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// It is to be parked.
pub const ASKED: u32 = 1;
/// It is.
pub const PARKED: u32 = 2;
/// It is to have its pages back.
pub const UNPARK: u32 = 3;
/// It is to have all of its pages, and its engine is to end ([`crate::monitor`]'s `detach`).
pub const DETACH: u32 = 4;

/// Faults that read a device, in a second, by which a parked process is in use again.
const USED: u64 = 128;
const SECOND_US: u64 = 1_000_000;

/// Whether a program is idle is looked at so often...
const LOOK: Duration = Duration::from_millis(500);
/// ... and it is if it uses less than this part of a CPU.
const CPU_PART: u32 = 100;

/// For how long a program has been idle, by its CPU time.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    since: Instant,
    /// When that was looked at, and its CPU time then.
    seen: Instant,
    time: Duration,
}

impl IdleTimer {
    /// It is not, as of `now`.
    pub(crate) fn new(now: Instant) -> IdleTimer {
        IdleTimer { since: now, seen: now, time: Duration::ZERO }
    }

    /// Whether it is time for a look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now - self.seen >= LOOK
    }

    /// The program has used so much CPU time by now: for how long it has been idle.
    pub(crate) fn look(&mut self, now: Instant, time: Duration) -> Duration {
        if time.saturating_sub(self.time) > (now - self.seen) / CPU_PART {
            self.since = now;
        }
        (self.seen, self.time) = (now, time);
        now - self.since
    }

    /// Counts from now on.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.since = now;
    }
}

/// The monitor's part.
#[derive(Debug, Default)]
pub(crate) struct Park {
    /// Since when faults are counted, microseconds, and how many there had been.
    since_us: u64,
    major: u64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parking {
    /// Nothing.
    None,
    /// It keeps to its floor: its promise was made as small.
    Parked,
    /// Its pages are to come back.
    Back,
}

/// Whether a member asks for nothing.
pub(crate) fn is_parked(mine: &Member) -> bool {
    mine.park.load(SeqCst) == PARKED
}

impl Park {
    /// A look of a process whose memory is managed, with so many faults that read a device so far. `floor`: the least
    /// that it may be promised, pages.
    pub(crate) fn look(&mut self, mine: &Member, budget: &Budget, major: u64, floor: i64) -> Parking {
        let now = now_us();
        match mine.park.load(SeqCst) {
            ASKED => {
                (self.since_us, self.major) = (now, major);
                // Unless it is asked for something else by now, here and below.
                let _ = mine.park.compare_exchange(ASKED, PARKED, SeqCst, SeqCst);
            }
            PARKED if now.saturating_sub(self.since_us) > SECOND_US => (self.since_us, self.major) = (now, major),
            PARKED if major.saturating_sub(self.major) >= USED => {
                let _ = mine.park.compare_exchange(PARKED, 0, SeqCst, SeqCst);
                return Parking::None;
            }
            PARKED => {}
            UNPARK => {
                let _ = mine.park.compare_exchange(UNPARK, 0, SeqCst, SeqCst);
                return Parking::Back;
            }
            _ => return Parking::None,
        }
        budget.promise(budget.promised().min(floor));
        Parking::Parked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::tree::{MemberKind, create, open};
    use rustix::fd::AsFd;

    #[test]
    fn who_uses_a_hundredth_of_a_cpu_is_not_idle() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut idle = IdleTimer::new(begun);
        assert!(!idle.is_due(at(499)) && idle.is_due(at(500)));
        // What it has used before it was looked at first says nothing good.
        assert_eq!(idle.look(at(500), Duration::from_secs(3)), Duration::ZERO);
        assert_eq!(idle.look(at(1000), Duration::from_millis(3005)), Duration::from_millis(500));
        assert_eq!(idle.look(at(2000), Duration::from_millis(3015)), Duration::from_millis(1500));
        assert_eq!(idle.look(at(2500), Duration::from_millis(3021)), Duration::ZERO);
        assert_eq!(idle.look(at(4500), Duration::from_millis(3021)), Duration::from_secs(2));
        idle.begin(at(4500));
        assert_eq!(idle.look(at(5000), Duration::from_millis(3021)), Duration::from_millis(500));
    }

    #[test]
    fn who_reads_much_again_is_not_parked_any_more() {
        let segment = open(create(64 << 20, None).unwrap().as_fd()).unwrap();
        let own = std::process::id();
        assert!(segment.take_for_test(own, MemberKind::Managed));
        let mine = segment.living().next().unwrap();
        let (budget, mut park) = (Budget::new(10_000), Park::default());
        assert_eq!((park.look(mine, &budget, 500, 1000), budget.promised()), (Parking::None, 10_000));
        mine.park.store(ASKED, SeqCst);
        assert_eq!((park.look(mine, &budget, 500, 1000), budget.promised()), (Parking::Parked, 1000));
        assert!(is_parked(mine));
        assert_eq!(park.look(mine, &budget, 500 + USED - 1, 1000), Parking::Parked);
        assert_eq!(park.look(mine, &budget, 500 + USED, 1000), Parking::None);
        assert!(!is_parked(mine));
        mine.park.store(UNPARK, SeqCst);
        assert_eq!(park.look(mine, &budget, 0, 1000), Parking::Back);
        assert_eq!(park.look(mine, &budget, 0, 1000), Parking::None);
    }
}
