//! This process's part of its tree's budget: when it asks for more, and when it gives.
//!
//! What it is promised is what it has claimed ([`farpage_ipc::tree`]), so all that keeps a process within a budget
//! keeps it within its part. The part changes by three rules, which each process applies for itself:
//!
//! 1. *Ask.* A process that comes near to what it is promised claims a step more. If there is not as much, it says what
//!    it wants.
//! 2. *Give.* While more is wanted than there is, the member with the oldest pages steers at a step less (a smaller one
//!    where another's are nearly as old), and gives back as they leave. The *age* of a member is that of the page that
//!    it would give next: how many pages have left the memory of any member since that page was last in use, roughly.
//!    So pages leave in about the order that one list of all pages of the tree would have, and what a sleeping process
//!    has goes before what a busy one uses. All read the same ages, so all know which member gives.
//! 3. *Claim what it has.* The claim is never less than that; nor is what is promised, up to the floor.
//!
//! Where no division helps, there are [time slices](super::time_slices). A budget that is made smaller is more wanted
//! than there is. A member that is stopped does not look, and is not asked.
//!
//! A process without an engine claims all that it could fill, as long as that is little
//! ([`crate::dormant::unwatched`]).
//!
//! Callers: the monitor at each look; the pager before it begins to reclaim ([`ask`]); program threads of processes
//! without an engine. Lock: [`Budget::share`], for a few instructions, inside of all others.

