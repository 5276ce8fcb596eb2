//! Time slices: when more processes of a tree are busy than fit, some wait, so that the others get on.
//!
//! No division helps where the sum of what busy processes need is well above the budget: all of them read the same
//! pages again and again. A process that reads more than [`CONTENDS`] pages a second that it had before *contends*,
//! also if most of them come in ahead of their use: those of the others leave for them. One that only grows does not: a
//! client that is given no more would have its server wait. Nor does one that does not fit alone: it would read as much
//! if all others waited. Of the processes that contend, as many *hold* as fit with all that they have, in memory or
//! swapped out, the longest waiting first. The others are held: their faults are answered, but late ([`LATE`]). So a
//! process that has a lock or a pipe that a holder waits for goes on; none is stopped. Meanwhile the pages of held
//! processes count as old as can be, and those of holders as just used ([`super::share`]).
//!
//! A holder that no longer contends, because it ends or waits, makes room at once. Else its slice ends when others have
//! waited for many times what it takes to bring in what it needs, or so long that the last of them would wait for
//! longer than [`HELD_MAX_US`] ([`slice_us`]): each may have a user who waits for an answer.
//!
//! All members read the same numbers and decide alike. Pure but for that; called by the monitor. Idea: the swap token
//! (Jiang and Zhang, 2005), for as many as fit instead of one.

use farpage_ipc::tree::{Member, Segment};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages a second that were here before and are read again: a process that reads more contends. Less is the price of
/// sharing: to wait in turn costs more, because all that a process has goes out and comes back.
const CONTENDS: u64 = 5000;
/// One that is held reads little, because its faults are answered late.
const HELD_CONTENDS: u64 = 20;
/// A process that needs less than this many pages is not held up: shells, drivers.
const NEED_MIN: u64 = 2048;
/// How late the faults of held processes are answered.
pub(crate) const LATE: Duration = Duration::from_millis(5);
/// What it takes to bring in a page, with others, microseconds.
const LOAD_US: u64 = 8;
/// A slice is so many times what it takes to bring in what a holder needs.
const SLICE: u64 = 20;
/// Until a process holds again, others hold for so long at most, microseconds...
const HELD_MAX_US: u64 = 2_000_000;
/// ... unless slices would be shorter than this: then memory would only move. Microseconds.
const SLICE_MIN_US: u64 = 100_000;
/// It is decided so often, microseconds.
const EVERY_US: u64 = 20_000;
/// A process that contended goes on to do so for a while, microseconds: one that is held reads little.
const STAYS_US: u64 = 100_000;

/// What becomes of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TimeSlice {
    /// No other is held on its account.
    #[default]
    Free,
    /// Others wait for it.
    Holds,
    /// It waits for others.
    Held,
}

/// Of one process.
#[derive(Debug, Default)]
pub(crate) struct TimeSlices {
    contended_us: u64,
    /// Since when others wait for it.
    holds_since: Option<u64>,
    /// What was decided last, and when; pages that had come in from a device by then.
    slice: TimeSlice,
    decided_us: u64,
    refaults: u64,
    /// Such pages a second, a mean.
    rate: u64,
}

/// How long a slice is for a process that needs so many pages, with so many slices of others before its next one,
/// microseconds.
fn slice_us(need: u64, others: u64) -> u64 {
    (SLICE * LOAD_US * need).min(HELD_MAX_US / others.max(1)).max(SLICE_MIN_US)
}

impl TimeSlices {
    /// A look: pages that came in from a device so far, when the process was last busy, and all pages that it has, in
    /// memory or out.
    pub(crate) fn look(
        &mut self,
        segment: &Segment,
        mine: &Member,
        refaults: u64,
        busy_us: u64,
        all: u64,
        now: u64,
    ) -> TimeSlice {
        let us = now.saturating_sub(self.decided_us);
        if us >= EVERY_US {
            let rate = refaults.saturating_sub(self.refaults) * 1_000_000 / us;
            self.rate = (3 * self.rate + rate) / 4;
            let busy = busy_us > self.decided_us;
            (self.decided_us, self.refaults) = (now, refaults);
            self.slice = self.decide(segment, mine, self.rate, busy, all, now);
        }
        self.slice
    }

