//! The end of a program, as the library's finaliser sees it: a program that `farpage run` has become says one line if
//! it waited for most of its time, because there is no launcher to say it.
//!
//! It says nothing that others say (`--stats`), nothing of short runs, and nothing where it would be out of place: in a
//! process that another one of the tree has started, or when standard error is not the file any more that it was at the
//! beginning. What it started waited on its behalf. What ends by a signal does not come here.
//!
//! Caller: the preload library, on the thread that called `exit` or `_exit`. No locks.

use crate::dormant::{self, FILTERED, PLAN, StartPlan};
use crate::shared::state::engine;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_ipc::stat::Waiting;
use farpage_ipc::tree;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A user needs no advice for what takes no longer than this, and who looks at a program's messages mostly starts short
/// ones.
const SHORT: Duration = Duration::from_secs(5);

/// The program ends.
pub fn end() {
    end_at_once();
    dormant::end();
}

/// The same of one that ends without its finalisers (`_exit`: dash, children that were forked).
pub fn end_at_once() {
    let home = engine().filter(|engine| engine.fork.is_home());
    if let (Some(engine), Some(segment)) = (home, tree::segment()) {
        segment.header.sums.add(engine.stat);
    }
    if let Some(advice) = PLAN.get().filter(|plan| is_asked(plan)).and_then(advice) {
        warn_once_in_tree(WarningKind::Waited, &advice);
    }
}

/// Whether this process is to say it. A filter of the program's own may not let it.
fn is_asked(plan: &StartPlan) -> bool {
    let is_first = tree::segment().is_some_and(|segment| segment.is_first(std::process::id()));
    is_first && plan.stat().is_none() && !FILTERED.load(SeqCst)
}

fn advice(plan: &StartPlan) -> Option<String> {
    let wall = plan.begun.elapsed();
    match tree::segment().filter(|segment| segment.header.has_several()) {
        Some(segment) => of(segment.header.sums.waiting(wall), wall),
        None => of(engine().filter(|engine| engine.fork.is_home())?.stat.waiting(wall), wall),
    }
}

/// What is said after a run that took so long.
fn of(waiting: Waiting, wall: Duration) -> Option<String> {
    let advice = waiting.advice().filter(|_| wall > SHORT)?;
    Some(format!("the program {advice}; --stats says more, -q nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::stat::Stat;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn long_runs_that_waited_for_most_of_their_time_get_advice() {
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        let seconds = Duration::from_secs;
        let of = |stat: &Stat, wall| of(stat.waiting(wall), wall);
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
        stat.swap_full.store(1, Relaxed);
        assert!(of(&stat, seconds(60)).unwrap().contains("the swap devices were full: more --swap"));
    }
}
