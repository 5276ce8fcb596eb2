//! The counters as metrics: which there are, what they are called, of what they are.
//!
//! Every value of a statistics page is a metric of the same name, `farpage_NAME`; where it is defined
//! (`farpage::stat`) says which are not. Units are bytes and seconds.
//!
//! A tree is one set of series, whatever number of processes it starts: levels are those of its living processes
//! together, and what is counted is what the tree has summed up, because a sum over living ones would fall when one
//! ends. A process without a tree is like a tree of its own.
//!
//! Callers: `farpage stat --openmetrics`, `farpage exporter`. What is read is what processes say of themselves: no
//! label may break a line, and no two samples may have the same labels, whatever that is.

mod text;

pub use text::{Exposition, write};

use crate::cgroup;
use crate::page::Page;
use crate::stat_cmd::find::Managed;
use crate::trees::{Tree, bytes, comm};
use crate::users::Users;
use farpage_ipc::stat::{Exported, Value, bucket_end};
use farpage_ipc::tree::MemberKind;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Bounds of the latency histogram: powers of two nanoseconds, from 2^10 (1.024 us) to 2^32 (4.3 s).
const LATENCY_BOUNDS: std::ops::RangeInclusive<u32> = 10..=32;

/// What kind of thing a family of metrics is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// A level.
    Gauge,
    /// It only grows.
    Counter,
    /// How many of something were below each bound.
    Histogram,
    /// Words, in labels.
    Info,
}

/// A family: one metric, of each of those that have it.
#[derive(Debug, Clone)]
pub struct Family {
    /// Without what formats append (`_total`, `_bucket`, `_info`).
    pub name: String,
    /// What it is.
    pub kind: FamilyKind,
    /// One line of words.
    pub help: String,
    /// One of each of those that have it.
    pub samples: Vec<Sample>,
}

/// What a metric is of one of those that have it.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Which one.
    pub labels: Labels,
    /// How much.
    pub value: Amount,
}

/// Names of labels, and what they say.
pub type Labels = Vec<(&'static str, String)>;

/// How much.
#[derive(Debug, Clone)]
pub enum Amount {
    /// A whole number.
    Whole(u64),
    /// So many nanoseconds.
    Nanoseconds(u64),
    /// Bounds in seconds, and how many were below each; how many there were; how long they took together, nanoseconds.
    Below(Vec<(f64, u64)>, u64, u64),
}

impl Amount {
    /// Both together.
    fn and(&mut self, other: &Amount) {
        match (self, other) {
            (Amount::Whole(sum), Amount::Whole(more)) | (Amount::Nanoseconds(sum), Amount::Nanoseconds(more)) => {
                *sum = sum.saturating_add(*more);
            }
            (Amount::Below(buckets, count, sum), Amount::Below(others, more, longer)) => {
                buckets
                    .iter_mut()
                    .zip(others)
                    .for_each(|((_, below), (_, other))| *below = below.saturating_add(*other));
                (*count, *sum) = (count.saturating_add(*more), sum.saturating_add(*longer));
            }
            // Of one family all are of one kind.
            _ => {}
        }
    }
}

/// Families in the order in which they were first heard of.
#[derive(Debug, Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, name: &str, kind: FamilyKind, help: &str, labels: Labels, value: Amount) {
        let name = format!("farpage_{name}");
        let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.0.push(Family { name, kind, help: help.trim().into(), samples: Vec::new() });
            self.0.len() - 1
        });
        let samples = &mut self.0[at].samples;
        match samples.last_mut().filter(|sample| sample.labels == labels) {
            Some(sample) => sample.value.and(&value),
            None => samples.push(Sample { labels, value }),
        }
    }
}

/// All metrics of these processes and trees: of each tree together, or `per_process`.
pub fn families(processes: &[Managed], trees: &[Tree], per_process: bool) -> Vec<Family> {
    let mut families = Families::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_string())];
    families.0.push(Family {
        name: "farpage".into(),
        kind: FamilyKind::Info,
        help: "Version of farpage.".into(),
        samples: vec![Sample { labels: version, value: Amount::Whole(1) }],
    });
    let unreadable = processes.iter().filter(|one| one.pages.is_none()).count() as u64;
    let help = "Processes under farpage whose counters the user who asks may not read.";
    families.add("unreadable_processes", FamilyKind::Gauge, help, Vec::new(), Amount::Whole(unreadable));
    let mut users = Users::default();
    let mut place_of = |tree: u32, pid: u32, command: String| {
        let cgroup = cgroup::of_process(pid).unwrap_or_default();
        vec![("tree", tree.to_string()), ("command", command), ("user", users.of(pid)), ("cgroup", cgroup)]
    };
    let tree_of = |pid: u32| trees.iter().find(|tree| tree.processes.contains(&pid));
    let pages = processes.iter().flat_map(|one| one.pages.iter().flatten().map(move |page| (one, page)));
    let mut pages: Vec<_> = pages.map(|(one, page)| (one, page, tree_of(one.pid))).collect();
    // Those with the same labels are beside each other.
    pages.sort_by_key(|(one, page, tree)| (tree.map_or(one.pid, |tree| tree.pid), page.pager().is_some(), one.pid));
    let mut seen = BTreeSet::new();
    for (one, page, tree) in pages {
        if !seen.insert((one.pid, page.pager())) {
            continue;
        }
        // A tree sums up what its engines count, and nothing of pagers.
        let together = tree.filter(|_| !per_process && page.pager().is_none());
        let mut labels = match together {
            Some(tree) => place_of(tree.pid, tree.pid, comm(tree.pid)),
            None => place_of(tree.map_or(one.pid, |tree| tree.pid), one.pid, one.command.clone()),
        };
        if per_process || tree.is_some() && together.is_none() {
            labels.push(("pid", one.pid.to_string()));
        }
        of_page(&mut families, &labels, page, together.is_some());
    }
    for tree in trees {
        let labels = place_of(tree.pid, tree.pid, comm(tree.pid));
        let sums = Page::of_tree(&tree.segment.header.sums);
        if !per_process {
            let labels = with_pager(&labels, None);
            let counters = sums.values().into_iter().filter(|value| value.counter);
            counters.for_each(|value| of_value(&mut families, value, &labels));
        }
        of_tree(&mut families, &labels, tree, sums.get("pgmajfault"));
    }
    families.0
}

