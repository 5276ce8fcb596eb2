//! A memory of fixed size under a page trace: how well a policy chooses, in counts that no load of the machine changes.
//!
//! [`replay`] runs a trace through a [`Policy`] and counts. [`Ours`] is the engine's policy, the very code of
//! [`crate::workingset`], and [`Run`] the same with all that `farpage run` does around it: readahead, and pages that
//! leave in batches, and [`Tree`] several of ours in one memory. Beside them are the ones that it has to stand up to:
//! [`Fifo`], [`Clock`], exact [`Lru`], [`S3Fifo`] and Belady's [`Opt`], which knows the future. [`Synthetic`] and
//! [`Mix`] make the traces that the goals name.
//!
//! Called by `farpage-bench sim` and by the tests of the policy. Pure, one thread, no locks.

mod classic;
mod opt;
mod ours;
mod random;
mod run;
mod synthetic;
#[cfg(all(test, not(loom)))]
mod tests;
mod tree;

pub use classic::{Clock, Fifo, Lru, S3Fifo};
pub use opt::Opt;
pub use ours::{CachedLen, Ours};
pub use random::{Random, Zipf, mix};
pub use run::Run;
pub use synthetic::Synthetic;
pub use tree::{Division, Mix, Tree};

use crate::lru::Links;
use std::cell::Cell;

/// One access: a page by its number in the trace, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(u32);

/// What is done with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// The program needs its content no longer: unmapped or discarded.
    Free,
}

impl Access {
    /// Most pages of a trace.
    pub const PAGES_MAX: u32 = 1 << 30;

    /// An access to `page`, which is below [`Access::PAGES_MAX`].
    pub fn new(page: u32, write: bool) -> Access {
        debug_assert!(page < Access::PAGES_MAX);
        Access(page << 2 | u32::from(write))
    }

    /// The program needs `page`, which is below [`Access::PAGES_MAX`], no longer.
    pub fn free(page: u32) -> Access {
        debug_assert!(page < Access::PAGES_MAX);
        Access(page << 2 | 2)
    }

    /// The page.
    pub fn page(self) -> u32 {
        self.0 >> 2
    }

    /// What is done with it.
    pub fn kind(self) -> AccessKind {
        match self.0 & 3 {
            0 => AccessKind::Read,
            1 => AccessKind::Write,
            _ => AccessKind::Free,
        }
    }
}

/// What an access met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// The page was in memory.
    Hit,
    /// It was in memory, but unmapped: a fault without I/O.
    Minor,
    /// It was not in memory.
    Miss,
}

/// Pages that moved on account of an access.
#[derive(Debug, Default)]
pub struct Moved {
    /// They left memory.
    pub out: Vec<u32>,
    /// They came in with the one that was accessed.
    pub ahead: Vec<u32>,
}

/// Chooses which page goes.
pub trait Policy {
    /// The page is accessed; what moves on its account is added to `moved`.
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met;
    /// The program needs the page no longer.
    fn free(&mut self, page: u32);
}

/// Result of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses.
    pub accesses: u64,
    /// Misses on pages never seen before, or freed since: zero-filled, nothing is read.
    pub first: u64,
    /// Misses on pages that had been thrown out: a read from a device.
    pub reads: u64,
    /// Pages read beside those.
    pub ahead: u64,
    /// Faults on pages that were unmapped, but still in memory.
    pub minor: u64,
    /// Pages thrown out.
    pub out: u64,
    /// Those of them that had been written since they last went out.
    pub writes: u64,
}

impl Counts {
    /// Misses per access.
    pub fn miss_ratio(&self) -> f64 {
        (self.first + self.reads) as f64 / self.accesses.max(1) as f64
    }
}

/// Runs `trace`, whose pages are below `pages`, through `policy`.
pub fn replay(policy: &mut dyn Policy, trace: &[Access], pages: u32) -> Counts {
    let mut counts = Counts::default();
    let (mut seen, mut dirty) = (vec![false; pages as usize], vec![false; pages as usize]);
    let mut moved = Moved::default();
    for access in trace {
        let page = access.page() as usize;
        if access.kind() == AccessKind::Free {
            policy.free(access.page());
            (seen[page], dirty[page]) = (false, false);
            continue;
        }
        counts.accesses += 1;
        match policy.access(access.page(), &mut moved) {
            Met::Hit => {}
            Met::Minor => counts.minor += 1,
            Met::Miss if std::mem::replace(&mut seen[page], true) => counts.reads += 1,
            Met::Miss => counts.first += 1,
        }
        dirty[page] |= access.kind() == AccessKind::Write;
        counts.ahead += moved.ahead.drain(..).len() as u64;
        counts.out += moved.out.len() as u64;
        for page in moved.out.drain(..) {
            counts.writes += u64::from(std::mem::take(&mut dirty[page as usize]));
        }
    }
    counts
}

/// Links of nodes that one thread has.
#[derive(Debug, Clone, Default)]
pub struct Nodes(Vec<[Cell<u32>; 2]>);

impl Nodes {
    /// For nodes below `n`.
    pub fn new(n: usize) -> Nodes {
        Nodes(vec![Default::default(); n])
    }
}

impl Links for Nodes {
    fn prev(&self, n: u32) -> u32 {
        self.0[n as usize][0].get()
    }
    fn next(&self, n: u32) -> u32 {
        self.0[n as usize][1].get()
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.0[n as usize][0].set(to);
    }
    fn set_next(&self, n: u32, to: u32) {
        self.0[n as usize][1].set(to);
    }
}
