//! The segment of a tree: members and their places.

use super::member::{CHILD_CLAIMS_US, FILES};
use super::*;

fn segment_of(bytes: u64) -> &'static Segment {
    open(create(bytes, None).unwrap().as_fd()).unwrap()
}

#[test]
fn a_segment_keeps_its_size_and_what_is_none_is_not_mapped() {
    let fd = create(64 << 20, None).unwrap();
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
    let segment = open(fd.as_fd()).unwrap();
    assert_eq!((segment.budget(), segment.claimed(), segment.free()), (16384, 0, 16384));
    let other = memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&other, BYTES as u64).unwrap();
    assert!(open(other.as_fd()).is_err(), "not sealed");
    fcntl_add_seals(&other, SIZE_SEALS).unwrap();
    assert!(open(other.as_fd()).is_err(), "no magic word");
    let inode = format!(" {} ", fstat(&other).unwrap().st_ino);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.lines().any(|line| line.contains(&inode) && line.contains("memfd:")), "{maps}");
}

#[test]
fn who_rests_or_was_absent_is_woken_and_who_has_just_looked_is_not() {
    let member = segment_of(64 << 20).member_for_test(1);
    let soon = [9_000, 9_999, 10_000, 10_001, 900_000].map(|looked_us| {
        member.looked_us.store(looked_us, Relaxed);
        member.looks_soon(10_000)
    });
    assert_eq!(soon, [true, true, true, false, false], "one that rests has noted when it will look");
    assert!(!member.looks_soon(1_000_000));
    let woken = member.wake.load(SeqCst);
    member.looked_us.store(0, Relaxed);
    member.nudge();
    assert_eq!(member.wake.load(SeqCst), woken + 1);
    // Unless the thread lost its CPU for as long.
    assert!((0..1000).any(|_| {
        let woken = member.wake.load(SeqCst);
        member.looked_us.store(now_us(), Relaxed);
        member.nudge();
        member.wake.load(SeqCst) == woken
    }));
}

#[test]
fn what_children_that_live_have_taken_over_is_known() {
    let segment = segment_of(64 << 20);
    let [parent, child, other] = [1, 2, 3].map(|pid| segment.member_for_test(pid));
    child.parent.store(1, SeqCst);
    let woken = parent.wake.load(SeqCst);
    segment.takes_over(child, 100);
    segment.takes_over(child, 20);
    segment.takes_over(other, 7);
    let told = || [parent, child, other].map(|m| segment.taken_over_from(m));
    assert_eq!((told(), parent.wake.load(SeqCst)), ([120, 0, 0], woken + 2));
    let second = segment.member_for_test(4);
    second.parent.store(1, SeqCst);
    segment.takes_over(second, 30);
    assert_eq!(told(), [150, 0, 0]);
    child.claim.leave();
    assert_eq!(told(), [30, 0, 0], "it has ended");
    second.parent.store(0, SeqCst);
    assert_eq!(told(), [0, 0, 0], "it is another program");
    let next = segment.member_for_test(5);
    next.parent.store(1, SeqCst);
    assert_eq!(told(), [0, 0, 0], "a new one in the place has taken over nothing");
}

#[test]
fn a_fork_keeps_room_for_its_child() {
    let segment = segment_of(64 << 20);
    let take = |pid| &segment.members[segment.take(pid, pid, 1, MemberKind::Managed).unwrap()];
    let (parent, other) = (take(1), take(2));
    assert_eq!(segment.grow(parent, 10_000), 10_000);
    assert!(segment.wait_for_room_of_child(parent));
    assert_eq!(segment.claimed(), 10_000 + segment.for_a_child());
    assert_eq!(segment.grow(other, 10_000), 16_384 - 10_000 - segment.for_a_child(), "no other gets it");
    parent.has_forked();
    std::thread::sleep(std::time::Duration::from_micros(CHILD_CLAIMS_US + 1000));
    assert_eq!(segment.grow(other, 10_000), segment.for_a_child(), "nor is it kept for ever");
    // There is none, and no process that gives: it goes on without.
    assert!(!segment.wait_for_room_of_child(parent));
    assert_eq!(segment.claimed(), 16_384 + segment.for_a_child());
    // What a process that is gone has kept is there again.
    parent.claim.leave();
    assert!(segment.claimed() <= 16_384);
}

#[test]
fn what_takes_the_place_of_a_parked_process_is_not_parked() {
    let segment = segment_of(64 << 20);
    let take = || segment.take(1, 1, 1, MemberKind::Managed).unwrap();
    let place = take();
    segment.members[place].park.store(1, SeqCst);
    segment.members[place].claim.leave();
    assert_eq!((take(), segment.members[place].park.load(SeqCst)), (place, 0));
}

#[test]
fn files_of_all_members_have_their_size_together() {
    let segment = segment_of(64 << 20);
    let take = |pid| &segment.members[segment.take(pid, pid, 1, MemberKind::Managed).unwrap()];
    let (a, b) = (take(1), take(2));
    let grow = |member, end| segment.grow_file(member, 1, end, 1000);
    assert_eq!((grow(a, 600), grow(b, 300), grow(b, 600)), (600, 300, 400));
    assert_eq!((grow(a, 700), grow(b, 500)), (600, 400), "no member loses what it has");
    a.claim.leave();
    assert_eq!(grow(b, 1200), 1000);
    assert_eq!(segment.grow_file(b, FILES, 5000, 1000), 5000, "not counted");
}

#[test]
fn places_are_taken_one_after_the_other_and_again() {
    let segment = segment_of(64 << 20);
    let take = |pid| segment.take(pid, pid, 1, MemberKind::Dormant);
    assert_eq!((take(10), take(11), take(12)), (Some(0), Some(1), Some(2)));
    segment.members[1].claim.leave();
    assert_eq!((take(13), take(14)), (Some(1), Some(3)));
    assert_eq!(segment.living().count(), 4);
    assert_eq!(segment.grow(&segment.members[0], 10_000), 10_000);
    assert_eq!(segment.grow(&segment.members[1], 10_000), 6_384);
    assert_eq!(segment.free(), 0);
}
