//! How much of the budget compressed pages get.
//!
//! RAM can hold a page as it is, or about three compressed ones. Which is worth more depends on the program: what does
//! not compress, or is not wanted again, makes the pool a waste of RAM that could hold pages of the hot set; data that
//! compresses and is used at random is better kept compressed than read from a file. So the two are compared by what
//! their last MiB earns:
//!
//! * A page that comes back soon after it left would have stayed in a larger memory: the refault distance says how much
//!   larger. Such faults per MiB say what another MiB of uncompressed memory saves, a major fault each.
//! * Loads of compressed pages that have grown old in the pool, per MiB of its older half, say what the pool's last MiB
//!   saves: each time the difference between reading a file and decompressing.
//!
//! The limit moves in small steps towards the side that earns more, with a margin, because moving costs writes. Pure
//! arithmetic; called by the monitor. Idea: marginal utility of cache partitions (as in ARC's ghost hits).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Moving means of what loading one page takes; written by the pager, read by the monitor.
#[derive(Debug)]
pub struct LoadTimes {
    pool_ns: AtomicU64,
    file_ns: AtomicU64,
}

impl Default for LoadTimes {
    /// What was measured on the machine this was written on, until there is something better.
    fn default() -> LoadTimes {
        LoadTimes { pool_ns: AtomicU64::new(4_000), file_ns: AtomicU64::new(80_000) }
    }
}

impl LoadTimes {
    /// A single page was loaded, `from_file` or from memory, in `ns`.
    pub fn note(&self, from_file: bool, ns: u64) {
        let mean = if from_file { &self.file_ns } else { &self.pool_ns };
        let old = mean.load(Relaxed);
        mean.store(old - old / 64 + ns.min(10_000_000) / 64, Relaxed);
    }

    /// Means for the pool and for files, ns.
    pub fn means(&self) -> (u64, u64) {
        (self.pool_ns.load(Relaxed), self.file_ns.load(Relaxed))
    }
}

/// Counters and levels at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Major faults so far on pages that would have stayed if memory were larger by `near_bytes`.
    pub near: u64,
    /// See `near`.
    pub near_bytes: u64,
    /// Faults that loaded a page so far.
    pub major: u64,
    /// Of these, from a file.
    pub major_file: u64,
    /// Loads so far of old pages of the pool.
    pub pool_old_loads: u64,
    /// RAM of the pool now, bytes.
    pub pool_bytes: u64,
    /// Mean time to load a page from the pool, ns.
    pub pool_load_ns: u64,
    /// Mean time to load a page from a file, ns.
    pub file_load_ns: u64,
}

/// The pool's limit and what it is steered by.
#[derive(Debug)]
pub struct PoolShare {
    min: u64,
    max: u64,
    step: u64,
    limit: u64,
    last: Sample,
}

/// Faults between two decisions: enough for the rates to mean something.
const WINDOW: u64 = 2048;
/// What a fault costs before anything is loaded, ns.
const FAULT_NS: u64 = 10_000;
/// Quarters by which one side must earn more than the other.
const MARGIN_QUARTERS: u128 = 6;

impl PoolShare {
    /// For a budget of `ram` bytes: starts at half of it, and stays between 1/16 and 3/4.
    pub fn new(ram: u64) -> PoolShare {
        PoolShare { min: ram / 16, max: ram / 4 * 3, step: ram / 32, limit: ram / 2, last: Sample::default() }
    }

    /// Limit now, bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Looks at what happened since the last decision; the new limit if it changes.
    pub fn turn(&mut self, now: Sample) -> Option<u64> {
        let major = now.major.saturating_sub(self.last.major);
        if major < WINDOW {
            return None;
        }
        let near = now.near.saturating_sub(self.last.near);
        let from_file = now.major_file.saturating_sub(self.last.major_file).min(major);
        let old_loads = now.pool_old_loads.saturating_sub(self.last.pool_old_loads);
        self.last = now;
        let load_ns = ((major - from_file) * now.pool_load_ns + from_file * now.file_load_ns) / major;
        // Saved ns per byte, both over the same time; as products, so that nothing is divided away.
        let page_earns = u128::from(near) * u128::from(FAULT_NS + load_ns);
        let pool_earns = u128::from(old_loads) * u128::from(now.file_load_ns.saturating_sub(now.pool_load_ns));
        let (page_side, pool_side) =
            (page_earns * u128::from(now.pool_bytes / 2), pool_earns * u128::from(now.near_bytes));
        let before = self.limit;
        if page_side * 4 > pool_side * MARGIN_QUARTERS {
            // From where the pool is: a limit that it never reached has kept nothing out.
            self.limit = self.limit.min(now.pool_bytes + self.step).saturating_sub(self.step).max(self.min);
        } else if pool_side * 4 > page_side * MARGIN_QUARTERS {
            self.limit = (self.limit + self.step).min(self.max);
        }
        (self.limit != before).then_some(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Densities that do not depend on the sizes: faults and loads per MiB and step.
    fn settle(near_per_mib: u64, old_loads_per_mib: u64) -> u64 {
        let mut share = PoolShare::new(64 * MIB);
        let mut s = Sample { near_bytes: 8 * MIB, pool_load_ns: 4_000, file_load_ns: 80_000, ..Sample::default() };
        for _ in 0..200 {
            s.pool_bytes = share.limit();
            s.near += near_per_mib * 8;
            s.pool_old_loads += old_loads_per_mib * s.pool_bytes / 2 / MIB;
            s.major += 4096;
            s.major_file += 2048;
            share.turn(s);
        }
        share.limit() / MIB
    }

    #[test]
    fn the_side_that_earns_more_grows() {
        assert_eq!(settle(1000, 1), 4, "a pool nobody reads shrinks to the least");
        assert_eq!(settle(1, 1000), 48, "a pool that is read grows to the most");
        assert_eq!(settle(100, 72), 32, "what earns about the same stays");
    }

    #[test]
    fn few_faults_change_nothing_and_a_quiet_pool_gives_its_room_to_hot_pages() {
        let mut share = PoolShare::new(64 * MIB);
        assert_eq!(share.turn(Sample { near: 100, major: 100, ..Sample::default() }), None);
        assert_eq!(share.limit(), 32 * MIB);
        let s = Sample { near: 4000, near_bytes: MIB, major: 5000, pool_bytes: 10 * MIB, ..Sample::default() };
        assert_eq!(share.turn(s), Some(10 * MIB));
    }
}
