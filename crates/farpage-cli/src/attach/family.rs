//! Processes that belong together and run already: what one has started before it was attached to, or all of a cgroup.
//! They do not come into a tree by themselves.
//!
//! Caller: [`super`]. No locks.

use super::start::Start;
use super::target::Target;
use crate::failure::{Failure, Result, say};
use crate::process::{self, Status};
use crate::trees;
use farpage_ipc::conf::size;
use rustix::fd::AsFd;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

/// More than this part of the budget is much.
const MUCH_PART: u64 = 10;
/// Processes that are named.
const NAMED: usize = 3;
/// A process that is attached to may have started others meanwhile, which are in the tree, or not, if it was late.
const ROUNDS: usize = 16;

/// A process and all that descend from it, parents before their children.
pub fn with_descendants(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for child in process::all().unwrap_or_default() {
        process::parent(child).into_iter().for_each(|parent| children.entry(parent).or_default().push(child));
    }
    let (mut found, mut next) = (vec![pid], 0);
    while let Some(parent) = found.get(next) {
        found.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    found
}

/// Does something with each of these processes, one after the other, and with those that there are more by then, but
/// not with those that are `known`.
pub fn each(mut known: BTreeSet<u32>, all: impl Fn() -> Vec<u32>, mut act: impl FnMut(u32)) {
    for _ in 0..ROUNDS {
        let new: Vec<u32> = all().into_iter().filter(|pid| known.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        new.into_iter().for_each(&mut act);
    }
}

/// Whether the tree of a process is of these processes: its first one is among them, or all are. They may be in another
/// pid namespace, and know each other by their numbers there.
pub fn is_tree_of(all: &[u32], pid: u32) -> bool {
    let Ok(tree) = trees::of(pid) else { return false };
    let own_number = |pid: &u32| Status::read(*pid).ok()?.numbers().next_back();
    let numbers: BTreeSet<u32> = all.iter().filter_map(own_number).collect();
    numbers.iter().any(|number| tree.segment.is_first(*number))
        || tree.members().iter().all(|member| numbers.contains(&member.pid.load(Relaxed)))
}

/// Those of these processes that are in no tree, or in another one than this.
fn outside(all: Vec<u32>, tree: Option<u64>) -> Vec<u32> {
    let is_outside = |pid: &u32| trees::id_of(*pid).is_none_or(|id| tree.is_some_and(|tree| tree != id));
    // This command may be one of them.
    all.into_iter().filter(|pid| *pid != std::process::id()).filter(is_outside).collect()
}

/// Attaches to all of these processes that are in no tree, in that of process `of`. One that is refused, or is in
/// another tree, counts there, and is named; `refused` have been, before.
pub fn take_in(of: u32, all: impl Fn() -> Vec<u32>, refused: Vec<(u32, Failure)>, start: &Start<'_>) -> Result<()> {
    let tree = trees::of(of)?;
    let segment = trees::segment(of)?;
    let id = trees::id_of(of);
    let count = |pid: u32, failure: Failure| {
        // One that has ended meanwhile has no memory.
        if process::anonymous(pid) > 0 {
            tree.segment.counts_too(pid);
            say(failure.help(match trees::id_of(pid) {
                Some(_) => "it counts in this budget, and keeps its own",
                None => "it counts in the budget, and is not swapped out",
            }));
        }
    };
    let known = refused.iter().map(|(pid, _)| *pid).collect();
    refused.into_iter().for_each(|(pid, failure)| count(pid, failure));
    each(
        known,
        || outside(all(), id),
        |pid| {
            let done = Target::look(pid).and_then(|target| start.begin(&target, Some(segment.as_fd())));
            done.unwrap_or_else(|failure| count(pid, failure));
        },
    );
    Ok(())
}

/// The first ones by name, and how many more there are.
pub fn some(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let named = names.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// One line, if those that stay outside have much of a budget of `bytes`.
pub fn warn_of_those_outside(target: &Target, bytes: u64) {
    let mut outside: Vec<(u64, u32)> =
        outside(with_descendants(target.pid), None).into_iter().map(|pid| (process::anonymous(pid), pid)).collect();
    let all: u64 = outside.iter().map(|(has, _)| has).sum();
    if all <= bytes / MUCH_PART {
        return;
    }
    outside.sort_unstable_by_key(|(has, _)| std::cmp::Reverse(*has));
    let named =
        outside.iter().map(|(has, pid)| format!("process {pid} ({}) {}", trees::comm(*pid), size::format(*has)));
    let named = some(named.collect());
    let (pid, name, all) = (target.pid, target.name.escape_debug(), size::format(all));
    say(format_args!(
        "farpage: what process {pid} ({name}) started before has {all}, and is outside of the budget: {named}\n  \
         help: farpage attach --tree {pid} takes it in"
    ));
}
