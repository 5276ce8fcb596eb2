//! `farpage detach`: a process that was attached to is brought in, and goes on without farpage.
//!
//! The engine does it (`farpage_run::monitor`'s `detach`), told by a word in the process's place in its tree, and
//! leaves the tree. That can be taken back until it has. Then a borrowed thread closes what the process was given.
//!
//! Caller: `main`. No locks.

use super::family::{self, some};
use super::start;
use super::target::{GONE, Target};
use crate::args::DetachArgs;
use crate::cgroup::{self, Group};
use crate::failure::{Failure, Result, say};
use crate::process::{self, Status};
use crate::set::falls;
use crate::trees::{self, Tree, bytes, size_of};
use farpage_command::machine::meminfo;
use farpage_ipc::conf::size;
use farpage_ipc::tree::{Member, MemberKind};
use farpage_run::budget::park::DETACH;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// How long is waited for while nothing comes in.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is to be left of the machine's memory, or of a cgroup's: a part of what comes in.
const LEFT_PART: u64 = 8;

/// Runs the subcommand.
///
/// # Errors
/// It cannot be done, with exit status 1; then the process is as it was.
pub fn main(args: &DetachArgs) -> Result<ExitCode> {
    if args.tree {
        return with_all_that_it_has_started(args.pid);
    }
    let tree = trees::of(args.pid)?;
    let done = one(args.pid, &tree)?;
    say_who_goes_on(vec![done]);
    say_who_stays(&tree);
    Ok(ExitCode::SUCCESS)
}

