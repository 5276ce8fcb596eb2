//! The statistics page of a process, read from outside.
//!
//! It is read with `pread`, not mapped: another process's file could shrink under a mapping, and every value is one
//! aligned word, so a copy is as good. The values are what that process says: any number must do.

use farpage_ipc::stat::{EVENTS, Event, FAMILY, MAGIC, Stat, Value, Waiting};
use farpage_ipc::tree::sums::Sums;
use farpage_swap::tuning::{CONTROLLERS, ControllerInfo, TuneScope};
use serde_json::{Value as Json, json};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Shares for which fault latencies are shown.
pub const SHARES: [(&str, f64); 3] = [("fault_p50_ns", 0.5), ("fault_p99_ns", 0.99), ("fault_p999_ns", 0.999)];

/// Readahead in one mapping of the process.
#[derive(Debug, Clone, Copy)]
pub struct MappingReadahead {
    /// Address.
    pub start: u64,
    /// Size.
    pub bytes: u64,
    /// Faults that read a device.
    pub faults: u64,
    /// Pages read ahead.
    pub swap_ra: u64,
    /// Of them, pages known to have been used.
    pub swap_ra_hit: u64,
    /// Last window, pages.
    pub window: u64,
}

impl MappingReadahead {
    /// Hits in percent of the pages read ahead, if any were counted.
    pub fn hit_pct(&self) -> Option<f64> {
        (self.swap_ra_hit > 0).then(|| (1000.0 * self.swap_ra_hit as f64 / self.swap_ra as f64).round() / 10.0)
    }
}

/// A feedback controller.
#[derive(Debug, Clone, Copy)]
pub struct Tuned {
    /// Its name, and what it does.
    pub info: &'static ControllerInfo,
    /// Where it is; `None`: it has not decided anything yet.
    pub now: Option<u64>,
    /// It is held there.
    pub held: bool,
}

/// What a file that should be a page turned out to be.
#[derive(Debug)]
pub enum Found {
    /// A page.
    Page(Page),
    /// It has not been set up yet.
    Empty,
    /// A page of another version of farpage.
    OtherVersion,
}

/// A copy of a page.
#[derive(Debug)]
pub struct Page(Box<Stat>);

impl Page {
    /// Reads the page.
    ///
    /// # Errors
    /// The file cannot be read or is too short.
    pub fn read(file: &File) -> io::Result<Found> {
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0)?;
        match u64::from_le_bytes(magic) {
            MAGIC => {}
            _ if magic.starts_with(FAMILY) => return Ok(Found::OtherVersion),
            _ => return Ok(Found::Empty),
        }
        let mut bytes = vec![0; size_of::<Stat>()];
        file.read_exact_at(&mut bytes, 0)?;
        // SAFETY: Stat is repr(C) and consists of u64 atomics only, valid for all bit patterns; the source has its
        // size, and read_unaligned asks for no alignment.
        let stat = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast::<Stat>()) };
        Ok(Found::Page(Page(Box::new(stat))))
    }

    /// The page that a process would have whose engine has not begun: the budget, and what there is of it (bytes).
    pub fn below(pid: u32, budget: u64, rss_anon: u64) -> Page {
        // SAFETY: as in `read`: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        for (value, to) in [
            (u64::from(pid), &stat.pid),
            (budget, &stat.budget_bytes),
            (rss_anon, &stat.rss_anon_bytes),
            (rss_anon, &stat.rss_anon_peak_bytes),
        ] {
            to.store(value, Relaxed);
        }
        Page(stat)
    }

    /// What the processes of a tree have counted together.
    pub fn of_tree(sums: &Sums) -> Page {
        Page(sums.page())
    }

    /// Number of the pager in its process, from 1; `None`: the page is an engine's.
    pub fn pager(&self) -> Option<u64> {
        Some(self.0.pager.load(Relaxed)).filter(|n| *n > 0)
    }

    /// Process that wrote it, as that process sees itself.
    pub fn pid(&self) -> u64 {
        self.0.pid.load(Relaxed)
    }

    /// Every value in order.
    pub fn values(&self) -> Vec<Value> {
        self.0.values()
    }

    /// One value; 0 for a name that this version does not have.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).unwrap_or(0)
    }

    /// The events that are kept, the oldest first.
    pub fn events(&self) -> Vec<Event> {
        let mut list = Vec::new();
        self.0.events.last(EVENTS, |event| list.push(event));
        list
    }

    /// How many messages could not be written, and the last one.
    pub fn unsaid(&self) -> (u64, Vec<u8>) {
        self.0.unsaid.last()
    }

    /// The feedback controllers that there are where the page is from.
    pub fn tuning(&self) -> Vec<Tuned> {
        let place = if self.pager().is_some() { TuneScope::Region } else { TuneScope::Run };
        let held = self.0.tuning_held.load(Relaxed);
        let tuned = |(at, info): (usize, &'static ControllerInfo)| Tuned {
            info,
            now: self.0.tuning[at].load(Relaxed).checked_sub(1),
            held: held >> at & 1 != 0,
        };
        let works = |(_, info): &(usize, &ControllerInfo)| info.place == TuneScope::Both || info.place == place;
        CONTROLLERS.iter().enumerate().filter(works).map(tuned).collect()
    }

    /// What the program waited for memory in a run that took so long.
    pub fn waiting(&self, wall: Duration) -> Waiting {
        self.0.waiting(wall)
    }

    /// The latency below which `share` of the faults stayed.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        self.0.fault_percentile_ns(share)
    }

    /// Faults by latency, in the buckets of the histogram.
    pub fn latency_counts(&self) -> Vec<u64> {
        self.0.fault_ns.iter().map(|count| count.load(Relaxed)).collect()
    }

    /// A page with what `set` sets.
    #[cfg(test)]
    pub(crate) fn for_test(set: impl FnOnce(&Stat)) -> Page {
        // SAFETY: as in `read`: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        set(&stat);
        Page(stat)
    }

    /// The same with something in another counter.
    #[cfg(test)]
    pub(crate) fn with(self, of: fn(&Stat) -> &std::sync::atomic::AtomicU64) -> Page {
        of(&self.0).store(1, Relaxed);
        self
    }

    /// Readahead by mapping (of a pager: by region), in address order.
    pub fn readahead(&self) -> Vec<MappingReadahead> {
        let copy = |m: &farpage_ipc::stat::MappingReadahead| MappingReadahead {
            start: m.start.load(Relaxed).saturating_mul(farpage::PAGE_SIZE as u64),
            bytes: m.pages.load(Relaxed).saturating_mul(farpage::PAGE_SIZE as u64),
            faults: m.faults.load(Relaxed),
            swap_ra: m.swap_ra.load(Relaxed),
            swap_ra_hit: m.swap_ra_hit.load(Relaxed),
            window: m.window.load(Relaxed),
        };
        let mut all: Vec<MappingReadahead> = self.0.readahead.iter().map(copy).filter(|m| m.bytes > 0).collect();
        all.sort_by_key(|m| m.start);
        all
    }

    /// Memory was managed at some time.
    pub fn was_active(&self) -> bool {
        ["active", "adopted_ranges", "pgsteal_anon", "pgfault"].iter().any(|n| self.get(n) > 0)
    }

    /// Appends every value and, of an engine, the latencies.
    pub fn to_json(&self, object: &mut Json) {
        for value in self.values() {
            object[value.name] = value.value.into();
        }
        if self.pager().is_none() {
            for (key, share) in SHARES {
                object[key] = json!(self.percentile(share));
            }
        }
        let mappings = self.readahead().into_iter().map(|m| {
            json!({
                "start": m.start,
                "bytes": m.bytes,
                "pgmajfault": m.faults,
                "swap_ra": m.swap_ra,
                "swap_ra_hit": m.swap_ra_hit,
                "ra_hit_pct": m.hit_pct(),
                "window": m.window,
            })
        });
        object["readahead"] = mappings.collect();
    }

    /// What [`Page::to_json`] writes of an engine, with null for every value: none ran.
    pub fn nulls(object: &mut Json) {
        // SAFETY: as in `read`: all-zero is a valid Stat.
        let empty: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        for value in empty.values() {
            object[value.name] = Json::Null;
        }
        for (key, _) in SHARES {
            object[key] = Json::Null;
        }
        object["readahead"] = Json::Null;
    }
}

