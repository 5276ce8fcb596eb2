//! What `farpage top` shows: one reading of everything, rates since the one before, and the last two minutes.
//!
//! A [`Monitor`] owns what has to be remembered between readings, and forgets processes that have ended. Callers:
//! [`super`]. One thread, no locks.

use crate::failure::Result;
use crate::page::Page;
use crate::park;
use crate::stat_cmd::find::{self, Managed};
use crate::trees::{self, Tree, bytes};
use crate::users::Users;
use farpage_ipc::stat::percentile_ns;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How far back charts go.
pub const HISTORY: Duration = Duration::from_secs(120);

/// Which engine, or which pager: 0 is the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Process.
    pub pid: u32,
    /// Number of the pager, from 1.
    pub pager: u64,
}

/// A tree as it was.
#[derive(Debug, Clone)]
pub struct TreeRow {
    /// One of its processes.
    pub pid: u32,
    /// That process's name.
    pub command: String,
    /// And its user's.
    pub user: String,
    /// All of it that can be parked is.
    pub is_parked: bool,
    /// Bytes; `None`: none for all.
    pub budget: Option<u64>,
    /// Bytes.
    pub claimed: u64,
    /// Bytes.
    pub swapped: u64,
    /// Living processes.
    pub processes: usize,
}

/// What changed since the reading before, by the second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Faults.
    pub faults: f64,
    /// Of them, those that read a device.
    pub major: f64,
    /// Pages read.
    pub pages_in: f64,
    /// Pages written.
    pub pages_out: f64,
    /// Faults that waited for reclaim.
    pub stalls: f64,
    /// Threads that waited for memory at a time, on average.
    pub waiting: f64,
    /// Pages read ahead.
    pub ahead: f64,
    /// Half of the faults took less, nanoseconds; `None`: there were none.
    pub p50: Option<u64>,
    /// 99 % of them.
    pub p99: Option<u64>,
    /// 99.9 % of them.
    pub p999: Option<u64>,
}

impl Rates {
    /// As `top` shows the CPU: 100 is one thread, all of the time.
    pub fn wait_percent(&self) -> f64 {
        100.0 * self.waiting
    }
}

/// A program under farpage, or a pager of regions.
#[derive(Debug, Clone)]
pub struct Program {
    /// Which.
    pub id: Id,
    /// Name of the process.
    pub command: String,
    /// Name of its user.
    pub user: String,
    /// It is parked, or about to be.
    pub is_parked: bool,
    /// Others of its tree have the memory for now.
    pub waits_its_turn: bool,
    /// Its tree: [`TreeRow::pid`].
    pub tree: Option<u32>,
    /// What it may have, as its tree says; bytes.
    pub claim: Option<u64>,
    /// All of its counters.
    pub page: Rc<Page>,
    /// `None`: it was not there before.
    pub rates: Option<Rates>,
}

impl Program {
    /// What counts against its budget, bytes.
    pub fn resident(&self) -> u64 {
        self.page.get(if self.id.pager > 0 { "used_bytes" } else { "rss_anon_bytes" })
    }

    /// What it has, in memory or out, bytes.
    pub fn total(&self) -> u64 {
        self.resident().saturating_add(self.page.get("swapped_bytes"))
    }

    /// What it may have, bytes.
    pub fn budget(&self) -> u64 {
        self.claim.unwrap_or_else(|| self.page.get("budget_bytes"))
    }
}

/// A point of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// When.
    pub at: Instant,
    /// Bytes.
    pub budget: u64,
    /// Bytes.
    pub resident: u64,
    /// Bytes.
    pub swapped: u64,
    /// A second; `None`: not known.
    pub rates: Option<(f64, f64)>,
}

/// Everything, at one time.
#[derive(Debug, Clone)]
pub struct Reading {
    /// When.
    pub at: Instant,
    /// Trees, by process.
    pub trees: Vec<TreeRow>,
    /// Programs and pagers, by process.
    pub programs: Vec<Program>,
    /// Processes that are not ours to read.
    pub hidden: usize,
}

