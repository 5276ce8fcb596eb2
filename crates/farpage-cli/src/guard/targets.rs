//! Processes and trees of a place, as they are at the moment.
//!
//! Caller: [`super`]. No locks.

use super::choice::Candidate;
use super::rules::{self, Rule, Subject};
use super::watch::Place;
use crate::cgroup;
use crate::process::{self, Status};
use crate::trees::{self, Tree, bytes};
use farpage_ipc::conf::RAM_MIN;
use farpage_ipc::tree::{Member, MemberKind};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;

/// A process with less anonymous memory is not looked at more closely, bytes: there may be hundreds.
const SMALL: u64 = RAM_MIN / 4;

/// A process, not to be confused with a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    /// Its number.
    pub pid: u32,
    started: u64,
}

impl Id {
    fn of(pid: u32) -> Option<Id> {
        Some(Id { pid, started: process::start_time(pid)? })
    }

    /// Whether it still runs.
    pub fn is_there(self) -> bool {
        Id::of(self.pid) == Some(self)
    }
}

/// One whose memory may be cut.
pub struct Target {
    /// The process, or the first one of the tree.
    pub id: Id,
    /// Its name, as it can be printed.
    name: String,
    /// It is under farpage already.
    pub tree: Option<Tree>,
    /// What it has in this place, and may have there.
    pub numbers: Candidate,
    /// What the tree has elsewhere, bytes: a budget is for both.
    pub elsewhere: u64,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.tree.is_some() { "the tree of process" } else { "process" };
        write!(f, "{what} {} ({})", self.id.pid, self.name)
    }
}

/// What members have on swap devices alone, bytes.
pub fn swapped(tree: &Tree) -> u64 {
    bytes(tree.sum(|m| m.swapped.load()))
}

/// Some of them have no engine yet.
pub fn has_small(tree: &Tree) -> bool {
    tree.segment.living().any(|m| m.kind() == MemberKind::Dormant)
}

/// What members of a tree say that they have in RAM elsewhere, bytes.
fn elsewhere(tree: &Tree, pids: &HashSet<u32>) -> u64 {
    let is_here = |m: &Member| pids.contains(&m.pid.load(Relaxed));
    // Members know the numbers that they see themselves. In another pid namespace none may be known here.
    match tree.segment.living().any(is_here) {
        true => bytes(tree.sum(|m| if is_here(m) { 0 } else { m.used.load() })),
        false => 0,
    }
}

/// What rules are asked about a process.
struct Looked {
    status: Status,
    executable: String,
    cgroup: Option<String>,
}

impl Looked {
    fn at(pid: u32) -> Option<Looked> {
        let status = Status::read(pid).ok().filter(|status| status.anonymous() >= SMALL)?;
        let executable = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let executable = executable.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Some(Looked { status, executable, cgroup: cgroup::of_process(pid) })
    }

    fn subject(&self) -> Subject<'_> {
        let names = [self.status.value("Name:"), self.executable.as_str()];
        Subject { names, uid: self.status.uid(), cgroup: self.cgroup.as_deref() }
    }
}

/// All of a place that the rules allow, and that are large enough for a budget. What each of them has is what the
/// kernel says: a process may say anything of itself.
pub fn find(place: &Place, only: &[Rule], never: &[Rule]) -> Vec<Target> {
    let me = rustix::process::geteuid();
    let pids: HashSet<u32> = place.processes().into_iter().filter(|p| *p != 1 && *p != std::process::id()).collect();
    let mut looked: BTreeMap<u32, Looked> = pids.iter().filter_map(|pid| Some((*pid, Looked::at(*pid)?))).collect();
    // Others' cannot be attached to.
    looked.retain(|_, one| me.is_root() || one.status.uid() == me.as_raw());
    let allowed = |pids: &[u32]| {
        let subjects: Vec<Subject<'_>> = pids.iter().filter_map(|pid| looked.get(pid)).map(Looked::subject).collect();
        rules::allow(only, never, &subjects)
    };
    let mut in_trees = HashSet::new();
    let mut targets = Vec::new();
    for tree in trees::among(looked.keys().copied().collect()).trees {
        in_trees.extend(tree.processes.iter().copied());
        let Some(id) = Id::of(tree.pid).filter(|_| allowed(&tree.processes)) else { continue };
        // Pages that forked processes share are counted once.
        let has = match tree.processes[..] {
            [one] => looked[&one].status.anonymous(),
            _ => tree.processes.iter().map(|pid| process::anonymous_share(*pid)).sum(),
        };
        let elsewhere = elsewhere(&tree, &pids);
        let budget = tree.budget().map(|budget| budget.saturating_sub(elsewhere));
        let numbers = Candidate { has, budget, floor: RAM_MIN, grown: 0 };
        targets.push(Target { id, name: trees::comm(tree.pid), tree: Some(tree), numbers, elsewhere });
    }
    for (pid, one) in looked.iter().filter(|(pid, _)| !in_trees.contains(*pid)) {
        let numbers = Candidate { has: one.status.anonymous(), budget: None, floor: RAM_MIN, grown: 0 };
        if let Some(id) = Id::of(*pid).filter(|_| numbers.has > RAM_MIN && allowed(&[*pid])) {
            targets.push(Target { id, name: trees::comm(*pid), tree: None, numbers, elsewhere: 0 });
        }
    }
    targets
}
