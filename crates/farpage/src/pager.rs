//! The pager thread: the only thread that changes the program's address space.
//!
//! It reads the userfaultfd, applies events, serves faults ([`crate::fault`]), moves cold pages out
//! ([`crate::reclaim`]) and adopts new mappings. Order matters: of a batch of messages the events are applied first,
//! because the thread that caused an event goes on as soon as it was read; a fault read with it must not bring back
//! what the event discarded. While an event is unread the kernel refuses to move or copy (EAGAIN), so a fault served
//! without having seen an event was served before it.

use crate::PAGE_SIZE;
use crate::engine::{Engine, PAGER, WRITER, give_up, lock};
use crate::fault::Outcome;
use crate::page_table::{State, Vpn};
use crate::stat::Stat;
use crate::sys::pagemap;
use crate::sys::proc::{Proc, cpu_of, mapping_at};
use crate::sys::raw::{fatal, message};
use crate::sys::thread::{run_on, settle};
use crate::sys::uffd::{BATCH, FEATURES, FEATURES_QUIET, Message, Refused, Uffd};
use farpage_swap::readahead::Streams;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A fault that waits to be served.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Page address.
    pub addr: usize,
    /// Write access.
    pub write: bool,
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
    pagemap: OwnedFd,
    maps: OwnedFd,
    proc: Proc,
    /// The CPU the pager runs on, and when that was last looked at.
    cpu: Option<usize>,
    cpu_checked: Instant,
    /// A fork is under way: threads are woken only when everything about their page is in order (see `fork`).
    pub(crate) paused: bool,
    /// Pages served while paused, whose threads have not been woken.
    pub(crate) unwoken: Vec<usize>,
    /// Faults to be tried (again).
    pub(crate) waiting: Vec<Fault>,
    /// Registered ranges (pages) whose present pages are not on the lists yet.
    scans: Vec<(Vpn, Vpn)>,
    /// Ranges (bytes) that cannot be registered, so that they are not tried again and again.
    refused: Vec<(usize, usize)>,
    /// Sequential readers and writers of swapped-out memory.
    pub(crate) streams: Streams,
    /// Sequential first touches.
    pub(crate) zero_streams: Streams,
}

/// Pages looked at per step of a scan, so that faults do not wait for it.
const SCAN_STEP: u64 = 2048;
/// How often the pager looks on which CPU the faults come from.
const FOLLOW_EVERY: Duration = Duration::from_millis(4);
/// Smallest mapping adopted, bytes.
pub const ADOPT_MIN: usize = 8 * PAGE_SIZE;

impl Engine {
    /// Memory is managed from now on: opens the userfaultfds, starts pager and writer. Called on the monitor thread,
    /// which owns the descriptor table.
    ///
    /// # Errors
    /// One line: why memory cannot be managed.
    pub fn activate(&'static self, proc: &Proc) -> Result<(), String> {
        let pager = self.open_pager(proc)?;
        self.run_pager(pager)
    }

    /// Opens what the pager needs and registers the arena's parts.
    pub(crate) fn open_pager(&'static self, proc: &Proc) -> Result<Box<Pager>, String> {
        let uffd = Uffd::open(self.inherited_uffd(), FEATURES).map_err(|e| e.to_string())?;
        let trash = Uffd::open(self.inherited_uffd(), FEATURES_QUIET).map_err(|e| e.to_string())?;
        let word = |e: Refused| format!("cannot register the engine's frames: {e:?}");
        uffd.register(self.arena.frames.base, self.arena.frames.len).map_err(word)?;
        trash.register(self.arena.trash.base, self.arena.trash.len).map_err(word)?;
        let pagemap = proc.file("self/pagemap").map_err(|e| format!("cannot open /proc/self/pagemap: {e}"))?;
        let maps = proc.file("self/maps").map_err(|e| format!("cannot open /proc/self/maps: {e}"))?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| format!("cannot make an eventfd: {e}"))?;
        self.wakeups.kick_fd.store(kick.as_raw_fd(), Ordering::Release);
        *lock(&self.trash) = Some(trash);
        Ok(Box::new(Pager {
            e: self,
            uffd,
            kick,
            pagemap,
            maps,
            proc: Proc::open().map_err(|e| format!("cannot open /proc: {e}"))?,
            cpu: None,
            cpu_checked: Instant::now(),
            paused: false,
            unwoken: Vec::with_capacity(1024),
            waiting: Vec::with_capacity(1024),
            scans: Vec::new(),
            refused: Vec::new(),
            streams: Streams::new(),
            zero_streams: Streams::new(),
        }))
    }

    /// Starts pager and writer.
    pub(crate) fn run_pager(&'static self, pager: Box<Pager>) -> Result<(), String> {
        self.fork.hand_over(pager);
        self.active.store(true, Ordering::Release);
        let failed = |e| format!("cannot start an engine thread: {e}");
        self.spawn(PAGER, main, b"farpage-pager", true).map_err(failed)?;
        self.spawn(WRITER, crate::writer::main, b"farpage-writer", true).map_err(failed)?;
        Ok(())
    }
}

