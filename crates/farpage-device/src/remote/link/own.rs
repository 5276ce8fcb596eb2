//! Connections beside those that all use: one for each queue of reads in flight.
//!
//! Callers: [`super::super::conversation`]. Locks: none but those of the link.

use super::{AskedFor, Failed, LOOK_NS, Link, OpeningSocket, WIRES};
use crate::remote::wire::{Broken, Wire};
use farpage_base::sys::clock::now_ms;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// A connection of somebody's own.
pub struct OwnWire {
    /// The connection.
    pub wire: Wire,
    life: u32,
    /// When something came last, milliseconds.
    heard_ms: i64,
}

impl Link {
    /// Opens a connection beside those that all use. `None`: the server is out of reach, or has no more; then it is not
    /// asked again until it has been away.
    pub fn open_own(&self) -> Option<OwnWire> {
        let life = self.life.load(Acquire);
        if !self.is_up() || self.most.load(Relaxed) < WIRES || self.none_in_life.load(Relaxed) == life.wrapping_add(1) {
            return None;
        }
        let mut opening = OpeningSocket::none();
        loop {
            match self.open_step(&mut opening) {
                Ok(Some(wire)) => return Some(OwnWire { wire, life, heard_ms: now_ms() }),
                Ok(None) => opening.wait(LOOK_NS),
                Err(_) => {
                    self.none_in_life.store(life.wrapping_add(1), Relaxed);
                    return None;
                }
            }
        }
    }

    /// Whether a connection is of use for somebody who has waited for an answer since then. If that is too long, the
    /// server is out of reach.
    pub fn is_good(&self, own: &OwnWire, about: AskedFor<'_>, waiting_since_ms: i64) -> bool {
        let (now, deadline) = (now_ms(), self.deadline.as_millis() as i64);
        let silent = now - own.heard_ms.max(waiting_since_ms) > deadline;
        let late = silent || now - waiting_since_ms > self.time().as_millis() as i64;
        if late {
            self.lose(own, about, waiting_since_ms, Broken::Silent);
        }
        !late && own.life == self.life.load(Relaxed)
    }

    /// Whether a connection on which nothing is in flight is as it was when it was opened.
    pub fn is_ready(&self, own: &mut OwnWire) -> bool {
        let mut byte = [0];
        let mut part = [libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
        // SAFETY: borrowed for the call.
        let nothing = unsafe { own.wire.receive_now(&mut part) } == Ok(0);
        nothing && own.life == self.life.load(Relaxed)
    }

    /// A connection of somebody's own, on which something was waited for since then, is of no more use: the server is
    /// out of reach.
    pub fn lose(&self, own: &OwnWire, about: AskedFor<'_>, waiting_since_ms: i64, broken: Broken) {
        self.broke(own.life, waiting_since_ms, about, Failed::Broken(broken));
    }

    /// Something was answered on one.
    pub fn heard_of(&self, own: &OwnWire, about: AskedFor<'_>) {
        self.answered(own.life, about);
    }
}

impl OwnWire {
    /// Something has come.
    pub fn heard(&mut self) {
        self.heard_ms = now_ms();
    }
}
