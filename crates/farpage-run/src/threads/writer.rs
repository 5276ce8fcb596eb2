//! The writer thread: stores cached pages while frames are wanted, and keeps the devices in order meanwhile.
//!
//! Caller: [`crate::pager::start`] starts it; what it does with a page is in [`crate::store`]. Locks: its
//! gate ([`crate::fork`]) is held in each turn, outside of all others; then those of `store` and of the devices.

use crate::shared::stacks::{WRITER, stack};
use crate::shared::state::{Engine, SwapCache};
use crate::store::{WRITE_BATCH, queued_batch, wanted, write_some};
use farpage_base::sys::futex;
use farpage_base::sys::thread::{begin_thread, exit_thread};
use std::sync::atomic::Ordering::Acquire;

/// Slots of discarded pages freed per turn.
const FREES_A_TURN: usize = 256;

/// Compressed pages looked at per turn, for holes between them: 0.2 us each at most.
const COMPACT_A_TURN: usize = 256;

/// Between two turns without anything to do, unless a thread wakes it, nanoseconds.
const PAUSE_NS: u64 = 20_000_000;

/// After so many turns without anything to do, the next one is ten seconds later, unless a thread wakes it.
const IDLE_TURNS: u32 = 100;

pub(crate) const NAME: &[u8] = b"farpage-writer";

pub(crate) extern "C" fn main(engine: usize) -> ! {
    begin_thread(NAME);
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    let mut idle = 0u32;
    // In a forked child all that it would put in order is its parent's as well: each page that it writes to is copied.
    if e.fork.inherited_end() >= 0 {
        futex::wait(&e.wakeups.writer, 0, Some(PAUSE_NS));
    }
    loop {
        let seen = e.wakeups.writer.load(Acquire);
        e.fork.gates.pass(|| {
            end_if_idle(e);
            e.keep_up(WRITER);
        });
        e.fork.gates.writer.lock();
        let (worked, tended, low) = turn(e);
        e.fork.gates.writer.unlock();
        idle = if worked || tended { 0 } else { idle.saturating_add(1) };
        if worked {
            if e.wakeups.pager_waits.load(Acquire) {
                e.kick_pager();
            }
            if low {
                e.kick_pager();
            }
        } else {
            if idle == IDLE_TURNS {
                e.fork.gates.writer.lock();
                e.space.rest();
                e.account_pool();
                e.fork.gates.writer.unlock();
                stack(&e.arena, WRITER).give_back_unused();
            }
            let pause = if idle < IDLE_TURNS { PAUSE_NS } else { 10_000_000_000 };
            futex::wait(&e.wakeups.writer, seen, Some(pause));
        }
    }
}

/// The thread ends: the pager could not be started, or the process has been detached.
fn end_if_idle(e: &Engine) {
    if !e.is_active() {
        e.following.end(WRITER);
        exit_thread();
    }
}

/// One turn of the writer, inside of its gate. Whether there was something to do, whether the devices were put in
/// order, and whether the swap cache is low.
pub(crate) fn turn(e: &Engine) -> (bool, bool, bool) {
    let mut worked = e.free_pending(FREES_A_TURN) > 0;
    if wanted(e) {
        worked |= write_some(e, WRITE_BATCH, queued_batch(e.level().missing())).0 > 0;
    }
    if e.space.pool_over_share() {
        worked |= e.space.writeback(32) > 0;
        e.account_pool();
    }
    // A little each turn: what is stored and freed in the pool leaves holes.
    let compacted = e.space.compact(COMPACT_A_TURN) > 0;
    let tended = e.space.tend(!worked);
    if compacted || tended {
        e.account_pool();
    }
    // Before the gate opens: a fork behind it must not copy a lock that is held.
    let SwapCache { cached, target, is_behind } = e.swap_cache();
    (worked, compacted || tended, is_behind || cached < target / 2)
}
