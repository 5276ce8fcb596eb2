//! The end of a program, as the library's finaliser sees it: a program that `farpage run` has become says one line if
//! its threads waited for most of the time, because there is no launcher to say it. (While it runs, a monitor does.)
//!
//! It says nothing that others say (`--stats`), nothing of short runs, and nothing where it would be out of place: in a
//! process that another one of the tree has started, or when standard error is not the file any more that it was at the
//! beginning. What it started waited on its behalf. What ends by a signal does not come here.
//!
//! Caller: the preload library, on the thread that called `exit` or `_exit`. No locks.

use crate::dormant::{self, FILTERED};
use crate::shared::state::engine;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_ipc::tree::{self, Segment};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A user needs no advice for what takes no longer than this, and who looks at a program's messages mostly starts short
/// ones.
const SHORT: Duration = Duration::from_secs(5);

/// The program ends.
pub fn end() {
    end_at_once();
    if !FILTERED.load(SeqCst) {
        dormant::end();
    }
}

/// The same of one that ends without its finalisers (`_exit`: dash, children that were forked).
pub fn end_at_once() {
    // A filter of the program's own may allow no more than to end.
    if FILTERED.load(SeqCst) {
        return;
    }
    let home = engine().filter(|engine| engine.fork.is_home());
    if let (Some(engine), Some(segment)) = (home, tree::segment()) {
        segment.header.sums.add(engine.stat);
    }
    // Unless others say it.
    if let Some(advice) = dormant::plan().filter(|plan| plan.stat().is_none()).and_then(|_| advice()) {
        warn_once_in_tree(WarningKind::Waited, &advice);
    }
}

/// Of the whole tree: the program may have become another one meanwhile.
fn advice() -> Option<String> {
    let segment = tree::segment().filter(|segment| segment.is_first(std::process::id()))?;
    of(segment, segment.header.age())
}

/// What is said after a run that took so long.
fn of(segment: &Segment, wall: Duration) -> Option<String> {
    let advice = segment.header.sums.waiting(wall).advice("the time").filter(|_| wall > SHORT)?;
    let largest = segment.header.largest.in_words().filter(|_| segment.header.has_several());
    Some(format!("{advice}{}; --stats says more, -q nothing", largest.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::stat::Stat;
    use rustix::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn long_runs_that_waited_for_most_of_their_time_get_advice() {
        let segment = tree::open(tree::create(64 << 20, None).unwrap().as_fd()).unwrap();
        let sums = &segment.header.sums;
        // SAFETY: atomics only: all-zero is a valid Stat.
        let stat: Box<Stat> = Box::new(unsafe { std::mem::zeroed() });
        let seconds = Duration::from_secs;
        sums.note_waited(seconds(40));
        assert_eq!(of(segment, seconds(60)), None, "nothing was swapped out");
        let add = |counter: &AtomicU64| {
            counter.fetch_add(1, Relaxed);
            sums.add(&stat);
        };
        add(&stat.pswpout);
        let said = |wall| of(segment, seconds(wall)).unwrap_or_default();
        let begin = "for 67% of the time at least one thread waited for memory";
        assert_eq!(said(60), format!("{begin}: give it more --ram; --stats says more, -q nothing"));
        assert_eq!([said(90), said(5)], ["", ""], "little of its time, and short");
        add(&stat.pgmajfault);
        add(&stat.pgmajfault_file);
        assert!(said(60).starts_with(&format!("{begin}, 100% of major faults waited for files: give it more --ram;")));
        add(&stat.swap_full);
        assert!(said(60).starts_with(&format!("{begin}, and the swap devices were full: more --swap")));
    }
}
