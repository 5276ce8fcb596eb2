//! Commands that the guard has started: each attaches to a program, or wakes the engines of a tree that is to become
//! smaller. They are looked at from time to time.
//!
//! Caller: [`super`]. No locks.

use super::targets::{Id, Target};
use super::watch::Place;
use crate::args::EngineArgs;
use crate::failure::Result;
use crate::{run, trees};
use farpage_ipc::conf::{RAM_MIN, size};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that was refused is tried again after this long.
const AGAIN: Duration = Duration::from_secs(30);
/// Most at a time: each needs some memory of its own.
const AT_ONCE: usize = 4;

/// Commands that run, and processes that were refused.
pub struct Attaches {
    engine: Vec<OsString>,
    running: Vec<Attach>,
    refused: HashMap<Id, Refusal>,
}

struct Attach {
    id: Id,
    /// Why, and what it had: for the line that says that it is done.
    why: String,
    place: Place,
    /// What it shall have, bytes; another one than it was begun with, if that was not enough.
    budget: u64,
    child: Child,
    began: Instant,
}

struct Refusal {
    at: Instant,
    text: String,
}

/// One that has ended.
pub struct Done {
    /// The process.
    pub id: Id,
    /// Where.
    pub place: Place,
    /// The budget that it has now, bytes; `None`: it was refused.
    pub budget: Option<u64>,
    /// What is to be said.
    pub says: Option<String>,
}

impl Attaches {
    /// None yet; all will get engines that work as is said here.
    ///
    /// # Errors
    /// No engine could work so.
    pub fn new(engine: &EngineArgs) -> Result<Attaches> {
        run::configuration_of_running(RAM_MIN, engine)?;
        Ok(Attaches { engine: engine.to_arguments(), running: Vec::new(), refused: HashMap::new() })
    }

    /// What one gets that is being attached to, bytes.
    pub fn budget(&self, id: Id) -> Option<u64> {
        self.running.iter().find(|attach| attach.id == id).map(|attach| attach.budget)
    }

    /// Whether none runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether it was refused, not long ago.
    pub fn is_refused(&self, id: Id) -> bool {
        self.refused.get(&id).is_some_and(|refusal| refusal.at.elapsed() < AGAIN)
    }

    /// Forgets processes that have ended.
    pub fn forget(&mut self) {
        self.refused.retain(|id, _| id.is_there());
    }

    /// Begins to attach; one that is being attached to gets this budget instead. Too many at a time: nothing happens.
    /// What cannot be begun is said.
    pub fn begin(&mut self, target: &Target, place: &Place, budget: u64, why: &str) -> Option<String> {
        if let Some(attach) = self.running.iter_mut().find(|attach| attach.id == target.id) {
            attach.budget = budget;
            return None;
        }
        self.start("attach", target, place, budget, why)
    }

    /// Has a tree's small processes, which have no engine, start one: its budget was set.
    pub fn wake(&mut self, target: &Target, place: &Place, budget: u64) -> Option<String> {
        if self.budget(target.id).is_some() {
            return None;
        }
        self.start("set", target, place, budget, "")
    }

    fn start(&mut self, name: &str, target: &Target, place: &Place, budget: u64, why: &str) -> Option<String> {
        if self.running.len() >= AT_ONCE {
            return None;
        }
        let mut command = Command::new("/proc/self/exe");
        command.args([name, &target.id.pid.to_string(), "--ram", &budget.to_string()]);
        if name == "attach" {
            command.args(&self.engine);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let (id, place) = (target.id, place.clone());
        match command.spawn() {
            Ok(child) => {
                let (why, began) = (why.to_owned(), Instant::now());
                self.running.push(Attach { id, why, place, budget, child, began });
                None
            }
            Err(error) => {
                let text = format!("cannot start a command for {target}: {}", crate::failure::why(&error));
                self.refuse(id, text)
            }
        }
    }

    /// Notes a refusal; its text, if it is another one than the last.
    fn refuse(&mut self, id: Id, text: String) -> Option<String> {
        let before = self.refused.insert(id, Refusal { at: Instant::now(), text: text.clone() });
        before.is_none_or(|before| before.text != text).then_some(text)
    }

    /// Those that have ended since the last call.
    pub fn done(&mut self) -> Vec<Done> {
        let ended: Vec<Attach> =
            self.running.extract_if(.., |attach| !matches!(attach.child.try_wait(), Ok(None))).collect();
        ended.into_iter().map(|attach| self.ended(attach)).collect()
    }

    fn ended(&mut self, mut attach: Attach) -> Done {
        let is_within = attach.child.wait().is_ok_and(|status| status.success());
        let mut text = String::new();
        if let Some(stderr) = &mut attach.child.stderr {
            // It has ended, and wrote a few lines.
            let _ = stderr.read_to_string(&mut text);
        }
        let lines = text.lines().map(|line| line.strip_prefix("farpage: ").unwrap_or(line).trim());
        let words = lines.filter(|line| !line.starts_with("help:")).collect::<Vec<_>>().join("; ");
        let (id, place) = (attach.id, attach.place);
        let Ok(tree) = trees::of(id.pid) else {
            let says = self.refuse(id, words);
            return Done { id, place, budget: None, says };
        };
        self.refused.remove(&id);
        // It was not enough meanwhile.
        let budget = tree.budget().unwrap_or(u64::MAX).min(attach.budget);
        let budget = tree.give(budget);
        let seconds = attach.began.elapsed().as_secs_f64();
        let and = if is_within { String::new() } else { format!("; {words}") };
        let says = match attach.why.is_empty() {
            true if is_within => None,
            true => Some(words),
            false => {
                let budget = size::format(budget);
                Some(format!("{}: it has a budget of {budget}, after {seconds:.1} s{and}", attach.why))
            }
        };
        Done { id, place, budget: Some(budget), says }
    }
}
