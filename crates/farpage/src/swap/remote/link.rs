//! The connections to one server: opened when they are wanted, each used by one thread at a time, and what becomes of
//! the device when the server is out of reach.
//!
//! ```text
//!             an exchange fails, or                   `timeout` has passed
//!             has no answer in time                   (or: it is not the same server)
//!   in reach ----------------------> out of reach --------------------------------> given up
//!      ^     <---------------------       |                                            |
//!      |         welcomed again           | tries again, with pauses                   | tries again
//!      '-------------------------------------------------------------------------------' (unless another one)
//! ```
//!
//! While it is out of reach, who stores goes elsewhere, and who reads waits ([`Patience::Wait`]) or comes again
//! ([`Patience::Now`]). Once it was given up, reads fail at once. All of this is driven by whoever asks
//! ([`Link::reach`] never waits); there is no thread for it.
//!
//! What is done on a connection may be done twice: after a failure nobody knows whether the server has done it, or will
//! yet. So reads are repeated, and stores are not: their slots are never used again.
//!
//! A pager's threads have a descriptor table of their own ([`crate::sys::table`]). There each *side*, they and the
//! program's threads, has its own connections.
//!
//! Callers: the devices. Locks: `opening`, only tried; a connection, which a thread waits for only where all are in use.
//! Both are held while the server works, and nothing is taken under them.

mod own;

pub use own::OwnWire;

use super::opening::{Failed, Greeting, OpeningSocket, sleep};
use super::wire::{Broken, Wire};
use crate::conf::address::Endpoint;
use crate::sys::clock::now_ms;
use crate::sys::mutex::{Guard, Mutex};
use crate::sys::raw::gettid;
use crate::sys::table::Table;
use rustix::fd::IntoRawFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// For how long a server may say nothing.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Connections of a side.
const WIRES: usize = 8;
/// First and longest pause between two tries, milliseconds.
const PAUSE_MIN: i64 = 20;
const PAUSE_MAX: i64 = 2000;
/// What is over sooner is not worth a word, milliseconds.
const SAID_AFTER: i64 = 1000;
/// How long who waits sleeps at most between two looks, nanoseconds.
const LOOK_NS: i64 = 20_000_000;

/// Whether there is a way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InReach {
    /// Yes.
    Up,
    /// Not now.
    Waiting,
    /// Given up.
    Lost,
}

/// What to do when the server is out of reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Nothing: one try.
    Now,
    /// Wait until it is back, or given up.
    Wait,
}

/// Nothing came of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Try later.
    #[error("the server is out of reach")]
    Later,
    /// It was given up.
    #[error("the server was given up")]
    Lost,
}

/// What the user should know, once each.
const SAY_WAITS: u32 = 1;
const SAY_BACK: u32 = 2;
const SAY_LOST: u32 = 4;
const SAY_ANOTHER: u32 = 8;

/// An open connection, and the number of the link's life in which it was opened.
struct Opened {
    wire: Wire,
    life: u32,
}

struct Side {
    opening: Mutex<OpeningSocket>,
    wires: [Mutex<Option<Opened>>; WIRES],
}

/// See the module header.
pub struct Link {
    /// The device as the user wrote it.
    name: String,
    endpoint: Endpoint,
    greeting: Arc<dyn Greeting>,
    deadline: Duration,
    /// `None`: for ever.
    timeout: Option<Duration>,
    sides: [Side; 2],
    /// Connections that the server allows.
    most: AtomicUsize,
    /// Since when it is out of reach, milliseconds; 0: it is in reach.
    down_since: AtomicI64,
    next_try: AtomicI64,
    pause: AtomicI64,
    /// Counts how often it was out of reach.
    life: AtomicU32,
    /// One more than the life in which the server had no connection for somebody's own.
    none_in_life: AtomicU32,
    lost: AtomicBool,
    another: AtomicBool,
    /// What is to be said, and what was said of the present failure.
    notes: AtomicU32,
    said: AtomicU32,
    /// Why the last try failed.
    why: Mutex<Failed>,
    table: OnceLock<Arc<Table>>,
}

