//! The pager thread: the only thread that changes the program's address space.
//!
//! It reads the userfaultfd, applies events ([`crate::run::mappings::apply_event`]), serves faults ([`crate::run::pager::fault`]), moves cold pages out
//! ([`crate::run::pager::reclaim`]) and adopts new mappings ([`crate::run::mappings::register`]). Order matters: of a batch of messages the events are applied first,
//! because the thread that caused an event goes on as soon as it was read; a fault read with it must not bring back
//! what the event discarded. While an event is unread the kernel refuses to move or copy (EAGAIN), so a fault served
//! without having seen an event was served before it.

pub mod fault;
pub(crate) mod fill;
pub mod poison;
pub(crate) mod prefetch;
pub mod readahead;
pub mod reclaim;
pub mod robust;
pub(crate) mod swap_in;
pub mod trace;
pub(crate) mod transit;

use crate::PAGE_SIZE;
use crate::mem::open::open;
use crate::run::cpus::affinity::{Eager, Placement};
use crate::run::cpus::cpu_latency::Awake;
use crate::run::mappings::event_order::Order;
use crate::run::mappings::grace_period::Stragglers;
use crate::run::page_table::Vpn;
use crate::run::pager::fault::Outcome;
use crate::run::pager::fill::{COPY_MAX, Scratch};
use crate::run::pager::prefetch::Ahead;
use crate::run::pager::readahead::Readahead;
use crate::run::pager::robust::Lists;
use crate::run::pager::trace::Recorder;
use crate::run::pager::transit::Transit;
use crate::run::state::{Engine, PAGER, WRITER, give_up, lock};
use crate::stat::Stat;
use crate::swap::Entry;
use crate::sys::maps::is_mapped;
use crate::sys::perf::MappingEvents;
use crate::sys::proc::Proc;
use crate::sys::raw::{ErrnoText, fatal, warn};
use crate::sys::thread::settle;
use crate::sys::uffd::{BATCH, FEATURES, FEATURES_QUIET, Message, Refused, Uffd};
use farpage_swap::readahead::Streams;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The pager's name. A process with such a thread has memory that is swapped out by farpage, and has it brought in.
pub const THREAD_NAME: &[u8] = b"farpage-pager";
/// The same while it holds still for a fork and brings in nothing that others ask for.
pub(crate) const PAUSED_NAME: &[u8] = b"farpage-paused";

/// Between two looks at threads that have yet to tell a change.
const NAP: Duration = Duration::from_micros(50);

/// A fault that waits to be served.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Page address.
    pub addr: usize,
    /// Write access.
    pub write: bool,
    /// The thread that has it.
    pub tid: u32,
    /// When its message was read.
    pub since: Instant,
    /// That it waits suspiciously long has been said.
    pub reported: bool,
}

/// The pager's own state.
pub struct Pager {
    pub(crate) e: &'static Engine,
    pub(crate) uffd: Uffd,
    kick: OwnedFd,
    pub(crate) maps: OwnedFd,
    pub(crate) placement: Placement,
    eager: Eager,
    awake: Awake,
    /// Pages placed so far, and at the last step of reclaim.
    pub(crate) placed: u64,
    pub(crate) placed_before: u64,
    /// Where the search for clean copies goes on.
    pub(crate) copies_hand: u32,
    /// For pages that are copied into the program.
    pub(crate) scratch: Box<Scratch>,
    /// Faults to be tried (again).
    pub(crate) waiting: Vec<Fault>,
    /// Registered ranges (pages) whose present pages are not on the lists yet.
    pub(crate) scans: Vec<(Vpn, Vpn)>,
    /// Ranges (bytes) that cannot be registered, so that they are not tried again and again, and since when there are any.
    pub(crate) refused: Vec<(usize, usize)>,
    pub(crate) refused_since: Instant,
    /// Ranges (bytes) that are to be the program's alone, and how far that has come with the first.
    pub(crate) letting_go: Vec<(usize, usize)>,
    pub(crate) let_go_to: Vpn,
    /// All of the process's memory is, or was, among them.
    pub(crate) alone: bool,
    /// Ranges (bytes) that were registered and still may have huge pages; empty in between.
    pub(crate) unadvised: Vec<(usize, usize)>,
    /// Runs of the shared zero page that a scan found; empty in between.
    pub(crate) zeros: Vec<(Vpn, Vpn)>,
    /// Changes of mappings that were read.
    pub(crate) order: Order,
    /// Who may not have told one that was made before.
    pub(crate) stragglers: Stragglers,
    /// Entries on their way to [`Engine::free_later`]; empty in between.
    pub(crate) dead: Vec<Entry>,
    /// Mappings heard of; empty in between.
    pub(crate) news: Vec<(usize, usize)>,
    /// The kernel's news of mappings, where the system allows it.
    pub(crate) events: Option<MappingEvents>,
    /// Which swapped pages come in with one that is missing.
    pub(crate) readahead: Readahead,
    /// What is read before it is wanted.
    pub(crate) ahead: Ahead,
    /// Mutexes whose owners' death is to be told.
    pub(crate) robust: Lists,
    /// Sequential first touches.
    pub(crate) zero_streams: Streams,
    /// How executable memory is taken out.
    pub(crate) transit: Transit,
    /// Records the faults, if that was asked for.
    pub(crate) trace: Option<Recorder>,
}

