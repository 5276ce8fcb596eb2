//! When memory begins to be managed: as late as possible, because it costs the program something, and early enough for
//! the engine to be ready when the budget is reached. That is at a fixed distance from the budget
//! ([`Budget::activation`]); here is how often the monitor looks until then. (A distance by the speed that a program
//! shows changed no peak: `docs/decisions/0018-activation-at-a-fixed-distance.md`.)
//!
//! Pure; called by the monitor with each sample before activation.

use crate::shared::budget::Budget;
use crate::shared::charge::Allowance;
use std::time::Duration;

/// Pages that one thread can fill in a millisecond.
const FILLS: u64 = 350;
/// The shortest and the longest time between two looks, microseconds.
const SOON_US: u64 = 1_000;
const LOOK_MAX_US: u64 = 100_000;
/// No engine thread waits longer than that for its turn to look, milliseconds.
const BLIND_MS: u64 = 1_000;
/// What the monitor sees.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Resident anonymous pages.
    pub rss: i64,
    /// Pages that the program was given since the last look ([`crate::shared::charge`]).
    pub given: i64,
    /// Threads of the process.
    pub threads: usize,
    /// CPUs that it may use.
    pub cpus: usize,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is time.
    Manage,
    /// Not yet; look again after this.
    Wait(Duration),
}

/// How the program comes nearer.
#[derive(Debug, Default)]
pub struct Approach {
    threads: usize,
    /// Threads were started lately, or given more than is left: soon they will show how fast they fill. The next look,
    /// microseconds.
    soon_us: u64,
    allowance: Allowance,
}

impl Approach {
    /// One sample.
    pub fn step(&mut self, look: Look, budget: &Budget) -> Next {
        let threshold = budget.activation();
        if look.rss >= threshold {
            return Next::Manage;
        }
        // Half of the time in which what is left could be filled.
        let fastest = FILLS * look.threads.clamp(2, look.cpus.max(2)) as u64;
        let left = threshold - look.rss;
        let us = left as u64 * 500 / fastest;
        let more = look.threads > self.threads.max(look.cpus) || look.given > left;
        self.threads = look.threads;
        self.soon_us = if more { SOON_US } else { (2 * self.soon_us).clamp(SOON_US, LOOK_MAX_US) };
        let soon = if look.threads > look.cpus { self.soon_us } else { LOOK_MAX_US };
        Next::Wait(Duration::from_micros(us.min(soon).clamp(SOON_US, LOOK_MAX_US)))
    }
}

impl Approach {
    /// Bytes that the program may be given until the next look, after the step with this one.
    pub fn allow(&mut self, look: Look, budget: &Budget) -> u64 {
        let (left, room) = (budget.activation() - look.rss, budget.promised() - budget.activation());
        self.allowance.next(look.given, look.rss, left, room, filled_blindly(look.cpus))
    }
}

/// Pages that can be filled in the longest time without a look.
fn filled_blindly(cpus: usize) -> i64 {
    (FILLS * BLIND_MS * cpus as u64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Pages that a program has that fills `speed` pages a millisecond when it is found that it is time.
    fn found_at(budget: u64, speed: u64, threads: usize) -> i64 {
        let (budget, mut approach) = (Budget::new(budget), Approach::default());
        let mut now = Duration::ZERO;
        loop {
            let rss = (now.as_micros() as u64 * speed / 1000) as i64;
            match approach.step(Look { rss, given: 0, threads, cpus: 2 }, &budget) {
                Next::Manage => return rss,
                Next::Wait(time) => now += time,
            }
        }
    }

    #[test]
    fn a_program_is_left_alone_until_it_is_near_and_found_when_it_is() {
        for pages in [16_384u64, 32_768, 262_144, 1 << 22] {
            let near = Budget::new(pages).activation();
            for (speed, threads) in [(1, 2), (100, 2), (350, 2), (350, 60)] {
                let at = found_at(pages, speed, threads);
                assert!((near..near + 1000).contains(&at), "{pages} pages, {speed}: {at}, {near}");
            }
        }
    }

    #[test]
    fn a_standstill_is_looked_at_seldom() {
        let (budget, mut approach) = (Budget::new(1 << 20), Approach::default());
        let mut next = Next::Manage;
        for _ in 0..9 {
            next = approach.step(Look { rss: 1000, given: 100, threads: 40, cpus: 2 }, &budget);
        }
        assert_eq!(next, Next::Wait(100 * MS));
        next = approach.step(Look { rss: 1000, given: 1 << 20, threads: 40, cpus: 2 }, &budget);
        assert_eq!(next, Next::Wait(MS), "what was given can be filled without another word");
    }

    #[test]
    fn on_many_cpus_looks_are_as_much_sooner() {
        let first = |threads, cpus| {
            let look = Look { rss: 0, given: 0, threads, cpus };
            match Approach::default().step(look, &Budget::new(1 << 17)) {
                Next::Wait(time) => time,
                Next::Manage => Duration::ZERO,
            }
        };
        assert_eq!(first(1, 16), first(1, 2));
        assert!(first(16, 16) * 7 < first(2, 16) && first(16, 16) > Duration::ZERO);
    }
}
