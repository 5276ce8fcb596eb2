//! `farpage set`: another budget for a tree that runs. `farpage top` gives one in the same way.

use crate::args::SetArgs;
use crate::attach::start;
use crate::budget::budget;
use crate::failure::{Failure, Result, say};
use crate::process;
use crate::trees::{self, Tree, size_of};
use farpage::PAGE_SIZE;
use farpage_ipc::tree::{Member, MemberKind, UNLIMITED};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Lifts a budget.
const NO_BUDGET: &str = "max";
/// How long a tree that shrinks is waited for while it makes no headway.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
pub const LOOK: Duration = Duration::from_millis(20);

/// Gives the tree of a process a budget, as it was typed; how many bytes that are. It does not wait until it is held.
/// If it is less than there is, processes that were small before, and so have no engine, get one; why some did not.
///
/// # Errors
/// No such tree; an unreadable size.
pub fn give(pid: u32, ram: &str) -> Result<(u64, Vec<Failure>)> {
    let bytes = if ram == NO_BUDGET { UNLIMITED } else { budget(Some(ram))?.bytes };
    let tree = trees::of(pid)?;
    tree.segment.set_budget(bytes);
    let is_less = tree.segment.claimed() > bytes / PAGE_SIZE as u64;
    Ok((bytes, if is_less { wake_small(&tree, |_| ()) } else { Vec::new() }))
}

/// Starts the engines of those that have none yet, without waiting for them; `started`: of one of these. Why some still
/// have none.
pub fn wake_small(tree: &Tree, started: impl Fn(&Member)) -> Vec<Failure> {
    let is_stopped = |m: &Member| process::is_stopped(m.pid.load(Relaxed));
    let is_small = |m: &&Member| m.kind() == MemberKind::Dormant && !is_stopped(m);
    let small: Vec<&Member> = tree.segment.living().filter(is_small).collect();
    let wake = |member: &Member| start::wake(member.pid.load(Relaxed)).map(|()| started(member));
    small.into_iter().filter_map(|member| wake(member).err()).collect()
}

/// Runs the subcommand. Exit status 1: no such tree, or it cannot become as small.
///
/// # Errors
/// As said; an unreadable size.
pub fn main(args: &SetArgs) -> Result<ExitCode> {
    let (bytes, failures) = give(args.pid, &args.ram)?;
    failures.into_iter().for_each(say);
    let is_within = wait_until_within(args.pid, bytes / PAGE_SIZE as u64)?;
    Ok(if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until a number has fallen to `to`, or has not fallen for as long as `patience`; the least that it was. Looks
/// are counted: a machine that stood still has waited for one.
pub fn falls(to: u64, patience: Duration, number: impl Fn() -> u64) -> u64 {
    let most = patience.as_nanos().div_ceil(LOOK.as_nanos());
    let (mut least, mut looks) = (number(), 0);
    while least > to && looks <= most {
        std::thread::sleep(LOOK);
        looks += 1;
        let now = number();
        if now < least {
            (least, looks) = (now, 0);
        }
    }
    least
}

/// Waits until the tree of a process is within a budget of so many pages, as long as it comes nearer; whether it is. If
/// not, what stands in the way has been said.
///
/// # Errors
/// There is no such tree.
pub fn wait_until_within(pid: u32, pages: u64) -> Result<bool> {
    let tree = trees::of(pid)?;
    let least = falls(pages, PATIENCE, || tree.segment.claimed());
    if least <= pages {
        return Ok(true);
    }
    let has = size_of(least);
    let stopped = tree.stopped();
    if !stopped.is_empty() {
        let who = stopped.iter().map(|(pid, name)| format!("process {pid} ({name})")).collect::<Vec<_>>().join(", ");
        let pids = stopped.iter().map(|(pid, _)| pid.to_string()).collect::<Vec<_>>().join(" ");
        let is = if stopped.len() > 1 { "are" } else { "is" };
        let why = format!("the tree of process {pid} has {has}, and does not become smaller: {who} {is} stopped");
        say(Failure::new(why).help(format!("the budget is set; kill -CONT {pids}")));
        return Ok(false);
    }
    say(Failure::new(format!("the tree of process {pid} has {has}, and does not become smaller: {}", tree.floors()))
        .help("the budget is set; what cannot be swapped out stands in the way"));
    Ok(false)
}