use crate::budget::park::{self, Park, Parking};
use crate::budget::time_slices::{TimeSlice, TimeSlices};
use crate::shared::budget::Budget;
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::sys::clock::now_us;
use farpage_ipc::tree::{self, Member, MemberKind, Segment, strangers};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The least that a process whose memory can be managed is left with, pages: what its engine keeps at rest (0.4 MiB:
/// heap 0.25, stacks and page table 0.1, the library's data 0.07), what of the program cannot be managed (0.1), and a
/// few pages of all that it uses.
pub(crate) const FLOOR: i64 = 144;
/// Of that, what does not grow with the pages that are out: stacks and the library's data (36 pages), what cannot be
/// managed (24), pages that stay in the program (16), and some to exchange pages in. Buffers that a process at rest
/// does not keep, 40 pages, count as its heap.
const BESIDES: i64 = 64;
/// A step is this part of what a process has...
const STEP_PART: i64 = 8;
/// ... and at least so many pages.
const STEP_MIN: i64 = 64;
/// ... or this part of what is not claimed.
const FREE_PART: i64 = 4;
/// A member gives what it uses a step at a time, so often: by then its age says what it has left. Microseconds.
const STEP_US: u64 = 20_000;

/// A process that has had no fault for so long is idle, microseconds.
const BUSY_US: u64 = 200_000;

/// A process that is watched keeps so many times what it has: it claimed what it could fill, and then it is seen what
/// it does fill.
const WATCHED_TIMES: i64 = 2;

/// What a process is left with whose engine needs so many pages when all others are out.
pub(crate) fn floor(engine: i64) -> i64 {
    FLOOR.max(engine + BESIDES)
}

fn step(pages: i64) -> i64 {
    (pages / STEP_PART).max(STEP_MIN)
}

/// Whether it has something to give, beside what it is giving: what was given last is to leave first.
fn can_give(member: &Member, now: u64) -> bool {
    let target = member.target.load();
    let gives = member.claim.held() > target + STEP_MIN as u64;
    member.is_looking(now) && !gives && target > member.floor.load()
}

/// What the members of a tree say, in one pass over them. Pages.
pub(crate) struct TreeSnapshot<'a> {
    /// What is being given: targets that claims have yet to follow.
    giving: i64,
    /// What the others want.
    wanted: u64,
    /// The least age of a member that wants something; `None`: none does.
    youngest_want: Option<u64>,
    /// The member of the greatest age that can give, and that age.
    pub(crate) oldest: Option<(&'a Member, u64)>,
}

impl<'a> TreeSnapshot<'a> {
    pub(crate) fn of(mine: &Member, segment: &'a Segment) -> TreeSnapshot<'a> {
        let now = now_us();
        let mut said = TreeSnapshot { giving: 0, wanted: 0, youngest_want: None, oldest: None };
        for m in segment.living() {
            if m.is_looking(now) {
                // What it has below its floor stays, however little it was promised.
                said.giving += m.claim.held().saturating_sub(m.target.load().max(m.floor.load())) as i64;
            }
            let (wants, age) = (m.wants.load(), segment.age_of(m));
            if wants > 0 && !std::ptr::eq(m, mine) && m.is_looking(now) {
                said.wanted = said.wanted.saturating_add(wants);
                said.youngest_want = Some(said.youngest_want.map_or(age, |other| other.min(age)));
            }
            if said.oldest.is_none_or(|(_, other)| age > other) && can_give(m, now) {
                said.oldest = Some((m, age));
            }
        }
        said
    }
}

/// Asks for `want` pages more, at most up to `most` in all; how many there are more. The monitor, the pager.
pub(crate) fn ask(segment: &Segment, mine: &Member, budget: &Budget, want: i64, most: i64) -> i64 {
    // Where much is free, few steps: a process that claims more than it uses gives that back as soon as another wants
    // it.
    let want = want.max(segment.free() as i64 / FREE_PART).min(most - budget.promised());
    if want <= 0 || park::is_parked(mine) {
        return 0;
    }
    let said = TreeSnapshot::of(mine, segment);
    let first = said.youngest_want.is_none_or(|other| segment.age_of(mine) <= other);
    let held = lock(&budget.share);
    let got = if first { segment.grow(mine, want as u64) as i64 } else { 0 };
    if got > 0 {
        budget.promise(budget.promised() + got);
        mine.target.store(budget.promised().max(0) as u64);
    }
    drop(held);
    mine.wants.store((want - got) as u64);
    if got < want {
        segment.header.refused.fetch_add(1, Relaxed);
        said.oldest.filter(|(other, _)| !std::ptr::eq(*other, mine)).into_iter().for_each(|(other, _)| other.nudge());
    }
    got
}

/// This process pays for so many of the pages that it shares with others, from now on (negative: no more): what it is
/// promised follows. The monitor.
pub(crate) fn follow_payment(mine: &Member, budget: &Budget, pages: i64) {
    if pages != 0 && !park::is_parked(mine) {
        let _held = lock(&budget.share);
        budget.promise((budget.promised() + pages).max(FLOOR));
    }
}

/// Before reclaim: asks for a step of the tree's memory; whether there was some. Not again before the monitor's
/// next look, if there was not. The pager.
pub(crate) fn asks_for_more(e: &Engine) -> bool {
    let (Some(segment), Some(mine)) = (tree::segment(), tree::place()) else { return false };
    mine.wants.load() == 0 && asks(e, segment, mine)
}

fn asks(e: &Engine, segment: &Segment, mine: &Member) -> bool {
    ask(segment, mine, &e.budget, step(e.budget.promised()), e.most_pages()) > 0
}

/// Whether this process waits for others ([`super::time_slices`]).
pub(crate) fn is_held() -> bool {
    tree::place().is_some_and(|mine| mine.held.load(Relaxed) != 0)
}

/// What the monitor has seen at a look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeLook {
    /// Pages that the process pays for.
    pub used: i64,
    /// Faults that read a device so far.
    pub major: u64,
    /// Pages that came in from a device so far, also ahead of their use.
    pub read: u64,
    /// When the page that it would give next was last seen in use ([`TreeShare::depart`]; it goes around).
    pub next_seen: u32,
    /// All faults so far.
    pub faults: u64,
    /// Memory is managed.
    pub managed: bool,
    /// The most that this process may have, pages.
    pub most: i64,
    /// What its engine needs when all that can be out is, pages.
    pub engine: i64,
}

/// The monitor's part.
#[derive(Debug)]
pub(crate) struct TreeShare {
    pub(crate) segment: &'static Segment,
    pub(crate) mine: &'static Member,
    /// As of the last look: faults, pages, and pages that had left.
    faults: u64,
    used: i64,
    departed: u64,
    /// The tree's clock then, and when the process was last seen to be busy.
    clock: u64,
    busy_at: u64,
    /// The last fault or growth.
    busy_us: u64,
    /// When it gave something that it uses.
    gave_us: u64,
    slices: TimeSlices,
    park: Park,
    /// What is out is to come in.
    pub(crate) unparks: bool,
}

impl TreeShare {
    pub(crate) fn new(segment: &'static Segment, mine: &'static Member) -> TreeShare {
        TreeShare {
            segment,
            mine,
            faults: 0,
            used: 0,
            departed: 0,
            clock: segment.departed(0),
            busy_at: segment.departed(0),
            busy_us: now_us(),
            gave_us: 0,
            slices: TimeSlices::default(),
            park: Park::default(),
            unparks: false,
        }
    }

    /// So many pages have left the memory of this process so far. The clock of the tree: what has left any of its
    /// processes.
    pub(crate) fn depart(&mut self, pages: u64) -> u64 {
        let before = std::mem::replace(&mut self.departed, pages);
        self.clock = self.segment.departed(pages.saturating_sub(before));
        self.clock
    }

    /// When the process was last seen to be busy, by that clock.
    pub(crate) fn busy_at(&self) -> u64 {
        self.busy_at
    }

    /// When the page that goes next was last seen in use, by that clock.
    fn seen(&mut self, look: &TreeLook, surplus: bool, now: u64) -> u64 {
        // What is managed grows by faults; while pages leave, the pool grows before they are gone.
        if look.faults != self.faults || !look.managed && look.used > self.used {
            (self.busy_at, self.busy_us) = (self.clock, now);
        }
        (self.faults, self.used) = (look.faults, look.used);
        match (surplus, look.managed) {
            (true, _) => 0, // what is not used at all
            (false, true) => self.clock.saturating_sub(u64::from((self.clock as u32).wrapping_sub(look.next_seen))),
            (false, false) => self.busy_at,
        }
    }

    /// A look: says what there is, asks, and gives. Whether it gives: then it is to look again soon.
    pub(crate) fn look(&mut self, budget: &Budget, seen: TreeLook) -> bool {
        let (mine, now) = (self.mine, now_us());
        let floor = floor(seen.engine).max(seen.engine + budget.unmanaged() + budget.stuck() + STEP_MIN);
        mine.used.store(seen.used.max(0) as u64);
        budget.whole_is(seen.most);
        self.segment.header.largest.note(mine.pid.load(Relaxed), seen.used.max(0) as u64);
        mine.floor.store(floor as u64);
        mine.looked_us.store(now, Relaxed);
        // Unless it is about to become another program.
        if !matches!(mine.kind(), MemberKind::Leaving | MemberKind::Stranger) {
            mine.set_kind(if seen.managed { MemberKind::Managed } else { MemberKind::Watched });
        }
        if seen.managed {
            let held = lock(&budget.share);
            // It is promised what it has, up to its floor, which may have turned out to be higher: that cannot leave.
            budget.promise(budget.promised().max(floor.min(seen.used).min(seen.most)));
            let parking = self.park.look(mine, budget, seen.major, floor);
            drop(held);
            match parking {
                Parking::Parked => {
                    self.sync_claim(budget, seen.used);
                    mine.wants.store(0);
                    mine.seen.store(0, Relaxed);
                    return seen.used > budget.promised() + STEP_MIN;
                }
                Parking::Back => self.unparks = true,
                Parking::None => {}
            }
        }
        self.sync_claim(budget, seen.used);
        if !seen.managed {
            let enough = WATCHED_TIMES * seen.used.max(2 * FLOOR);
            let _held = lock(&budget.share);
            budget.promise(budget.promised().min(enough));
        }
        let unused = budget.promised() - seen.used;
        let surplus = unused > 2 * budget.headroom() + step(budget.promised());
        let next_seen = self.seen(&seen, surplus, now);
        let all = seen.used.max(0) as u64 + mine.swapped.load();
        let next_seen = match self.slices.look(self.segment, mine, seen.read, self.busy_us, all, now) {
            TimeSlice::Free => next_seen,
            TimeSlice::Holds => self.clock,
            TimeSlice::Held => 0,
        };
        mine.seen.store(next_seen, Relaxed);
        let missing = 2 * budget.headroom() - budget.room();
        if seen.managed && missing > 0 && now.saturating_sub(self.busy_us) < BUSY_US {
            ask(self.segment, mine, budget, step(budget.promised()).max(missing), seen.most);
        } else if seen.managed {
            mine.wants.store(0);
        }
        self.give(budget, &seen, floor, now)
    }

    /// More is claimed than there is, and not all have given what they can.
    pub(crate) fn has_donor(&self) -> bool {
        self.segment.claimed() > self.segment.budget() && TreeSnapshot::of(self.mine, self.segment).oldest.is_some()
    }

    /// The process is idle. How long until the next look: `pause`, but a process has to look after strangers. Others
    /// can wake it ([`Member::ring`]).
    pub(crate) fn rests(&self, pause: Duration) -> Duration {
        let pause = if strangers::are_left_to(self.segment, self.mine) { strangers::LOOK } else { pause };
        self.mine.looked_us.store(now_us() + pause.as_micros() as u64, Relaxed);
        pause
    }

    /// Memory is not managed, and would have to be now: asks for as much as puts that off. Whether there is some.
    pub(crate) fn defer_activation(&self, budget: &Budget, most: i64) -> bool {
        // No process is to swap for it.
        let want = (budget.promised() / 2).max(FLOOR).min(self.segment.free() as i64);
        want > 0 && ask(self.segment, self.mine, budget, want, most) > 0
    }

    /// The claim is what was promised, or what the process has, if that is more.
    fn sync_claim(&self, budget: &Budget, used: i64) {
        let _held = lock(&budget.share);
        let (claim, should) = (self.mine.claim.held() as i64, budget.promised().max(used));
        match should - claim {
            more if more > 0 => self.mine.claim.add(more as u64),
            less => self.mine.claim.sub((-less) as u64),
        }
        budget.claimed_is(should);
        self.mine.target.store(budget.promised().max(0) as u64);
    }

    fn give(&mut self, budget: &Budget, seen: &TreeLook, floor: i64, now: u64) -> bool {
        let promised = budget.promised();
        let segment = self.segment;
        let age = segment.age_of(self.mine);
        if seen.used > promised + STEP_MIN {
            return true; // what was given last has yet to leave
        }
        let said = TreeSnapshot::of(self.mine, segment);
        // What is already being given is on its way.
        // (In the sum, a claim counts four times the budget at most. Without a budget, claims were larger than any.)
        let claimed = segment.claimed().max(self.mine.claim.held());
        let over = claimed as i64 - segment.budget() as i64 - said.giving;
        let demand = over + said.wanted.min(segment.budget()) as i64;
        let is_mine = said.oldest.is_some_and(|(m, _)| std::ptr::eq(m, self.mine));
        if demand <= 0 || !is_mine {
            // It may be idle.
            said.oldest.filter(|_| over > 0).into_iter().for_each(|(m, _)| m.nudge());
            return false;
        }
        let older = age.saturating_sub(said.youngest_want.unwrap_or(age));
        if over <= 0 && older == 0 {
            return false;
        }
        // What is not used goes at once. What was given last may have been worth more than it seemed: it is found out
        // before more goes.
        let spare = promised - seen.used - budget.headroom();
        let most = match step(promised) {
            _ if now.saturating_sub(self.gave_us) < STEP_US => 0,
            step if over > 0 => step,
            step => ((step as u128 * u128::from(older) / u128::from(age)) as i64).max(STEP_MIN),
        };
        let less = demand.min(most.max(spare)).min(promised - floor);
        if less <= 0 {
            return false;
        }
        {
            let _held = lock(&budget.share);
            budget.promise(budget.promised() - less);
        }
        self.sync_claim(budget, seen.used);
        if less > spare {
            self.gave_us = now;
        }
        segment.header.gives.fetch_add(1, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests;
