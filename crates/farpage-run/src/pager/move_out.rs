//! Moving a run of pages out of the program into frames.
//!
//! Caller: `reclaim`, on the pager's thread. Locks: those of the frames; `lru`.

use crate::pager::cx::Cx;
use crate::pager::transit::Transit;
use crate::shared::page_table::Node;
use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::maps::Rights;
use farpage_base::sys::uffd::UffdError;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Once nothing but pages that others have, too, could be taken out, such pages are, for so long.
const UNSHARES_FOR: Duration = Duration::from_millis(250);

/// Pages that stay in the program whatever happens: with fewer, threads that need some pages at the same time would
/// take them from each other for ever. Where memory that cannot be taken out fills the budget, it gives way.
const RESIDENT_MIN: usize = 64;
/// A process with a small budget, which mostly rests, keeps this part of it...
const RESIDENT_PART: usize = 8;
/// ... and at least so many pages, and so many for each thread that had faults.
const RESIDENT_LEAST: usize = 16;
const RESIDENT_A_THREAD: usize = 4;

/// How many pages stay in this program.
pub(crate) fn resident_min(e: &Engine) -> usize {
    let threads = e.stat.fault_threads.load(Relaxed) as usize;
    let least = RESIDENT_LEAST.max(threads.saturating_mul(RESIDENT_A_THREAD)).min(RESIDENT_MIN);
    (e.budget.movable().max(0) as usize / RESIDENT_PART).clamp(least, RESIDENT_MIN)
}

/// Which pages may be moved out, and how.
pub(crate) struct MoveOut {
    /// Until then, pages that other processes have, too, are taken out as others are.
    unshares_until: Option<Instant>,
    /// How executable memory is taken out.
    transit: Transit,
}

impl MoveOut {
    pub(crate) fn new() -> MoveOut {
        MoveOut { unshares_until: None, transit: Transit::Unwanted }
    }

    /// Moves the run of pages at `vpn` into frames as far as it goes. Returns pages moved and pages dealt with (a page
    /// that cannot be moved is dealt with too); `None`: stop, no frame or an event is pending.
    pub(crate) fn move_out(&mut self, cx: &mut Cx, vpn: Vpn, run: &[Node]) -> Option<(usize, usize)> {
        match cx.of_one_kind(vpn, run.len()) {
            (n, true) => cx.move_read_only_out(vpn, &run[..n], |cx, vpn, run| self.move_writable_out(cx, vpn, run)),
            (n, false) => self.move_writable_out(cx, vpn, &run[..n]),
        }
    }

    /// The same for memory that may be written, if it may.
    fn move_writable_out(&mut self, cx: &mut Cx, vpn: Vpn, run: &[Node]) -> Option<(usize, usize)> {
        let e = cx.e;
        let (first, got) = cx.empty_frames(run.len())?;
        let src = vpn.addr();
        let mut unshared = false;
        let result = loop {
            // SAFETY: frames just taken are empty arena pages without references; src is the program's memory, into
            // which the engine holds no reference.
            let (bytes, result) = unsafe { cx.mm.move_pages(e.frames.addr(first), src, got * PAGE_SIZE, true) };
            let done = bytes / PAGE_SIZE;
            if done > 0 {
                cx.now_cached(&run[..done], first, unshared);
                e.frames.put_empty(first + done, got - done);
                return Some((done, done));
            }
            if result == Err(UffdError::Present) {
                // The frame has a page although it should not: it goes back to the kernel with others.
                e.frames.put_spent(first, 1);
                e.frames.put_empty(first + 1, got - 1);
                return Some((0, 0));
            }
            if result != Err(UffdError::Busy) || unshared || !unshare(cx, self.unshares_until, src) {
                break result;
            }
            unshared = true;
        };
        e.frames.put_empty(first, got);
        if result == Err(UffdError::Incompatible)
            && let whole = cx.in_one_mapping(vpn, got)
            && whole < got
        {
            return self.move_writable_out(cx, vpn, &run[..whole]);
        }
        if result == Err(UffdError::Incompatible) && is_writable_code(cx, src) && self.transit.open(cx) {
            let until = self.unshares_until;
            return self.transit.move_out(cx, vpn, run, |cx, page| unshare(cx, until, page));
        }
        cx.refused(vpn, run, result)
    }

    /// For a while, pages that other processes have, too, are taken out as others are.
    pub(crate) fn unshare_for_a_while(&mut self) {
        self.unshares_until = Some(Instant::now() + UNSHARES_FOR);
    }

    /// Whether pages that other processes have, too, stay in memory.
    pub(crate) fn keeps_shared(&self, e: &Engine) -> bool {
        keeps_shared(e, self.unshares_until)
    }
}

fn keeps_shared(e: &Engine, unshares_until: Option<Instant>) -> bool {
    if !e.budget.shares_much() || unshares_until.is_some_and(|until| until >= Instant::now()) {
        return false;
    }
    // Unless what it has alone is not enough.
    let alone = lock(&e.lru).active_len() as i64 - e.budget.common();
    alone > e.budget.over_limit() + resident_min(e) as i64
}

/// Copy-on-write after a fork is one reason why a page is busy; if it is not (pinned for I/O), the next try says so.
/// Pages that others have, too, stay as long as there are others: the copy would cost memory, and taking it out would
/// free none.
fn unshare(cx: &Cx, unshares_until: Option<Instant>, page: usize) -> bool {
    if keeps_shared(cx.e, unshares_until) && !cx.e.space.shares(Vpn::of(page).number()) {
        return false;
    }
    Stat::add(&cx.e.stat.cow_unshared, 1);
    cx.mm.unshare(page).is_ok()
}

fn is_writable_code(cx: &Cx, page: usize) -> bool {
    cx.mm.rights(page).is_some_and(Rights::is_writable_code)
}
