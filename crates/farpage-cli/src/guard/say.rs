//! What the guard says. It must not wait for its reader: a pipe that is full costs lines, and never protection.
//!
//! Caller: [`super`]. One thread, no locks.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{self, Write};

/// Says lines on standard error.
#[derive(Default)]
pub struct Speaker {
    lost: u64,
}

impl Speaker {
    /// Says a line, if it can be written at once.
    pub fn say(&mut self, line: impl fmt::Display) {
        let mut stderr = io::stderr();
        let mut waits = [PollFd::new(&stderr, PollFlags::OUT)];
        // A pipe that can be written to has room for a line.
        let ready = poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if !ready.is_ok_and(|ready| ready > 0) {
            self.lost += 1;
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        let text = match lost {
            0 => format!("farpage: {line}\n"),
            lost => format!("farpage: {lost} lines were lost here\nfarpage: {line}\n"),
        };
        // There is no reader any more: that is no reason to end.
        let _ = stderr.write_all(text.as_bytes());
    }
}
