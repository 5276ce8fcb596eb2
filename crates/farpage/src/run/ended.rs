//! The end of a program, as the library's finaliser sees it: a program that `farpage run` has become says one line if
//! it waited for most of its time, because nobody else is there to say it.
//!
//! It says nothing that others say (`--stats`), nothing of short runs, and nothing where it would be out of place: in a
//! process that another one of the tree has started, or when standard error is not the file any more that it was at the
//! beginning. What ends by a signal or by `_exit` does not come here.
//!
//! Caller: the preload library, on the thread that called `exit`. No locks.

use crate::run::dormant::{self, FILTERED, PLAN, StartPlan};
use crate::run::state::engine;
use crate::run::told::{WarningKind, warn_once_in_tree};
use crate::stat::Stat;
use crate::tree;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Nobody needs advice for what takes no longer than this, and who looks at a program's messages mostly starts short
/// ones.
const SHORT: Duration = Duration::from_secs(5);

/// The program ends.
pub fn end() {
    if let Some(advice) = PLAN.get().and_then(|plan| advice(plan).filter(|_| is_asked(plan))) {
        warn_once_in_tree(WarningKind::Waited, &advice);
    }
    dormant::end();
}

/// Whether this process is to say it. A filter of the program's own may not let it.
fn is_asked(plan: &StartPlan) -> bool {
    let is_first = tree::segment().is_some_and(|segment| segment.is_first(std::process::id()));
    is_first && plan.stat().is_none() && !FILTERED.load(SeqCst) && plan.stderr.is_some_and(|file| file.is_at(2))
}

fn advice(plan: &'static StartPlan) -> Option<String> {
    let engine = engine().filter(|engine| engine.fork.is_home())?;
    of(engine.stat, plan.begun.elapsed())
}

/// What is said after a run that took so long.
fn of(stat: &Stat, wall: Duration) -> Option<String> {
    let advice = stat.waiting(wall).advice().filter(|_| wall > SHORT)?;
    Some(format!("the program {advice}; --stats says more, -q nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn long_runs_that_waited_for_most_of_their_time_get_advice() {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        let seconds = Duration::from_secs;
        stat.fault_wait_ns.store(40_000_000_000, Relaxed);
        let words = "the program waited for most of its time: give it more --ram; --stats says more, -q nothing";
        assert_eq!(of(&stat, seconds(60)).as_deref(), Some(words));
        // Of its time, and of the time of its threads.
        assert_eq!(of(&stat, seconds(90)), None);
        stat.fault_threads.store(2, Relaxed);
        assert_eq!(of(&stat, seconds(60)), None);
        // Short.
        stat.fault_threads.store(1, Relaxed);
        assert_eq!(of(&stat, SHORT), None);
        [&stat.pgmajfault, &stat.pgmajfault_file].into_iter().for_each(|faults| faults.store(100, Relaxed));
        assert!(of(&stat, seconds(60)).unwrap().contains("100% of major faults waited for files"));
    }
}