impl Link {
    /// For a server; opens nothing yet.
    pub fn new(name: String, endpoint: Endpoint, greeting: Arc<dyn Greeting>, timeout: Option<Duration>) -> Link {
        let side = || Side { opening: Mutex::new(OpeningSocket::none()), wires: [const { Mutex::new(None) }; WIRES] };
        Link {
            name,
            endpoint,
            greeting,
            deadline: DEADLINE,
            timeout,
            sides: [side(), side()],
            most: AtomicUsize::new(WIRES),
            down_since: AtomicI64::new(0),
            next_try: AtomicI64::new(0),
            pause: AtomicI64::new(PAUSE_MIN),
            life: AtomicU32::new(0),
            none_in_life: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            another: AtomicBool::new(false),
            notes: AtomicU32::new(0),
            said: AtomicU32::new(0),
            why: Mutex::new(Failed::Broken(Broken::Silent)),
            table: OnceLock::new(),
        }
    }

    /// The same with another deadline, for tests.
    #[cfg(test)]
    pub fn with_deadline(self, deadline: Duration) -> Link {
        Link { deadline, ..self }
    }

    /// The server allows one connection only, or more than one. After the first was opened.
    pub fn allow_many(&self, many: bool) {
        self.most.store(if many { WIRES } else { 1 }, Relaxed);
        if !many {
            // The one that there is may be in any place.
            let wires = &self.sides[self.side()].wires;
            let open = wires.iter().find_map(|place| place.lock().take());
            *wires[0].lock() = open;
        }
    }

    /// Opens the first connection.
    ///
    /// # Errors
    /// Why that is not possible, in words.
    pub fn open(&self) -> Result<(), String> {
        let side = self.side();
        self.wire_of(side, true).map(drop).map_err(|failed| match failed {
            Failed::Broken(broken) => broken.to_string(),
            Failed::Refused(why) | Failed::Another(why) => why.into(),
        })
    }