    /// `refaults` a second; busy since the last decision or not.
    fn decide(&mut self, segment: &Segment, mine: &Member, refaults: u64, busy: bool, all: u64, now: u64) -> TimeSlice {
        let least = if mine.held.load(Relaxed) != 0 { HELD_CONTENDS } else { CONTENDS };
        if busy && refaults > least {
            self.contended_us = now;
        }
        let contends = all > NEED_MIN && now.saturating_sub(self.contended_us) < STAYS_US && self.contended_us > 0;
        if contends && mine.need.load() == 0 {
            mine.turn_us.store(now, Relaxed); // behind those that wait already
        }
        mine.need.store(if contends { all } else { 0 });
        let (slice, others) = if contends { slice_of(segment, mine, now) } else { (TimeSlice::Free, 0) };
        mine.held.store(u32::from(slice == TimeSlice::Held), Relaxed);
        match slice {
            TimeSlice::Holds => {
                let since = *self.holds_since.get_or_insert(now);
                if now.saturating_sub(since) > slice_us(all, others) {
                    mine.turn_us.store(now, Relaxed);
                    self.holds_since = None;
                }
            }
            TimeSlice::Free | TimeSlice::Held => self.holds_since = None,
        }
        slice
    }
}

/// A process that is stopped needs nothing.
fn need_of(member: &Member, now: u64) -> u64 {
    if member.is_looking(now) { member.need.load() } else { 0 }
}

