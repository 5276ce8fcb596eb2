//! The thread that decompresses posted windows ([`crate::shared::board`]).
//!
//! Caller: the pager, which starts it when it is first wanted. Locks: the devices' only.

use crate::shared::board::{NEVER, NONE, RUNS};
use crate::shared::stacks::{DECOMPRESSOR, stack};
use crate::shared::state::Engine;
use farpage_base::sys::futex;
use farpage_base::sys::thread::{Start, allowed_cpus, begin_thread, exit_thread, run_on_any};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// After so long without a window the memory of its stack is given back, nanoseconds.
const REST_NS: u64 = 2_000_000_000;

/// Whether the decompressor can be used; starts its thread at the first time.
pub(crate) fn runs(e: &'static Engine) -> bool {
    if e.decompressor.state.load(Relaxed) == NONE {
        let cpus = allowed_cpus(std::process::id());
        let several = cpus.iter().map(|word| word.count_ones()).sum::<u32>() > 1;
        let tid = if several {
            let start = Start { entry: main, arg: e.address(), name: b"farpage-decomp", share_files: true };
            e.spawn(DECOMPRESSOR, &start).unwrap_or(0)
        } else {
            0
        };
        if tid != 0 {
            // The pager, whose affinity it has, may be bound to a CPU.
            run_on_any(tid, &cpus);
        }
        e.decompressor.tid.store(tid, Relaxed);
        e.decompressor.state.store(if tid != 0 { RUNS } else { NEVER }, Relaxed);
    }
    e.decompressor.state.load(Relaxed) == RUNS
}

extern "C" fn main(engine: usize) -> ! {
    begin_thread(b"farpage-decomp");
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    let board = &e.decompressor;
    loop {
        let seen = board.posted.load(SeqCst);
        if e.stage.detached.load(SeqCst) {
            e.following.end(DECOMPRESSOR);
            exit_thread();
        }
        e.keep_up(DECOMPRESSOR);
        while let Some((job, i)) = board.next() {
            job.load(&e.space, &e.frames, i);
            if job.split.finish() {
                futex::wake_all(job.split.word());
            }
        }
        board.asleep.store(true, SeqCst);
        futex::wait(&board.posted, seen, Some(REST_NS));
        if board.posted.load(SeqCst) == seen {
            stack(&e.arena, DECOMPRESSOR).give_back_unused();
            futex::wait(&board.posted, seen, None);
        }
        board.asleep.store(false, SeqCst);
    }
}
