//! `farpage attach`: a budget for a program that runs already.
//!
//! A thread of the program is borrowed for some milliseconds to load the library ([`tracee`]), at a place where it
//! holds no lock that this needs ([`place`]); the others run on. The library does the rest
//! (`farpage-preload/src/late`): the engine starts, and takes over what the program has.
//!
//! | module | what |
//! | --- | --- |
//! | [`start`] | loads the library into a process, and starts its engine |
//! | [`target`] | which processes can be attached to, and why not |
//! | [`place`] | which thread, and where |
//! | [`tracee`], [`stops`] | the thread: calls for us, and is put back; `ptrace` |
//! | [`filter`] | whether its seccomp filter lets an engine work |
//! | [`userfaultfds`] | makes those of a process whose user may not have any |
//! | [`pass`] | gives the process what it may not, or cannot, open |
//! | [`memory`], [`symbols`] | its memory and mappings; addresses of functions |
//! | [`detach`] | the way back |
//! | [`family`] | processes that belong together |

pub mod detach;
mod family;
mod filter;
mod memory;
mod pass;
mod place;
pub mod start;
mod stops;
mod symbols;
mod target;
mod tracee;
mod userfaultfds;

use crate::args::AttachArgs;
use crate::budget::budget;
use crate::failure::{Failure, Result, say};
use crate::{cgroup, preload, run, set, trees};
use farpage::PAGE_SIZE;
use farpage_ipc::conf::size;
use start::Start;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use target::Target;

/// Kinds of units that have processes; the first one may be left out.
const UNIT_KINDS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// Runs the subcommand.
///
/// # Errors
/// It cannot be attached to, with exit status 1; then it is as it was.
pub fn main(args: &AttachArgs) -> Result<ExitCode> {
    let note = |text: &dyn std::fmt::Display| {
        if args.verbose {
            say(format_args!("farpage: {text}"));
        }
    };
    let bytes = budget(Some(&args.ram))?.bytes;
    let (conf, text) = run::configuration_of_running(bytes, &args.engine)?;
    let start = Start::new(preload::find()?, text, &note);
    let whom = Whom::of(args)?;
    let since = Instant::now();
    let (pid, refused) = begin(&whom, &args.ram, &start)?;
    match &whom {
        Whom::One(target) => family::warn_of_those_outside(target, conf.ram),
        Whom::Tree(_) | Whom::Group(_) => family::take_in(pid, || whom.pids(), refused, &start)?,
    }
    let is_within = set::wait_until_within(pid, conf.ram / PAGE_SIZE as u64)?;
    if is_within {
        note(&format_args!("within {} after {:.2} s", size::format(conf.ram), since.elapsed().as_secs_f64()));
    }
    Ok(if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Who is attached to.
enum Whom<'a> {
    One(Target),
    /// This process, and all that it has started.
    Tree(u32),
    /// The processes of cgroups.
    Group(Box<dyn Fn() -> Vec<u32> + 'a>),
}

impl<'a> Whom<'a> {
    fn of(args: &'a AttachArgs) -> Result<Whom<'a>> {
        Ok(match (args.pid, &args.unit, &args.cgroup) {
            (Some(pid), ..) if args.tree => Whom::Tree(pid),
            (Some(pid), ..) => Whom::One(Target::look(pid)?),
            (None, Some(unit), _) => Whom::Group(unit_members(unit)?),
            (None, None, Some(name)) if !cgroup::has_all(name) && !cgroup::members(name).is_empty() => {
                Whom::Group(Box::new(|| cgroup::members(name)))
            }
            (None, None, name) => {
                let name = name.as_deref().unwrap_or(Path::new("/"));
                let has = if cgroup::has_all(name) { "every process is in it" } else { "no process is in it" };
                let why = format!("cannot attach to cgroup {}: {has}", name.display());
                return Err(Failure::new(why).help("cat /proc/PID/cgroup has the names of a process's cgroups"));
            }
        })
    }

    /// Parents mostly before their children: a process passes a tree on.
    fn pids(&self) -> Vec<u32> {
        match self {
            Whom::One(target) => vec![target.pid],
            Whom::Tree(pid) => family::with_descendants(*pid),
            Whom::Group(members) => members(),
        }
    }
}

/// The processes of a unit of systemd.
fn unit_members(name: &str) -> Result<Box<dyn Fn() -> Vec<u32>>> {
    let is_whole = UNIT_KINDS.iter().any(|kind| name.ends_with(kind));
    let unit = if is_whole { name.to_owned() } else { format!("{name}{}", UNIT_KINDS[0]) };
    let failed = |why: &str, help: String| Err(Failure::new(format!("cannot attach to unit {unit}: {why}")).help(help));
    let places: Vec<String> = cgroup::of_unit(&unit).into_keys().collect();
    match places.as_slice() {
        [] => failed("no process is in it", format!("systemctl status {unit}")),
        [place] => {
            let place = PathBuf::from(place);
            Ok(Box::new(move || cgroup::members(&place)))
        }
        [place, ..] => {
            let why = format!("there are several of that name: {}", places.join(", "));
            failed(&why, format!("name one, as in --cgroup {place}"))
        }
    }
}

/// Attaches to the first of them that can be: one whose tree is theirs gets the budget, one that has none begins one.
/// Which it is, and why those before it could not be attached to.
fn begin(whom: &Whom<'_>, ram: &str, start: &Start<'_>) -> Result<(u32, Vec<(u32, Failure)>)> {
    if let Whom::One(target) = whom {
        start.begin(target, None)?;
        return Ok((target.pid, Vec::new()));
    }
    let all = whom.pids();
    let mut pids = all.clone();
    if let Whom::Tree(pid) = whom {
        // What it has started is its own: the tree begins with it.
        pids = vec![*pid];
    }
    pids.retain(|pid| *pid != std::process::id());
    pids.sort_by_key(|pid| trees::id_of(*pid).is_none());
    let mut refused = Vec::new();
    for pid in pids {
        let done = Target::look_at_member(pid).and_then(|target| match target.is_member() {
            true if !family::is_tree_of(&all, pid) => Err(target.refuse_again()),
            true => set::give(pid, ram).map(|(_, failures)| failures.into_iter().for_each(say)),
            false => start.begin(&target, None),
        });
        match done {
            Ok(()) => return Ok((pid, refused)),
            Err(failure) => refused.push((pid, failure)),
        }
    }
    Err(refused.pop().map_or_else(|| Failure::new("cannot attach: no process is left"), |(_, failure)| failure))
}