extern "C" fn main(engine: usize) -> ! {
    settle(b"farpage-pager");
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    let Some(mut pager) = e.fork.take_over() else { fatal("the pager thread was started without its state") };
    loop {
        pager.turn();
    }
}

impl Pager {
    /// One turn: messages, then faults, then one step of background work, or sleep.
    fn turn(&mut self) {
        if self.e.fork.wanted() {
            self.pause_for_fork();
        }
        self.register_candidates();
        let got = self.read_messages();
        self.serve_waiting();
        // Also while messages keep coming: a page that is not on a list cannot be reclaimed.
        let worked = self.scan_step() | self.balance();
        if got > 0 {
            return;
        }
        if self.waiting.is_empty() {
            if !worked {
                // A kick ends this; the time limit is for kernels where a forking thread cannot kick.
                self.sleep(Some(20_000_000));
            }
        } else {
            // Faults wait for an event to be finished by its thread, or for frames: both need somebody else to run.
            self.e.wakeups.pager_waits.store(true, Ordering::Release);
            self.sleep(Some(200_000));
            self.e.wakeups.pager_waits.store(false, Ordering::Release);
        }
    }

    /// Waits for a message or a kick, at most `timeout_ns`.
    pub(crate) fn sleep(&self, timeout_ns: Option<i64>) {
        let mut fds = [PollFd::new(&self.uffd, PollFlags::IN), PollFd::new(&self.kick, PollFlags::IN)];
        let timeout = timeout_ns.map(|ns| rustix::time::Timespec { tv_sec: 0, tv_nsec: ns });
        if poll(&mut fds, timeout.as_ref()).is_ok() && fds[1].revents().contains(PollFlags::IN) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(self.kick.as_fd(), &mut count);
        }
    }

    /// Reads and sorts one batch: events are applied, faults queued. Returns the number of messages.
    pub(crate) fn read_messages(&mut self) -> usize {
        let mut batch = [Message::Unmap { start: 0, end: 0 }; BATCH];
        let n = match self.uffd.read(&mut batch) {
            Ok(n) => n,
            Err(e) => give_up("reading the userfaultfd failed", &e),
        };
        if n == 0 {
            return 0;
        }
        let since = Instant::now();
        if let Message::Fault { tid, .. } = batch[0] {
            self.follow(tid, since);
        }
        for m in &batch[..n] {
            self.accept(*m, since);
        }
        n
    }

    /// Runs where the faulting thread runs: waking a thread on another, idle CPU costs several times what serving the
    /// fault does. Looked at every few milliseconds only.
    fn follow(&mut self, tid: u32, now: Instant) {
        if now - self.cpu_checked < FOLLOW_EVERY {
            return;
        }
        self.cpu_checked = now;
        let cpu = cpu_of(&self.proc, tid);
        if let Some(cpu) = cpu.filter(|_| cpu != self.cpu) {
            self.cpu = Some(cpu);
            run_on(cpu);
        }
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
                self.waiting.push(Fault { addr, write, since, reported: false });
            }
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
    }

    /// Serves what waits; what cannot be served yet stays.
    pub(crate) fn serve_waiting(&mut self) {
        let mut i = 0;
        while i < self.waiting.len() {
            let fault = self.waiting[i];
            match self.serve(fault) {
                Outcome::Served => {
                    self.waiting.swap_remove(i);
                    if self.paused {
                        self.unwoken.push(fault.addr);
                    }
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
        message(&format!(
            "a thread has been waiting for the page at {addr:#x} for 5 s: {state:?}, mapping change pending: {changing}"
        ));
    }

    /// `[start, end)` (bytes) was emptied (`unmapped`: or is gone): swapped-out content is dropped.
    fn forget(&mut self, start: usize, end: usize, unmapped: bool) {
        let e = self.e;
        let (first, last) = ((start / PAGE_SIZE) as u64, end.div_ceil(PAGE_SIZE) as u64);
        e.table.for_each(first, last, |_, node| {
            loop {
                let state = e.table.state(node);
                let done = match state {
                    State::None => true,
                    State::Swapped(entry) => {
                        e.table.set(node, State::None);
                        e.space.free(entry);
                        true
                    }
                    // The thread that discards pages goes on to do so when its event has been read; until then
                    // they are still there, and moving one out now would keep what must be gone. As `None` it is
                    // out of reach of reclaim. (After MADV_FREE it stays in memory, unmanaged, until it is unmapped.)
                    State::Mapped(entry) => {
                        let _ = lock(&e.lru).unmap(&e.table, node, State::None);
                        e.free_entry(entry);
                        true
                    }
                    State::Cached(f) => {
                        let won = lock(&e.lru).uncache(&e.table, node, state, State::None);
                        if won {
                            e.release_frame_entry(f);
                            e.frames.put_free(f, 1);
                        }
                        won
                    }
                    // The writer notices, and gives frame and slot back.
                    State::Writeback(_) => e.table.change(node, state, State::None),
                };
                if done {
                    break;
                }
            }
        });
        if unmapped {
            let mut leaf = first & !511;
            while leaf < last {
                e.table.drop_leaf_if_empty(leaf);
                leaf += 512;
            }
        }
    }

    /// Takes `[first, last)` out of the pending scans and returns the parts taken out. A scan must not take discarded
    /// pages, which may be there for another moment, for present ones.
    fn cut_scans(&mut self, first: Vpn, last: Vpn) -> Vec<(Vpn, Vpn)> {
        let (mut cut, mut kept) = (Vec::new(), Vec::new());
        for &(s, t) in &self.scans {
            if s < last && first < t {
                cut.push((s.max(first), t.min(last)));
                kept.extend([(s, first), (last, t)].iter().filter(|(s, t)| s < t));
            } else {
                kept.push((s, t));
            }
        }
        self.scans = kept;
        cut
    }

    /// mremap moved `len` bytes: the words follow.
    fn follow_remap(&mut self, from: usize, to: usize, len: usize) {
        let e = self.e;
        let (first, last) = ((from / PAGE_SIZE) as u64, ((from + len) / PAGE_SIZE) as u64);
        let shift = (to / PAGE_SIZE) as u64;
        {
            let mut managed = lock(&e.managed);
            managed.remove(first, last);
            managed.insert(shift, shift + (last - first));
        }
        // Nothing of the old content of `to` may survive there.
        self.forget(to, to + len, true);
        let moved = self.cut_scans(first, last);
        self.scans.extend(moved.iter().map(|(s, t)| (shift + (s - first), shift + (t - first))));
        e.table.for_each(first, last, |vpn, old| {
            let mut lru = lock(&e.lru);
            let mut state = e.table.state(old);
            // A page that is being written keeps its node until the writer is done (microseconds; a file: a write).
            while let State::Writeback(_) = state {
                drop(lru);
                rustix::thread::sched_yield();
                lru = lock(&e.lru);
                state = e.table.state(old);
            }
            let mut hot = false;
            match state {
                State::None => return,
                State::Mapped(_) => hot = lru.unmap(&e.table, old, State::None),
                State::Cached(_) => {
                    lru.uncache(&e.table, old, state, State::None);
                }
                _ => e.table.set(old, State::None),
            }
            let Some(new) = e.table.node_or_create(shift + (vpn - first)) else {
                fatal("the page table is full: the program uses more than 4 TiB of memory");
            };
            match state {
                State::Mapped(_) => lru.map(&e.table, new, state, hot),
                State::Cached(_) => {
                    e.table.set(new, state);
                    lru.recache(&e.table, new, false);
                }
                _ => {
                    e.table.set_shadow(new, e.table.shadow(old));
                    e.table.set(new, state);
                }
            }
        });
        let mut leaf = first & !511;
        while leaf < last {
            e.table.drop_leaf_if_empty(leaf);
            leaf += 512;
        }
    }

    /// Registers what the monitor found.
    pub(crate) fn register_candidates(&mut self) {
        let found = {
            let mut candidates = lock(&self.e.candidates);
            if candidates.is_empty() {
                return;
            }
            std::mem::take(&mut *candidates)
        };
        for (start, end) in found {
            self.adopt_mappings(start, end);
        }
    }

    /// Adopts the mappings in `[start, end)` as they are at this moment: what the monitor saw may have been replaced,
    /// and a mapping must be registered whole.
    pub(crate) fn adopt_mappings(&mut self, start: usize, end: usize) {
        let e = self.e;
        let mut at = start;
        let mut parts = Vec::new();
        while at < end {
            let (from, to) = match mapping_at(&self.maps, at) {
                Ok(Some(found)) => found,
                Ok(None) => {
                    at += PAGE_SIZE; // gone, or something else by now
                    continue;
                }
                Err(_) => (start, end),
            };
            parts.clear();
            e.adoptable_parts(from, to, &mut parts);
            for &(s, t) in &parts {
                if !self.refused.contains(&(s, t)) {
                    self.adopt(s, t);
                }
            }
            at = to.max(at + PAGE_SIZE);
        }
    }

    /// Registers `[start, end)` (bytes) and queues it for scanning.
    pub(crate) fn adopt(&mut self, start: usize, end: usize) {
        match self.uffd.register(start, end - start) {
            Ok(()) => {}
            // Not anonymous any more, gone, or somebody else's userfaultfd: left alone.
            Err(Refused::Busy) => {
                self.refused.push((start, end));
                return;
            }
            Err(_) => return,
        }
        // Huge pages would make one fault cost 2 MiB of budget.
        // SAFETY: advice about the program's own memory that changes no content.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, rustix::mm::Advice::LinuxNoHugepage) };
        let (first, last) = ((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
        let mut managed = lock(&self.e.managed);
        // Only what was not managed before may have pages that are on no list.
        self.scans.extend(managed.gaps(first, last));
        managed.insert(first, last);
        drop(managed);
        Stat::add(&self.e.stat.adopted_ranges, 1);
    }

    /// Puts the present pages of a newly adopted range on the lists, a bounded step at a time. What the scan sees is a
    /// hint only: a page that is gone by the time it is moved is noticed then.
    pub(crate) fn scan_step(&mut self) -> bool {
        let Some((first, last)) = self.scans.pop() else { return false };
        let e = self.e;
        let mut seen = 0;
        let mut next = last;
        let result = pagemap::present_runs(
            &self.pagemap,
            first as usize * PAGE_SIZE,
            last as usize * PAGE_SIZE,
            |start, end| {
                let (start, end) = ((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
                let stop = end.min(start + (SCAN_STEP - seen));
                for vpn in start..stop {
                    if let Some(node) = e.table.node_or_create(vpn)
                        && e.table.state(node) == State::None
                    {
                        lock(&e.lru).map(&e.table, node, State::Mapped(None), false);
                    }
                }
                seen += stop - start;
                if seen == SCAN_STEP {
                    next = stop;
                }
                seen < SCAN_STEP
            },
        );
        if let Err(error) = result {
            give_up("PAGEMAP_SCAN failed", &error);
        }
        if next < last {
            self.scans.push((next, last));
        }
        true
    }

    /// A page was found gone: brings the words around it up to date in one go.
    pub(crate) fn resync(&mut self, vpn: Vpn) {
        let e = self.e;
        let first = vpn & !511;
        let mut present = [false; 512];
        let result = pagemap::present_runs(
            &self.pagemap,
            first as usize * PAGE_SIZE,
            (first as usize + 512) * PAGE_SIZE,
            |s, t| {
                for vpn in s / PAGE_SIZE..t / PAGE_SIZE {
                    present[vpn - first as usize] = true;
                }
                true
            },
        );
        if result.is_err() {
            return;
        }
        e.table.for_each(first, first + 512, |vpn, node| {
            if let State::Mapped(entry) = e.table.state(node)
                && !present[(vpn - first) as usize]
            {
                lock(&e.lru).unmap(&e.table, node, State::None);
                e.free_entry(entry);
            }
        });
    }

    /// [`pagemap::present_runs`] of this process.
    pub(crate) fn present(
        &self,
        start: usize,
        end: usize,
        each: impl FnMut(usize, usize) -> bool,
    ) -> Result<(), rustix::io::Errno> {
        pagemap::present_runs(&self.pagemap, start, end, each)
    }

    /// Whether a mapping change is pending whose event was not applied yet.
    pub(crate) fn changing(&self) -> bool {
        self.uffd.is_changing(self.e.arena.frames.base)
    }
}