    /// Opens the first connection; why the server refuses that, if it says so.
    pub fn refusal(&self) -> Option<&'static str> {
        match self.wire_of(self.side(), true) {
            Err(Failed::Refused(why)) => Some(why),
            _ => None,
        }
    }

    /// Another one to the same server, without connections.
    pub fn again(&self) -> Link {
        let link = Link::new(self.name.clone(), self.endpoint.clone(), self.greeting.clone(), self.timeout);
        Link { deadline: self.deadline, ..link }
    }

    /// Whether the server is in reach, as far as is known. Takes no time.
    pub fn is_up(&self) -> bool {
        self.down_since.load(Relaxed) == 0
    }

    /// Whether it was given up, even if it is back.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Whether the server is in reach; takes a step to get there. Does not wait.
    pub fn reach(&self) -> InReach {
        if self.is_up() {
            return InReach::Up;
        }
        if !self.another.load(Relaxed) {
            self.step();
            if self.is_up() {
                return InReach::Up;
            }
        }
        if self.down_for() >= SAID_AFTER {
            self.say(SAY_WAITS);
        }
        if self.is_lost() { InReach::Lost } else { InReach::Waiting }
    }

    /// Does something on a connection; after a failure again, on a new one, if `patience` says so.
    ///
    /// # Errors
    /// The server is out of reach.
    pub fn talk<R>(
        &self,
        patience: Patience,
        act: &mut dyn FnMut(&mut Wire) -> Result<R, Broken>,
    ) -> Result<R, Unreachable> {
        loop {
            match (self.reach(), patience) {
                (InReach::Up, _) => {}
                (InReach::Lost, _) => return Err(Unreachable::Lost),
                (InReach::Waiting, Patience::Now) => return Err(Unreachable::Later),
                (InReach::Waiting, Patience::Wait) => {
                    self.nap();
                    continue;
                }
            }
            let life = self.life.load(Acquire);
            match self.wire_of(self.side(), false) {
                Ok(mut place) => {
                    let Some(opened) = place.as_mut() else { continue };
                    opened.wire.begin();
                    match act(&mut opened.wire) {
                        Ok(result) => return Ok(result),
                        Err(broken) => {
                            *place = None;
                            drop(place);
                            self.broke(life, Failed::Broken(broken));
                        }
                    }
                }
                Err(failed) => self.broke(life, failed),
            }
            if patience == Patience::Now {
                return Err(if self.is_lost() { Unreachable::Lost } else { Unreachable::Later });
            }
        }
    }

    /// From now on its descriptors are ones of this table, as far as threads have it.
    pub fn belongs_to(&self, table: &Arc<Table>) {
        self.sides.iter().for_each(Side::close);
        let _ = self.table.set(table.clone());
    }

    /// Closes what is open, as at the end.
    pub fn close(&self) {
        self.sides[self.side()].close();
    }

    /// In a forked child, whose only thread this is: it opens connections of its own.
    pub fn fork_child(&self) {
        // SAFETY: one thread, without a guard; what the locks protect is thrown away. A connection's descriptor is
        // closed only where the number still means it.
        unsafe {
            for side in &self.sides {
                side.opening.free_in_child();
                side.wires.iter().for_each(|wire| wire.free_in_child());
            }
            self.why.free_in_child();
        }
        for side in &self.sides {
            // The number may be somebody else's.
            side.opening.lock().socket.take().map(IntoRawFd::into_raw_fd);
            side.wires.iter().for_each(|wire| drop(wire.lock().take()));
        }
        self.life.fetch_add(1, Relaxed);
        self.notes.store(0, Relaxed);
    }

    /// Something that the user should know, once; one line. `mirrored`: there is a second copy of every page.
    pub fn take_note(&self, mirrored: bool) -> Option<String> {
        let notes = self.notes.load(Relaxed);
        let one = notes & notes.wrapping_neg();
        if one == 0 || self.notes.fetch_and(!one, Relaxed) & one == 0 {
            return None;
        }
        let name = &self.name;
        Some(match one {
            SAY_WAITS => {
                let why = match *self.why.lock() {
                    Failed::Broken(broken) => broken.to_string(),
                    Failed::Refused(why) | Failed::Another(why) => why.into(),
                };
                let until = match self.timeout {
                    Some(timeout) => format!("for {} s at most", timeout.as_secs()),
                    None => "until it is back".into(),
                };
                match mirrored {
                    true => format!("swap device {name:?} is out of reach: {why}; its pages come from the mirror"),
                    false => format!(
                        "swap device {name:?} is out of reach: {why}; threads that need pages from it wait, {until}"
                    ),
                }
            }
            SAY_BACK => format!("swap device {name:?} is back"),
            SAY_LOST if mirrored => format!(
                "swap device {name:?} is given up: it was out of reach for too long (timeout=); it takes no more \
                 pages, and those on it come from the mirror"
            ),
            SAY_LOST => format!(
                "swap device {name:?} is given up: it was out of reach for too long (timeout=); it takes no more \
                 pages, and those on it are lost unless it comes back"
            ),
            _ => {
                let why = if let Failed::Another(why) = *self.why.lock() { why } else { "it is another one" };
                let then = if mirrored { "its pages come from the mirror" } else { "all pages on it are lost" };
                format!("swap device {name:?}: {why}: {then}")
            }
        })
    }

    /// What is to be said yet.
    #[cfg(test)]
    pub fn notes_pending(&self) -> u32 {
        self.notes.load(Relaxed)
    }

    /// Which connections the calling thread can use.
    fn side(&self) -> usize {
        usize::from(self.table.get().is_some_and(|table| !table.is_member()))
    }

    /// As many as the server allows.
    fn wires(&self, side: usize) -> &[Mutex<Option<Opened>>] {
        &self.sides[side].wires[..self.most.load(Relaxed).clamp(1, WIRES)]
    }

    /// A connection of this life, opened if there is none. With `first`, whatever the link's state.
    fn wire_of(&self, side: usize, first: bool) -> Result<Guard<'_, Option<Opened>>, Failed> {
        let wires = self.wires(side);
        let life = self.life.load(Acquire);
        let is_good = |place: &Guard<'_, Option<Opened>>| {
            place.as_ref().is_some_and(|o| o.life == life && (self.table.get().is_none() || o.wire.is_there()))
        };
        let mine = gettid() as usize % wires.len();
        let each = || (0..wires.len()).filter_map(|i| wires[(mine + i) % wires.len()].try_lock());
        // One that is open, or else a new one, or else one that is in use.
        let free = each().find(is_good).or_else(|| {
            let no_more = self.none_in_life.load(Relaxed) == life.wrapping_add(1);
            // A good one that is in use comes free.
            let used = || wires.iter().filter(|wire| wire.try_lock().is_none()).map(Mutex::lock).find(is_good);
            no_more.then(used).flatten().or_else(|| each().next())
        });
        let mut place = free.unwrap_or_else(|| wires[mine].lock());
        if !is_good(&place) {
            *place = None;
            // Of its own, so that who is waiting for a server that is back does not wait for this one.
            let mut opening = OpeningSocket::none();
            *place = loop {
                match self.open_step(&mut opening) {
                    Ok(Some(wire)) => break Some(Opened { wire, life }),
                    Ok(None) => opening.wait(LOOK_NS),
                    // It has no more of them; that is no reason to do without the others.
                    Err(failed) if !matches!(failed, Failed::Another(_)) && self.has_wire(side, life, &is_good) => {
                        drop(place);
                        self.none_in_life.store(life.wrapping_add(1), Relaxed);
                        return self.wire_of(side, first);
                    }
                    Err(failed) => return Err(failed),
                }
            };
            if first {
                self.back();
            }
        }
        Ok(place)
    }

    /// A step of getting a new connection; the result is a new life.
    fn step(&self) {
        if now_ms() < self.next_try.load(Relaxed) {
            return;
        }
        self.drop_old();
        let side = self.side();
        let Some(mut opening) = self.sides[side].opening.try_lock() else { return };
        match self.open_step(&mut opening) {
            Ok(None) => {}
            Ok(Some(wire)) => {
                let life = self.life.load(Acquire);
                if let Some(mut place) = self.wires(side).iter().find_map(Mutex::try_lock) {
                    *place = Some(Opened { wire, life });
                }
                self.back();
            }
            Err(failed) => {
                let pause = self.pause.load(Relaxed);
                self.pause.store((pause * 2).min(PAUSE_MAX), Relaxed);
                self.next_try.store(now_ms() + pause, Relaxed);
                self.note_failure(failed);
                // Only now: perhaps nobody has tried since it was out of reach.
                if self.timeout.is_some_and(|timeout| self.down_for() >= timeout.as_millis() as i64) {
                    self.lost.store(true, Relaxed);
                    self.say(SAY_LOST);
                }
            }
        }
    }

    /// Whether another connection of this life is there, in use or not.
    fn has_wire(&self, side: usize, life: u32, is_good: &dyn Fn(&Guard<'_, Option<Opened>>) -> bool) -> bool {
        let looked = |wire: &Mutex<Option<Opened>>| wire.try_lock().is_none_or(|place| is_good(&place));
        self.life.load(Acquire) == life && self.wires(side).iter().filter(|wire| looked(wire)).count() > 1
    }

    /// Closes connections of lives that are over: some servers allow few.
    fn drop_old(&self) {
        let life = self.life.load(Acquire);
        for wire in &self.sides[self.side()].wires {
            if let Some(mut place) = wire.try_lock() {
                place.take_if(|opened| opened.life != life);
            }
        }
    }

    /// Milliseconds for which it has been out of reach.
    fn down_for(&self) -> i64 {
        match self.down_since.load(Relaxed) {
            0 => 0,
            since => now_ms() - since,
        }
    }

    /// Takes an opening as far as it goes without waiting.
    fn open_step(&self, opening: &mut OpeningSocket) -> Result<Option<Wire>, Failed> {
        let result = opening.step(&self.endpoint, self.greeting.as_ref(), self.deadline);
        match result {
            Ok(true) => {}
            Ok(false) if now_ms() < opening.until_ms => return Ok(None),
            Ok(false) => {
                opening.socket = None;
                return Err(Failed::Broken(Broken::Silent));
            }
            Err(failed) => {
                opening.socket = None;
                return Err(failed);
            }
        }
        let socket = opening.socket.take().ok_or(Failed::Broken(Broken::Closed))?;
        Wire::new(socket, self.deadline).map(Some).map_err(Failed::Broken)
    }

    /// An exchange, or a connection, has failed in this life of the link.
    fn broke(&self, life: u32, failed: Failed) {
        self.note_failure(failed);
        if self.life.compare_exchange(life, life.wrapping_add(1), AcqRel, Relaxed).is_err() {
            return; // Another thread was first.
        }
        self.said.store(0, Relaxed);
        self.pause.store(PAUSE_MIN, Relaxed);
        self.next_try.store(0, Relaxed);
        self.down_since.store(now_ms(), Release);
    }

    fn note_failure(&self, failed: Failed) {
        *self.why.lock() = failed;
        if let Failed::Another(_) = failed {
            self.another.store(true, Relaxed);
            self.lost.store(true, Relaxed);
            self.say(SAY_ANOTHER);
        }
    }

    fn back(&self) {
        self.down_since.store(0, Release);
        if self.said.load(Relaxed) & SAY_WAITS != 0 {
            self.say(SAY_BACK);
        }
    }

    fn say(&self, what: u32) {
        if self.said.fetch_or(what, Relaxed) & what == 0 {
            self.notes.fetch_or(what, Relaxed);
        }
    }

    /// Waits a little, or until the server says something.
    fn nap(&self) {
        match self.sides[self.side()].opening.try_lock() {
            Some(opening) => opening.wait(LOOK_NS),
            None => sleep(LOOK_NS),
        }
    }
}

impl Side {
    fn close(&self) {
        self.wires.iter().for_each(|wire| drop(wire.lock().take()));
        self.opening.lock().socket = None;
    }
}
