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
//! `condition` decides that, and what a welcome is worth without an answer.
//!
//! While it is out of reach, stores go elsewhere, and a thread that reads waits ([`Patience::Wait`]) or comes again
//! ([`Patience::Now`]). Once it was given up, reads fail at once. All of this is driven by the threads that ask
//! ([`Link::reach`] never waits); there is no thread for it.
//!
//! What is done on a connection may be done twice: after a failure the server may have done it, or may do it yet. So
//! reads are repeated, and stores are not: their slots are never used again.
//!
//! A pager's threads have a descriptor table of their own ([`farpage_base::sys::table`]). There each *side*, they and
//! the program's threads, has its own connections.
//!
//! Callers: the devices. Locks: `opening`, only tried; a connection, which a thread waits for only where all are in
//! use. Both are held while the server works. `condition`, inside them, for an instant.

pub use crate::condition::AskedFor;

use crate::condition::Condition;
use crate::opening::{Failed, Greeting, OpeningSocket, sleep};
use crate::wire::{Broken, PATIENCE, Wire};
use farpage_base::sys::clock::watched_ms;
use farpage_base::sys::mutex::{Guard, Mutex};
use farpage_base::sys::raw::gettid;
use farpage_base::sys::table::Table;
use farpage_ipc::conf::address::Endpoint;
use rustix::fd::IntoRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// For how long a server may say nothing.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Connections of a side.
const WIRES: usize = 8;
/// How long a thread that waits sleeps at most between two looks, nanoseconds.
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
    /// It was asked several times.
    #[error("the server sends what it must not")]
    Nonsense,
}

