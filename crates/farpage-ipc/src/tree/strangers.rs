//! Processes of the tree that have no library: static programs, those with more rights than the process that started
//! them. They count, and give nothing. And what was left behind by members that could not say that they end.
//!
//! A process that is about to become another program says so ([`leaving`], [`announce`]). If the program has the
//! library, it takes that place over. If that has not happened after [`SILENT_US`] and the process is still there, or
//! the program is known to have none, it is a stranger: a process that looks reads what it has, and claims it on its
//! behalf.
//!
//! Monitors look. Where no process of the tree has one, a process that waits for its children gets one ([`watch`]). A
//! process that was started by a system call instruction has said nothing: the monitor of its parent finds it
//! ([`find_own_children`]).
//!
//! Callers: monitors at their looks, program threads of dormant processes when they were refused memory or wait for
//! children, the preload library around exec. No locks: the look is taken by one of them at a time, by a word with the
//! time of the last one. No allocation.

use super::{Member, MemberKind, Segment, mine, own_namespace, segment, still};
use farpage_base::sys::clock::now_us;
use farpage_base::sys::proc::{
    anonymous_share_of, children_of, counts_processes_alike, is_other_program, pages_of, shares_memory, started_us_of,
};
use farpage_base::sys::{futex, valgrind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use rustix::time::Timespec;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// A program whose library has said nothing for so long has none.
const SILENT_US: u64 = 50_000;
/// A process of the same program that has said nothing for so long was forked by a system call instruction. (A child of
/// `vfork` has its parent's memory until it becomes another program, which it does soon.)
const FORKED_US: u64 = 250_000;
/// Time between two looks.
pub const LOOK: Duration = Duration::from_millis(20);
const LOOK_US: u64 = LOOK.as_micros() as u64;
/// More than this part of the budget is much...
const MUCH_PART: u64 = 10;
/// ... at so many looks, one after the other.
const MUCH_LOOKS: u32 = 10;
/// Of more places than this only a part is looked at each time for processes that have ended.
const ALL_AT_ONCE: u64 = 512;
/// One look in so many is a close one.
const CLOSELY: u64 = 64;
/// What the kernel says of a start is rounded to this.
const TICK_US: u64 = 10_000;
const LATER_US: u64 = 1_000_000;

/// This process, or (in a child of `vfork`) the calling one, is about to become another program, which may load the
/// library. What it is now, for [`stays`].
pub fn leaving(loads: bool) -> Option<Before> {
    let segment = segment()?;
    let Some(member) = mine() else {
        announce_to(segment, std::process::id(), loads);
        return None;
    };
    let before = Before { kind: member.kind(), owner: member.claim.owner.load(SeqCst) };
    if before.kind != MemberKind::Nested {
        member.since_us.store(now_us(), Relaxed);
        member.set_kind(becomes(loads));
        // An exec ends the thread at whose end the kernel marks the place; the process goes on.
        member.claim.owner.store(std::process::id(), SeqCst);
        wake_first(segment);
    }
    Some(before)
}

/// What a process was before it tried to become another program.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    kind: MemberKind,
    owner: u32,
}

/// It could not become another program: it is what it was.
pub fn stays(was: Option<Before>) {
    match (mine(), was, segment()) {
        (Some(member), Some(before), _) => {
            member.claim.owner.store(before.owner, SeqCst);
            member.set_kind(before.kind);
        }
        (None, _, Some(segment)) => {
            let (pid, namespace) = (std::process::id(), own_namespace());
            segment.places().filter(|m| m.is(pid, namespace)).for_each(|m| m.claim.leave());
        }
        _ => {}
    }
}

/// A process was started with this id, as another program, which may load the library.
pub fn announce(pid: u32, loads: bool) {
    if let Some(segment) = segment() {
        announce_to(segment, pid, loads);
    }
}

fn announce_to(segment: &Segment, pid: u32, loads: bool) {
    let namespace = own_namespace();
    if !segment.living().any(|m| m.is(pid, namespace)) {
        segment.take(pid, pid, namespace, becomes(loads));
        wake_first(segment);
    }
}

fn becomes(loads: bool) -> MemberKind {
    if loads { MemberKind::Leaving } else { MemberKind::Stranger }
}

/// Which process looks after the strangers of a tree, and whether there may be more soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// There are none, or a process looks after them.
    NotNeeded,
    /// This process has forked one that has yet to become what it will be.
    Undecided,
    /// There are some, and no process looks.
    Missing,
}