/// What a pager needs of the system.
pub struct Opened {
    uffd: Uffd,
    trash: Uffd,
    maps: OwnedFd,
    kick: OwnedFd,
}

impl Engine {
    /// Memory is managed from now on: opens the userfaultfds if `opened` does not have them, starts pager and writer. Called on the monitor thread,
    /// which owns the descriptor table.
    ///
    /// # Errors
    /// One line: why memory cannot be managed.
    pub fn activate(&'static self, proc: &Proc, opened: Option<Opened>) -> Result<(), String> {
        let opened = opened.map_or_else(|| self.open(proc), Ok)?;
        let mut pager = self.make_pager(opened, proc)?;
        // Before the threads are started, which have to wait for a CPU if the program's threads keep all of them busy: what
        // is registered makes those wait instead.
        pager.adopt_news();
        self.run_pager(pager)
    }

    /// Opens what the pager needs and registers the arena's parts; the program's memory stays as it is.
    ///
    /// # Errors
    /// One line: what is not allowed, or failed.
    pub(crate) fn open(&self, proc: &Proc) -> Result<Opened, String> {
        let pagemap = || proc.pagemap().map_err(|e| format!("cannot open /proc/self/pagemap: {}", ErrnoText::from(e)));
        let uffd = Uffd::open(self.device(), FEATURES, pagemap()?).map_err(|e| e.to_string())?;
        let trash = Uffd::open(self.device(), FEATURES_QUIET, pagemap()?).map_err(|e| e.to_string())?;
        let word = |e: Refused| format!("cannot register the engine's frames: {e:?}");
        // SAFETY: the arena's own.
        unsafe { open(self.arena.frames.base, self.arena.frames.len) }
            .map_err(|e| format!("no memory for the engine's frames: {}", ErrnoText::from(e)))?;
        uffd.register(self.arena.frames.base, self.arena.frames.len).map_err(word)?;
        trash.register(self.arena.trash.base, self.arena.trash.len).map_err(word)?;
        uffd.register(self.arena.bell.base, self.arena.bell.len).map_err(word)?;
        let maps =
            proc.file("self/maps").map_err(|e| format!("cannot open /proc/self/maps: {}", ErrnoText::from(e)))?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| format!("cannot make an eventfd: {}", ErrnoText::from(e)))?;
        Ok(Opened { uffd, trash, maps, kick })
    }

    pub(crate) fn make_pager(&'static self, opened: Opened, proc: &Proc) -> Result<Box<Pager>, String> {
        let Opened { uffd, trash, maps, kick } = opened;
        let no_proc = |e| format!("cannot keep /proc open: {}", ErrnoText::from(e));
        self.wakeups.kick_fd.store(kick.as_raw_fd(), Ordering::Release);
        *lock(&self.trash) = Some(trash);
        Ok(Box::new(Pager {
            e: self,
            uffd,
            kick,
            maps,
            placement: Placement::new(proc.try_clone().map_err(no_proc)?),
            eager: Eager::default(),
            awake: Awake::new(self.conf.idle_poll, Instant::now()),
            placed: 0,
            placed_before: 0,
            copies_hand: 0,
            scratch: Box::new(Scratch([[0; PAGE_SIZE]; COPY_MAX])),
            waiting: Vec::with_capacity(1024),
            scans: Vec::new(),
            refused: Vec::new(),
            refused_since: Instant::now(),
            letting_go: Vec::new(),
            let_go_to: 0,
            alone: false,
            unadvised: Vec::new(),
            zeros: Vec::new(),
            order: Order::default(),
            stragglers: Stragglers::new(proc.try_clone().map_err(no_proc)?),
            dead: Vec::new(),
            news: Vec::new(),
            events: None,
            readahead: Readahead::new(self.conf.readahead, self.conf.ram),
            ahead: Ahead::default(),
            robust: Lists::new(proc.try_clone().map_err(no_proc)?),
            zero_streams: Streams::new(),
            transit: Transit::Unwanted,
            trace: self.recorder()?,
        }))
    }

    /// The record of faults, if one is wanted. A child, whose program may have another root or no permission, goes on without.
    fn recorder(&self) -> Result<Option<Recorder>, String> {
        match self.conf.trace.as_deref().map(Recorder::create).transpose() {
            Err(why) if self.fork.is_restart() => {
                warn(&format!("in a forked child: {why}"));
                Ok(None)
            }
            other => other,
        }
    }

    /// Starts pager and writer.
    pub(crate) fn run_pager(&'static self, pager: Box<Pager>) -> Result<(), String> {
        self.fork.hand_over(pager);
        self.charges.allow(self.large() as u64);
        self.active.store(true, Ordering::SeqCst);
        let spawn = |index, entry, name| self.spawn_patiently(index, entry, name, true);
        // The writer first: without one, nobody would free slots.
        let started = spawn(WRITER, crate::run::store::main, b"farpage-writer").and_then(|writer| {
            self.wakeups.writer_tid.store(writer, Ordering::Relaxed);
            spawn(PAGER, main, THREAD_NAME)
        });
        if let Err(error) = started {
            // With its userfaultfd the registrations go, and nobody waits for a page.
            self.active.store(false, Ordering::SeqCst);
            self.wakeups.kick_fd.store(-1, Ordering::Release);
            drop(self.fork.take_over());
            self.wakeups.writer_tid.store(0, Ordering::Relaxed);
            self.wake_writer();
            return Err(format!("cannot start an engine thread: {}", ErrnoText::from(error)));
        }
        Ok(())
    }
}