/// What the condition says, for threads that only look: bits of [`Link::glance`].
const UP: u32 = 1;
const LOST: u32 = 2;
const TROUBLED: u32 = 4;

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
    /// Counts how often it was out of reach. Changed with `condition`.
    life: AtomicU32,
    /// One more than the life in which the server had no connection to spare.
    none_in_life: AtomicU32,
    condition: Mutex<Condition>,
    /// See [`UP`].
    glance: AtomicU32,
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
            life: AtomicU32::new(0),
            none_in_life: AtomicU32::new(0),
            condition: Mutex::new(Condition::new()),
            glance: AtomicU32::new(UP),
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
    /// Why that is not possible.
    pub(crate) fn open(&self) -> Result<(), Failed> {
        self.wire_of(self.side(), true).map(drop)
    }

    /// Opens the first connection; why the server refuses that, if it says so.
    pub fn refusal(&self) -> Option<&'static str> {
        match self.wire_of(self.side(), true) {
            Err(Failed::Refused(why)) => Some(why),
            _ => None,
        }
    }

    /// The device as the user wrote it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For how long a thread that reads waits for it; `None`: for ever.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// From now on the pages on it are lost, and this is why.
    pub fn lose_all(&self, why: &'static str) {
        self.broke(self.life.load(Acquire), watched_ms(), AskedFor::Other, Failed::Another(why));
    }

    /// Another one to the same server, without connections.
    pub fn again(&self) -> Link {
        let link = Link::new(self.name.clone(), self.endpoint.clone(), self.greeting.clone(), self.timeout);
        Link { deadline: self.deadline, ..link }
    }

    /// Whether the server is in reach, as far as is known. Takes no time.
    pub fn is_up(&self) -> bool {
        self.glance.load(Relaxed) & UP != 0
    }

    /// Whether it was given up, even if it is back.
    pub fn is_lost(&self) -> bool {
        self.glance.load(Relaxed) & LOST != 0
    }

    /// Whether the server is in reach; takes a step to get there. Does not wait.
    pub fn reach(&self) -> InReach {
        if !self.is_up() {
            if self.condition.lock().is_due(watched_ms()) {
                self.step();
            }
            self.change(Condition::tell);
        }
        match (self.is_up(), self.is_lost()) {
            (true, _) => InReach::Up,
            (false, true) => InReach::Lost,
            (false, false) => InReach::Waiting,
        }
    }

    /// Does something on a connection; after a failure again, on a new one, if `patience` says so.
    ///
    /// # Errors
    /// The server is out of reach.
    pub fn talk<R>(
        &self,
        patience: Patience,
        about: AskedFor<'_>,
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
            let (life, mut begun) = (self.life.load(Acquire), watched_ms());
            let failed = match self.wire_of(self.side(), false) {
                Ok(mut place) => {
                    let Some(opened) = place.as_mut() else { continue };
                    // Other threads may have had it.
                    begun = watched_ms();
                    opened.wire.begin(self.time());
                    match act(&mut opened.wire) {
                        Ok(result) => {
                            drop(place);
                            self.answered(life, about);
                            return Ok(result);
                        }
                        Err(broken) => {
                            *place = None;
                            Failed::Broken(broken)
                        }
                    }
                }
                Err(failed) => failed,
            };
            if self.broke(life, begun, about, failed) {
                return Err(Unreachable::Nonsense);
            }
            if patience == Patience::Now {
                return Err(if self.is_lost() { Unreachable::Lost } else { Unreachable::Later });
            }
        }
    }

    /// Opens a connection beside those that all use, for reads in flight, and the link's life. `None`: the server is
    /// out of reach, or has no more; then it is not asked again until it has been away.
    pub(crate) fn open_own(&self) -> Option<(Wire, u32)> {
        let life = self.life();
        if !self.is_up() || self.most.load(Relaxed) < WIRES || self.has_no_more(life) {
            return None;
        }
        let opened = self.open_wire();
        if opened.is_err() {
            self.none_in_life.store(life.wrapping_add(1), Relaxed);
        }
        opened.ok().map(|wire| (wire, life))
    }

    /// How often it was out of reach.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Acquire)
    }

    /// For how long a server may say nothing.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// From now on its descriptors are ones of this table, as far as threads have it.
    pub fn set_fd_table(&self, table: &Arc<Table>) {
        self.sides.iter().for_each(Side::close);
        let _ = self.table.set(table.clone());
    }

    /// Closes what is open, as at the end.
    pub fn close(&self) {
        self.sides[self.side()].close();
    }

    /// In a forked child, which has this thread alone: it opens connections of its own.
    pub fn fork_child(&self) {
        // SAFETY: one thread, without a guard; what the locks protect is thrown away. A connection's descriptor is
        // closed only where the number still means it.
        unsafe {
            for side in &self.sides {
                side.opening.free_in_child();
                side.wires.iter().for_each(|wire| wire.free_in_child());
            }
            self.condition.free_in_child();
        }
        for side in &self.sides {
            // The number may be another file's.
            side.opening.lock().socket.take().map(IntoRawFd::into_raw_fd);
            side.wires.iter().for_each(|wire| drop(wire.lock().take()));
        }
        self.life.fetch_add(1, Relaxed);
        self.change(Condition::fork_child);
    }

    /// Something that the user should know, once; one line. `mirrored`: there is a second copy of every page.
    pub fn take_note(&self, mirrored: bool) -> Option<String> {
        self.condition.lock().take_note(&self.name, mirrored, self.timeout)
    }

    /// What is to be said yet.
    #[cfg(test)]
    pub fn notes_pending(&self) -> u32 {
        self.condition.lock().notes_pending()
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
            let no_more = self.has_no_more(life);
            // A good one that is in use comes free.
            let used = || wires.iter().filter(|wire| wire.try_lock().is_none()).map(Mutex::lock).find(is_good);
            no_more.then(used).flatten().or_else(|| each().next())
        });
        let mut place = free.unwrap_or_else(|| wires[mine].lock());
        if !is_good(&place) {
            *place = None;
            match self.open_wire() {
                Ok(wire) => *place = Some(Opened { wire, life }),
                // It has no more of them; that is no reason to do without the others.
                Err(failed) if !matches!(failed, Failed::Another(_)) && self.has_wire(side, life, &is_good) => {
                    drop(place);
                    self.none_in_life.store(life.wrapping_add(1), Relaxed);
                    return self.wire_of(side, first);
                }
                Err(failed) => return Err(failed),
            }
            if first {
                self.change(Condition::welcomed);
            }
        }
        Ok(place)
    }

    /// Opens a connection, and waits for that: with an opening of its own, so that no thread that waits for a server
    /// that is back waits for this one.
    fn open_wire(&self) -> Result<Wire, Failed> {
        let mut opening = OpeningSocket::none();
        loop {
            match self.open_step(&mut opening)? {
                Some(wire) => return Ok(wire),
                None => opening.wait(LOOK_NS),
            }
        }
    }

    /// Whether the server has no connection beside those of all, in this life.
    fn has_no_more(&self, life: u32) -> bool {
        self.none_in_life.load(Relaxed) == life.wrapping_add(1)
    }

    /// A step of getting a new connection; the result is a new life.
    fn step(&self) {
        self.drop_old();
        let side = self.side();
        let Some(mut opening) = self.sides[side].opening.try_lock() else { return };
        let begun = opening.began_ms();
        match self.open_step(&mut opening) {
            Ok(None) => {}
            Ok(Some(wire)) => {
                let life = self.life.load(Acquire);
                if let Some(mut place) = self.wires(side).iter().find_map(Mutex::try_lock) {
                    *place = Some(Opened { wire, life });
                }
                self.change(Condition::welcomed);
            }
            Err(failed) => {
                self.change(|condition| condition.failed(watched_ms(), begun, AskedFor::Other, failed, self.timeout));
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

    /// Takes an opening as far as it goes without waiting.
    fn open_step(&self, opening: &mut OpeningSocket) -> Result<Option<Wire>, Failed> {
        let result = opening.step(&self.endpoint, self.greeting.as_ref());
        match result {
            Ok(true) => {}
            Ok(false) if !opening.is_silent(self.deadline) => return Ok(None),
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

    /// For how long an exchange that begins now may take.
    pub(crate) fn time(&self) -> Duration {
        let (most, now) = (self.deadline * PATIENCE, watched_ms());
        let left = self.condition.lock().left(now, self.timeout);
        left.map_or(most, |left| most.min(Duration::from_millis(left.max(0) as u64)).max(self.deadline))
    }

    /// An exchange that began then, or its connection, has failed in this life of the link. As
    /// [`Condition::failed`].
    fn broke(&self, life: u32, begun: i64, about: AskedFor<'_>, failed: Failed) -> bool {
        self.change(|condition| {
            if self.life.load(Acquire) != life {
                return false; // Another thread was first.
            }
            self.life.store(life.wrapping_add(1), Release);
            condition.failed(watched_ms(), begun, about, failed, self.timeout)
        })
    }

    /// A connection of a queue's own, on which something was waited for since then, is of no more use: the server is
    /// out of reach.
    pub(crate) fn lose(&self, life: u32, about: AskedFor<'_>, waiting_since_ms: i64, broken: Broken) {
        self.broke(life, waiting_since_ms, about, Failed::Broken(broken));
    }

    /// The server has answered, in this life of the link.
    pub(crate) fn answered(&self, life: u32, about: AskedFor<'_>) {
        if self.glance.load(Relaxed) & TROUBLED == 0 {
            return;
        }
        self.change(|condition| {
            if self.life.load(Acquire) == life {
                condition.answered(watched_ms(), about);
            }
        });
    }

    fn change<R>(&self, change: impl FnOnce(&mut Condition) -> R) -> R {
        let mut condition = self.condition.lock();
        let result = change(&mut condition);
        let bits = [(condition.is_up(), UP), (condition.is_lost(), LOST), (condition.is_troubled(), TROUBLED)];
        self.glance.store(bits.into_iter().filter(|bit| bit.0).map(|bit| bit.1).sum(), Relaxed);
        result
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
