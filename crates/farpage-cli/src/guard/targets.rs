//! Processes and trees of a place, as they are at the moment.
//!
//! Caller: [`super`]. No locks.

use super::bytes;
use super::choice::Candidate;
use super::rules::{self, Rule, Subject};
use super::watch::Place;
use crate::cgroup;
use crate::process::{self, Status};
use crate::trees::{self, Tree};
use farpage::internals::conf::RAM_MIN;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

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
    /// What it has, and may have.
    pub numbers: Candidate,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.tree.is_some() { "the tree of process" } else { "process" };
        write!(f, "{what} {} ({})", self.id.pid, self.name)
    }
}

/// What members have in RAM, bytes.
fn used(tree: &Tree) -> u64 {
    tree.members().iter().fold(0, |sum, m| bytes(m.used.load(Relaxed)).saturating_add(sum))
}

/// What they have on swap devices alone, bytes.
pub fn swapped(tree: &Tree) -> u64 {
    tree.members().iter().fold(0, |sum, m| bytes(m.swapped.load(Relaxed)).saturating_add(sum))
}

/// All of a place that the rules allow, and that are large enough for a budget.
pub fn find(place: &Place, only: &[Rule], never: &[Rule]) -> Vec<Target> {
    let pids = place.processes();
    let allowed = |pid: u32, status: &Status| {
        let cgroup = cgroup::of_process(pid);
        let subject = Subject { name: status.value("Name:"), uid: status.uid(), cgroup: cgroup.as_deref() };
        pid != 1 && pid != std::process::id() && rules::allow(only, never, subject)
    };
    let mut in_trees = HashSet::new();
    let mut targets = Vec::new();
    for tree in trees::among(pids.clone()) {
        in_trees.extend(tree.processes.iter().copied());
        let (Some(id), Ok(status)) = (Id::of(tree.pid), Status::read(tree.pid)) else { continue };
        if allowed(tree.pid, &status) {
            let numbers = Candidate { has: used(&tree), budget: tree.budget(), floor: RAM_MIN };
            targets.push(Target { id, name: trees::comm(tree.pid), tree: Some(tree), numbers });
        }
    }
    for pid in pids.into_iter().filter(|pid| !in_trees.contains(pid)) {
        let (Some(id), Ok(status)) = (Id::of(pid), Status::read(pid)) else { continue };
        let numbers = Candidate { has: status.anonymous(), budget: None, floor: RAM_MIN };
        if numbers.has > RAM_MIN && allowed(pid, &status) {
            targets.push(Target { id, name: trees::comm(pid), tree: None, numbers });
        }
    }
    targets
}
