//! What was swapped out comes in before a thread wants it: `farpage unpark`.
//!
//! A step at a time, so that faults do not wait; from the lowest address up, until the end, or until there is no room.
//!
//! Caller: the pager's turn. Locks: those of `swap_in`; the one of managed ranges.

use crate::budget::share;
use crate::pager::cx::Cx;
use crate::shared::page_table::leaf_end;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{USER_END, Vpn};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// For how long it is tried where nothing can come in.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pages brought in, and looked at, in a step.
const BROUGHT_IN: usize = 64;
const LOOKED_AT: usize = 4096;

/// How far that has come: all that is out is being brought in, from here on, and when some came in last.
#[derive(Default)]
pub(crate) struct Unpark(Option<(Vpn, Instant)>);

impl Unpark {
    /// A step; whether there was anything to do.
    pub(crate) fn step(&mut self, cx: &mut Cx) -> bool {
        let unparks = &cx.e.wakeups.unparks;
        if unparks.load(Relaxed) && unparks.swap(false, SeqCst) {
            self.0 = Some((Vpn::default(), Instant::now()));
        }
        let Some((from, since)) = self.0 else { return false };
        let (next, has_come) = bring_in_from(cx, from);
        let since = if has_come { Instant::now() } else { since };
        // It may have been unparked while its pages were on their way out, and room comes with the next looks.
        self.0 = next.map(|next| (next, since)).filter(|_| since.elapsed() < PATIENCE);
        has_come
    }
}

/// Brings pages in from there on; where it goes on, and whether it can do so at once: there may be
/// no room. `None`: that was all.
fn bring_in_from(cx: &mut Cx, from: Vpn) -> (Option<Vpn>, bool) {
    let e = cx.e;
    let parts: Vec<(Vpn, Vpn)> = lock(&e.memory.managed).overlaps(from, Vpn::of(USER_END));
    let (mut looked, mut here) = (0, 0);
    for (low, high) in parts {
        let mut at = low.max(from);
        while at < high {
            if looked >= LOOKED_AT || here >= BROUGHT_IN {
                return (Some(at), true);
            }
            if e.table.node(at).is_none() {
                (at, looked) = (leaf_end(at), looked + 1);
                continue;
            }
            let run = at.up_to(high).take(BROUGHT_IN).take_while(|vpn| e.table.swapped(*vpn).is_some()).count();
            if run == 0 {
                (at, looked) = (at + 1, looked + 1);
                continue;
            }
            // As the next fault would: of the tree's budget there may be more.
            if cx.room() < run && !share::asks_for_more(e) && cx.room() < run {
                return (Some(at), false);
            }
            let done = cx.swap_in_run(at, run, false).done;
            if done == 0 {
                return (Some(at), false);
            }
            (at, here) = (at + done, here + done);
        }
    }
    (None, true)
}