/// `820 ns`, `12 us`, `3.4 ms`, `1.25 s`.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..10_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration(820), "820 ns");
        assert_eq!(duration(1_200), "1.2 us");
        assert_eq!(duration(12_345), "12 us");
        assert_eq!(duration(3_400_000), "3.4 ms");
        assert_eq!(duration(1_250_000_000), "1.25 s");
    }

    #[test]
    fn an_empty_page_is_no_engine_and_a_short_one_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(Page::read(&file).is_err());
        file.set_len(farpage_ipc::stat::STAT_BYTES as u64).unwrap();
        assert!(matches!(Page::read(&file).unwrap(), Found::Empty));
        file.write_all_at(b"farpage0", 0).unwrap();
        assert!(matches!(Page::read(&file).unwrap(), Found::OtherVersion));
        file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
        file.write_all_at(&77u64.to_ne_bytes(), 8).unwrap();
        let Found::Page(page) = Page::read(&file).unwrap() else { panic!("the page was not found") };
        assert_eq!((page.pid(), page.pager()), (77, None));
        assert!(!page.was_active());
    }

    /// A page that a broken or hostile process wrote is shown in some way.
    #[test]
    fn fuzz_statistics_page() {
        bolero::check!().with_type().for_each(|changes: &Vec<(u32, u64)>| {
            let mut words = vec![0u64; farpage_ipc::stat::STAT_BYTES / 8];
            let len = words.len();
            changes.iter().for_each(|(at, word)| words[*at as usize % len] = *word);
            words[0] = MAGIC;
            let file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            file.write_all_at(&bytes, 0).unwrap();
            let Found::Page(page) = Page::read(&file).unwrap() else { panic!("the page was not found") };
            let mut object = json!({});
            page.to_json(&mut object);
            assert!(page.events().len() <= EVENTS);
            serde_json::from_str::<Json>(&object.to_string()).unwrap();
        });
    }

    #[test]
    fn any_number_will_do() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0xff; farpage_ipc::stat::STAT_BYTES], 0).unwrap();
        file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
        let Found::Page(page) = Page::read(&file).unwrap() else { panic!("the page was not found") };
        let mut object = json!({});
        page.to_json(&mut object);
        assert_eq!(page.readahead()[0].bytes, u64::MAX);
        assert!(page.percentile(0.5).is_some() && object.to_string().len() > 1000);
    }
}
