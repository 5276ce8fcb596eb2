//! A memory of fixed size under a page trace: how well a policy chooses, in counts that no load of the machine changes.
//!
//! [`replay`] runs a trace through a [`Policy`] and counts. [`Ours`] is the engine's policy, the very code of
//! [`crate::workingset`]; beside it the ones that it has to stand up to: [`Fifo`], [`Clock`], exact [`Lru`], [`S3Fifo`]
//! and Belady's [`Opt`], which knows the future. [`Synthetic`] makes the traces that the goals name.
//!
//! Called by `farpage sim` and by the tests of the policy. Pure, one thread, no locks.

mod classic;
mod opt;
mod ours;
mod synthetic;
#[cfg(all(test, not(loom)))]
mod tests;

pub use classic::{Clock, Fifo, Lru, S3Fifo};
pub use opt::Opt;
pub use ours::{CachedLen, Ours};
pub use synthetic::{Random, Synthetic};

use crate::lru::Links;
use std::cell::Cell;

/// One access: a page by its number in the trace, and whether it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Most pages of a trace.
    pub const PAGES_MAX: u32 = 1 << 31;

    /// An access to `page`, which is below [`Access::PAGES_MAX`].
    pub fn new(page: u32, write: bool) -> Access {
        debug_assert!(page < Access::PAGES_MAX);
        Access(page << 1 | u32::from(write))
    }

    /// The page.
    pub fn page(self) -> u32 {
        self.0 >> 1
    }

    /// Whether it is written.
    pub fn is_write(self) -> bool {
        self.0 & 1 != 0
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

/// Chooses which page goes.
pub trait Policy {
    /// The page is accessed. Pages that leave memory on its account are added to `out`.
    fn access(&mut self, page: u32, out: &mut Vec<u32>) -> Met;
}

/// Result of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses.
    pub accesses: u64,
    /// Misses on pages never seen before: zero-filled, nothing is read.
    pub first: u64,
    /// Misses on pages that had been thrown out: a read from a device.
    pub reads: u64,
    /// Faults on pages that were unmapped, but still in memory.
    pub minor: u64,
    /// Pages thrown out that had been written since they last went out.
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
    let mut out = Vec::new();
    for access in trace {
        let page = access.page() as usize;
        counts.accesses += 1;
        match policy.access(access.page(), &mut out) {
            Met::Hit => {}
            Met::Minor => counts.minor += 1,
            Met::Miss if std::mem::replace(&mut seen[page], true) => counts.reads += 1,
            Met::Miss => counts.first += 1,
        }
        dirty[page] |= access.is_write();
        for page in out.drain(..) {
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
