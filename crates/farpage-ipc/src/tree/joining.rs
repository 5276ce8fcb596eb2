//! How a process takes its place in the tree: when it begins, and when it was forked.
//!
//! Callers: the initialiser, forked children. No locks.

use super::strangers;
use super::{Member, MemberKind, SEGMENT, Segment, inherited, open, own_namespace, segment, set_place};
use farpage_base::sys::clock::now_us;
use farpage_base::sys::futex;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;

/// Processes that ended without a word are looked for at least so often, where processes are started. Microseconds.
const SWEEP_US: u64 = 1_000_000;

/// Maps the segment that this process inherited, and takes a place in it, if one is free. Called once, by the
/// initialiser. False: there is none.
pub fn join() -> bool {
    let Some((fd, _)) = inherited() else { return false };
    // SAFETY: open, and used only here.
    let Ok(segment) = open(unsafe { BorrowedFd::borrow_raw(fd) }) else { return false };
    SEGMENT.store(std::ptr::from_ref(segment).cast_mut(), SeqCst);
    let pid = std::process::id();
    let namespace = own_namespace();
    // Another program was here before, or a parent has announced this one. Unless another process has just found it
    // gone.
    let is_before = |m: &Member| m.is(pid, namespace) && m.claim.hand_over(m.claim.owner.load(SeqCst), pid);
    let before = segment.places().position(is_before);
    if let Some(place) = before {
        segment.members[place].claim.begin();
        segment.members[place].begin(pid, namespace, MemberKind::Dormant);
    }
    set_place(before.or_else(|| take(segment, pid, namespace)), pid);
    true
}

/// In a forked child: its parent's place is not its own. Takes one; false: none is free.
pub fn fork_child() -> bool {
    let Some(segment) = segment() else { return false };
    let pid = std::process::id();
    let place = take(segment, pid, own_namespace());
    if let Some(place) = place {
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        segment.members[place].parent.store(parent, SeqCst);
    }
    if let Some(parent) = super::place() {
        let _ = parent.unborn.fetch_update(SeqCst, SeqCst, |unborn| unborn.checked_sub(1));
        // It may wait for that.
        futex::wake_shared(&parent.unborn);
    }
    set_place(place, pid)
}

/// Takes a free place. A shell's children end without a word, and perhaps no process has an engine to look for them.
fn take(segment: &Segment, pid: u32, namespace: u64) -> Option<usize> {
    if now_us().abs_diff(segment.header.swept_us.load(SeqCst)) > SWEEP_US {
        strangers::sweep(segment);
    }
    segment.take(pid, pid, namespace, MemberKind::Dormant).or_else(|| {
        strangers::sweep(segment);
        segment.take(pid, pid, namespace, MemberKind::Dormant)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{MEMBERS, create};
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn places_of_processes_that_ended_without_a_word_are_found() {
        let segment = open(create(64 << 20, None).unwrap().as_fd()).unwrap();
        let namespace = own_namespace();
        // No such processes.
        let taken =
            (0..MEMBERS as u32).filter_map(|i| segment.take(1, 0x7000_0000 + i, namespace, MemberKind::Dormant));
        assert_eq!(taken.count(), MEMBERS);
        let own = std::process::id();
        assert_eq!(segment.take(own, own, namespace, MemberKind::Dormant), None);
        assert!(take(segment, own, namespace).is_some());
    }
}