extern "C" fn main(engine: usize) -> ! {
    settle(THREAD_NAME);
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    let Some(mut pager) = e.fork.take_over() else { fatal("the pager thread was started without its state") };
    loop {
        pager.turn();
    }
}

impl Engine {
    /// Whether something in `[start, end)` (bytes) is managed.
    pub(crate) fn is_known(&self, start: usize, end: usize) -> bool {
        let (start, end) = ((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
        start < end && lock(&self.managed).gaps(start, end).next() != Some((start, end))
    }
}

impl Pager {
    /// One turn: messages, then faults, then one step of background work, or sleep.
    fn turn(&mut self) {
        if self.e.fork.wanted() {
            self.pause_for_fork();
        }
        if self.e.is_behind(PAGER) {
            self.e.keep_up(PAGER);
            self.e.reader.wake();
        }
        self.adopt_news();
        let got = self.read_messages();
        if !self.order.is_settled() {
            self.settle();
            if self.order.waits() {
                // Nothing can be placed or taken out as long as there is a change to come.
                if got == 0 {
                    self.sleep(Some(50_000));
                }
                return;
            }
        }
        let gathered = self.placement.is_gathered();
        let mut worked = self.let_go_step();
        if gathered && !self.waiting.is_empty() {
            worked = self.balance();
        }
        self.serve_waiting();
        // Also while messages keep coming: a page that is not on a list cannot be reclaimed.
        worked |= self.scan_step();
        if !gathered || self.e.budget.excess() > 0 {
            worked |= self.balance();
        }
        if got > 0 {
            if self.placement.is_apart() {
                self.eager.served(Instant::now());
            }
            return;
        }
        if self.waiting.is_empty() {
            if !worked {
                if self.eager.again(Instant::now()) {
                    self.store_a_little();
                    return;
                }
                if let Some(trace) = &mut self.trace {
                    trace.flush();
                }
                // A kick ends this; the time limit is for kernels where a forking thread cannot kick.
                self.sleep(Some(self.awake.sleep(Duration::from_millis(20)).as_nanos() as i64));
                self.stay_awake(0, Instant::now());
            }
        } else {
            // Faults wait for an event to be finished by its thread, or for frames: both need somebody else to run.
            self.e.wakeups.pager_waits.store(true, Ordering::Release);
            self.sleep(Some(200_000));
            self.e.wakeups.pager_waits.store(false, Ordering::Release);
            self.stay_awake(0, Instant::now());
        }
    }

    /// Waits for a message, a kick or news of a mapping, at most `timeout_ns`.
    pub(crate) fn sleep(&mut self, timeout_ns: Option<i64>) {
        let events = self.events.as_ref().map_or(self.kick.as_fd(), |events| events.as_fd());
        let reads = self.ahead.queue.fd().unwrap_or(self.kick.as_fd());
        let uffd = self.uffd.borrow().unwrap_or(self.kick.as_fd());
        let fds = [uffd, self.kick.as_fd(), events, reads];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = timeout_ns.map(|ns| rustix::time::Timespec { tv_sec: 0, tv_nsec: ns });
        let woken = poll(&mut fds, timeout.as_ref()).is_ok();
        let [_, kicked, _, read] = fds.map(|fd| woken && fd.revents().contains(PollFlags::IN));
        if kicked {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(self.kick.as_fd(), &mut count);
        }
        if read {
            self.land();
        }
    }

    /// `messages` have come by `now`: decides whether idle CPUs may sleep.
    fn stay_awake(&mut self, messages: usize, now: Instant) {
        let time = self.awake.count(messages as u32, now);
        if !time.is_zero() {
            Stat::add(&self.e.stat.idle_poll_ns, time.as_nanos() as u64);
        }
    }

    /// Reads messages, unless one is waited for that comes before them.
    pub(crate) fn next_messages(&mut self, batch: &mut [Message]) -> usize {
        if self.stragglers.any() {
            if self.changing() {
                std::thread::sleep(NAP);
                return 0;
            }
            self.stragglers.clear();
        }
        match self.uffd.read(batch) {
            Ok(n) => n,
            Err(e) => give_up("reading the userfaultfd failed", e),
        }
    }

    /// Notes a change that was read. `is_known` as in [`Order::push`].
    pub(crate) fn note_change(&mut self, change: Message, is_known: impl Fn(usize, usize) -> bool) {
        if self.order.push(change, is_known, |at| is_mapped(&self.maps, at)) {
            self.stragglers.note();
        }
    }

    /// `[start, end)` (bytes) was looked at while a change was pending.
    pub(crate) fn add_fresh(&mut self, start: usize, end: usize) {
        self.order.add_fresh(start, end);
        self.stragglers.note();
    }

    /// Reads and sorts one batch: events are applied, faults queued. Returns the number of messages.
    pub(crate) fn read_messages(&mut self) -> usize {
        let mut batch = [Message::Unmap { start: 0, end: 0 }; BATCH];
        let n = self.next_messages(&mut batch);
        if n == 0 {
            return 0;
        }
        let since = Instant::now();
        if let Message::Fault { tid, .. } = batch[0] {
            let others = [self.e.wakeups.writer_tid.load(Ordering::Relaxed), self.e.reader.tid()];
            self.placement.look(tid, others, self.placed, since);
            self.eager.fault();
        }
        self.stay_awake(n, since);
        for m in &batch[..n] {
            self.accept(*m, since);
        }
        n
    }

    /// Applies an event, queues a fault.
    pub(crate) fn accept(&mut self, m: Message, since: Instant) {
        match m {
            Message::Fault { addr, write, tid } => {
                if self.e.arena.all.contains(addr) {
                    fatal(&format!(
                        "engine thread {tid} touched frame {addr:#x}, which has no page: this is a bug in farpage"
                    ));
                }
                self.ahead.crowd.fault(tid);
                self.waiting.push(Fault { addr, write, tid, since, reported: false });
            }
            Message::Remove { start, .. } if self.e.arena.bell.contains(start) => self.adopt_news(),
            change => {
                let e = self.e;
                // Before it is applied: its thread goes on now, and what it maps at this place has to be told.
                if let Some((start, end)) = change.left() {
                    e.recent.cut(start, end);
                }
                self.note_change(change, |start, end| e.is_known(start, end));
                while let Some(change) = self.order.next(|start, end| self.e.is_known(start, end)) {
                    self.change(change);
                }
            }
        }
    }

    /// If no change of mappings is pending: what waited for one is applied, and what was registered meanwhile is adopted.
    pub(crate) fn settle(&mut self) {
        if self.changing() {
            return;
        }
        while let Some(change) = self.order.rest(|start, end| self.e.is_known(start, end)) {
            self.change(change);
        }
        for (start, end) in self.order.forget().iter() {
            self.adopt_mappings(start as usize, end as usize);
        }
    }

    /// Applies a change of mappings.
    pub(crate) fn change(&mut self, m: Message) {
        match m {
            Message::Fault { .. } => {}
            Message::Remove { start, end } => {
                Stat::add(&self.e.stat.event_remove, 1);
                self.forget(start, end, false);
                self.cut_scans((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
            }
            Message::Unmap { start, end } => {
                Stat::add(&self.e.stat.event_unmap, 1);
                self.forget(start, end, true);
                // What is mapped there from now on is not registered, and must not be taken for what was.
                self.cut_scans((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
                lock(&self.e.pinned).retain(|vpn| !(start..end).contains(&(*vpn as usize * PAGE_SIZE)));
                lock(&self.e.managed).remove((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
            }
            Message::Remap { from, to, len } => {
                Stat::add(&self.e.stat.event_remap, 1);
                self.follow_remap(from, to, len);
            }
        }
        // Another thread may have been given the place before this was told, and have found it known.
        if let Some((start, end)) = m.left() {
            self.e.recent.cut(start, end);
            if end - start >= self.e.large() {
                self.news.push((start, end));
            }
        }
    }

    /// Serves what waits; what cannot be served yet stays.
    pub(crate) fn serve_waiting(&mut self) {
        let mut i = 0;
        while i < self.waiting.len() {
            let fault = self.waiting[i];
            match self.serve(fault) {
                Outcome::Served => {
                    self.waiting.swap_remove(i);
                    self.e.stat.record_fault(fault.since.elapsed().as_nanos() as u64);
                    Stat::add(&self.e.stat.pgfault, 1);
                }
                Outcome::Dropped => {
                    self.waiting.swap_remove(i);
                }
                Outcome::Later => {
                    if !fault.reported && fault.since.elapsed() > Duration::from_secs(5) {
                        self.report(i);
                    }
                    i += 1;
                }
            }
        }
    }

    /// A thread must never hang in silence.
    fn report(&mut self, i: usize) {
        let fault = &mut self.waiting[i];
        fault.reported = true;
        let node = self.e.table.node((fault.addr / PAGE_SIZE) as u64);
        let state = node.map(|n| self.e.table.state(n));
        let (addr, changing) = (fault.addr, self.changing());
        warn(&format!(
            "a thread has been waiting for the page at {addr:#x} for 5 s: {state:?}, mapping change pending: {changing}"
        ));
    }

    /// Whether a change of mappings is pending whose event was not read yet.
    pub(crate) fn changing(&self) -> bool {
        self.uffd.is_changing(self.e.arena.frames.base)
    }
}
