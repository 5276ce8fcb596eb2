//! `farpage guard`: before memory is exhausted, the largest gets a budget, or a smaller one, and nobody is killed.
//!
//! | file | what |
//! | --- | --- |
//! | here | the loop: looks, acts, gives back |
//! | [`watch`] | what is watched: how much is left, and whether that is too little |
//! | [`choice`] | who gets which budget |
//! | [`rules`] | who may |
//! | [`targets`] | processes and trees, as they are |
//! | [`attaches`] | programs that are attached to: each by a command of its own |
//!
//! A program is attached to by another process, so that looks go on meanwhile, and so that the thread that it borrows
//! is given back even if this one is killed. Caller: `main`. One thread.

mod attaches;
mod choice;
mod rules;
mod targets;
mod watch;

use crate::args::GuardArgs;
use crate::budget::Machine;
use crate::cgroup::Group;
use crate::failure::{Failure, Result, say, why};
use crate::trees::{self, bytes};
use attaches::Attaches;
use choice::Cut;
use farpage::internals::conf::size;
pub use rules::Rule;
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use targets::{Id, Target, swapped};
use watch::{Need, Place, Reading, Trend};

/// Faster than any program fills memory, bytes a second.
const FILL: u64 = 4 << 30;
/// Between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Between two looks at all processes, while something has to be done.
const SEARCH: Duration = Duration::from_millis(100);
/// How long it has to be calm before somebody gets more.
const CALM: Duration = Duration::from_secs(5);
/// How long who has to become smaller may take before it is thought that it cannot.
const SHRINKS: Duration = Duration::from_secs(10);
/// No change is smaller, bytes.
const WORTH: u64 = 8 << 20;
/// Smaller ones get no budget ahead of need, bytes; nor do those that have less than a tenth of what there is.
const AHEAD_MIN: u64 = 32 << 20;

/// A place, and what it was like.
struct Watched {
    place: Place,
    trend: Trend,
    kills: u64,
    /// When all its processes were looked at.
    searched: Option<Instant>,
    /// Since when nothing has to be done.
    calm: Instant,
    /// It has been said that nothing can be done.
    is_helpless: bool,
}

/// A tree that has a budget from us.
struct Given {
    place: Place,
    /// What it had before, bytes; `None`: no budget.
    original: Option<u64>,
    at: Instant,
}

struct Guard<'a> {
    args: &'a GuardArgs,
    physical: u64,
    places: Vec<Watched>,
    attaches: Attaches,
    given: HashMap<Id, Given>,
    /// The most that each was seen with, bytes.
    peaks: HashMap<Id, u64>,
    /// With `--dry-run`: the budgets that would have been given.
    would: HashMap<Id, u64>,
}

/// Runs the subcommand, until a signal ends it.
///
/// # Errors
/// What is to be watched is not there.
pub fn main(args: &GuardArgs) -> Result<ExitCode> {
    let physical = Machine::read()?.total;
    let attaches = Attaches::new(&args.engine)?;
    let (given, peaks, would) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut guard = Guard { args, physical, places: Vec::new(), attaches, given, peaks, would };
    loop {
        guard.find_places()?;
        let found = Instant::now();
        while found.elapsed() < PAUSE_MAX {
            let pause = guard.look();
            std::thread::sleep(pause);
        }
    }
}

fn missing(group: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::with_status(1, format!("cannot watch {}: it is no memory cgroup ({})", group.display(), why(error)))
}

