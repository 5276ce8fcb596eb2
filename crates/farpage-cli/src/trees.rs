//! Trees, from outside: finds the segment of a process's tree among its descriptors, and says what is in it.
//!
//! Callers: `farpage stat`, `set`, `park`, `guard`, `exporter` and `top`. What is read is what its members say of
//! themselves.

use crate::failure::{Failure, Result};
use crate::memfd::{self, Memfd};
use crate::process;
use farpage::PAGE_SIZE;
use farpage_ipc::conf::size;
use farpage_ipc::tree::mapped::{self, MappedSegment};
use farpage_ipc::tree::{self, ClampedPages, Member, MemberKind, SEGMENT_NAME};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// A tree that was found.
pub struct Tree {
    /// The process whose descriptor was found.
    pub pid: u32,
    /// All processes that were looked at and have such a descriptor.
    pub processes: Vec<u32>,
    /// Its segment.
    pub segment: MappedSegment,
}

/// Where a process has its tree's segment.
///
/// # Errors
/// It has none, or may not be looked at, or has something under that name.
fn segment_of(pid: u32) -> io::Result<Option<Memfd>> {
    let path = memfd::named(Path::new(&format!("/proc/{pid}")), SEGMENT_NAME)?.next();
    path.map(|path| Memfd::at(&path)).transpose()
}

/// The tree of a process, told apart from others; `None`: it has none, or may not be looked at.
pub fn id_of(pid: u32) -> Option<u64> {
    segment_of(pid).ok()?.map(|segment| segment.inode)
}

/// A descriptor of the segment of a process's tree.
///
/// # Errors
/// It has none, or may not be looked at.
pub fn segment(pid: u32) -> Result<OwnedFd> {
    let missing = || Failure::new(format!("cannot find the tree of process {pid}"));
    let segment = segment_of(pid).ok().flatten().ok_or_else(missing)?;
    segment.open(OFlags::RDWR).map_err(|e| refused(pid, &crate::failure::why(&e)))
}

/// The tree of a process.
///
/// # Errors
/// It has none, or may not be looked at.
pub fn of(pid: u32) -> Result<Tree> {
    if !PathBuf::from(format!("/proc/{pid}")).exists() {
        return Err(Failure::new(format!("cannot find process {pid}: no such process")));
    }
    let missing = |why: &str| Failure::new(format!("cannot find the tree of process {pid}: {why}"));
    Err(match segment_of(pid) {
        Ok(Some(segment)) => return open_at(pid, &segment),
        Ok(None) => missing("it does not run under farpage")
            .help(format!("farpage attach {pid} --ram SIZE puts it under a budget")),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => refused(pid, "it is none"),
        Err(e) => missing(&crate::failure::why(&e)),
    })
}

fn open_at(pid: u32, segment: &Memfd) -> Result<Tree> {
    let fd = segment.open(OFlags::RDWR).map_err(|e| refused(pid, &crate::failure::why(&e)))?;
    open(pid, fd.as_fd())
}

/// The tree of process `pid`, whose segment this is.
///
/// # Errors
/// It is none, or cannot be mapped.
pub fn open(pid: u32, segment: BorrowedFd<'_>) -> Result<Tree> {
    let segment = mapped::open(segment).map_err(|e| refused(pid, &crate::failure::why(&e.into())))?;
    Ok(Tree { pid, processes: vec![pid], segment })
}

fn refused(pid: u32, why: &str) -> Failure {
    Failure::new(format!("cannot open the tree of process {pid} ({}): {why}", comm(pid)))
}

/// The trees of some processes.
#[derive(Default)]
pub struct Found {
    /// Once each.
    pub trees: Vec<Tree>,
    /// Processes with something that looks like a tree's memory and is not, or that cannot be opened: left out.
    pub refused: Vec<Failure>,
}

/// Every tree that can be looked at.
pub fn all() -> Found {
    among(process::all().unwrap_or_default())
}

/// The trees of these processes.
pub fn among(mut pids: Vec<u32>) -> Found {
    pids.sort_unstable();
    let mut segments: BTreeMap<u64, (Memfd, Vec<u32>)> = BTreeMap::new();
    let mut found = Found::default();
    for pid in pids {
        match segment_of(pid) {
            Ok(Some(segment)) => segments.entry(segment.inode).or_insert((segment, Vec::new())).1.push(pid),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => found.refused.push(refused(pid, "it is none")),
            // Not ours to look at, or ended.
            Ok(None) | Err(_) => {}
        }
    }
    for (segment, processes) in segments.into_values() {
        match open_at(processes[0], &segment) {
            Ok(tree) => found.trees.push(Tree { processes, ..tree }),
            Err(failure) => found.refused.push(failure),
        }
    }
    found.trees.sort_by_key(|tree| tree.pid);
    found
}

/// The name of a process, as it can be printed.
pub fn comm(pid: u32) -> String {
    let text = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(text.trim_ascii_end()).escape_debug().to_string()
}

/// Pages in bytes.
pub const fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_SIZE as u64)
}

/// Pages as a size in words.
pub fn size_of(pages: u64) -> String {
    size::format(bytes(pages))
}

/// What a member has or wants: a column (if it has a head), a name in JSON, pages.
type Column = (&'static str, &'static str, fn(&Member) -> u64);

