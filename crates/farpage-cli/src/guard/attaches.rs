//! Programs that are attached to: each by a command of its own, which is looked at from time to time.
//!
//! Caller: [`super`]. No locks.

use super::targets::{Id, Target};
use super::watch::Place;
use crate::args::EngineArgs;
use crate::failure::{Result, why};
use crate::{run, trees};
use farpage::internals::conf::{RAM_MIN, size};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Who was refused is tried again after this long.
const AGAIN: Duration = Duration::from_secs(30);

/// Attaches that have begun, and who was refused.
pub struct Attaches {
    engine: Vec<OsString>,
    running: Vec<Attach>,
    refused: HashMap<Id, Refusal>,
}

struct Attach {
    id: Id,
    what: String,
    place: Place,
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
    /// Who.
    pub id: Id,
    /// Where.
    pub place: Place,
    /// It has a budget now.
    pub is_attached: bool,
    /// What is to be said.
    pub says: Vec<String>,
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

    /// Whether it was refused, not long ago.
    pub fn is_refused(&self, id: Id) -> bool {
        self.refused.get(&id).is_some_and(|refusal| refusal.at.elapsed() < AGAIN)
    }

    /// Forgets processes that have ended.
    pub fn forget(&mut self) {
        self.refused.retain(|id, _| id.is_there());
    }

    /// Begins.
    pub fn begin(&mut self, target: &Target, place: &Place, budget: u64) {
        let mut command = Command::new("/proc/self/exe");
        command.arg("attach").arg(target.id.pid.to_string()).arg("--ram").arg(budget.to_string()).args(&self.engine);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let (id, what, place) = (target.id, target.to_string(), place.clone());
        match command.spawn() {
            Ok(child) => self.running.push(Attach { id, what, place, budget, child, began: Instant::now() }),
            Err(error) => {
                let text = format!("cannot start a process that attaches to {what}: {}", why(&error));
                crate::failure::say(format_args!("farpage: {text}"));
                self.refused.insert(id, Refusal { at: Instant::now(), text });
            }
        }
    }

    /// Those that have ended since the last call.
    pub fn done(&mut self) -> Vec<Done> {
        let ended = self.running.extract_if(.., |attach| !matches!(attach.child.try_wait(), Ok(None)));
        let mut done = Vec::new();
        for mut attach in ended {
            let mut text = String::new();
            let is_within = attach.child.wait().is_ok_and(|status| status.success());
            if let Some(stderr) = &mut attach.child.stderr {
                // It has ended, and wrote a few lines.
                let _ = stderr.read_to_string(&mut text);
            }
            let is_attached = is_within || trees::of(attach.id.pid).is_ok();
            let mut says: Vec<String> =
                text.lines().map(|line| line.strip_prefix("farpage: ").unwrap_or(line).to_owned()).collect();
            if is_within {
                let (what, seconds) = (&attach.what, attach.began.elapsed().as_secs_f64());
                says.push(format!("{what} is within {} after {seconds:.1} s", size::format(attach.budget)));
            }
            if !is_attached {
                let refusal = Refusal { at: Instant::now(), text };
                let before = self.refused.insert(attach.id, refusal);
                if before.is_some_and(|before| self.refused.get(&attach.id).is_some_and(|now| now.text == before.text))
                {
                    says.clear();
                }
            }
            done.push(Done { id: attach.id, place: attach.place, is_attached, says });
        }
        done
    }
}
