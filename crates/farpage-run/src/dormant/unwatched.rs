//! What a process without an engine has of its tree's budget: it claims all that it could fill, by itself ([`hold`]) or
//! by copying what it shares with its parent ([`forked`]), as long as that is little.
//!
//! Callers: program threads; forked children. No locks.

use crate::budget::share::TreeSnapshot;
use farpage_ipc::tree::{self, Member, MemberKind, Segment, strangers};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a process may always claim, however full the tree is: an engine would not be worth it.
pub(crate) const SMALL: u64 = 512;
/// And up to this part of the budget as long as all processes without an engine claim less than half of it.
const SMALL_PART: u64 = 10;

/// The pages that the parent had when this process was forked: its children share them until one writes.
static FORKED_WITH: AtomicU64 = AtomicU64::new(0);

/// In a forked child without an engine: takes a place of its own. What its parent could fill it can, too, and what its
/// parent has it can copy without a word: `reach` pages, where its parent does not say so itself. As [`hold`].
pub(crate) fn forked(reach: Option<u64>) -> bool {
    let of_parent = || tree::place().map_or(0, |parent| parent.reach.load()).max(forked_with());
    let pages = reach.unwrap_or_else(of_parent);
    FORKED_WITH.store(pages, Relaxed);
    tree::joining::fork_child();
    hold(pages)
}

/// The pages of the parent that this process, a forked child, began with.
pub(crate) fn forked_with() -> u64 {
    FORKED_WITH.load(Relaxed)
}

/// A process without an engine could fill so many pages: claims them. False: there is not as much, or so much that
/// others may want some of it back; a monitor is to watch it. So it is where the tree has no place for it.
pub(crate) fn hold(pages: u64) -> bool {
    let Some(segment) = tree::segment() else { return true };
    let Some(mine) = tree::mine() else { return false };
    hold_in(segment, mine, pages, forked_with())
}

fn hold_in(segment: &Segment, mine: &Member, pages: u64, forked_with: u64) -> bool {
    if mine.kind() == MemberKind::Nested {
        return true; // the launcher of another tree, which claims for that
    }
    let now = mine.claim.held();
    mine.reach.store(pages);
    if pages <= now {
        mine.claim.at_most(pages);
        return true;
    }
    let want = pages - now;
    if is_small(segment, pages, mine.could_fill()) {
        mine.claim.add(want);
        if segment.needs_a_watch() {
            return false;
        }
        if pages > SMALL && segment.claimed() > segment.budget() {
            // All that could make room may be idle.
            TreeSnapshot::of(mine, segment).oldest.into_iter().for_each(|(m, _)| m.ring());
        }
        return true;
    }
    // A quarter of the budget is for those that can give. A forked child has brothers, with which it is to share: what
    // it has without an engine no other gets. Those that ended without a word have nothing any more.
    let is_full = || match forked_with {
        0 => free(segment, mine) < segment.budget() / 4 + want,
        _ => is_full_for_child(segment, mine, pages),
    };
    let is_refused = is_full() && (strangers::sweep(segment).is_none() || is_full());
    let got = if is_refused { 0 } else { segment.grow(mine, want) };
    if got < want {
        mine.claim.sub(got);
        // It is watched from now on: others need not keep room for what it could fill.
        mine.reach.store(now);
    }
    got == want
}

fn is_full_for_child(segment: &Segment, mine: &Member, pages: u64) -> bool {
    free(segment, mine) < segment.budget() / 2 + pages
}

/// What is free also when all others without an engine have filled what they could.
fn free(segment: &Segment, mine: &Member) -> u64 {
    segment.free().saturating_sub(segment.hidden().saturating_sub(mine.hides()))
}

/// Whether this process has so much that there is no room for a child which could copy all of it: one that is forked
/// gets an engine, and what it has then only this process can give.
pub(crate) fn leaves_no_room_for_a_child() -> bool {
    let (Some(segment), Some(mine)) = (tree::segment(), tree::mine()) else { return false };
    let pages = mine.reach.load().max(forked_with());
    let is_large = pages > SMALL.max(segment.budget() / SMALL_PART);
    is_large && mine.kind() == MemberKind::Dormant && is_full_for_child(segment, mine, pages)
}

/// Whether others make room for a process without an engine that could fill `pages`, of which so many were known
/// `before`: an engine would not be worth it, and some programs must have one thread.
fn is_small(segment: &Segment, pages: u64, before: u64) -> bool {
    let budget = segment.budget();
    let all = || segment.dormant().saturating_sub(before).saturating_add(pages);
    pages <= SMALL || pages <= budget / SMALL_PART && all() <= budget / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn small_processes_are_left_alone_until_they_have_half_of_all() {
        let segment = tree::open(tree::create(50_000 * 4096, None).unwrap().as_fd()).unwrap();
        assert!(is_small(segment, 5_000, 0) && !is_small(segment, 5_001, 0));
        for pid in 1..=5 {
            assert!(is_small(segment, 5_000, 0));
            let member = segment.member_for_test(pid);
            member.set_kind(MemberKind::Dormant);
            member.claim.add(5_000);
        }
        assert!(!is_small(segment, 5_000, 0));
        assert!(is_small(segment, 5_000, 5_000), "it has them already");
        assert!(is_small(segment, SMALL, 0), "in any case");
    }

    /// A large process forks a child, and for a moment the child could copy all of it. What is small begins beside it.
    #[test]
    fn a_child_that_is_watched_takes_no_room_from_small_processes() {
        let segment = tree::open(tree::create(100_000 * 4096, None).unwrap().as_fd()).unwrap();
        let taken = |pid| {
            let member = segment.member_for_test(pid);
            member.set_kind(MemberKind::Dormant);
            member
        };
        let (child, small) = (taken(1), taken(2));
        assert!(!hold_in(segment, child, 80_000, 80_000), "it gets an engine");
        assert_eq!((segment.dormant(), segment.hidden(), child.claim.held()), (0, 0, 0));
        assert!(hold_in(segment, small, 4_000, 0) && small.claim.held() == 4_000);
    }
}
