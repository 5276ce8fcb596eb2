//! A process ends with its last thread, and engine threads are some. A program whose last own thread leaves by `exit`
//! or by libc's last `pthread_exit` ends them all. One whose thread makes the system call `exit`, which ends no other
//! thread, would be left with the engine's for ever, and with no thread that takes a signal. So the monitor ends it
//! then, with the status that it would have had: its last thread's (Linux from 6.0 on). Of a thread that is not the
//! first one that is not known any more; libc ends its own with 0.
//!
//! The monitor's; no locks.

use crate::pager::state::{PAUSED_NAME as PAUSED, THREAD_NAME as PAGER};
use crate::threads::{helper, writer};
use farpage_base::sys::proc::{Proc, end_of_first_thread};
use farpage_base::sys::thread::exit_process;
use std::time::{Duration, Instant};

/// Between two looks, or more: a process that rests is looked at up to a second after it has done something.
const LOOK: Duration = Duration::from_millis(100);
/// The names that engine threads may have.
const NAMES: &[&[u8]] = &[farpage_ipc::stat::THREAD_NAME.as_bytes(), PAGER, PAUSED, writer::NAME, helper::NAME];

/// Whether the program is still there.
pub(super) struct Ending {
    looked: Instant,
    /// Another thread was seen when the first one had ended.
    is_outlived: bool,
    /// No thread of it was there at the last look.
    has_ended: bool,
}

impl Ending {
    pub(super) fn new(now: Instant) -> Ending {
        Ending { looked: now, is_outlived: false, has_ended: false }
    }

    /// Whether the next look may be the last.
    pub(super) fn is_near(&self) -> bool {
        self.has_ended
    }

    /// Ends the process if two looks have found no thread of the program.
    pub(super) fn look(&mut self, proc: &Proc) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        let first = end_of_first_thread(proc, NAMES);
        let has_ended = first.is_some_and(|(_, others)| !others);
        if let Some((status, _)) = first.filter(|_| has_ended && self.has_ended) {
            exit_process(if self.is_outlived { 0 } else { status });
        }
        self.is_outlived |= first.is_some_and(|(_, others)| others);
        (self.looked, self.has_ended) = (Instant::now(), has_ended);
    }
}
