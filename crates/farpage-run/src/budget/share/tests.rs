//! What a process may have of the tree's budget, with others in it and without.

use super::*;
use rustix::fd::AsFd;
use std::sync::atomic::AtomicU64;

fn tree_of(pages: u64) -> &'static Segment {
    tree::open(tree::create(pages * 4096, None).unwrap().as_fd()).unwrap()
}

/// More than any test takes.
const LATER_US: u64 = 3_600_000_000;

struct Process {
    share: TreeShare,
    budget: Budget,
    seen: TreeLook,
}

impl Process {
    fn new(segment: &'static Segment, pid: u32, pages: i64) -> Process {
        let mine = segment.member_for_test(pid);
        mine.claim.add(pages as u64);
        let seen = TreeLook {
            used: pages,
            read: 0,
            major: 0,
            next_seen: 0,
            faults: 0,
            managed: true,
            most: segment.budget() as i64,
            engine: 0,
        };
        mine.looked_us.store(now_us() + LATER_US, Relaxed);
        Process { share: TreeShare::new(segment, mine), budget: Budget::new(pages as u64), seen }
    }

    /// It has so many pages, of which the oldest has this age, and looks.
    fn look(&mut self, used: i64, age: u32) -> bool {
        self.seen.used = used;
        self.budget.sample(used, self.budget.grown());
        self.seen.next_seen = (self.share.depart(0) as u32).wrapping_sub(age);
        // It is busy, and looks, however long it is until the next look, and may give at each.
        self.seen.faults += 1;
        self.share.gave_us = 0;
        let gives = self.share.look(&self.budget, self.seen);
        self.share.mine.looked_us.store(now_us() + LATER_US, Relaxed);
        gives
    }
}

#[test]
fn who_needs_more_gets_what_is_free() {
    let segment = tree_of(32_768);
    let mut one = Process::new(segment, 1, 8_192);
    one.look(8_100, 100);
    let more = (32_768 - 8_192) / FREE_PART;
    assert_eq!(one.budget.promised(), 8_192 + more);
    assert_eq!(segment.claimed() as i64, 8_192 + more);
    // It is honest about what it has beyond that.
    one.look(20_000, 100);
    assert!(segment.claimed() >= 20_000);
}

#[test]
fn the_oldest_gives_what_another_wants_and_no_more_than_its_floor() {
    let segment = tree_of(16_384);
    let (mut idle, mut busy) = (Process::new(segment, 1, 12_288), Process::new(segment, 2, 4_096));
    idle.look(12_000, 10_000);
    for _ in 0..200 {
        let had = busy.budget.promised();
        busy.look(had, 10);
        // What it steers at, it has a moment later.
        let has = idle.budget.promised().min(12_000);
        idle.look(has, 10_000);
    }
    assert!(segment.claimed() <= segment.budget(), "{}", segment.claimed());
    assert_eq!(idle.budget.promised(), FLOOR);
    assert_eq!(busy.budget.promised(), 16_384 - FLOOR);
}

/// What the oldest cannot give, the next one gives.
#[test]
fn who_gives_already_is_not_waited_for() {
    let segment = tree_of(16_384);
    let mut stuck = Process::new(segment, 1, 2_048);
    let (mut idle, mut busy) = (Process::new(segment, 2, 8_192), Process::new(segment, 3, 6_144));
    for _ in 0..200 {
        let has = busy.budget.promised();
        busy.look(has, 10);
        stuck.look(2_048, 1_000_000);
        let has = idle.budget.promised();
        idle.look(has, 10_000);
    }
    assert_eq!(stuck.seen.used, 2_048);
    assert_eq!(idle.budget.promised(), FLOOR);
    assert!(busy.budget.promised() > 13_000, "{}", busy.budget.promised());
}

