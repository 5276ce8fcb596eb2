//! What `--report` says of each mapping of the first process: its name, what of it was in memory when the process had
//! most and at the last look, and what readahead did in it.
//!
//! Outside of the engine it is not known what of a mapping is swapped out: what is not in memory is, or was never
//! touched. The kernel goes through all page tables for an answer, so it is asked for a fiftieth of the time at most.
//! Caller: [`super::record`]. One thread, no locks.

use crate::mappings::{NamedMapping, Names};
use crate::page::{MappingReadahead, Page};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Mappings that are shown besides those that had faults: the largest.
const LARGEST: usize = 16;
/// Of the time, a look takes one part of so many.
const PART: u32 = 50;

/// What was seen.
#[derive(Default)]
pub struct ByMapping {
    /// When the process had most: how much that was, swapped out pages included.
    peak: (u64, Names),
    last: Names,
    /// Not before.
    next: Option<Instant>,
}

/// A mapping of the table.
#[derive(Default)]
struct Row {
    /// At the last look, when the process had most.
    bytes: [u64; 2],
    /// At the same times.
    resident: [u64; 2],
    faults: u64,
    ahead: u64,
    hits: u64,
}

impl Row {
    fn json(&self, start: u64, name: &str) -> Value {
        let hit_pct = (self.hits > 0).then(|| (1000.0 * self.hits as f64 / self.ahead.max(1) as f64).round() / 10.0);
        json!({
            "name": name,
            "start": start,
            "bytes": largest(self.bytes),
            "resident_bytes": self.resident[0],
            "resident_peak_bytes": self.resident[1],
            "pgmajfault": self.faults,
            "swap_ra": self.ahead,
            "ra_hit_pct": hit_pct,
        })
    }
}

fn largest([one, other]: [u64; 2]) -> u64 {
    one.max(other)
}

/// Of this thread. Another thread's use of the CPU is no cost of a look.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

impl ByMapping {
    /// Looks at a process, if it is time. `page` is its engine's.
    pub fn look(&mut self, pid: u32, page: Option<&Page>) {
        if self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let before = cpu_time();
        self.saw(Names::with_resident(pid), page.map_or(0, |page| page.get("swapped_bytes")));
        self.next = Some(Instant::now() + cpu_time().saturating_sub(before) * PART);
    }

    fn saw(&mut self, mut names: Names, swapped: u64) {
        // None: it has ended.
        if names.0.is_empty() {
            return;
        }
        names.inherit(&self.last);
        let has = names.0.iter().fold(swapped, |sum, one| sum.saturating_add(one.resident));
        if has >= self.peak.0 {
            self.peak = (has, names.clone());
        }
        self.last = names;
    }

