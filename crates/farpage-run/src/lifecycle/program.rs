//! What the program's threads tell, whether there is an engine or not.
//!
//! Callers: the preload library, on program threads. No locks.

use crate::dormant;
use crate::lifecycle::start;
use crate::shared::state::{Engine, engine};

/// The program was given `len` bytes at `start`, which may be new; `mapped`: just now. Returns when the engine knows
/// enough not to be outrun: mostly at once. Called on a program thread.
#[cold]
pub fn handed_out(start: usize, len: usize, mapped: bool) {
    match engine() {
        Some(engine) => engine.handed_out(start, len, mapped),
        None => {
            start::handed_out(len);
            // If that has started it, it has to hear of this memory before that is filled.
            if let Some(engine) = engine() {
                engine.handed_out(start, len, mapped);
            }
        }
    }
}

/// A thread was started whose control block is at `block` (an address in it, as `pthread_t` is), with so much stack.
/// Called on a program thread.
pub fn thread_started(block: usize, stack: usize) {
    let engine = engine();
    // A forked child may have to make an engine of its own.
    if !engine.is_some_and(Engine::is_active) {
        dormant::remember(block);
    }
    match engine {
        Some(engine) => engine.thread_started(block),
        None => start::thread_started(stack),
    }
}