/// What becomes of a member, and how many slices of others there are before its next one.
fn slice_of(segment: &Segment, mine: &Member, now: u64) -> (TimeSlice, u64) {
    let key = |m: &Member| (m.turn_us.load(Relaxed), m.pid.load(Relaxed));
    let (budget, me) = (segment.budget(), key(mine));
    let contends = |m: &&Member| need_of(m, now) > 0;
    let others: u64 = segment.living().filter(|m| !contends(m)).map(|m| m.used.load().min(budget)).sum();
    let room = budget.saturating_sub(others);
    if mine.need.load() > room {
        return (TimeSlice::Free, 0); // alone it would read as much
    }
    let (mut before, mut all, mut count) = (0, 0, 0);
    for m in segment.living().filter(contends) {
        let need = need_of(m, now);
        if need <= room {
            all += need;
            count += 1;
            before += if key(m) < me { need } else { 0 };
        }
    }
    let slice = match (all > room, before + mine.need.load() <= room) {
        (false, _) => TimeSlice::Free,
        (true, true) => TimeSlice::Holds,
        (true, false) => TimeSlice::Held,
    };
    let at_once = (room * count / all.max(1)).clamp(1, count.max(1));
    (slice, count.saturating_sub(at_once).div_ceil(at_once))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::tree;
    use rustix::fd::AsFd;

    const MS: u64 = 1000;

    struct Process {
        slices: TimeSlices,
        mine: &'static Member,
    }

    fn tree_of(pages: u64, processes: u32) -> (&'static Segment, Vec<Process>) {
        let segment = tree::open(tree::create(pages * 4096, None).unwrap().as_fd()).unwrap();
        let new = |pid| {
            let mine = segment.member_for_test(pid);
            mine.since_us.store(u64::from(pid), Relaxed);
            Process { slices: TimeSlices::default(), mine }
        };
        (segment, (1..=processes).map(new).collect())
    }

    fn looks(segment: &Segment, all: &mut [Process], refaults: u64, need: u64, now: u64) -> Vec<TimeSlice> {
        // Twice: what others say at this look is known at the next.
        for p in all.iter_mut() {
            p.slices.decide(segment, p.mine, refaults, true, need, now);
        }
        all.iter_mut().map(|p| p.slices.decide(segment, p.mine, refaults, true, need, now)).collect()
    }

    #[test]
    fn as_many_hold_as_fit_the_oldest_first() {
        let (segment, mut all) = tree_of(20_000, 4);
        let slices = looks(segment, &mut all, 10_000, 8_000, 1_000 * MS);
        assert_eq!(slices, [TimeSlice::Holds, TimeSlice::Holds, TimeSlice::Held, TimeSlice::Held]);
        let slices = looks(segment, &mut all, 10_000, 15_000, 1_000 * MS);
        assert_eq!(slices, [TimeSlice::Holds, TimeSlice::Held, TimeSlice::Held, TimeSlice::Held]);
        let slices = looks(segment, &mut all, 10_000, 30_000, 1_000 * MS);
        assert_eq!(slices, [TimeSlice::Free; 4], "alone each of them would read as much");
    }

    #[test]
    fn where_all_fit_or_nobody_reads_again_nobody_is_held() {
        let (segment, mut all) = tree_of(20_000, 4);
        assert_eq!(looks(segment, &mut all, 10_000, 4_000, 1_000 * MS), [TimeSlice::Free; 4]);
        assert_eq!(looks(segment, &mut all, 1_000, 30_000, 2_000 * MS), [TimeSlice::Free; 4]);
        let (segment, mut one) = tree_of(20_000, 1);
        assert_eq!(looks(segment, &mut one, 9_000, 90_000, 1_000 * MS), [TimeSlice::Free], "alone");
    }

    #[test]
    fn one_that_only_grows_holds_up_none() {
        let (segment, mut all) = tree_of(20_000, 2);
        all[1].mine.wants.store(1_000);
        for now in [1_000 * MS, 1_020 * MS, 1_040 * MS] {
            let [server, client] = &mut all[..] else { panic!() };
            let of_server = server.slices.decide(segment, server.mine, 10_000, true, 18_000, now);
            let of_client = client.slices.decide(segment, client.mine, 100, true, 4_000, now);
            assert_eq!((of_server, of_client), (TimeSlice::Free, TimeSlice::Free));
        }
    }

    /// The longest time without a slice of a process that contends, microseconds; `contends`: whether the process with
    /// this index does so at this time.
    fn longest_wait(pages: u64, processes: u32, need: u64, contends: impl Fn(usize, u64) -> bool) -> u64 {
        let (segment, mut all) = tree_of(pages, processes);
        let (mut since, mut longest) = (vec![None; processes as usize], 0);
        for now in (1_000 * MS..31_000 * MS).step_by(20_000) {
            for (i, p) in all.iter_mut().enumerate() {
                let busy = contends(i, now);
                let slice = p.slices.decide(segment, p.mine, if busy { 10_000 } else { 0 }, busy, need, now);
                since[i] = if slice == TimeSlice::Held { since[i].or(Some(now)) } else { None };
                longest = longest.max(now - since[i].unwrap_or(now));
            }
        }
        longest
    }

    #[test]
    fn nobody_waits_longer_than_is_promised() {
        // What looks add: a slice ends, and the next one begins, at one.
        let most = |processes: u32| HELD_MAX_US + u64::from(processes) * 40 * MS;
        for (pages, processes, need) in
            [(20_000, 2, 15_000), (20_000, 4, 15_000), (20_000, 4, 200_000), (50_000, 8, 15_000), (20_000, 16, 3_000)]
        {
            let longest = longest_wait(pages, processes, need, |_, _| true);
            assert!(longest <= most(processes), "{processes} of {need} in {pages} pages: {longest} us");
            // The first ones answer, wait for the next question, and do not come before those that wait.
            let asked = |i, now| i > 1 || now % (900 * MS) < 500 * MS;
            let longest = longest_wait(pages, processes, need, asked);
            assert!(longest <= most(processes), "{processes} of {need} in {pages} pages, asked: {longest} us");
        }
    }

    #[test]
    fn a_turn_ends_and_the_next_ones_is_there() {
        let (segment, mut all) = tree_of(20_000, 2);
        let mut now = 1_000 * MS;
        let first = looks(segment, &mut all, 10_000, 15_000, now);
        assert_eq!(first, [TimeSlice::Holds, TimeSlice::Held]);
        let end = now + slice_us(15_000, 1);
        while now < end + 100 * MS {
            now += 20 * MS;
            looks(segment, &mut all, 10_000, 15_000, now);
        }
        assert_eq!(looks(segment, &mut all, 10_000, 15_000, now), [TimeSlice::Held, TimeSlice::Holds]);
        // The holder ends: the other one goes on.
        all[1].mine.claim.leave();
        let mine = all[0].mine;
        let rest = all[0].slices.decide(segment, mine, 0, true, 15_000, now);
        assert_eq!(rest, TimeSlice::Free);
    }
}
