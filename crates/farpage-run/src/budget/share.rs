//! This process's part of its tree's budget: when it asks for more, and when it gives.
//!
//! What it is promised is what it has claimed ([`farpage_ipc::tree`]), so all that keeps a process within a budget
//! keeps it within its part. The part changes by three rules, which each process applies for itself:
//!
//! 1. *Ask.* A process that comes near to what it is promised claims a step more. If there is not as much, it says what
//!    it wants.
//! 2. *Give.* While more is wanted than there is, the one to which memory is worth least ([`Price`]) steers at a step
//!    less, and gives back as its pages leave. All read the same prices, so all know which that is.
//! 3. *Be honest.* The claim is never less than what the process has.
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
use farpage_base::sys::futex;
use farpage_ipc::tree::{self, Member, MemberKind, Segment, strangers};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The least that a process whose memory can be managed is left with, pages: what its engine (about 1 MiB: heap 0.4,
/// frames and stacks 0.3, page table and the pool's smallest parts 0.2) and a few pages of all that it uses take.
pub(crate) const FLOOR: i64 = 384;
/// Of that, what does not grow with the pages that are out.
const BESIDES: i64 = 256;
/// A step is this part of what a process has...
const STEP_PART: i64 = 8;
/// ... and at least so many pages.
const STEP_MIN: i64 = 64;
/// ... or this part of what is not claimed.
const FREE_PART: i64 = 4;
/// Memory goes to a process to which it is worth more by so many eighths.
const MARGIN_EIGHTHS: u64 = 10;
/// What a page that is needed again costs, ns.
const REFAULT_NS: u64 = 30_000;
/// What a page costs that leaves and comes back, ns.
const ROUND_TRIP_NS: u64 = 105_000;
/// Prices are worked out so often, microseconds.
const PRICE_US: u64 = 20_000;

/// A process that has had no fault for so long is idle, microseconds.
const BUSY_US: u64 = 200_000;

/// A process that is watched keeps so many times what it has: it claimed what it could fill, and then it is seen what
/// it does fill.
const WATCHED_TIMES: i64 = 2;

/// How long a fault waits for memory that another gives, before pages of its own process go...
const GIFT_WAIT_MAX: Duration = Duration::from_millis(2);
/// ... and between two looks.
const GIFT_LOOK_NS: u64 = 100_000;

/// The price of a holder's memory: more than any other's.
const HOLDER_PRICE: u64 = 1 << 50;

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
    /// The price of the one that wants most urgently; `None`: none wants anything.
    highest_want: Option<u64>,
    /// The one to which memory is worth least, of all that can give.
    pub(crate) cheapest: Option<&'a Member>,
}