impl Reading {
    /// One of the programs.
    pub fn program(&self, id: Id) -> Option<&Program> {
        self.programs.iter().find(|program| program.id == id)
    }
}

/// What is remembered between readings.
#[derive(Debug, Default)]
pub struct Monitor {
    before: BTreeMap<Id, (Rc<Page>, Instant)>,
    history: BTreeMap<Id, VecDeque<Point>>,
    users: Users,
}

impl Monitor {
    /// Reads everything.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn read(&mut self) -> Result<Reading> {
        let all = find::all()?;
        let trees = trees::among(all.iter().map(|one| one.pid).collect()).trees;
        let mut reading = self.take(all, &trees, Instant::now());
        reading.programs.iter_mut().for_each(|program| program.user = self.users.of(program.id.pid));
        reading.trees.iter_mut().for_each(|tree| tree.user = self.users.of(tree.pid));
        Ok(reading)
    }

    /// The last two minutes of one.
    pub fn history(&self, id: Id) -> impl DoubleEndedIterator<Item = &Point> {
        self.history.get(&id).into_iter().flatten()
    }

    /// Makes a reading of what was found; without names of users.
    pub fn take(&mut self, all: Vec<Managed>, trees: &[Tree], at: Instant) -> Reading {
        let hidden = all.iter().filter(|one| one.pages.is_none()).count();
        let mut programs = Vec::new();
        for one in all {
            let tree = trees.iter().find(|tree| tree.processes.contains(&one.pid));
            for page in one.pages.into_iter().flatten() {
                let id = Id { pid: one.pid, pager: page.pager().unwrap_or(0) };
                let member = tree.filter(|_| id.pager == 0).and_then(|tree| tree.member(page.pid()));
                let claim = member.map(|member| bytes(member.claim.held()));
                let is_parked = member.is_some_and(park::is_parked);
                let waits_its_turn = member.is_some_and(|member| member.held.load(Relaxed) != 0);
                let (page, command, tree) = (Rc::new(page), one.command.clone(), tree.map(|tree| tree.pid));
                let user = String::new();
                programs.push(Program { id, command, user, is_parked, waits_its_turn, tree, claim, page, rates: None });
            }
        }
        // A process may say that two of its pages are of one pager.
        programs.sort_by_key(|program| program.id);
        programs.dedup_by_key(|program| program.id);
        programs.iter_mut().for_each(|program| self.note(program, at));
        let there = |id: &Id| programs.binary_search_by_key(id, |program| program.id).is_ok();
        self.before.retain(|id, _| there(id));
        self.history.retain(|id, _| there(id));
        Reading { at, trees: trees.iter().map(row).collect(), programs, hidden }
    }

    /// Sets its rates, and remembers it.
    fn note(&mut self, program: &mut Program, at: Instant) {
        let page = &program.page;
        let before = self.before.insert(program.id, (Rc::clone(page), at));
        // Another program with the same number, or one that began anew with an exec, counts from 0.
        let same = before.filter(|(old, _)| ["pgfault", "pswpout"].iter().all(|name| old.get(name) <= page.get(name)));
        let points = self.history.entry(program.id).or_default();
        match same {
            Some((old, then)) => program.rates = rates(page, &old, at.saturating_duration_since(then)),
            None => points.clear(),
        }
        points.push_back(Point {
            at,
            budget: program.budget(),
            resident: program.resident(),
            swapped: program.page.get("swapped_bytes"),
            rates: program.rates.map(|rates| (rates.faults, rates.major)),
        });
        while points.front().is_some_and(|point| at.saturating_duration_since(point.at) > HISTORY) {
            points.pop_front();
        }
    }
}

fn row(tree: &Tree) -> TreeRow {
    let members = tree.members();
    TreeRow {
        pid: tree.pid,
        command: trees::comm(tree.pid),
        user: String::new(),
        is_parked: park::is_all_parked(tree),
        budget: tree.budget(),
        claimed: bytes(tree.segment.claimed()),
        swapped: bytes(tree.sum(|m| m.swapped.load())),
        processes: members.len(),
    }
}

