//! The threads that load pages beside the pager ([`crate::shared::board`]).
//!
//! Caller: the pager, which starts them when they are first wanted. Locks: the devices' only.

use crate::shared::stacks::{HELPER, HELPERS_MAX, stack};
use crate::shared::state::Engine;
use farpage_base::sys::futex;
use farpage_base::sys::thread::{Start, allowed_cpus, begin_thread, exit_thread, run_on_any};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// After so long without work the memory of its stack is given back, nanoseconds.
const REST_NS: u64 = 2_000_000_000;

pub(crate) const NAME: &[u8] = b"farpage-helper";

/// Sees to it that `n` helpers run, as far as they can be started; how many do.
pub(crate) fn run(e: &'static Engine, n: usize) -> usize {
    let board = &e.helpers;
    let entries = [main::<0>, main::<1>, main::<2>, main::<3>];
    for (i, (tid, entry)) in board.tids.iter().zip(entries).enumerate().take(n) {
        if tid.load(Relaxed) != 0 {
            continue;
        }
        if board.never.load(Relaxed) {
            return i;
        }
        let cpus = allowed_cpus(std::process::id());
        let several = cpus.iter().map(|word| word.count_ones()).sum::<u32>() > 1;
        let start = Start { entry, arg: e.address(), name: NAME, share_files: true };
        let started = if several { e.spawn(HELPER + i, &start).unwrap_or(0) } else { 0 };
        if started == 0 {
            board.never.store(true, Relaxed);
            return i;
        }
        // The pager, whose affinity it has, may be bound to a CPU.
        run_on_any(started, &cpus);
        tid.store(started, Relaxed);
    }
    n
}

/// Loads what is posted, until none is left; how many pages.
pub(crate) fn help(e: &Engine) -> u64 {
    let mut done = 0;
    while let Some((job, i)) = e.helpers.next() {
        job.load(&e.space, i, |vpn, entry, page| e.verify(vpn, entry, page));
        if job.split.finish() {
            futex::wake_all(job.split.word());
        }
        done += 1;
    }
    done
}

extern "C" fn main<const INDEX: usize>(engine: usize) -> ! {
    begin_thread(NAME);
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    let (board, index) = (&e.helpers, HELPER + INDEX);
    loop {
        let seen = board.posted.load(SeqCst);
        if e.stage.detached.load(SeqCst) {
            e.following.end(index);
            exit_thread();
        }
        e.keep_up(index);
        help(e);
        board.asleep.fetch_add(1, SeqCst);
        futex::wait(&board.posted, seen, Some(REST_NS));
        if board.posted.load(SeqCst) == seen {
            stack(&e.arena, index).give_back_unused();
            futex::wait(&board.posted, seen, None);
        }
        board.asleep.fetch_sub(1, SeqCst);
    }
}

const _: () = assert!(HELPERS_MAX == 4, "as many entries");
