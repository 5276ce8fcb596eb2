//! `farpage guard`: before memory is exhausted, the largest gets a budget, or a smaller one, and none is killed.
//!
//! | file | what |
//! | --- | --- |
//! | here | the loop: looks, acts, gives back |
//! | [`watch`] | what is watched: how much is left, and whether that is too little |
//! | [`choice`] | which process gets which budget |
//! | [`rules`] | which processes may be cut |
//! | [`targets`] | processes and trees, as they are |
//! | [`attaches`] | programs that are attached to: each by a command of its own |
//! | [`say`] | lines on standard error |
//!
//! A program is attached to by another process, so that looks go on meanwhile, and so that the thread that it borrows
//! is given back even if this one is killed. Caller: `main`. One thread.

mod attaches;
mod choice;
pub mod rules;
mod say;
mod targets;
mod watch;

use crate::args::GuardArgs;
use crate::budget::Machine;
use crate::cgroup::Group;
use crate::failure::{Failure, Result, why};
use crate::trees;
use attaches::Attaches;
use choice::Cut;
use farpage_ipc::conf::size;
use rustix::mm::{MlockAllFlags, mlockall};
use say::Speaker;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use targets::{Id, Target, has_small, swapped};
use watch::{Need, Place, Reading, Trend};

/// Faster than any program fills memory, bytes a second.
const FILL: u64 = 4 << 30;
/// Between two looks at a place.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Between two looks at all its processes, while something has to be done.
const SEARCH: Duration = Duration::from_millis(100);
/// The same, while no process has anything to give.
const SEARCH_EXHAUSTED: Duration = Duration::from_secs(1);
/// How long it has to be calm before a process gets more.
const CALM: Duration = Duration::from_secs(5);
/// What is above its budget counts as about to give, as long as it becomes smaller by [`SHRINKS`] within this time.
const SHRINKS_WITHIN: Duration = Duration::from_secs(2);
/// See [`SHRINKS_WITHIN`], bytes.
const SHRINKS: u64 = 1 << 20;
/// No change is smaller, bytes.
const WORTH: u64 = 8 << 20;
/// Smaller ones get no budget ahead of need, bytes; nor do those that have less than a tenth of what there is.
const AHEAD_MIN: u64 = 32 << 20;
/// As earlyoom has it: it goes after all others.
const OOM_SCORE: &str = "-900";

/// A place, and what it was like.
struct Watched {
    place: Place,
    trend: Trend,
    /// When it is looked at again.
    next: Instant,
    kills: u64,
    /// Since when nothing has to be done.
    calm: Instant,
    /// When it was seen last whether a process can have more.
    gave_back: Instant,
    shortage: Shortage,
}

/// What is known since something had to be done.
#[derive(Default)]
struct Shortage {
    /// When all processes were looked at, and what those had that have no budget.
    searched: Option<Instant>,
    had: HashMap<Id, u64>,
    /// Those that are above their budgets.
    above: HashMap<Id, Above>,
    /// It has been said that no process can give more.
    is_exhausted: bool,
    /// With `--dry-run`: the budgets that would have been given.
    would: HashMap<Id, u64>,
}

/// One that is above its budget.
struct Above {
    /// The least that it was seen with since then, bytes.
    least: u64,
    /// When it was seen with so little.
    since: Instant,
    /// The budget that it does not follow, bytes, if that has been said.
    said: Option<u64>,
}

/// A tree that has a budget from us.
struct Given {
    /// What it had before, bytes; `None`: no budget.
    original: Option<u64>,
    /// What we gave, bytes: if it has another one now, a user decided so.
    budget: u64,
}

struct Guard<'a> {
    args: &'a GuardArgs,
    physical: u64,
    places: Vec<Watched>,
    attaches: Attaches,
    given: HashMap<Id, Given>,
    /// The most that each was seen with, bytes.
    peaks: HashMap<Id, u64>,
    speaker: Speaker,
    /// Cgroups that are not there, and said to be so; or all, when none has a limit.
    missing: HashSet<String>,
}

