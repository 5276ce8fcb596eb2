//! `farpage park` and `farpage unpark`: what an idle tree has goes, and comes back.
//!
//! Callers: `main`, and `farpage top`. What members do is in [`farpage_run::budget::park`].

use crate::args::ParkArgs;
use crate::failure::{Failure, Result, say};
use crate::process;
use crate::set::{LOOK, falls, wake_small};
use crate::trees::{self, Tree, size_of};
use farpage_ipc::tree::{Member, MemberKind};
#[cfg(feature = "top")]
use farpage_run::budget::park::PARKED;
use farpage_run::budget::park::{ASKED, UNPARK};
use std::process::ExitCode;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long is waited for while nothing goes on.
const PATIENCE: Duration = Duration::from_secs(1);
/// An engine that can start has done so by then, on a busy machine, too.
const STARTED: Duration = Duration::from_secs(10);
/// What is this near to what it steers at is there, pages.
const NEAR: u64 = 512;

/// Members that can be parked.
fn members(tree: &Tree) -> Vec<&Member> {
    tree.segment.living().filter(|m| can(m)).collect()
}

/// Not in a process that is stopped: it would go when it goes on, which is when it is used.
fn is_stopped(member: &Member) -> bool {
    process::is_stopped(member.pid.load(Relaxed))
}

fn can(member: &Member) -> bool {
    matches!(member.kind(), MemberKind::Watched | MemberKind::Managed)
}

fn tell(member: &Member, word: u32) {
    member.park.store(word, SeqCst);
    member.ring();
}

/// Those that can be parked, and those that will be when their engines have started.
fn concerned(tree: &Tree) -> impl Iterator<Item = &Member> {
    tree.segment.living().filter(|m| (can(m) || m.park.load(SeqCst) == ASKED) && !is_stopped(m))
}

fn tell_all(tree: &Tree, word: u32) {
    concerned(tree).for_each(|member| tell(member, word));
}

fn used(tree: &Tree) -> u64 {
    tree.sum(|m| m.used.load())
}

/// Whether a member is parked, or about to be.
#[cfg(feature = "top")]
pub fn is_parked(member: &Member) -> bool {
    [ASKED, PARKED].contains(&member.park.load(SeqCst))
}

/// Whether all of a tree that can be parked is.
#[cfg(feature = "top")]
pub fn is_all_parked(tree: &Tree) -> bool {
    let members = members(tree);
    !members.is_empty() && members.into_iter().all(is_parked)
}

/// Asks the tree of process `pid` to go, and waits for nothing but the engines of those that had none; why some still
/// have none.
///
/// # Errors
/// None of its processes can be parked.
pub fn ask(pid: u32, tree: &Tree) -> Result<Vec<Failure>> {
    // Small ones have no engine, which would do it. One that starts finds what it is told when it is there.
    let mut failures = wake_small(tree, |member| tell(member, ASKED));
    let since = Instant::now();
    while members(tree).is_empty() {
        if concerned(tree).next().is_none() || since.elapsed() > STARTED {
            let why = || format!("cannot park the tree of process {pid}: none of its processes has an engine");
            return Err(failures.pop().unwrap_or_else(|| Failure::new(why())));
        }
        std::thread::sleep(LOOK);
    }
    tell_all(tree, ASKED);
    Ok(failures)
}

/// Asks a tree to come back, and waits for nothing.
pub fn ask_back(tree: &Tree) {
    tell_all(tree, UNPARK);
}

/// Runs `farpage park`.
///
/// # Errors
/// There is no such tree, or none of its processes can be parked.
pub fn park(args: &ParkArgs) -> Result<ExitCode> {
    let tree = trees::of(args.pid)?;
    let stopped = tree.stopped();
    for (pid, name) in &stopped {
        let why = format!("cannot park process {pid} ({name}): it is stopped");
        say(Failure::new(why).help(format!("kill -CONT {pid}")));
    }
    if stopped.len() == tree.members().len() {
        return Ok(ExitCode::FAILURE);
    }
    let before = used(&tree);
    ask(args.pid, &tree)?.into_iter().for_each(say);
    let left = |m: &Member| match m.park.load(SeqCst) {
        ASKED => m.used.load(),
        _ => m.used.load().saturating_sub(m.target.load() + NEAR),
    };
    falls(0, PATIENCE, || concerned(&tree).map(left).sum());
    if args.verbose {
        let (has, pid) = (size_of(used(&tree)), args.pid);
        say(format_args!("farpage: the tree of process {pid} had {}, and has {has}", size_of(before)));
    }
    Ok(if stopped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `farpage unpark`.
///
/// # Errors
/// There is no such tree.
pub fn unpark(args: &ParkArgs) -> Result<ExitCode> {
    let tree = trees::of(args.pid)?;
    let swapped = || tree.sum(|m| m.swapped.load());
    let before = swapped();
    ask_back(&tree);
    falls(0, PATIENCE, swapped);
    if args.verbose {
        let (here, out) = (size_of(before.saturating_sub(swapped())), size_of(swapped()));
        say(format_args!("farpage: {here} of the tree of process {} came back; {out} stay out", args.pid));
    }
    Ok(ExitCode::SUCCESS)
}
