//! `--report`: what a program and all that it starts are like while they run, some times a second.
//!
//! A recording has at most [`SAMPLES`] samples: when there are more, every second one goes, and the next are taken half
//! as often. Caller: [`super`]. One thread, no locks.

use super::by_mapping::ByMapping;
use crate::page::{Found, Page};
use crate::stat_cmd::find;
use crate::trees::{Tree, bytes};
use farpage_ipc::stat::percentile_ns;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Most samples.
const SAMPLES: usize = 2000;
/// Between two samples, at first.
const EVERY: Duration = Duration::from_millis(50);

/// What there is at a moment: of all processes together, bytes.
const LEVELS: [&str; 5] = ["rss_anon_bytes", "pool_bytes", "cached_bytes", "swapped_bytes", "file_bytes"];
/// What grows: of all processes together, those that have ended included.
const COUNTERS: [&str; 12] = [
    "pgfault",
    "pgmajfault",
    "pgmajfault_file",
    "workingset_refault_cached",
    "pswpin",
    "pswpout",
    "pool_writeback",
    "swap_ra",
    "swap_ra_hit",
    "allocstall",
    "forks",
    "fault_wait_ns",
];
/// Shares of the faults since the sample before.
const LATENCY: [(&str, f64); 3] = [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)];

/// What one process had counted when it was looked at last.
struct Counted {
    counters: [u64; COUNTERS.len()],
    latency: Vec<u64>,
}

impl Counted {
    fn of(page: &Page) -> Counted {
        Counted { counters: COUNTERS.map(|name| page.get(name)), latency: page.latency_counts() }
    }
}

struct Sample {
    at: Duration,
    budget: u64,
    processes: u64,
    levels: [u64; LEVELS.len()],
    counters: [u64; COUNTERS.len()],
    latency: [Option<u64>; LATENCY.len()],
}

/// A recording.
pub struct Recording {
    begin: Instant,
    every: Duration,
    samples: Vec<Sample>,
    counted: HashMap<u32, Counted>,
    /// All faults until the last sample, by latency.
    latency: Vec<u64>,
    mappings: ByMapping,
}

impl Recording {
    /// It begins now.
    pub fn new() -> Recording {
        let (samples, counted, latency) = (Vec::new(), HashMap::new(), Vec::new());
        let mappings = ByMapping::default();
        Recording { begin: Instant::now(), every: EVERY, samples, counted, latency, mappings }
    }

    /// Takes a sample if it is time, or the last time; how long until the next. See [`Recording::sample`].
    pub fn look(&mut self, main: u32, page: &File, tree: Option<&Tree>, budget: u64, is_last: bool) -> Duration {
        if is_last || self.due().is_zero() {
            self.sample(main, page, tree, budget);
        }
        self.due()
    }

    fn due(&self) -> Duration {
        let next = self.samples.last().map_or(Duration::ZERO, |last| last.at + self.every);
        next.saturating_sub(self.begin.elapsed())
    }

    /// Takes a sample of process `main`, which writes `page`, and of the others of its tree.
    fn sample(&mut self, main: u32, page: &File, tree: Option<&Tree>, budget: u64) {
        let mut levels = [0; LEVELS.len()];
        let mut add = |page: &Page, counted: &mut HashMap<u32, Counted>, pid: u32| {
            LEVELS.iter().zip(&mut levels).for_each(|(name, level)| *level += page.get(name));
            counted.insert(pid, Counted::of(page));
        };
        let own = Page::read(page).ok().and_then(|found| if let Found::Page(page) = found { Some(page) } else { None });
        if let Some(page) = &own {
            add(page, &mut self.counted, main);
        }
        self.mappings.look(main, own.as_ref());
        let members = tree.map(Tree::members).unwrap_or_default();
        for pid in members.iter().map(|member| member.pid.load(Relaxed)).filter(|pid| *pid != main) {
            let managed = find::process(pid);
            if let Ok(Some(page)) = managed.as_ref().map(find::Managed::engine) {
                add(page, &mut self.counted, pid);
            }
        }
        // Small ones have no engine, and say how much they have.
        let used = tree.map_or(0, |tree| bytes(tree.sum(|member| member.used.load())));
        levels[0] = levels[0].max(used);
        let mut counters = [0; COUNTERS.len()];
        let mut latency = Vec::new();
        for one in self.counted.values() {
            counters.iter_mut().zip(&one.counters).for_each(|(sum, count)| *sum += count);
            latency.resize(one.latency.len().max(latency.len()), 0);
            latency.iter_mut().zip(&one.latency).for_each(|(sum, count)| *sum += count);
        }
        self.latency.resize(latency.len(), 0);
        let since: Vec<u64> = latency.iter().zip(&self.latency).map(|(now, then)| now.saturating_sub(*then)).collect();
        self.latency = latency;
        let latency = LATENCY.map(|(_, share)| percentile_ns(&since, share));
        let budget = tree.and_then(Tree::budget).unwrap_or(budget);
        let processes = members.len().max(1) as u64;
        self.samples.push(Sample { at: self.begin.elapsed(), budget, processes, levels, counters, latency });
        if self.samples.len() > SAMPLES {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// What each mapping of the first process was like, whose page this is.
    pub fn mappings(&self, page: Option<&Page>) -> Value {
        self.mappings.json(&page.map(Page::readahead).unwrap_or_default())
    }

    /// Columns: times in seconds, and a list for each name.
    pub fn json(&self) -> Value {
        let mut object = json!({});
        let column = |value: &dyn Fn(&Sample) -> u64| self.samples.iter().map(value).collect::<Value>();
        object["t_s"] = self.samples.iter().map(|sample| sample.at.as_secs_f64()).collect();
        object["budget_bytes"] = column(&|sample| sample.budget);
        object["processes"] = column(&|sample| sample.processes);
        LEVELS.iter().enumerate().for_each(|(i, name)| object[name] = column(&|sample| sample.levels[i]));
        COUNTERS.iter().enumerate().for_each(|(i, name)| object[name] = column(&|sample| sample.counters[i]));
        for (i, (name, _)) in LATENCY.iter().enumerate() {
            object[name] = self.samples.iter().map(|sample| sample.latency[i]).collect();
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_thinned_and_keep_their_order() {
        let empty = tempfile::tempfile().unwrap();
        let mut recording = Recording::new();
        for _ in 0..2 * SAMPLES {
            recording.sample(1, &empty, None, 1 << 30);
        }
        assert!((SAMPLES / 2..=SAMPLES).contains(&recording.samples.len()));
        assert!(recording.samples.is_sorted_by_key(|sample| sample.at));
        assert!(recording.every > EVERY && recording.due() > Duration::ZERO);
        let columns = recording.json();
        let text = serde_json::to_value(&columns).unwrap();
        for name in LEVELS.iter().chain(&COUNTERS) {
            assert_eq!(text[name].as_array().unwrap().len(), recording.samples.len(), "{name}");
        }
        assert_eq!(text["p50_ns"][0], serde_json::Value::Null);
    }
}
