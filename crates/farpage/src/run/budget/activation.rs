//! When memory begins to be managed: as late as possible, because it costs the program something, and early enough for
//! the engine to be ready when the budget is reached.
//!
//! A fixed distance from the budget ([`Budget::activation`]) is enough for a program that has its CPUs to itself. One
//! with more busy threads than there are CPUs makes the engine wait twice, for a CPU and for the lock of a mapping
//! whose holder was preempted in the middle of a page fault; each time it may be the turn of all of them first. So the
//! distance is what the program fills, at the speed it shows, in as many turns. (8 threads on 2 CPUs: monitor and
//! registering waited for up to 15 ms each, in which 8,000 pages were filled; the fixed distance under 64 MiB is
//! 6,144.)
//!
//! Pure; called by the monitor with each sample before activation.

use crate::run::budget::Budget;
use crate::run::budget::charge::Allowance;
use std::time::{Duration, Instant};

/// Pages that one thread can fill in a millisecond.
const FILLS: u64 = 350;
/// Getting ready without waiting for anybody, microseconds.
const READY_US: u64 = 5_000;
/// Turns that are waited for, with more threads than CPUs.
const TURNS: u64 = 2;
/// A thread's turn: no kernel lets a thread of this policy go on for longer when another one waits, microseconds.
const TURN_US: u64 = 4_000;
/// Most that is expected, microseconds. Threads that there are may also be asleep.
const LATE_MAX_US: u64 = 64_000;
/// The shortest and the longest time between two looks, microseconds.
const SOON_US: u64 = 1_000;
const LOOK_MAX_US: u64 = 100_000;
/// No engine thread waits longer than that for its turn to look, milliseconds.
const BLIND_MS: u64 = 1_000;
/// Two samples at least this far apart make a speed.
const STEP: Duration = Duration::from_micros(500);

/// What the monitor sees.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Resident anonymous pages.
    pub rss: i64,
    /// Pages that the program was given since the last look ([`crate::run::budget::charge`]).
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
    last: Option<(Instant, i64)>,
    /// Pages a millisecond, of the last two steps.
    speeds: [u64; 2],
    threads: usize,
    /// Threads were started lately, or given more than is left: soon they will show how fast they fill. The next look,
    /// microseconds.
    soon_us: u64,
    allowance: Allowance,
    /// Resident pages at which memory begins to be managed, as things are.
    threshold: i64,
}

impl Approach {
    /// One sample, taken at `now`.
    pub fn step(&mut self, look: Look, budget: &Budget, now: Instant) -> Next {
        match self.last {
            Some((then, rss)) if now - then >= STEP => {
                let us = (now - then).as_micros().max(1) as u64;
                self.speeds = [self.speeds[1], (look.rss - rss).max(0) as u64 * 1000 / us];
                self.last = Some((now, look.rss));
            }
            Some(_) => {}
            None => self.last = Some((now, look.rss)),
        }
        let speed = self.speeds[0].max(self.speeds[1]);
        let promised = budget.promised();
        let distance = (speed * late_us(look) / 1000) as i64;
        let reached = promised - distance.min(promised / 8 * 7);
        let threshold = budget.held_activation().unwrap_or(budget.activation().min(reached));
        self.threshold = threshold;
        if look.rss >= threshold {
            return Next::Manage;
        }
        // Half of the time in which what is left could be filled.
        let fastest = speed.max(FILLS * look.threads.clamp(2, look.cpus.max(2)) as u64);
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
    /// Resident pages at which memory begins to be managed, as things are.
    pub fn threshold(&self) -> i64 {
        self.threshold
    }

    /// Bytes that the program may be given until the next look, after the step with this one.
    pub fn allow(&mut self, look: Look, budget: &Budget) -> u64 {
        let (left, room) = (self.threshold - look.rss, budget.promised() - self.threshold);
        self.allowance.next(look.given, look.rss, left, room, filled_blindly(look.cpus))
    }
}

/// Pages that can be filled in the longest time without a look.
fn filled_blindly(cpus: usize) -> i64 {
    (FILLS * BLIND_MS * cpus as u64) as i64
}

/// How long it may take until memory is managed.
fn late_us(look: Look) -> u64 {
    let waiting = look.threads.saturating_sub(look.cpus) as u64;
    let turn = (waiting * TURN_US).div_ceil(look.cpus.max(1) as u64);
    (READY_US + TURNS * turn).min(LATE_MAX_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Pages that a program has that fills `speed` pages a millisecond when it is found that it is time.
    fn found_at(budget: u64, speed: u64, threads: usize, cpus: usize) -> i64 {
        let (budget, mut approach) = (Budget::new(budget), Approach::default());
        let start = Instant::now();
        let mut now = start;
        loop {
            let rss = ((now - start).as_micros() as u64 * speed / 1000) as i64;
            match approach.step(Look { rss, given: 0, threads, cpus }, &budget, now) {
                Next::Manage => return rss,
                Next::Wait(time) => now += time,
            }
        }
    }

    #[test]
    fn a_program_with_its_own_cpu_is_left_alone_until_it_is_near() {
        for pages in [16_384u64, 32_768, 262_144, 1 << 22] {
            let budget = Budget::new(pages);
            for speed in [1, 100, 350] {
                let at = found_at(pages, speed, 2, 2);
                let near = budget.activation();
                assert!((near..near + 1000).contains(&at), "{pages} pages, {speed}: {at}, {near}");
            }
        }
    }

    #[test]
    fn more_threads_than_cpus_that_fill_are_found_in_time_to_wait_for_all_their_turns() {
        for (pages, threads, speed) in [(16_384, 9, 600), (32_768, 17, 400), (1 << 18, 17, 2_000)] {
            let at = found_at(pages, speed, threads, 2);
            let room = late_us(Look { rss: 0, given: 0, threads, cpus: 2 }) * speed / 1000;
            let earliest = (pages as i64 - room as i64).max(pages as i64 / 8);
            // The speed is known with the second look, and looks are at most 2 ms apart so early.
            assert!((earliest..earliest + 2 * speed as i64).contains(&at), "{pages} pages, {threads} threads: {at}");
        }
    }

    #[test]
    fn threads_that_do_not_fill_change_nothing() {
        let near = Budget::new(16_384).activation();
        assert!(found_at(16_384, 2, 60, 2) >= near);
        // A large budget has room enough.
        assert!(found_at(1 << 20, 700, 60, 2) >= Budget::new(1 << 20).activation());
    }

    #[test]
    fn a_standstill_is_looked_at_seldom() {
        let (budget, mut approach) = (Budget::new(1 << 20), Approach::default());
        let now = Instant::now();
        let mut next = Next::Manage;
        for i in 0..9 {
            next = approach.step(Look { rss: 1000, given: 100, threads: 40, cpus: 2 }, &budget, now + i * 100 * MS);
        }
        assert_eq!(next, Next::Wait(100 * MS));
        next = approach.step(Look { rss: 1000, given: 1 << 20, threads: 40, cpus: 2 }, &budget, now + 900 * MS);
        assert_eq!(next, Next::Wait(MS), "what was given can be filled without another word");
    }

    #[test]
    fn on_many_cpus_looks_are_as_much_sooner() {
        let first = |threads, cpus| {
            let look = Look { rss: 0, given: 0, threads, cpus };
            match Approach::default().step(look, &Budget::new(1 << 17), Instant::now()) {
                Next::Wait(time) => time,
                Next::Manage => Duration::ZERO,
            }
        };
        assert_eq!(first(1, 16), first(1, 2));
        assert!(first(16, 16) * 7 < first(2, 16) && first(16, 16) > Duration::ZERO);
    }
}