/// Exit status 1: of some it has been said why not.
fn with_all_that_it_has_started(pid: u32) -> Result<ExitCode> {
    let (mut done, mut failures, mut left) = (Vec::new(), Vec::new(), BTreeMap::new());
    // Parents first: what they start from then on is started without.
    family::each(
        BTreeSet::new(),
        || family::with_descendants(pid),
        |pid| {
            let Some((id, tree)) = trees::id_of(pid).zip(trees::of(pid).ok()) else { return };
            if !member(&tree, pid).is_some_and(|member| member.kind() == MemberKind::Stranger) {
                match one(pid, &tree) {
                    Ok(name) => done.push(name),
                    // One that has ended meanwhile has no memory.
                    Err(failure) => failures.extend(Some(failure).filter(|_| process::anonymous(pid) > 0)),
                }
            }
            left.insert(id, tree);
        },
    );
    let is_all = failures.is_empty();
    if done.is_empty() && is_all {
        let none = || Failure::new(format!("cannot detach from process {pid}: nothing of its tree has an engine"));
        return Err(trees::of(pid).err().unwrap_or_else(none));
    }
    failures.into_iter().for_each(say);
    if !done.is_empty() {
        say_who_goes_on(done);
    }
    left.values().for_each(say_who_stays);
    Ok(if is_all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A process goes on without farpage; its number and name.
fn one(pid: u32, tree: &Tree) -> Result<String> {
    let target = Target::look_at_member(pid).map_err(of_detach)?;
    match detach(&target, tree) {
        Ok(()) => Ok(format!("process {pid} ({})", target.name.escape_debug())),
        // Whatever could not be done any more.
        Err(_) if target.is_ending() => Err(refuse(&target, GONE)),
        Err(failure) => Err(failure),
    }
}

fn detach(target: &Target, tree: &Tree) -> Result<()> {
    let pid = target.pid;
    look(target, tree)?;
    if let Some(member) = member_with_engine(tree, pid) {
        bring_in(target, member)?;
    }
    match start::detach(target) {
        Ok(true) => Ok(()),
        Ok(false) => Err(refuse(target, "its engine is being started").help("try again")),
        Err(failure) => {
            let why = format!("its memory is its own, but what it was given is still open: {}", failure.sentence);
            let failure = refuse(target, &why);
            let has_tree = trees::id_of(pid).is_some();
            Err(if has_tree { failure.help(format!("farpage detach {pid} again")) } else { failure })
        }
    }
}

fn of_detach(failure: Failure) -> Failure {
    Failure { sentence: failure.sentence.replacen("cannot attach to", "cannot detach from", 1), ..failure }
}

fn refuse(target: &Target, why: &str) -> Failure {
    of_detach(target.refuse(why))
}

/// Refuses a process that could not go on as it was.
fn look(target: &Target, tree: &Tree) -> Result<()> {
    let pid = target.pid;
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    if environment.split(|byte| *byte == 0).any(names_us) {
        let why = "it was started under farpage, as its environment says, and so is what it starts";
        let help =
            format!("farpage set {pid} --ram max lifts the budget, and farpage unpark {pid} brings its memory in");
        return Err(refuse(target, why).help(help));
    }
    let Some(member) = member_with_engine(tree, pid) else { return Ok(()) };
    let out = bytes(member.swapped.load());
    let needs = out + out / LEFT_PART;
    let short = |has: u64, of: &str| {
        let why = format!("{} of it is swapped out, and {of} has {} left", size::format(out), size::format(has));
        Err(refuse(target, &why))
    };
    let available = meminfo("MemAvailable").unwrap_or(u64::MAX);
    if available < needs {
        return short(available, "the machine");
    }
    let group = cgroup::of_process(pid).and_then(|name| Group::named(Path::new(&name)).ok());
    for dir in group.iter().flat_map(Group::with_all_above) {
        if let (Some(limit), Some(has)) = (dir.limit(u64::MAX / 2), dir.needed())
            && limit.saturating_sub(has) < needs
        {
            return short(limit.saturating_sub(has), &format!("its memory cgroup ({})", dir.dir().display()));
        }
    }
    Ok(())
}

/// Whether it is the `LD_PRELOAD` of a program that is started under farpage.
fn names_us(variable: &[u8]) -> bool {
    let libraries = variable.strip_prefix(b"LD_PRELOAD=").unwrap_or_default().split(|byte| b" :".contains(byte));
    let file_name = |path| String::from_utf8_lossy(path).rsplit('/').next().unwrap_or_default().to_owned();
    libraries.map(file_name).any(|name| name.contains("libfarpage_preload"))
}

/// Its place in the tree.
fn member(tree: &Tree, pid: u32) -> Option<&Member> {
    tree.member(Status::read(pid).ok()?.numbers().next_back()?.into())
}

/// The same, if it has an engine.
fn member_with_engine(tree: &Tree, pid: u32) -> Option<&Member> {
    member(tree, pid).filter(|m| has_engine(m))
}

fn has_engine(member: &Member) -> bool {
    matches!(member.kind(), MemberKind::Watched | MemberKind::Managed)
}

/// All of it comes in, and its engine ends; or all is as it was.
fn bring_in(target: &Target, member: &Member) -> Result<()> {
    let (pid, own) = (target.pid, member.pid.load(Relaxed));
    let before = member.park.swap(DETACH, SeqCst);
    member.ring();
    // The last step is that it leaves. Its parent may take the place at once, for a child without an engine.
    let is_there = || member.claim.is_live() && member.pid.load(Relaxed) == own && has_engine(member);
    let left = || if is_there() { member.swapped.load() + 1 } else { 0 };
    let least = falls(0, PATIENCE, left);
    if least == 0 {
        return Ok(());
    }
    if member.park.compare_exchange(DETACH, before, SeqCst, SeqCst).is_err() {
        let why = "its park state was changed meanwhile";
        return if left() == 0 { Ok(()) } else { Err(refuse(target, why).help("try again")) };
    }
    member.ring();
    let why = format!("{} of it does not come in", size_of(least - 1));
    Err(refuse(target, &why).help(format!("it is managed as before; farpage stat {pid} says more")))
}

fn say_who_goes_on(done: Vec<String>) {
    let go = if done.len() == 1 { "goes" } else { "go" };
    say(format_args!("farpage: {} {go} on without farpage; the library stays loaded, and sleeps", some(done)));
}

/// What the process has started, or was started with, stays in its tree.
fn say_who_stays(tree: &Tree) {
    let pids = tree.members().into_iter().map(|m| m.pid.load(Relaxed));
    let stay: Vec<(u32, String)> =
        pids.map(|pid| (pid, trees::comm(pid))).filter(|(_, name)| !name.is_empty()).collect();
    if stay.is_empty() {
        return;
    }
    let named = some(stay.into_iter().map(|(pid, name)| format!("process {pid} ({name})")).collect());
    say(format_args!("farpage: within the budget there are still {named}"));
}

#[cfg(test)]
mod tests {
    use super::names_us;

    #[test]
    fn the_library_is_told_by_its_file_name() {
        let names = |text: &str| names_us(text.as_bytes());
        assert!(names("LD_PRELOAD=/a.so:/usr/lib/farpage/libfarpage_preload.so"));
        assert!(!names("LD_PRELOAD=/home/farpage-dev/x.so /libfarpage_preload/y.so"));
        assert!(!names("PRELOAD=/libfarpage_preload.so"));
    }
}
