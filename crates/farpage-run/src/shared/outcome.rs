//! What became of a start in a program that runs already, for the process that has asked for it: often another one,
//! which reads this memory.
//!
//! Callers: [`super::warn_once`], which writes it; the preload library, which has it; `farpage attach`, from outside.
//! No locks.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Bytes of the text at most.
const TEXT: usize = 504;
const UNKNOWN: u32 = 0;
const STARTED: u32 = 1;
const FAILED: u32 = 2;

/// Why there is no engine, as the process has said it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StartFailure(pub String);

/// See the module documentation.
#[repr(C)]
#[derive(Debug)]
pub struct StartOutcome {
    /// [`UNKNOWN`], [`STARTED`], or [`FAILED`]: the text says why.
    state: AtomicU32,
    len: AtomicU32,
    text: UnsafeCell<[u8; TEXT]>,
}

// SAFETY: the text is written by the thread that has moved `len` from 0, once a start, before the state says that it is
// there; of an earlier start no thread is left.
unsafe impl Sync for StartOutcome {}

impl StartOutcome {
    /// Its bytes.
    pub const BYTES: usize = size_of::<StartOutcome>();

    /// Nothing is known.
    pub const fn new() -> StartOutcome {
        let (state, len) = (AtomicU32::new(UNKNOWN), AtomicU32::new(0));
        StartOutcome { state, len, text: UnsafeCell::new([0; TEXT]) }
    }

    /// What the bytes of one say, read from another process: nothing yet, that there is an engine, or why there is
    /// none.
    pub fn read(bytes: &[u8; StartOutcome::BYTES]) -> Option<Result<(), StartFailure>> {
        let (numbers, text) = bytes.split_at(StartOutcome::BYTES - TEXT);
        let number = |at: usize| u32::from_le_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]);
        match number(0) {
            UNKNOWN => None,
            STARTED => Some(Ok(())),
            _ => Some(Err(StartFailure(String::from_utf8_lossy(&text[..(number(4) as usize).min(TEXT)]).into_owned()))),
        }
    }

    /// Why there is no engine, if that is so.
    pub fn failure(&self) -> Option<StartFailure> {
        if self.state.load(SeqCst) != FAILED {
            return None;
        }
        let len = self.len.load(SeqCst) as usize;
        // SAFETY: written before the state said so, and never again.
        let text = unsafe { &*self.text.get() };
        text.get(..len).map(|text| StartFailure(String::from_utf8_lossy(text).into_owned()))
    }

    /// A start begins: the one before, if any, has ended, and so has its engine.
    pub(crate) fn begin(&self) {
        self.state.store(UNKNOWN, SeqCst);
        self.len.store(0, SeqCst);
    }

    pub(crate) fn succeed(&self) {
        self.state.store(STARTED, SeqCst);
    }

    pub(crate) fn fail(&self, why: &str) {
        let len = why.floor_char_boundary(TEXT);
        if self.len.compare_exchange(0, len as u32, SeqCst, SeqCst).is_ok() {
            // SAFETY: no other thread gets here, and none reads before the state says so.
            let text = unsafe { &mut *self.text.get() };
            text[..len].copy_from_slice(&why.as_bytes()[..len]);
            self.state.store(FAILED, SeqCst);
        }
    }
}

impl Default for StartOutcome {
    fn default() -> StartOutcome {
        StartOutcome::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(outcome: &StartOutcome) -> Option<Result<(), StartFailure>> {
        // SAFETY: plain bytes, of a structure without padding.
        StartOutcome::read(unsafe { &*std::ptr::from_ref(outcome).cast() })
    }

    #[test]
    fn another_process_reads_what_was_written() {
        let outcome = StartOutcome::new();
        assert_eq!((seen(&outcome), outcome.failure()), (None, None));
        outcome.fail(&"\u{e9}".repeat(TEXT));
        let text = StartFailure("\u{e9}".repeat(TEXT / 2));
        assert_eq!((seen(&outcome), outcome.failure()), (Some(Err(text.clone())), Some(text)));
        let outcome = StartOutcome::new();
        outcome.succeed();
        assert_eq!((seen(&outcome), outcome.failure()), (Some(Ok(())), None));
    }
}