impl<'a> TreeSnapshot<'a> {
    pub(crate) fn of(mine: &Member, segment: &'a Segment) -> TreeSnapshot<'a> {
        let now = now_us();
        let mut said = TreeSnapshot { giving: 0, wanted: 0, highest_want: None, cheapest: None };
        let mut least = u64::MAX;
        for m in segment.living() {
            if m.is_looking(now) {
                said.giving += m.claim.held().saturating_sub(m.target.load()) as i64;
            }
            let (wants, price) = (m.wants.load(), m.price.load(Relaxed));
            if wants > 0 && !std::ptr::eq(m, mine) && m.is_looking(now) {
                said.wanted = said.wanted.saturating_add(wants);
                said.highest_want = said.highest_want.max(Some(price));
            }
            if (said.cheapest.is_none() || price < least) && can_give(m, now) {
                (said.cheapest, least) = (Some(m), price);
            }
        }
        said
    }
}

fn is_worth_more(price: u64, than: u64) -> bool {
    price.saturating_mul(8) > than.saturating_mul(MARGIN_EIGHTHS)
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
    let first = said.highest_want.is_none_or(|price| !is_worth_more(price, mine.price.load(Relaxed)));
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
        said.cheapest.filter(|other| !std::ptr::eq(*other, mine)).into_iter().for_each(Member::ring);
    }
    got
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

/// What this process wants, another will give to which it is worth less: its own pages can stay. The pager.
pub(crate) fn grant_pending(e: &Engine) -> bool {
    let (Some(segment), Some(mine)) = (tree::segment(), tree::place()) else { return false };
    if mine.wants.load() == 0
        || mine.claim.held() > mine.target.load()
        || now_us() < e.budget.grant_backoff_us.load(Relaxed)
    {
        return false;
    }
    let (said, price) = (TreeSnapshot::of(mine, segment), mine.price.load(Relaxed));
    let gives = |m: &Member| !std::ptr::eq(m, mine) && is_worth_more(price, m.price.load(Relaxed));
    let comes = said.giving > 0 || said.cheapest.is_some_and(gives);
    comes && said.highest_want.is_none_or(|other| other <= price)
}

/// Waits for that, a moment, and asks for it. Whether there is more now.
pub(crate) fn wait_for_grant(e: &Engine) -> bool {
    let (Some(segment), Some(mine)) = (tree::segment(), tree::place()) else { return false };
    let since = Instant::now();
    while grant_pending(e) {
        if since.elapsed() > GIFT_WAIT_MAX {
            e.budget.grant_backoff_us.store(now_us() + PRICE_US, Relaxed);
            return false;
        }
        futex::wait(&e.wakeups.never, 0, Some(GIFT_LOOK_NS));
        if asks(e, segment, mine) {
            return true;
        }
    }
    false
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
    /// All faults so far.
    pub faults: u64,
    /// Memory is managed.
    pub managed: bool,
    /// The most that this process may have, pages.
    pub most: i64,
    /// What its engine keeps of pages that are out, pages.
    pub engine: i64,
}

/// The monitor's part.
#[derive(Debug)]
pub(crate) struct TreeShare {
    pub(crate) segment: &'static Segment,
    pub(crate) mine: &'static Member,
    price: Price,
    /// It has given since its price was worked out.
    gave: bool,
    slices: TimeSlices,
    park: Park,
    /// What is out is to come in.
    pub(crate) unparks: bool,
}

/// What a page less would cost a process, in ns a second: pages that it needs again now, shared out over all that it
/// has; and what it would pay if it needed one again only now, after it has been without any fault for so long. A young
/// process is not idle, so for it that is its age. What it has and does not use costs nothing.
#[derive(Debug)]
struct Price {
    since_us: u64,
    /// Last fault or growth.
    busy_us: u64,
    begun_us: u64,
    last: (u64, u64, i64),
    /// Refaults a second, a mean.
    rate: u64,
}

/// What a page would cost that is needed again only now, after so many microseconds.
fn idle_price(quiet_us: u64) -> u64 {
    ROUND_TRIP_NS * 1_000_000 / quiet_us.max(10_000)
}

impl Price {
    fn new(now: u64) -> Price {
        Price { since_us: now, busy_us: now, begun_us: now, last: (0, 0, 0), rate: 0 }
    }

    /// The price now; `None`: it was worked out a moment ago.
    fn next(&mut self, seen: &TreeLook, surplus: bool, now: u64) -> Option<u64> {
        let us = now.saturating_sub(self.since_us);
        if us < PRICE_US {
            return None;
        }
        let (major, faults, used) = self.last;
        let refaults = seen.major.saturating_sub(major) * 1_000_000 / us;
        self.rate = (3 * self.rate + refaults) / 4;
        // What is managed grows by faults; while pages leave, the pool grows before they are gone.
        let busy = seen.faults != faults || !seen.managed && seen.used > used;
        if busy {
            self.busy_us = now;
        }
        (self.since_us, self.last) = (now, (seen.major, seen.faults, seen.used));
        if surplus {
            return Some(0);
        }
        let quiet = now - if busy { self.begun_us } else { self.busy_us };
        Some(self.rate * REFAULT_NS / seen.used.max(STEP_MIN) as u64 + idle_price(quiet))
    }

