//! How much of its time a program waited for memory, and what to do if that is most of it.
//!
//! Callers: `--stats` of the command, and the program itself, while it runs and at its end. Numbers and words, no
//! locks.

use super::Stat;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What to do where no device had room: pages that were to go stayed.
pub const FULL: &str = "the swap devices were full: more --swap keeps it within its budget";

/// A program that waited for more than this part of its time did little else.
const MOST: f64 = 0.5;

/// For how long a program waited for memory.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Nanoseconds, of all its threads together.
    pub ns: u64,
    /// Of the time: for so much at least one thread waited, or more.
    pub share: f64,
    /// Faults that read a device, and those of them that read a file.
    major: (u64, u64),
    /// Pages left memory.
    is_swapped: bool,
    /// Pages stayed that were to go: no device had room.
    full: bool,
}

impl Stat {
    /// What it waited in a run that took so long. At least one thread waited for as much as all of them on average.
    pub fn waiting(&self, wall: Duration) -> Waiting {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let ns = of(&self.fault_wait_ns).saturating_add(of(&self.alloc_wait_ns));
        let share = ns as f64 / of(&self.fault_threads).max(1) as f64 / wall.as_nanos().max(1) as f64;
        let (major, full) = ((of(&self.pgmajfault), of(&self.pgmajfault_file)), of(&self.swap_full) > 0);
        let went = [&self.pswpout, &self.swpout_zero, &self.workingset_refault_cached];
        Waiting { ns, share: share.min(1.0), major, is_swapped: went.iter().any(|pages| of(pages) > 0), full }
    }
}

impl Waiting {
    /// The same, where it is known for how much of the time at least one thread waited.
    pub fn of_any(self, any: Duration, wall: Duration) -> Waiting {
        Waiting { share: (any.as_secs_f64() / wall.as_secs_f64().max(1e-9)).min(1.0), ..self }
    }

    /// That most major faults waited for files, if they did. Threads wait longest for files: where these are most
    /// faults, they are most of the time, too.
    pub fn files(&self) -> Option<String> {
        let (major, of_files) = self.major;
        let percent = (of_files as f64 * 100.0 / major.max(1) as f64).min(100.0);
        (of_files > major / 2).then(|| format!("{percent:.0}% of major faults waited for files"))
    }

    /// That it waited for most of `time`, which is in words, and the one thing that helps most.
    pub fn advice(&self, time: &str) -> Option<String> {
        if self.share <= MOST || !(self.is_swapped || self.full) {
            return None;
        }
        let waited = format!("for {:.0}% of {time} at least one thread waited for memory", self.share * 100.0);
        if self.full {
            // Above its budget, so it waits less than it would.
            return Some(format!("{waited}, and {FULL}"));
        }
        let files = self.files().map(|files| format!(", {files}")).unwrap_or_default();
        Some(format!("{waited}{files}: give it more --ram"))
    }
}
