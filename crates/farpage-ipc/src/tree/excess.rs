//! A tree above its budget in which no process can give any more: many small ones. What cannot be swapped out at all is
//! told by those that have it.
//!
//! Caller: the monitor that has just swept. No locks.

use super::{Member, MemberKind, Segment, own_namespace};
use farpage_base::sys::clock::now_us;
use farpage_base::sys::proc::anonymous_share_of;
use std::sync::atomic::Ordering::Relaxed;

/// More than the budget and this part of it, for so long.
const PART: u64 = 20;
const FOR_US: u64 = 1_000_000;
/// Between two close looks: with the kernel's shares of what forked processes have together.
const AGAIN_US: u64 = 1_000_000;

/// What is to be said of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Processes that have something.
    pub processes: u64,
    /// What they have, pages.
    pub pages: u64,
    /// The process id of the one that has most.
    pub largest: u32,
    most: u64,
    /// What they have when all have given what they can, without what cannot be swapped out.
    least: u64,
}

impl Excess {
    fn of(segment: &Segment, now: u64, used: impl Fn(&Member) -> u64) -> Excess {
        segment.living().filter(|m| m.kind() != MemberKind::Nested).fold(Excess::default(), |mut sum, m| {
            let has = used(m);
            sum.processes += u64::from(has > 0);
            sum.pages = sum.pages.saturating_add(has);
            let least = if m.is_looking(now) { has.min(m.floor.load()) } else { has };
            sum.least = sum.least.saturating_add(least.saturating_sub(m.immovable.load()));
            if has > sum.most {
                (sum.most, sum.largest) = (has, m.pid.load(Relaxed));
            }
            sum
        })
    }

    fn is_over(&self, budget: u64) -> bool {
        self.pages > budget.saturating_add(budget / PART) && self.least > budget
    }
}

/// `Some`: the tree has been above its budget for a while, and will stay there.
pub fn look(segment: &Segment) -> Option<Excess> {
    let (now, budget, since) = (now_us(), segment.budget(), &segment.header.over_since_us);
    if !Excess::of(segment, now, |m| m.used.load()).is_over(budget) {
        since.store(0, Relaxed);
        return None;
    }
    let _ = since.compare_exchange(0, now, Relaxed, Relaxed);
    if now.saturating_sub(since.load(Relaxed)) < FOR_US {
        return None;
    }
    since.store(now + AGAIN_US, Relaxed);
    let namespace = own_namespace();
    let has = |m: &Member| match m.kind() {
        MemberKind::Dormant | MemberKind::Stranger if m.namespace.load(Relaxed) == namespace => {
            anonymous_share_of(m.pid.load(Relaxed)).unwrap_or(m.used.load())
        }
        _ => m.used.load(),
    };
    Some(Excess::of(segment, now, has)).filter(|excess| excess.is_over(budget))
}

#[cfg(test)]
mod tests {
    use super::super::{create, open};
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_tree_is_over_its_budget_when_nothing_more_can_leave() {
        let segment = open(create(4 << 20, None).unwrap().as_fd()).unwrap();
        let members = [(1, 600), (2, 500)].map(|(pid, used)| {
            let member = segment.member_for_test(pid);
            member.used.store(used);
            member.floor.store(used);
            member
        });
        let over = || Excess::of(segment, now_us(), |m| m.used.load());
        assert_eq!((over().processes, over().pages, over().largest, over().is_over(1024)), (2, 1100, 1, true));
        assert!(look(segment).is_none(), "not for a moment");
        segment.header.over_since_us.store(now_us() - FOR_US, Relaxed);
        assert_eq!(look(segment), Some(over()));
        members[0].floor.store(384);
        assert!(!over().is_over(1024), "it will give");
        assert!(look(segment).is_none());
        members[0].set_kind(MemberKind::Dormant);
        assert!(over().is_over(1024), "it cannot");
        members[1].immovable.store(400);
        assert!(!over().is_over(1024), "that is told otherwise");
    }
}