fn rates(page: &Page, old: &Page, passed: Duration) -> Option<Rates> {
    let seconds = passed.as_secs_f64();
    if seconds <= 0.0 {
        return None;
    }
    let rate = |name: &str| page.get(name).saturating_sub(old.get(name)) as f64 / seconds;
    let (now, before) = (page.latency_counts(), old.latency_counts());
    let since: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before)).collect();
    Some(Rates {
        faults: rate("pgfault"),
        major: rate("pgmajfault"),
        pages_in: rate("pswpin"),
        pages_out: rate("pswpout"),
        stalls: rate("allocstall"),
        waiting: (rate("fault_wait_ns") + rate("alloc_wait_ns")) / 1e9,
        ahead: rate("swap_ra"),
        p50: percentile_ns(&since, 0.5),
        p99: percentile_ns(&since, 0.99),
        p999: percentile_ns(&since, 0.999),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::stat::Stat;
    use farpage_ipc::tree;
    use rustix::fd::AsFd;

    fn page(faults: u64) -> Page {
        Page::for_test(|stat: &Stat| {
            stat.pgfault.store(faults, Relaxed);
            stat.rss_anon_bytes.store(5 << 20, Relaxed);
            (0..faults).for_each(|i| stat.record_fault(if i < 100 { 1_000_000 } else { 1_000 }));
        })
    }

    fn managed(pid: u32, faults: u64) -> Managed {
        Managed { pid, command: "p".into(), pages: Some(vec![page(faults)]) }
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let (mut monitor, start) = (Monitor::default(), Instant::now());
        let id = Id { pid: 7, pager: 0 };
        assert_eq!(monitor.take(vec![managed(7, 100)], &[], start).program(id).unwrap().rates, None);
        let later = start + Duration::from_secs(2);
        let rates = monitor.take(vec![managed(7, 300)], &[], later).program(id).unwrap().rates.unwrap();
        // The slow ones were before.
        assert!(rates.faults == 100.0 && rates.p99 < Some(2_000), "{rates:?}");
        // 200 faults of a microsecond in two seconds.
        assert!((rates.wait_percent() - 0.01).abs() < 1e-9, "{rates:?}");
        let rates = monitor.take(vec![managed(7, 300)], &[], later).program(id).unwrap().rates;
        assert_eq!(rates, None, "no time has passed");
        // It began anew.
        let later = later + Duration::from_secs(1);
        assert_eq!(monitor.take(vec![managed(7, 10)], &[], later).program(id).unwrap().rates, None);
        assert_eq!(monitor.history(id).count(), 1);
    }

    #[test]
    fn two_minutes_are_kept_of_what_is_there() {
        let (mut monitor, start) = (Monitor::default(), Instant::now());
        for second in 0..300 {
            monitor.take(vec![managed(7, second), managed(8, 1)], &[], start + Duration::from_secs(second));
        }
        assert_eq!(monitor.history(Id { pid: 7, pager: 0 }).count(), 121);
        let hidden = Managed { pid: 9, command: "other".into(), pages: None };
        let reading = monitor.take(vec![managed(8, 1), hidden], &[], start + Duration::from_secs(300));
        assert_eq!((reading.programs.len(), reading.hidden), (1, 1));
        assert_eq!((monitor.history(Id { pid: 7, pager: 0 }).count(), monitor.before.len()), (0, 1));
    }

    #[test]
    fn programs_are_in_their_tree() {
        let mut tree = trees::open(7, tree::create(64 << 20, None).unwrap().as_fd()).unwrap();
        tree.processes = vec![7];
        let reading = Monitor::default().take(vec![managed(7, 1), managed(8, 1)], &[tree], Instant::now());
        let trees: Vec<Option<u32>> = reading.programs.iter().map(|program| program.tree).collect();
        assert_eq!((trees, reading.trees[0].budget), (vec![Some(7), None], Some(64 << 20)));
    }
}
