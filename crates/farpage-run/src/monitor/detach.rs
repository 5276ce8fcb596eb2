//! `farpage detach`: all memory of the process comes in, its engine ends, and it leaves its tree.
//!
//! ```text
//!   the word in its place in the tree --monitor--> detaching --pager: all is let go--> its threads end
//!                 managed as before <--it is taken back--'
//! ```
//! The engine itself stays, as one that has retired: program threads may have it in their hands. Its memory goes. With
//! the last thread its descriptors are closed, and with the userfaultfds all registrations go. Then it is forgotten
//! ([`crate::dormant`]'s `forget_ended`): the process may be attached to again, and gets another one.
//!
//! The monitor's. Locks: its gate, so that no fork is going on when the threads end.

use crate::budget::park::DETACH;
use crate::monitor::member::Membership;
use crate::shared::charge::UNLIMITED;
use crate::shared::stacks::{MONITOR, PAGER, STACKS};
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::sys::futex;
use farpage_base::sys::thread::exit_thread;
use rustix::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(2);
/// No process has as many pages.
const ALL_PAGES: i64 = 1 << 40;

/// Whether the process is to be detached, or is being: what its place in the tree says.
pub(super) fn is_asked(e: &Engine, member: &Membership) -> bool {
    let place = member.share.as_ref().map(|tree| tree.mine);
    let is_asked = place.is_some_and(|mine| mine.park.load(SeqCst) == DETACH);
    if e.stage.detaching.swap(is_asked, SeqCst) != is_asked {
        if !is_asked {
            e.budget.promise(place.map_or(0, |mine| mine.claim.held() as i64));
            e.discovery.charges.allow(if e.is_active() { e.large() as u64 } else { 0 });
        }
        e.kick_pager();
    }
    is_asked
}

/// A turn while all of it comes in, above the budget. The process claims what it did, because it is about to leave.
pub(super) fn turn(e: &Engine, member: &Membership, rss: i64) -> Duration {
    e.budget.promise(ALL_PAGES);
    e.discovery.charges.allow(UNLIMITED);
    if let Some(tree) = &member.share {
        tree.mine.held.store(0, Relaxed);
        tree.mine.wants.store(0);
        tree.mine.used.store(rss.max(0) as u64);
        tree.mine.swapped.store(e.table.swapped_pages());
    }
    e.kick_pager();
    LOOK
}

/// Whether nothing is managed: the engine can end.
pub(super) fn can_end(e: &Engine) -> bool {
    let is_out = || e.table.swapped_pages() > 0 || lock(&e.lru).cached_len() > 0;
    !e.is_active() || e.stage.let_go.load(SeqCst) && !is_out()
}

/// The engine ends. Behind the gate.
pub(super) fn end(e: &'static Engine, member: &mut Membership) -> ! {
    // Children need no engine; no thread of the program waits for a look.
    e.stage.activation_failed.store(true, SeqCst);
    e.stage.retired.store(true, SeqCst);
    e.discovery.charges.allow(UNLIMITED);
    e.stage.detached.store(true, SeqCst);
    e.kick_pager();
    e.stage.active.store(false, SeqCst);
    e.wake_writer();
    e.helpers.wake_all();
    // The writer may stand at its gate, because a fork waits for this thread.
    e.fork.gates.ring();
    for done in &e.following.done[PAGER..STACKS] {
        loop {
            match done.load(SeqCst) {
                0 => break,
                now => futex::wait(done, now, Some(LOOK.as_nanos() as u64)),
            }
        }
    }
    e.fork.standby.dismiss_now();
    let kick = e.wakeups.kick_fd.swap(-1, SeqCst);
    if kick >= 0 {
        // SAFETY: the pager has left it open, and no thread that kicks is left.
        drop(unsafe { OwnedFd::from_raw_fd(kick) });
    }
    *lock(&e.discard_area) = None;
    // SAFETY: no page is in it, the userfaultfds of its parts are closed, and no engine thread is left but this one.
    unsafe { e.arena.give_back() };
    e.publish_look();
    while e.discovery.notes.take().is_some() {}
    e.discovery.notes.finish();
    member.leave_tree(e);
    e.fork.gates.monitor.unlock();
    e.following.end(MONITOR);
    exit_thread()
}
