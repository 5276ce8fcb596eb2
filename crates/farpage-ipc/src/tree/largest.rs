//! The processes of a tree that had most memory, also when they have ended: for the report at the end.
//!
//! A few places, each with a peak. A process that has more than the smallest of them takes that place. Two that do so
//! at once may lose one entry; nothing depends on it.
//!
//! Callers: monitors at their looks, dormant processes, the process that looks after strangers. No locks; nothing is
//! allocated.

use crate::conf::size;
use farpage_base::sys::proc::name_of;
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How many are remembered.
const PLACES: usize = 8;
/// A process with less, in pages, is not remembered: most processes of a tree live for a moment.
const LEAST: u64 = 512;

/// A process that had much.
#[repr(C)]
#[derive(Debug, Default)]
struct LargestPlace {
    /// Pages at the most.
    peak: AtomicU64,
    pid: AtomicU32,
    name: [AtomicU64; 2],
}

/// See the module header.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Largest {
    places: [LargestPlace; PLACES],
}

/// What is remembered of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeProcess {
    /// Its process id.
    pub pid: u32,
    /// As `/proc/PID/comm` had it; it may be any text.
    pub name: String,
    /// Most pages that it had.
    pub peak: u64,
}

impl Largest {
    /// Process `pid` has so many pages.
    pub fn note(&self, pid: u32, pages: u64) {
        if pages < LEAST {
            return;
        }
        if let Some(own) = self.places.iter().find(|place| place.pid.load(Relaxed) == pid) {
            own.peak.fetch_max(pages, Relaxed);
            return;
        }
        let Some(least) = self.places.iter().min_by_key(|place| place.peak.load(Relaxed)) else { return };
        let before = least.peak.load(Relaxed);
        if before < pages && least.peak.compare_exchange(before, pages, Relaxed, Relaxed).is_ok() {
            least.pid.store(pid, Relaxed);
            let name = name_of(pid);
            for (word, bytes) in least.name.iter().zip(name.as_chunks::<8>().0) {
                word.store(u64::from_ne_bytes(*bytes), Relaxed);
            }
        }
    }

    /// Those that had most, the largest first.
    pub fn list(&self) -> Vec<LargeProcess> {
        let mut all: Vec<_> = self.places.iter().filter(|p| p.peak.load(Relaxed) > 0).map(LargestPlace::read).collect();
        all.sort_by_key(|process| std::cmp::Reverse(process.peak));
        all
    }

    /// Names the largest one, for the end of a sentence.
    pub fn in_words(&self) -> Option<String> {
        let largest = self.list().into_iter().next()?;
        let had = size::format(largest.peak.saturating_mul(PAGE_SIZE as u64));
        Some(format!("; the largest process is {} ({}), with {had}", largest.name, largest.pid))
    }
}

impl LargestPlace {
    fn read(&self) -> LargeProcess {
        let name = [0, 1].map(|i| self.name[i].load(Relaxed).to_ne_bytes()).concat();
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]).escape_debug().to_string();
        LargeProcess { pid: self.pid.load(Relaxed), name, peak: self.peak.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_most_are_remembered_with_their_names() {
        let largest = Largest::default();
        let own = std::process::id();
        // Others that do not exist: no name.
        (1..=20).for_each(|i| largest.note(0x7f00_0000 + i, LEAST + u64::from(i)));
        largest.note(own, 10_000);
        largest.note(own, 9_000);
        largest.note(0x7f00_1000, LEAST - 1);
        let list = largest.list();
        assert_eq!(list.len(), PLACES);
        assert_eq!((list[0].pid, list[0].peak, list[0].name.is_empty()), (own, 10_000, false));
        let words = format!("; the largest process is {} ({own}), with 39.1 MiB", list[0].name);
        assert_eq!(largest.in_words(), Some(words));
        let others: Vec<u64> = list[1..].iter().map(|process| process.peak - LEAST).collect();
        assert_eq!(others, [20, 19, 18, 17, 16, 15, 14]);
    }
}