#[test]
fn who_has_much_out_keeps_what_its_engine_needs_for_that() {
    let segment = tree_of(16_384);
    let (mut idle, mut busy) = (Process::new(segment, 1, 12_288), Process::new(segment, 2, 4_096));
    idle.seen.engine = 3_000;
    for _ in 0..200 {
        let had = busy.budget.promised();
        busy.look(had, 10);
        let has = idle.budget.promised().min(12_000);
        idle.look(has, 10_000);
    }
    assert_eq!(idle.budget.promised(), 3_000 + BESIDES);
}

/// A forked child begins with little. Its engine has tables for all that is out, and some pages cannot be taken out:
/// more than it was promised, of which nothing can leave.
#[test]
fn who_has_only_what_cannot_leave_is_not_waited_for() {
    let segment = tree_of(24_576);
    let (mut idle, mut child) = (Process::new(segment, 1, 20_200), Process::new(segment, 2, FLOOR));
    child.seen.engine = 2_300;
    child.budget.stuck_is(1_500);
    for _ in 0..200 {
        child.look(4_400.max(child.budget.promised()), 10);
        let has = idle.budget.promised().min(18_200);
        idle.look(has, 100_000);
    }
    assert!(child.budget.promised() > 2_300 + 1_500, "{}", child.budget.promised());
}

#[test]
fn a_process_that_rests_becomes_older_all_the_same_and_sees_that_others_need_something() {
    let segment = tree_of(16_384);
    let mut idle = Process::new(segment, 1, 8_192);
    idle.look(8_000, 10);
    assert_eq!(idle.share.rests(Duration::from_secs(1)), Duration::from_secs(1));
    segment.departed(5_000);
    assert_eq!(segment.age_of(idle.share.mine), 5_010);
    assert!(!idle.share.has_donor());
    let small = segment.member_for_test(2);
    small.set_kind(MemberKind::Dormant);
    small.claim.add(9_000);
    assert!(idle.share.has_donor());
}

#[test]
fn who_is_stopped_wants_nothing() {
    let segment = tree_of(16_384);
    let (stopped, mut one) = (Process::new(segment, 1, 4_096), Process::new(segment, 2, 8_192));
    let mine = stopped.share.mine;
    mine.wants.store(9_000);
    mine.seen.store(segment.departed(0), Relaxed);
    assert_eq!(TreeSnapshot::of(one.share.mine, segment).youngest_want, Some(0));
    one.look(8_190, 1_000);
    let before = one.budget.promised();
    assert!(before <= 8_192, "another wants more urgently");
    mine.looked_us.store(0, Relaxed);
    one.look(8_190, 1_000);
    assert!(one.budget.promised() > before);
}

#[test]
fn equal_ages_move_nothing_and_nearly_equal_ones_little() {
    let segment = tree_of(16_384);
    let (mut one, mut two) = (Process::new(segment, 1, 8_192), Process::new(segment, 2, 8_192));
    for _ in 0..20 {
        one.look(8_190, 1_000);
        two.look(8_190, 1_000);
    }
    assert_eq!((one.budget.promised(), two.budget.promised()), (8_192, 8_192));
    one.look(8_190, 1_000);
    two.look(8_190, 1_100);
    let moved = 8_192 - two.budget.promised();
    assert!((STEP_MIN..=step(8_192) / 10).contains(&moved), "{moved}");
}

#[test]
fn a_smaller_budget_is_reached_step_by_step() {
    let segment = tree_of(16_384);
    let (mut one, mut two) = (Process::new(segment, 1, 8_192), Process::new(segment, 2, 8_192));
    segment.set_budget(8_192 * 4096);
    for _ in 0..100 {
        let (a, b) = (one.budget.promised(), two.budget.promised());
        one.look(a.min(one.seen.used), 1_000);
        two.look(b.min(two.seen.used), 900);
    }
    assert!(segment.claimed() <= 8_192 + 2 * STEP_MIN as u64, "{}", segment.claimed());
    assert!(one.budget.promised() >= FLOOR && two.budget.promised() >= FLOOR);
}

