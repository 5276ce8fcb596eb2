//! How much of its time a program waited for memory, and what to do if that is most of it.
//!
//! Callers: `--stats` of the command, and the program itself at its end. Numbers and words, no locks.

use super::Stat;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What to do where no device had room: pages that were to go stayed.
pub const FULL: &str = "the swap devices were full: more --swap keeps it within its budget";

/// A program that waited for more than this part of its time did little else.
const MOST: f64 = 0.5;

/// For how long a program waited for memory, of all its threads together.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Nanoseconds.
    pub ns: u64,
    /// Threads that had faults.
    pub threads: u64,
    /// Of the time of these threads.
    pub share: f64,
    /// Faults that read a device, and those of them that read a file.
    major: (u64, u64),
    /// Pages stayed that were to go: no device had room.
    full: bool,
}

impl Stat {
    /// What it waited in a run that took so long.
    pub fn waiting(&self, wall: Duration) -> Waiting {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let ns = of(&self.fault_wait_ns).saturating_add(of(&self.alloc_wait_ns));
        let threads = of(&self.fault_threads).max(1);
        let share = ns as f64 / (wall.as_nanos().max(1) as f64 * threads as f64);
        let (major, full) = ((of(&self.pgmajfault), of(&self.pgmajfault_file)), of(&self.swap_full) > 0);
        Waiting { ns, threads, share, major, full }
    }
}

impl Waiting {
    /// The same of several processes, of which at least one waited for `any` of the run's time, and whose threads with
    /// faults lived for `threads` together: the smaller share.
    pub fn of_several(self, any: Duration, wall: Duration, threads: Duration) -> Waiting {
        let part = |ns: u128, of: Duration| ns as f64 / of.as_nanos().max(1) as f64;
        Waiting { share: part(any.as_nanos(), wall).min(part(self.ns.into(), threads)), ..self }
    }

    /// That most major faults waited for files, if they did. Threads wait longest for files: where these are most
    /// faults, they are most of the time, too.
    pub fn files(&self) -> Option<String> {
        let (major, of_files) = self.major;
        let percent = (of_files as f64 * 100.0 / major.max(1) as f64).min(100.0);
        (of_files > major / 2).then(|| format!("{percent:.0}% of major faults waited for files"))
    }

    /// What to do about it, where it was most of the time; after the name of the program that waited.
    pub fn advice(&self) -> Option<String> {
        let waited = (self.share > MOST).then_some("waited for most of its time, ");
        if self.full {
            // Above its budget, so it waits less than it would.
            return waited.map(|waited| format!("{waited}and {FULL}"));
        }
        waited.map(|waited| match self.files() {
            None => "waited for most of its time: give it more --ram".into(),
            Some(files) => format!("{waited}{files}: more --ram, or a faster disk"),
        })
    }
}