/// For a process without an engine that is about to wait for its children.
pub fn watch(segment: &Segment, mine: &Member) -> Watch {
    let now = now_us();
    let exists = |m: &Member| exists(m.pid.load(Relaxed));
    let of_here = || segment.living().filter(|m| m.namespace.load(Relaxed) == mine.namespace.load(Relaxed));
    if of_here().any(|m| m.is_looking(now)) {
        Watch::NotNeeded
    } else if of_here().any(|m| m.kind() == MemberKind::Stranger && exists(m)) {
        Watch::Missing
    } else if mine.unborn.load(SeqCst) > 0 || of_here().any(|m| is_undecided(m, mine) && exists(m)) {
        Watch::Undecided
    } else {
        Watch::NotNeeded
    }
}

/// Whether a process is a child of this one's, and what was forked.
fn is_undecided(m: &Member, mine: &Member) -> bool {
    m.kind() == MemberKind::Dormant && m.parent.load(Relaxed) == mine.pid.load(Relaxed)
}

/// Waits for news of the children that [`watch`] is undecided of: one takes its place, or ends. At most for so long,
/// because it is no news that one has become another program.
pub fn wait_for_news(segment: &Segment, mine: &Member, most_ns: u64) {
    const CHILDREN: usize = 4;
    // It knows neither of the calls, and says so to the program's user.
    if valgrind::is_here() {
        return futex::wait(&AtomicU32::new(0), 0, Some(most_ns));
    }
    let unborn = mine.unborn.load(SeqCst);
    if unborn > 0 {
        return futex::wait_any((&AtomicU32::new(0), 0), (&mine.unborn, unborn), most_ns);
    }
    let of_here = segment.living().filter(|m| m.namespace.load(Relaxed) == mine.namespace.load(Relaxed));
    // Those that have ended before, and whose places no process has cleared yet, have none.
    let children = of_here.filter(|m| is_undecided(m, mine)).filter_map(|m| {
        let pid = Pid::from_raw(m.pid.load(Relaxed) as i32)?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    });
    let mut ends: [Option<OwnedFd>; CHILDREN] = Default::default();
    ends.iter_mut().zip(children).for_each(|(end, child)| *end = Some(child));
    let Some(any) = ends.iter().flatten().next() else {
        return futex::wait(&AtomicU32::new(0), 0, Some(most_ns));
    };
    let mut fds = ends.each_ref().map(|end| PollFd::new(end.as_ref().unwrap_or(any), PollFlags::IN));
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: most_ns as i64 }));
}

/// Looks at the children that this thread of the process has made since `mine` was taken: those that have become
/// another program by system call instructions have said nothing, and those that were forked by one have no engine.
/// Some may have the library all the same, and take that place over.
pub fn find_own_children(segment: &Segment, mine: &Member, thread: u32) {
    let (own, since, namespace) = (std::process::id(), mine.since_us.load(Relaxed), own_namespace());
    children_of(own, thread, |child| {
        let is_ours = || started_us_of(child).is_some_and(|started| started + TICK_US > since);
        let is_known = segment.living().any(|m| m.is(child, namespace));
        // One that has just been forked may be about to say so, or to become another program.
        let is_old = || {
            let of_here = counts_processes_alike(own, child) && !shares_memory(own, child);
            of_here && started_us_of(child).is_some_and(|started| started + FORKED_US < now_us())
        };
        if is_known || !is_ours() {
            return;
        }
        if is_other_program(own, child) {
            announce_to(segment, child, false);
        } else if is_old() {
            announce_to(segment, child, false);
            segment.living().filter(|m| m.is(child, namespace)).for_each(|m| m.parent.store(own, Relaxed));
        }
    });
}

/// What strangers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrangersTotal {
    /// All of them, pages.
    pub pages: u64,
    /// The largest one's process id.
    pub largest: u32,
    /// They have had much for a while: not just a process that takes long to become another program.
    pub much: bool,
}

/// Whether there is a process that cannot look after itself, and `mine` is the first that could.
pub fn are_left_to(segment: &Segment, mine: &Member) -> bool {
    let now = now_us();
    let cannot = |m: &Member| matches!(m.kind(), MemberKind::Leaving | MemberKind::Stranger);
    let some = segment.living().any(cannot) || segment.may_be_surprised();
    some && segment.living().find(|m| m.is_looking(now)).is_some_and(|m| std::ptr::eq(m, mine))
}