const SIZES: [Column; 6] = [
    ("CLAIM", "claim_bytes", |m| m.claim.held()),
    ("USED", "used_bytes", |m| m.used.load()),
    ("SHARED", "shared_bytes", |m| m.shared.load()),
    ("SWAPPED", "swapped_bytes", |m| m.swapped.load()),
    ("", "floor_bytes", |m| m.floor.load()),
    ("WANTS", "wants_bytes", |m| m.wants.load()),
];

impl Tree {
    /// What all may have together, bytes; `None`: there is no budget for all.
    pub fn budget(&self) -> Option<u64> {
        Some(bytes(self.segment.budget())).filter(|bytes| *bytes < tree::UNLIMITED)
    }

    /// Gives it a budget; what that is in whole pages, bytes.
    pub fn give(&self, budget: u64) -> u64 {
        self.segment.set_budget(budget);
        self.budget().unwrap_or(budget)
    }

    /// A process that lives, by the number that it knows itself.
    pub fn member(&self, number: u64) -> Option<&Member> {
        self.segment.living().find(|member| u64::from(member.pid.load(Relaxed)) == number)
    }

    /// Members that live, the largest first.
    pub fn members(&self) -> Vec<&Member> {
        let mut members: Vec<&Member> = self.segment.living().collect();
        members.sort_by_key(|m| std::cmp::Reverse(m.claim.held()));
        members
    }

    /// What living members have together, pages.
    pub fn sum(&self, pages: impl Fn(&Member) -> u64) -> u64 {
        self.segment.living().map(pages).fold(0, u64::saturating_add)
    }

    /// Members that are stopped, by number and name: nothing happens in them.
    pub fn stopped(&self) -> Vec<(u32, String)> {
        let pids = self.segment.living().map(|m| m.pid.load(Relaxed));
        pids.filter(|pid| process::is_stopped(*pid)).map(|pid| (pid, comm(pid))).collect()
    }

    /// What stands in the way of a budget: members, and what they cannot go below.
    pub fn floors(&self) -> String {
        let named = |m: &&Member| {
            let pid = m.pid.load(Relaxed);
            format!("process {pid} ({}) {}", comm(pid), size_of(m.claim.held()))
        };
        self.members().iter().take(3).map(named).collect::<Vec<_>>().join(", ")
    }

    /// Lines for people.
    pub fn text(&self) -> String {
        let (header, budget) = (&self.segment.header, self.budget());
        let members = self.members();
        let strangers = members.iter().filter(|m| m.kind() == MemberKind::Stranger).count();
        let mut text = format!(
            "tree {} {}: budget {}, claimed {}, peak {}\n     processes {}, without the library {strangers}; \
             refused {} times, gave {} times\n",
            self.pid,
            comm(self.pid),
            budget.map_or("none".into(), size::format),
            size_of(self.segment.claimed()),
            size_of(header.peak.load()),
            members.len(),
            header.refused.load(Relaxed),
            header.gives.load(Relaxed),
        );
        let columns = |cell: &dyn Fn(&Column) -> String| -> String {
            SIZES.iter().filter(|(head, ..)| !head.is_empty()).map(|column| format!(" {:>9}", cell(column))).collect()
        };
        let heads = columns(&|(head, ..)| (*head).into());
        let _ = writeln!(text, "{:>9} {:<15}{heads} {:>8} KIND", "PID", "COMMAND", "STALLS");
        for m in members {
            let (pid, stalls, kind) = (m.pid.load(Relaxed), m.stalls.load(Relaxed), m.kind().name());
            let sizes = columns(&|(_, _, pages)| size_of(pages(m)));
            let _ = writeln!(text, "{pid:>9} {:<15}{sizes} {stalls:>8} {kind}", comm(pid));
        }
        text
    }

    /// The same for programs, bytes.
    pub fn json(&self) -> Value {
        let header = &self.segment.header;
        let of = |pages: &ClampedPages| bytes(pages.load());
        let mut object = json!({
            "pid": self.pid,
            "budget_bytes": self.budget(),
            "claimed_bytes": bytes(self.segment.claimed()),
            "peak_bytes": of(&header.peak),
            "strangers_peak_bytes": of(&header.strangers_peak),
            "refused": header.refused.load(Relaxed),
            "gives": header.gives.load(Relaxed),
            "joined": header.joined.load(Relaxed),
            "waited_ns": header.sums.waited().as_nanos() as u64,
        });
        let counts = header.sums.page().values().into_iter().filter(|value| value.counter);
        counts.for_each(|count| object[count.name] = count.value.into());
        let largest = header.largest.list().into_iter().map(|process| {
            json!({
                "pid": process.pid,
                "name": process.name,
                "peak_bytes": bytes(process.peak),
            })
        });
        object["largest"] = largest.collect();
        let members = self.members().into_iter().map(|m| {
            let mut object = json!({ "pid": m.pid.load(Relaxed), "kind": m.kind().name() });
            SIZES.iter().for_each(|(_, name, pages)| object[name] = bytes(pages(m)).into());
            object["age_pages"] = self.segment.age_of(m).into();
            object["stalls"] = m.stalls.load(Relaxed).into();
            object
        });
        object["members"] = members.collect();
        object
    }
}