/// Runs the subcommand, until a signal ends it.
///
/// # Errors
/// What is to be watched is not there.
pub fn main(args: &GuardArgs) -> Result<ExitCode> {
    let physical = Machine::read()?.total;
    let attaches = Attaches::new(&args.engine)?;
    keep_of(&args.keep, physical)?;
    for name in &args.cgroup {
        Group::named(name).map_err(|error| no_group(name, &error))?;
    }
    prepare_for_exhaustion();
    let (given, peaks, speaker, missing) = (HashMap::new(), HashMap::new(), Speaker::default(), HashSet::new());
    let mut guard = Guard { args, physical, places: Vec::new(), attaches, given, peaks, speaker, missing };
    loop {
        guard.find_places();
        let found = Instant::now();
        while found.elapsed() < PAUSE_MAX {
            guard.reap();
            let next = guard.look();
            std::thread::sleep(next.saturating_duration_since(Instant::now()).min(PAUSE_MAX));
        }
    }
}

/// Does what is possible to go on when there is no memory, and when its lines are not read.
fn prepare_for_exhaustion() {
    // Without the right to, it goes on as it is.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    // SAFETY: sets a disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

fn no_group(group: &Path, error: &std::io::Error) -> Failure {
    let group = group.display();
    let text = match error.kind() {
        std::io::ErrorKind::NotFound => format!("cannot watch {group}: there is no such memory cgroup"),
        _ => format!("cannot watch {group}: it is no memory cgroup ({})", why(error)),
    };
    Failure::new(text)
}

/// What shall be left of `limit` bytes. It cannot be half of them: when it acts, twice as much has to be there.
fn keep_of(text: &str, limit: u64) -> Result<u64> {
    let keep = size::parse_of(text, Some(limit)).map_err(|error| Failure::usage(format!("--keep: {error}")))?;
    match text.contains('%') && keep >= limit / 2 {
        true => Err(Failure::usage(format!("--keep {text}: give less than 50%, for twice as much is made free"))),
        false => Ok(keep.min(limit / 100 * 49)),
    }
}

impl Guard<'_> {
    /// What is to be watched: cgroups come and go.
    fn find_places(&mut self) {
        let mut places = Vec::new();
        for name in &self.args.cgroup {
            let shown = name.display().to_string();
            match Group::named(name) {
                Ok(group) => {
                    let limited = group.with_all_below().into_iter().filter(|g| g.limit(self.physical).is_some());
                    places.extend(limited.map(Place::Cgroup));
                    self.missing.remove(&shown);
                }
                Err(_) if self.missing.insert(shown.clone()) => {
                    self.speaker.say(format_args!("{shown} is gone; it is watched again once it is back"));
                }
                Err(_) => {}
            }
        }
        if self.args.cgroup.is_empty() {
            let own = Group::of_limit(self.physical).map(Place::Cgroup);
            places.push(own.unwrap_or(Place::Machine(self.physical)));
        }
        places.sort();
        places.dedup();
        if places.is_empty() && self.missing.insert(String::new()) {
            self.speaker.say("no cgroup there has a limit: nothing is watched until one does");
        }
        self.places.retain(|watched| places.contains(&watched.place));
        for place in places {
            if !self.places.iter().any(|watched| watched.place == place) {
                self.begin(place);
            }
        }
        for watched in &mut self.places {
            let kills = watched.place.kills();
            if kills > watched.kills {
                let more = kills - watched.kills;
                let who = if more == 1 { "a process".to_owned() } else { format!("{more} processes") };
                self.speaker.say(format_args!("{} was exhausted: the kernel has killed {who}", watched.place));
            }
            watched.kills = kills;
        }
        self.given.retain(|id, _| id.is_there());
        self.peaks.retain(|id, _| id.is_there());
        self.attaches.forget();
    }

    fn begin(&mut self, place: Place) {
        let Some(reading) = place.read(self.physical) else { return };
        self.speaker.say(format_args!(
            "{place} is watched: {} of {} are free, and {} are to stay free",
            size::format(reading.left),
            size::format(reading.limit),
            size::format(self.keep(reading))
        ));
        self.places.push(Watched {
            kills: place.kills(),
            place,
            trend: Trend::default(),
            next: Instant::now(),
            calm: Instant::now(),
            gave_back: Instant::now(),
            shortage: Shortage::default(),
        });
    }

    /// What shall be left, bytes. The text was understood at the beginning.
    fn keep(&self, reading: Reading) -> u64 {
        keep_of(&self.args.keep, reading.limit).unwrap_or(reading.limit / 10)
    }

    /// Looks at all places whose time has come, does what has to be done; when the next one's comes.
    fn look(&mut self) -> Instant {
        let mut places = std::mem::take(&mut self.places);
        let now = Instant::now();
        for index in 0..places.len() {
            let watched = &mut places[index];
            if watched.next > now {
                continue;
            }
            let Some(reading) = watched.place.read(self.physical) else { continue };
            let keep = self.keep(reading);
            watched.trend.note(now, reading);
            let fills_in = reading.left.saturating_sub(keep) as f64 / FILL as f64 / 2.0;
            watched.next = now + Duration::from_secs_f64(fills_in).clamp(PAUSE_MIN, PAUSE_MAX);
            let need = watched.trend.need(keep);
            if need != Need::Calm {
                watched.calm = now;
                let pause = if watched.shortage.is_exhausted { SEARCH_EXHAUSTED } else { SEARCH };
                if watched.shortage.searched.is_none_or(|then| then.elapsed() >= pause) {
                    watched.shortage.searched = Some(now);
                    self.act(watched, reading, need, keep);
                }
            } else if watched.calm.elapsed() >= CALM && watched.gave_back.elapsed() >= CALM {
                watched.gave_back = now;
                watched.shortage = Shortage::default();
                self.give_back(&places, index);
            }
        }
        self.places = places;
        self.places.iter().map(|watched| watched.next).min().unwrap_or(now + PAUSE_MAX)
    }

    /// Says what became of commands that have ended.
    fn reap(&mut self) {
        for done in self.attaches.done() {
            if let Some(budget) = done.budget {
                let given = self.given.entry(done.id);
                given.or_insert(Given { original: None, budget }).budget = budget;
            }
            if let Some(line) = done.says {
                self.speaker.say(format_args!("{}: {line}", done.place));
            }
        }
    }

    /// Gives budgets, so that enough is left.
    fn act(&mut self, watched: &mut Watched, reading: Reading, need: Need, keep: u64) {
        let targets = self.targets(watched);
        let candidates: Vec<_> = targets.iter().map(|target| target.numbers).collect();
        let cuts = match need {
            Need::Calm => Vec::new(),
            // Rather more at once than often a little.
            Need::Now(missing) => choice::cuts(&candidates, missing.max(keep / 2).max(WORTH), WORTH),
            // One after the other: what it may have depends on what others have got.
            Need::Soon(_) if !self.attaches.is_idle() => Vec::new(),
            Need::Soon(room) => {
                choice::ahead(&candidates, room, AHEAD_MIN.max(reading.limit / 10)).into_iter().collect()
            }
        };
        let (left, limit) = (size::format(reading.left), size::format(reading.limit));
        let why = match (need, watched.trend.rate()) {
            (Need::Soon(_), rate) => format!("{left} of {limit} are free, {} less each second", size::format(rate)),
            _ => format!("{left} of {limit} are free"),
        };
        let comes = candidates.iter().any(|one| one.budget.is_some_and(|budget| budget < one.has));
        if matches!(need, Need::Now(_)) && cuts.is_empty() && !comes && !watched.shortage.is_exhausted {
            self.speaker.say(format_args!("{}: {why}, and no program can give more", watched.place));
            watched.shortage.is_exhausted = true;
        }
        for Cut { index, budget } in cuts {
            self.give(&targets[index], watched, budget, &why);
        }
    }

    /// Those whose memory may be cut.
    fn targets(&mut self, watched: &mut Watched) -> Vec<Target> {
        let mut targets = targets::find(&watched.place, &self.args.only, &self.args.never);
        targets.retain(|target| target.tree.is_some() || !self.attaches.is_refused(target.id));
        let before = std::mem::take(&mut watched.shortage.had);
        for target in &mut targets {
            let numbers = &mut target.numbers;
            let peak = self.peaks.entry(target.id).or_default();
            *peak = numbers.has.max(*peak);
            numbers.floor = numbers.floor.max(*peak / 4);
            numbers.grown = before.get(&target.id).map_or(0, |had| numbers.has.saturating_sub(*had));
            watched.shortage.had.insert(target.id, numbers.has);
            if target.tree.is_none() {
                numbers.budget = self.attaches.budget(target.id);
            }
            numbers.budget = watched.shortage.would.get(&target.id).copied().or(numbers.budget);
        }
        self.exclude_those_that_do_not_shrink(watched, &mut targets);
        targets
    }

    /// A process that is above its budget and does not become smaller gives nothing: it is not waited for.
    fn exclude_those_that_do_not_shrink(&mut self, watched: &mut Watched, targets: &mut [Target]) {
        if self.args.dry_run {
            return;
        }
        let mut before = std::mem::take(&mut watched.shortage.above);
        for target in targets {
            let has = target.numbers.has;
            let Some(budget) = target.numbers.budget.filter(|budget| *budget < has) else { continue };
            let now = Instant::now();
            let mut above = before.remove(&target.id).unwrap_or(Above { least: has, since: now, said: None });
            if has.saturating_add(SHRINKS) <= above.least {
                (above.least, above.since) = (has, now);
            }
            if above.since.elapsed() > SHRINKS_WITHIN {
                (target.numbers.budget, target.numbers.floor) = (Some(has), has);
                if target.tree.is_some() && above.said != Some(budget) {
                    let (budget, has) = (size::format(budget), size::format(has));
                    let place = &watched.place;
                    self.speaker.say(format_args!("{place}: {target} keeps {has}, above its budget of {budget}"));
                }
                above.said = Some(budget);
            }
            watched.shortage.above.insert(target.id, above);
        }
    }

    /// Gives one a budget, and says so: of a process that is attached to, when that is done.
    fn give(&mut self, target: &Target, watched: &mut Watched, budget: u64, why: &str) {
        let place = &watched.place;
        let why = format!("{why}, and {} had {}", target, size::format(target.numbers.has));
        if self.args.dry_run {
            watched.shortage.would.insert(target.id, budget);
            self.speaker.say(format_args!("{place}: {why}: it would get a budget of {}", size::format(budget)));
            return;
        }
        let problem = match &target.tree {
            None => self.attaches.begin(target, place, budget, &why),
            Some(tree) => {
                let (original, budget) = (tree.budget(), budget.saturating_add(target.elsewhere));
                let budget = tree.give(budget);
                self.speaker.say(format_args!("{place}: {why}: it has a budget of {}", size::format(budget)));
                let original = self.original(target.id, original);
                self.given.insert(target.id, Given { original, budget });
                if has_small(tree) { self.attaches.wake(target, place, budget) } else { None }
            }
        };
        if let Some(line) = problem {
            self.speaker.say(format_args!("{place}: {line}"));
        }
    }

    /// What a tree had before we gave it anything: not what we gave ourselves.
    fn original(&self, id: Id, now: Option<u64>) -> Option<u64> {
        let ours = self.given.get(&id).filter(|given| Some(given.budget) == now);
        ours.map_or(now, |given| given.original)
    }

    /// Nothing has to be done in a place for a while: a process with too little gets more, as far as all places have
    /// it.
    fn give_back(&mut self, places: &[Watched], index: usize) {
        let here: HashSet<u32> = places[index].place.processes().into_iter().collect();
        let mut best: Option<(u64, Id, u64)> = None;
        let mut others = HashSet::new();
        for (id, given) in self.given.iter().filter(|(id, _)| here.contains(&id.pid)) {
            let Ok(tree) = trees::of(id.pid) else { continue };
            let Some(budget) = tree.budget() else { continue };
            if budget != given.budget {
                others.insert(*id);
                continue;
            }
            let spare = self.spare(places, id.pid, index) / 2;
            let most = budget.saturating_add(spare).min(given.original.unwrap_or(u64::MAX));
            let out = swapped(&tree);
            // The last step to what it had may be a small one.
            let is_worth = most >= budget + WORTH || (most > budget && Some(most) == given.original);
            if out > WORTH && is_worth && best.is_none_or(|(largest, ..)| out > largest) {
                best = Some((out, *id, most));
            }
        }
        // A user has set theirs.
        self.given.retain(|id, _| !others.contains(id));
        let Some((out, id, most)) = best else { return };
        let (Ok(tree), Some(given)) = (trees::of(id.pid), self.given.get_mut(&id)) else { return };
        let most = tree.give(most);
        given.budget = most;
        let (out, most) = (size::format(out), size::format(most));
        let (place, pid, name) = (&places[index].place, id.pid, trees::comm(id.pid));
        let who = format!("the tree of process {pid} ({name}), of which {out} are out");
        self.speaker.say(format_args!("{place}: there is room again: {who}, has a budget of {most}"));
    }

    /// What is left beyond three times `--keep` in each place that a process is in; 0 where one is not calm.
    fn spare(&self, places: &[Watched], pid: u32, index: usize) -> u64 {
        let of = |(at, watched): (usize, &Watched)| {
            if at != index && !watched.place.processes().contains(&pid) {
                return u64::MAX;
            }
            let calm = watched.calm.elapsed() >= CALM;
            let reading = watched.place.read(self.physical).filter(|_| calm);
            reading.map_or(0, |reading| reading.left.saturating_sub(self.keep(reading).saturating_mul(3)))
        };
        places.iter().enumerate().map(of).min().unwrap_or(0)
    }
}