/// A program is about to be started in its place: if the processes that look rest, one is to look soon.
fn wake_first(segment: &Segment) {
    let now = now_us();
    let first = segment.living().find(|m| m.is_looking(now));
    first.filter(|m| m.looked_us.load(Relaxed) > now).into_iter().for_each(Member::ring);
}

/// Looks after processes that cannot do so themselves. `None`: another process has just done it.
pub fn sweep(segment: &Segment) -> Option<StrangersTotal> {
    let (now, last) = (now_us(), segment.header.swept_us.load(SeqCst));
    // (A time in the future is no time of a look.)
    if last <= now && now - last < LOOK_US {
        return None;
    }
    segment.header.swept_us.compare_exchange(last, now, SeqCst, SeqCst).ok()?;
    let namespace = own_namespace();
    let (mut held, mut most) = (StrangersTotal { pages: 0, largest: 0, much: false }, 0);
    for member in segment.living().filter(|m| m.namespace.load(Relaxed) == namespace) {
        let pages = look_at(segment, member, now);
        held.pages += pages;
        if pages > most {
            (most, held.largest) = (pages, member.pid.load(Relaxed));
        }
    }
    still::look_at_some(segment, namespace, now);
    segment.header.strangers_peak.at_least(held.pages);
    let looks = &segment.header.strangers_looks;
    match held.pages > segment.budget() / MUCH_PART {
        true => held.much = looks.fetch_add(1, Relaxed) >= MUCH_LOOKS,
        false => looks.store(0, Relaxed),
    }
    Some(held)
}

/// Pages of a stranger; 0: it is none.
fn look_at(segment: &Segment, member: &Member, now: u64) -> u64 {
    let (owner, pid) = (member.claim.owner.load(SeqCst), member.pid.load(Relaxed));
    match member.kind() {
        // The kernel says when these end, unless it was not allowed to.
        MemberKind::Watched | MemberKind::Managed if owner != pid => 0,
        MemberKind::Watched | MemberKind::Managed | MemberKind::Dormant | MemberKind::Nested => {
            let (turn, parts) = (now / LOOK_US + u64::from(pid), 1 + segment.places_taken().len() as u64 / ALL_AT_ONCE);
            if !turn.is_multiple_of(parts) {
                return 0;
            }
            // Another process with the same id is looked for seldom: it takes the kernel some microseconds to tell.
            let closely = (turn / parts).is_multiple_of(CLOSELY);
            if !(if closely { is_there(pid, member) } else { exists(pid) }) {
                member.claim.owner_has_left(owner);
            }
            0
        }
        // Before its exec it has what its parent has.
        MemberKind::Leaving | MemberKind::Stranger if now.saturating_sub(member.since_us.load(Relaxed)) < SILENT_US => {
            0
        }
        kind @ (MemberKind::Leaving | MemberKind::Stranger) => {
            let has_joined = |other: &Member| !std::ptr::eq(other, member) && other.is(pid, own_namespace());
            if !is_there(pid, member) || segment.living().any(has_joined) {
                member.claim.owner_has_left(owner);
                return 0;
            }
            if kind == MemberKind::Leaving {
                member.is_left_to_others(pid);
            }
            refresh(segment, member, pid)
        }
    }
}

fn refresh(segment: &Segment, member: &Member, pid: u32) -> u64 {
    let owner = member.claim.owner.load(SeqCst);
    let pages = pages_of(pid);
    if pages == Some(0) || !is_there(pid, member) {
        member.claim.owner_has_left(owner);
        return 0;
    }
    // If it may not be read now, what it had goes on counting.
    let Some(pages) = pages else { return member.claim.pages(now_us()) };
    // What a forked child shares with its parent is counted there already.
    let is_forked = member.parent.load(Relaxed) != 0;
    let pages = if is_forked { anonymous_share_of(pid).unwrap_or(pages) } else { pages };
    member.used.store(pages);
    member.claim.set(pages);
    segment.header.largest.note(pid, pages);
    // What it starts announces itself only if it has the library.
    children_of(pid, pid, |child| announce_to(segment, child, true));
    pages
}

fn exists(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|id| test_kill_process(id) != Err(rustix::io::Errno::SRCH))
}

/// Whether the process that took this place, or was announced there, still is.
fn is_there(pid: u32, member: &Member) -> bool {
    // Another one with the same id has begun later.
    exists(pid)
        && started_us_of(pid).is_none_or(|started| started < member.since_us.load(Relaxed).saturating_add(LATER_US))
}
