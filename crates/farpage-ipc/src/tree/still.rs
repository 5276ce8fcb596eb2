//! Processes without an engine that have been still count with what they have, not with all that they could fill:
//! else many that sleep would claim the whole budget, and others swap beside memory that is free.
//!
//! Where little is left, the process that looks reads what some of them have at each look, one after the other. One
//! that has claimed nothing since the look before and has as much as then claims that much from now on, and a step. It
//! claims all of it again by itself when it is given more, and by such a look when it fills what it was given before.
//! So as long as any claims less than it could fill, a process has to look.
//!
//! Whether another process may do without an engine is decided by what all could fill ([`Segment::hidden`]).
//!
//! Caller: the sweep. No locks: a claim that its owner changes meanwhile stays what it is.

use super::{Member, MemberKind, Segment};
use farpage_base::sys::proc::pages_of;
use farpage_swap::claims::pages_in;
use std::sync::atomic::Ordering::Relaxed;

/// So many are read at a look: a few microseconds each.
const PER_LOOK: usize = 32;
/// What one that is still claims beside what it has, pages, and this part of that.
const STEP: u64 = 4;
const STEP_PART: u64 = 8;

impl Segment {
    /// What processes without an engine could fill and do not claim.
    pub fn hidden(&self) -> u64 {
        self.living().fold(0, |sum, member| sum.saturating_add(member.hides()))
    }

    /// Whether they could fill, together with what all claim, more than three quarters of the budget.
    fn could_be_full(&self) -> bool {
        self.claimed().saturating_add(self.hidden()) > self.budget() / 4 * 3
    }

    /// Whether some claim less than they could fill, and there may be no room for that.
    pub(super) fn may_be_surprised(&self) -> bool {
        self.living().any(|member| member.hides() > 0) && self.could_be_full()
    }
}

impl Member {
    /// What it could fill, or claims: without an engine.
    pub fn could_fill(&self) -> u64 {
        match self.kind() {
            MemberKind::Dormant => self.claim.held().max(self.reach.load()),
            _ => 0,
        }
    }

    /// What it could fill and does not claim.
    pub fn hides(&self) -> u64 {
        self.could_fill().saturating_sub(self.claim.held())
    }
}

/// Looks at the next ones of those in this pid namespace.
pub(super) fn look_at_some(segment: &Segment, namespace: u64, now_us: u64) {
    if !segment.could_be_full() || !segment.living().any(|member| member.is_looking(now_us)) {
        return;
    }
    let (places, next) = (segment.places_taken(), &segment.header.next_still);
    let from = next.load(Relaxed) as usize % places.len().max(1);
    let mut left = PER_LOOK;
    for place in (from..places.len()).chain(0..from) {
        let member = &places[place];
        let is_one = member.kind() == MemberKind::Dormant && member.namespace.load(Relaxed) == namespace;
        if is_one && member.claim.is_live() {
            if left == 0 {
                return next.store(place as u32, Relaxed);
            }
            left -= 1;
            look_at(member);
        }
    }
}

fn look_at(member: &Member) {
    let word = member.claim.word();
    // What cannot be read now claims what it did.
    let Some(has) = pages_of(member.pid.load(Relaxed)) else { return };
    let (before, seen) = (member.used.swap(has), member.claim_word.swap(word, Relaxed));
    let (claimed, could) = (pages_in(word), member.reach.load().max(has));
    let to = if seen == word && has.abs_diff(before) <= STEP / 2 {
        could.min(has + has / STEP_PART + STEP)
    } else if has > before {
        // It claims all of that by itself when it is given more.
        could.min(2 * has + STEP)
    } else {
        claimed
    };
    let Some(new) = member.claim.set_if(word, to).filter(|_| to != claimed) else { return };
    member.claim_word.store(new, Relaxed);
    // It has begun a tree of its own meanwhile, which has all that it claimed.
    if member.kind() == MemberKind::Nested && to < claimed {
        member.claim.add(claimed - to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{create, open, own_namespace};
    use super::*;
    use farpage_base::sys::clock::now_us;
    use rustix::fd::AsFd;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn what_sleeps_claims_what_it_has_until_it_moves() {
        let segment = open(create(64 << 20, None).unwrap().as_fd()).unwrap();
        // It ends with this test.
        let mut child = Command::new("sh");
        child.args(["-c", "echo; read word"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let namespace = own_namespace();
        let member = &segment.members[segment.take(child.id(), child.id(), namespace, MemberKind::Dormant).unwrap()];
        let claim = |pages| {
            member.reach.store(pages);
            member.claim.set(pages);
        };
        let look = || look_at_some(segment, namespace, now_us());
        claim(10_000);
        (0..3).for_each(|_| look());
        assert_eq!(member.claim.held(), 10_000, "no process would look any more");
        let other = segment.member_for_test(1);
        (0..3).for_each(|_| look());
        assert_eq!(member.claim.held(), 10_000, "there is room");
        other.claim.set(10_000);
        let of_still = || {
            let has = member.used.load();
            has + has / STEP_PART + STEP
        };
        while member.claim.held() != of_still() {
            look();
        }
        assert_eq!(segment.hidden(), 10_000 - member.claim.held());
        assert!(segment.may_be_surprised() && segment.dormant() == 10_000);
        // It claims by itself: stays so for a look.
        claim(9_000);
        look();
        assert_eq!(member.claim.held(), 9_000);
        while member.claim.held() != of_still() {
            look();
        }
        // It fills some of what it could.
        member.used.store(0);
        look();
        assert_eq!(member.claim.held(), 2 * member.used.load() + STEP);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