fn with_pager(labels: &Labels, pager: Option<u64>) -> Labels {
    let pager = pager.map_or(String::new(), |number| number.to_string());
    labels.iter().cloned().chain([("pager", pager)]).collect()
}

/// The metrics of one engine or pager. `is_summed`: its tree sums up what it counts.
fn of_page(families: &mut Families, labels: &Labels, page: &Page, is_summed: bool) {
    let labels = with_pager(labels, page.pager());
    let values = page.values().into_iter().filter(|value| !(is_summed && value.counter));
    values.for_each(|value| of_value(families, value, &labels));
    // Pagers serve faults in the faulting thread, and only add up how long they took.
    if page.pager().is_none() && !is_summed {
        let (below, count) = latencies(&page.latency_counts());
        let help = "Service time of faults, from the message read to the thread woken.";
        let name = "fault_duration_seconds";
        families.add(name, FamilyKind::Histogram, help, labels, Amount::Below(below, count, page.get("fault_wait_ns")));
    }
}

fn of_value(families: &mut Families, value: Value, labels: &Labels) {
    let kind = if value.counter { FamilyKind::Counter } else { FamilyKind::Gauge };
    let amount = match value.name.ends_with("_ns") {
        true => Amount::Nanoseconds(value.value),
        false => Amount::Whole(value.value),
    };
    match value.shown.exported {
        Exported::Not => {}
        Exported::As(name) => families.add(name, kind, value.help, labels.clone(), amount),
        Exported::AsNamed => families.add(value.name, kind, value.help, labels.clone(), amount),
        Exported::Error(what) => {
            let labels = labels.iter().cloned().chain([("kind", what.to_string())]).collect();
            let help = "What should not happen, by kind; docs/user/statistics.md says what each is.";
            families.add("errors", FamilyKind::Counter, help, labels, amount);
        }
    }
}

/// How many faults took less than each of [`LATENCY_BOUNDS`], in seconds; how many there were.
fn latencies(counts: &[u64]) -> (Vec<(f64, u64)>, u64) {
    let below = |bound: u64| {
        let within = counts.iter().enumerate().take_while(|(bucket, _)| bucket_end(*bucket) <= bound);
        within.fold(0u64, |sum, (_, n)| sum.saturating_add(*n))
    };
    let bounds = LATENCY_BOUNDS.map(|power| (1u64 << power) as f64 / 1e9).zip(LATENCY_BOUNDS.map(|p| below(1 << p)));
    (bounds.collect(), below(u64::MAX))
}

/// The metrics of one tree, whose processes had so many major faults.
fn of_tree(families: &mut Families, labels: &Labels, tree: &Tree, major: u64) {
    let (header, members) = (&tree.segment.header, tree.members());
    let strangers = members.iter().filter(|member| member.kind() == MemberKind::Stranger).count();
    let labels = || labels.clone();
    let gauge = FamilyKind::Gauge;
    if let Some(budget) = tree.budget() {
        let help = "The budget of a tree: a program under farpage run, and everything that it started.";
        families.add("tree_budget_bytes", gauge, help, labels(), Amount::Whole(budget));
    }
    for (name, help, value) in [
        ("tree_claimed_bytes", "What the processes of a tree may have.", bytes(tree.segment.claimed())),
        ("tree_processes", "Processes of a tree.", members.len() as u64),
        ("tree_strangers", "Of a tree, processes without the library.", strangers as u64),
    ] {
        families.add(name, gauge, help, labels(), Amount::Whole(value));
    }
    for (name, help, value) in [
        ("tree_refused", "How often a process of a tree got less than it wanted.", header.refused.load(Relaxed)),
        ("tree_gives", "How often a process of a tree gave something.", header.gives.load(Relaxed)),
        ("tree_pgmajfault", "Faults of all processes of a tree that read a swap device.", major),
        ("tree_joined", "Processes that were in a tree so far.", header.joined.load(Relaxed)),
    ] {
        families.add(name, FamilyKind::Counter, help, labels(), Amount::Whole(value));
    }
}

#[cfg(test)]
mod tests;