    /// The table, in address order. `readahead`: of each mapping that the engine manages, as it says.
    pub fn json(&self, readahead: &[MappingReadahead]) -> Value {
        let mut rows: BTreeMap<(u64, &str), Row> = BTreeMap::new();
        // A mapping that has grown or shrunk since is the same one.
        let start_of = |one: &NamedMapping| {
            let known = self.last.find(one.start).filter(|known| known.name() == one.name());
            known.unwrap_or(one).start
        };
        for (at, names) in [&self.last, &self.peak.1].into_iter().enumerate() {
            for one in &names.0 {
                let row = rows.entry((start_of(one), one.name())).or_default();
                row.bytes[at] += one.end - one.start;
                row.resident[at] += one.resident;
            }
        }
        for managed in readahead {
            let known = [&self.last, &self.peak.1].into_iter().find_map(|names| names.find(managed.start));
            let row = match known {
                Some(known) => rows.entry((start_of(known), known.name())).or_default(),
                None => rows.entry((managed.start, "-")).or_default(),
            };
            if known.is_none() {
                row.bytes[0] = managed.bytes;
            }
            row.faults = row.faults.saturating_add(managed.faults);
            row.ahead = row.ahead.saturating_add(managed.swap_ra);
            row.hits = row.hits.saturating_add(managed.swap_ra_hit);
        }
        let mut sizes: Vec<u64> = rows.values().map(|row| largest(row.resident)).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let least = sizes.get(LARGEST - 1).copied().unwrap_or(0).max(1);
        let shown = rows.iter().filter(|(_, row)| row.faults > 0 || largest(row.resident) >= least);
        shown.map(|((start, name), row)| row.json(*start, name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, name: &str, resident: u64) -> NamedMapping {
        NamedMapping::for_test(start, end, name, resident)
    }

    fn columns(table: &Value, names: [&str; 4]) -> Vec<String> {
        let cell = |row: &Value, name: &str| row[name].as_str().map_or(row[name].to_string(), str::to_owned);
        table.as_array().unwrap().iter().map(|row| names.map(|name| cell(row, name)).join(" ")).collect()
    }

    #[test]
    fn what_a_mapping_had_at_its_peak_and_at_the_end_is_one_row() {
        let mut seen = ByMapping::default();
        seen.saw(Names(vec![mapping(0x1000, 0x5000, "[heap]", 8192), mapping(0x9000, 0xa000, "", 4096)]), 1 << 20);
        // It has grown, and the other is gone; less is swapped out.
        seen.saw(Names(vec![mapping(0x1000, 0x8000, "[heap]", 12288), mapping(0xb000, 0xc000, "c.so", 0)]), 0);
        // It has ended.
        seen.saw(Names::default(), u64::MAX);
        let sizes = |seen: &ByMapping| columns(&seen.json(&[]), ["name", "bytes", "start", "resident_bytes"]);
        assert_eq!(sizes(&seen), ["[heap] 28672 4096 12288", "anonymous 4096 36864 0"]);
        let ahead = |start: u64, faults| MappingReadahead {
            start,
            bytes: 0x1000,
            faults,
            swap_ra: 10 * faults,
            swap_ra_hit: 5 * faults,
            window: 8,
        };
        // Two pieces of the heap, the one that is gone, one that was never seen.
        let table = seen.json(&[ahead(0x1000, 3), ahead(0x4000, 4), ahead(0x9000, 1), ahead(0xf000, 2)]);
        let places = ["name", "start", "bytes", "pgmajfault"];
        let expected = ["[heap] 4096 28672 7", "anonymous 36864 4096 1", "- 61440 4096 2"];
        assert_eq!(columns(&table, places), expected);
        let sizes = ["resident_bytes", "resident_peak_bytes", "swap_ra", "ra_hit_pct"];
        assert_eq!(columns(&table, sizes), ["12288 8192 70 50.0", "0 4096 10 50.0", "0 0 20 50.0"]);
    }

    #[test]
    fn a_mapping_that_has_shrunk_was_larger() {
        let mut seen = ByMapping::default();
        seen.saw(Names(vec![mapping(0x1000, 0x9000, "[heap]", 0x7000)]), 0);
        seen.saw(Names(vec![mapping(0x1000, 0x3000, "[heap]", 0x1000)]), 0);
        let places = ["name", "bytes", "resident_bytes", "resident_peak_bytes"];
        assert_eq!(columns(&seen.json(&[]), places), ["[heap] 32768 4096 28672"]);
    }

    #[test]
    fn of_many_the_largest_are_shown() {
        let mut seen = ByMapping::default();
        let one = |i: u64| mapping(i << 20, (i << 20) + 4096, "", i * 4096);
        seen.saw(Names((0..100).map(one).collect()), 0);
        let table = seen.json(&[]);
        assert_eq!(columns(&table, ["start", "name", "name", "name"]).len(), LARGEST);
        assert_eq!(table[0]["start"], (100 - LARGEST as u64) << 20);
        assert_eq!(ByMapping::default().json(&[]), json!([]));
    }

    #[test]
    fn the_kernel_is_not_asked_all_the_time() {
        let mut seen = ByMapping::default();
        // Unless this thread waits for a CPU in between.
        let is_later = || {
            seen.next = None;
            seen.look(std::process::id(), None);
            seen.next > Some(Instant::now())
        };
        assert!(std::iter::repeat_with(is_later).take(10_000).any(|later| later));
        assert!(!seen.last.0.is_empty());
        seen.next = Some(Instant::now() + Duration::from_secs(3600));
        seen.last = Names::default();
        seen.look(std::process::id(), None);
        assert!(seen.last.0.is_empty());
    }
}