#[test]
fn one_alone_follows_a_smaller_budget() {
    let segment = tree_of(16_384);
    let mut one = Process::new(segment, 1, 16_384);
    segment.set_budget(8_192 * 4096);
    for _ in 0..50 {
        let has = one.budget.promised();
        one.look(has, 1_000);
    }
    assert!((FLOOR..=8_192).contains(&one.budget.promised()), "{}", one.budget.promised());
    assert!(segment.claimed() <= 8_192);
}

#[test]
fn what_is_not_used_goes_first_and_what_leaves_makes_all_others_older() {
    let segment = tree_of(16_384);
    let (mut one, mut two) = (Process::new(segment, 1, 8_192), Process::new(segment, 2, 8_192));
    one.look(8_190, 100);
    two.share.depart(1_000);
    assert_eq!(segment.age_of(one.share.mine), 1_100);
    two.look(2_000, 100);
    assert!(segment.age_of(two.share.mine) > u64::from(u32::MAX), "three quarters of it are not used");
    two.look(8_190, 100);
    assert_eq!(segment.age_of(two.share.mine), 100);
}

/// Numbers of any size, fixed ones and others.
fn any(state: &mut u64) -> u64 {
    const ODD: [u64; 8] = [0, 1, u64::MAX, 1 << 63, 1 << 40, 0x7fff_ffff, 0x8000_0000, 0x4000_0000];
    for shift in [13i32, -7, 17] {
        *state ^= if shift < 0 { *state >> -shift } else { *state << shift };
    }
    if *state & 1 == 0 { *state } else { ODD[(*state >> 8) as usize % ODD.len()] }
}

#[test]
fn whatever_others_write_a_process_keeps_its_floor_and_no_sum_overflows() {
    let segment = tree_of(10_000);
    let mut process = Process::new(segment, 1, 5_000);
    let (mut other, mut slices) = (Process::new(segment, 2, 5_000), TimeSlices::default());
    let len = size_of::<Segment>() / size_of::<u64>();
    // SAFETY: mapped for good, of this size, and atomics only.
    let words = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(segment).cast::<AtomicU64>(), len) };
    // The header, the first members, and all.
    for to in [128, 512 + 16 * 32, len] {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for round in 0..2_000 {
            (0..20).for_each(|_| words[any(&mut state) as usize % to].store(any(&mut state), Relaxed));
            process.seen.most = segment.most_of_one() as i64;
            process.look(5_000, 0);
            other.look(3_000, 1_000_000);
            assert!(process.budget.promised() >= FLOOR && other.budget.promised() >= FLOOR);
            let (mine, later) = (process.share.mine, now_us() + 20_000 * round);
            slices.look(segment, mine, 10_000 * round, later, 5_000 + mine.swapped.load(), later);
            process.share.defer_activation(&process.budget, process.seen.most);
            process.share.has_donor();
            segment.header.sums.note_waited(Duration::from_micros(1));
            let waiting = segment.header.sums.waiting(Duration::from_secs(1));
            drop((waiting.advice(""), segment.header.largest.in_words()));
            segment.header.sums.waiting_of_period(now_us(), Duration::from_secs(1));
            // What looks into `/proc` takes long.
            if round % 50 == 0 {
                strangers::sweep(segment);
                strangers::watch(segment, process.share.mine);
            }
        }
    }
}

#[test]
fn what_stays_is_promised_when_the_floor_turns_out_to_be_higher() {
    let segment = tree_of(16_384);
    let (mut idle, mut busy) = (Process::new(segment, 1, 12_288), Process::new(segment, 2, 4_096));
    idle.seen.engine = 1_000;
    for _ in 0..200 {
        busy.look(busy.budget.promised(), 10);
        idle.look(idle.budget.promised().min(12_000), 10_000);
    }
    assert_eq!(idle.budget.promised(), floor(1_000));
    // Less compresses than it seemed: it cannot go below 3,000, and has 2,500 by now.
    idle.seen.engine = 3_000;
    assert!(!idle.look(2_500, 10_000), "there is nothing to give");
    assert_eq!(idle.budget.promised(), 2_500);
    idle.look(4_000, 10_000);
    assert_eq!(idle.budget.promised(), floor(3_000));
}