impl Guard<'_> {
    /// What is to be watched: cgroups come and go.
    fn find_places(&mut self) -> Result<()> {
        let mut places = Vec::new();
        for name in &self.args.cgroup {
            let group = Group::named(name).map_err(|error| missing(name, &error))?;
            let limited = group.with_all_below().into_iter().filter(|group| group.limit(self.physical).is_some());
            places.extend(limited.map(Place::Cgroup));
        }
        if self.args.cgroup.is_empty() {
            let own = Group::of_limit(self.physical).map(Place::Cgroup);
            places.push(own.unwrap_or(Place::Machine(self.physical)));
        }
        self.places.retain(|watched| places.contains(&watched.place));
        for place in places {
            if self.places.iter().any(|watched| watched.place == place) {
                continue;
            }
            let Some(reading) = place.read(self.physical) else { continue };
            let keep = self.keep(reading)?;
            say(format_args!(
                "farpage: {place} is watched: {} of {} are left, and {} shall be",
                size::format(reading.left),
                size::format(reading.limit),
                size::format(keep)
            ));
            let (kills, calm) = (place.kills(), Instant::now());
            let trend = Trend::default();
            self.places.push(Watched { place, trend, kills, searched: None, calm, is_helpless: false });
        }
        Ok(())
    }

    /// What shall be left, bytes.
    fn keep(&self, reading: Reading) -> Result<u64> {
        let keep = size::parse_of(&self.args.keep, Some(reading.limit));
        let keep = keep.map_err(|error| Failure::usage(format!("--keep: {error}")))?;
        match keep < reading.limit / 2 {
            true => Ok(keep),
            false => Err(Failure::usage(format!(
                "--keep {}: twice as much has to be there, and there are {}",
                self.args.keep,
                size::format(reading.limit)
            ))),
        }
    }

    /// Looks at all places, does what has to be done; how long nothing can happen.
    fn look(&mut self) -> Duration {
        self.reap();
        let mut pause = PAUSE_MAX;
        let mut places = std::mem::take(&mut self.places);
        for watched in &mut places {
            let Some(reading) = watched.place.read(self.physical) else { continue };
            let Ok(keep) = self.keep(reading) else { continue };
            let now = Instant::now();
            watched.trend.note(now, reading);
            self.count_kills(watched);
            let need = watched.trend.need(keep);
            if need == Need::Calm {
                self.rest(watched, reading, keep);
            } else {
                watched.calm = now;
                if watched.searched.is_none_or(|then| then.elapsed() >= SEARCH) {
                    self.act(watched, reading, need);
                    watched.searched = Some(Instant::now());
                }
            }
            let fills_in = reading.left.saturating_sub(keep) as f64 / FILL as f64 / 2.0;
            pause = pause.min(Duration::from_secs_f64(fills_in));
        }
        self.places = places;
        pause.max(PAUSE_MIN)
    }

    fn count_kills(&self, watched: &mut Watched) {
        let kills = watched.place.kills();
        if kills > watched.kills {
            let (more, place) = (kills - watched.kills, &watched.place);
            say(format_args!("farpage: {place} was exhausted: the kernel has killed {more} processes"));
        }
        watched.kills = kills;
    }

    /// Says what became of attaches that have ended.
    fn reap(&mut self) {
        for done in self.attaches.done() {
            if done.is_attached {
                let (place, original, at) = (done.place, None, Instant::now());
                self.given.insert(done.id, Given { place, original, at });
            }
            for line in done.says {
                say(format_args!("farpage: {line}"));
            }
        }
    }

    /// Gives budgets, so that enough is left.
    fn act(&mut self, watched: &mut Watched, reading: Reading, need: Need) {
        let targets = self.targets(&watched.place);
        let candidates: Vec<_> = targets.iter().map(|target| target.numbers).collect();
        let cuts = match need {
            Need::Calm => Vec::new(),
            Need::Now(missing) => choice::cuts(&candidates, missing, WORTH),
            Need::Soon(room) => {
                choice::ahead(&candidates, room, AHEAD_MIN.max(reading.limit / 10)).into_iter().collect()
            }
        };
        let (left, limit) = (size::format(reading.left), size::format(reading.limit));
        let why = match (need, watched.trend.rate()) {
            (Need::Soon(_), rate) => format!("{left} of {limit} are left, going by {} a second", size::format(rate)),
            _ => format!("{left} of {limit} are left"),
        };
        let comes = candidates.iter().any(|one| one.budget.is_some_and(|budget| budget < one.has));
        match (need, cuts.is_empty() && !comes) {
            (Need::Now(_), true) if !watched.is_helpless => {
                say(format_args!("farpage: {}: {why}, and there is nobody who can give more", watched.place));
                watched.is_helpless = true;
            }
            (_, true) => {}
            (_, false) => watched.is_helpless = false,
        }
        for Cut { index, budget } in cuts {
            self.give(&targets[index], &watched.place, budget, &why);
        }
    }

    /// Those whose memory may be cut.
    fn targets(&mut self, place: &Place) -> Vec<Target> {
        let mut targets = targets::find(place, &self.args.only, &self.args.never);
        targets.retain(|target| !self.attaches.is_refused(target.id));
        for target in &mut targets {
            let peak = self.peaks.entry(target.id).or_default();
            *peak = target.numbers.has.max(*peak);
            let numbers = &mut target.numbers;
            numbers.floor = numbers.floor.max(*peak / 4);
            if let Some(budget) = self.attaches.budget(target.id).or_else(|| self.would.get(&target.id).copied()) {
                numbers.budget = Some(budget);
            }
            let is_stuck = self.given.get(&target.id).is_some_and(|given| given.at.elapsed() > SHRINKS);
            if is_stuck && numbers.budget.is_some_and(|budget| budget < numbers.has) {
                (numbers.budget, numbers.floor) = (Some(numbers.has), numbers.has);
            }
        }
        targets
    }

    /// Gives one a budget, and says so.
    fn give(&mut self, target: &Target, place: &Place, budget: u64, why: &str) {
        let would = if self.args.dry_run { "would get" } else { "gets" };
        let (has, size) = (size::format(target.numbers.has), size::format(budget));
        say(format_args!("farpage: {place}: {why}: {target}, which has {has}, {would} a budget of {size}"));
        if self.args.dry_run {
            self.would.insert(target.id, budget);
            return;
        }
        let Some(tree) = &target.tree else {
            self.attaches.begin(target, place, budget);
            return;
        };
        tree.segment.set_budget(budget);
        let at = Instant::now();
        let (place, original) = (place.clone(), tree_budget(target));
        self.given.entry(target.id).or_insert(Given { place, original, at }).at = at;
    }

    /// Nothing has to be done: after a while, who has too little gets more.
    fn rest(&mut self, watched: &mut Watched, reading: Reading, keep: u64) {
        watched.is_helpless = false;
        self.would.clear();
        if watched.calm.elapsed() < CALM {
            return;
        }
        watched.calm = Instant::now();
        self.given.retain(|id, _| id.is_there());
        self.peaks.retain(|id, _| id.is_there());
        self.attaches.forget();
        let spare = reading.left.saturating_sub(keep.saturating_mul(3)) / 2;
        let here = self.given.iter().filter(|(_, given)| given.place == watched.place);
        let largest = here.filter_map(|(id, given)| {
            let tree = trees::of(id.pid).ok()?;
            let budget = tree.budget()?;
            let most = budget.saturating_add(spare).min(given.original.unwrap_or(u64::MAX));
            let out = swapped(&tree);
            (out > WORTH && most >= budget + WORTH).then_some((out, id.pid, tree, most))
        });
        if let Some((out, pid, tree, most)) = largest.max_by_key(|(out, ..)| *out) {
            let (name, left) = (trees::comm(pid), size::format(reading.left));
            let (out, size, place) = (size::format(out), size::format(most), &watched.place);
            let who = format!("process {pid} ({name}), of which {out} are out");
            say(format_args!("farpage: {place}: {left} are left: {who}, gets a budget of {size}"));
            tree.segment.set_budget(most);
        }
    }
}

fn tree_budget(target: &Target) -> Option<u64> {
    target.tree.as_ref().and_then(|tree| tree.budget())
}