    /// Something has happened lately. An idle process needs no room.
    fn is_busy(&self, now: u64) -> bool {
        now.saturating_sub(self.busy_us) < BUSY_US
    }
}

impl TreeShare {
    pub(crate) fn new(segment: &'static Segment, mine: &'static Member) -> TreeShare {
        TreeShare {
            segment,
            mine,
            price: Price::new(now_us()),
            gave: false,
            slices: TimeSlices::default(),
            park: Park::default(),
            unparks: false,
        }
    }

    /// A look: says what there is, asks, and gives. Whether it gives: then it is to look again soon.
    pub(crate) fn look(&mut self, budget: &Budget, seen: TreeLook) -> bool {
        let (mine, now) = (self.mine, now_us());
        let floor = FLOOR.max(seen.engine + BESIDES).max(budget.unmanaged() + budget.stuck() + STEP_MIN);
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
            let parking = self.park.look(mine, budget, seen.major, floor);
            drop(held);
            match parking {
                Parking::Parked => {
                    self.sync_claim(budget, seen.used);
                    mine.wants.store(0);
                    mine.price.store(0, Relaxed);
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
        if let Some(price) = self.price.next(&seen, surplus, now) {
            let all = seen.used.max(0) as u64 + mine.swapped.load();
            let slice = self.slices.look(self.segment, mine, self.price.rate, self.price.busy_us == now, all, now);
            let price = match slice {
                TimeSlice::Free => price,
                TimeSlice::Holds => HOLDER_PRICE,
                TimeSlice::Held => 0,
            };
            mine.price.store(price, Relaxed);
            self.gave = false;
        }
        let missing = 2 * budget.headroom() - budget.room();
        if seen.managed && missing > 0 && self.price.is_busy(now) {
            ask(self.segment, mine, budget, step(budget.promised()).max(missing), seen.most);
        } else if seen.managed {
            mine.wants.store(0);
        }
        self.give(budget, &seen, floor)
    }

    /// More is claimed than there is, and not all have given what they can.
    pub(crate) fn has_donor(&self) -> bool {
        self.segment.claimed() > self.segment.budget() && TreeSnapshot::of(self.mine, self.segment).cheapest.is_some()
    }

    /// The process is idle. How long until the next look: `pause`, but a process has to look after strangers. Others
    /// can wake it ([`Member::ring`]).
    pub(crate) fn rests(&self, pause: Duration) -> Duration {
        if self.mine.price.load(Relaxed) > 0 {
            self.mine.price.store(idle_price(now_us().saturating_sub(self.price.busy_us)), Relaxed);
        }
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

    fn give(&mut self, budget: &Budget, seen: &TreeLook, floor: i64) -> bool {
        let promised = budget.promised();
        let segment = self.segment;
        let price = self.mine.price.load(Relaxed);
        if seen.used > promised + STEP_MIN {
            return true; // what was given last has yet to leave
        }
        let said = TreeSnapshot::of(self.mine, segment);
        // What is already being given is on its way.
        let over = segment.claimed() as i64 - segment.budget() as i64 - said.giving;
        let demand = over + said.wanted.min(segment.budget()) as i64;
        let is_mine = said.cheapest.is_some_and(|m| std::ptr::eq(m, self.mine));
        if demand <= 0 || !is_mine {
            // It may be idle.
            said.cheapest.filter(|_| over > 0).into_iter().for_each(Member::ring);
            return false;
        }
        if over <= 0 && !said.highest_want.is_some_and(|other| is_worth_more(other, price)) {
            return false;
        }
        // What is not used goes at once. What was given last may have been worth more than it seemed: it is found out
        // before more goes.
        let spare = promised - seen.used - budget.headroom();
        let most = if self.gave && price > 0 { 0 } else { step(promised) };
        let less = demand.min(most.max(spare)).min(promised - floor);
        if less <= 0 {
            return false;
        }
        {
            let _held = lock(&budget.share);
            budget.promise(budget.promised() - less);
        }
        self.sync_claim(budget, seen.used);
        self.gave |= less > spare;
        segment.header.gives.fetch_add(1, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests;
