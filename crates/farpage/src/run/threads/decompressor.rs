//! The thread that decompresses posted windows ([`crate::run::threads::board`]).
//!
//! Caller: the pager, which starts it when it is first wanted. Locks: the devices' only.

use crate::run::stacks::READER;
use crate::run::state::Engine;
use crate::run::threads::board::{NEVER, NONE, RUNS};
use crate::sys::futex;
use crate::sys::thread::{Start, allowed_cpus, run_on_any, settle};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Engine {
    /// Whether the reader can be used; starts its thread at the first time.
    pub(crate) fn decompressor_runs(&'static self) -> bool {
        if self.reader.state.load(Relaxed) == NONE {
            let cpus = allowed_cpus(std::process::id());
            let several = cpus.iter().map(|word| word.count_ones()).sum::<u32>() > 1;
            let tid = if several {
                let start = Start { entry: main, arg: self.address(), name: b"farpage-reader", share_files: true };
                self.spawn(READER, &start).unwrap_or(0)
            } else {
                0
            };
            if tid != 0 {
                // The pager, whose affinity it has, may be bound to a CPU.
                run_on_any(tid, &cpus);
            }
            self.reader.tid.store(tid, Relaxed);
            self.reader.state.store(if tid != 0 { RUNS } else { NEVER }, Relaxed);
        }
        self.reader.state.load(Relaxed) == RUNS
    }
}

extern "C" fn main(engine: usize) -> ! {
    settle(b"farpage-reader");
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    let reader = &e.reader;
    loop {
        let seen = reader.posted.load(SeqCst);
        e.keep_up(READER);
        while let Some((job, i)) = reader.next() {
            job.load(&e.space, &e.frames, i);
            if job.split.finish() {
                futex::wake_all(job.split.word());
            }
        }
        reader.asleep.store(true, SeqCst);
        futex::wait(&reader.posted, seen, None);
        reader.asleep.store(false, SeqCst);
    }
}
