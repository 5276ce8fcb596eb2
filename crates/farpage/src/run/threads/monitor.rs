//! The monitor thread: samples resident memory, switches the engine on, finds new mappings.
//!
//! It is started when the program has come to a part of its budget ([`crate::run::dormant`]), and makes the engine.
//! Below the activation threshold it is the only thread: it reads one line of `/proc` now and then, the sooner again
//! the less room is left. After that it samples every millisecond while there is pressure, because memory that the
//! program maps anew is not registered until it was found here: the sampling interval bounds by how much the budget can
//! be overrun.

use crate::PAGE_SIZE;
use crate::conf::size;
use crate::conf::tuning::Controller;
use crate::mem::lock::lock;
use crate::mem::units::Vpn;
use crate::mm::pool_share::{PoolShare, Sample, UnevictableEstimate};
use crate::run::budget::activation::{Approach, Look, Next};
use crate::run::budget::charge::UNLIMITED;
use crate::run::budget::kin::{Kin, pages};
use crate::run::budget::park::{self, IdleTimer};
use crate::run::budget::share::{self, TreeLook, TreeShare};
use crate::run::budget::unmanaged::{UnknownPages, Unmanaged};
use crate::run::budget::unwatched;
use crate::run::dormant::{self, StartPlan};
use crate::run::fork::protocol::room_for_start;
use crate::run::mappings::relocated::Relocated;
use crate::run::pager::start::PagerParts;
use crate::run::stacks::MONITOR;
use crate::run::state::{Engine, give_up, show_engine};
use crate::run::told::{self, WarningKind, warn_once_in_tree};
use crate::run::uffd_device;
use crate::stat::StatPage;
use crate::swap::space::build::memory_most;
use crate::sys::cpu;
use crate::sys::futex;
use crate::sys::maps::{Kind, mappings};
use crate::sys::message::{message, warn};
use crate::sys::privilege::Privileges;
use crate::sys::proc::{Proc, Reach, minor_faults, reach, stack_start, thread_blocks, threads};
use crate::sys::raw::{ErrnoText, gettid};
use crate::sys::robust;
use crate::sys::thread::{close_all_but, exit_thread, settle};
use crate::tree::{self, MemberKind, Segment, strangers, sums};
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A managed process in which nothing has changed for so long is looked at less often...
const CALM: Duration = Duration::from_millis(250);
/// ... and after so long it is idle: it is looked at every [`REST`], or when it has a fault.
const IDLE: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_secs(1);
/// Children that say nothing are looked for at most so often, of so many threads.
const CHILDREN: Duration = Duration::from_millis(100);
const CHILDREN_THREADS: u32 = 64;

/// Between two looks at all mappings at least so long, and so many times as long as one takes.
const SCAN_PAUSE: Duration = Duration::from_millis(50);
const SCAN_PAUSE_TIMES: u32 = 20;

/// What the monitor holds open.
pub struct Monitor {
    e: &'static Engine,
    /// `/proc`.
    pub proc: Proc,
    /// What the pager will need, if it is there already.
    opened: Option<PagerParts>,
    statm: OwnedFd,
    maps: OwnedFd,
    buffer: Vec<u8>,
    /// Pages that were not accounted for after the last look at the mappings.
    unmanaged: i64,
    scanned: Instant,
    /// How long to wait after that, unless there is a reason to look.
    scan_pause: Duration,
    /// Resident pages at that time.
    scanned_rss: i64,
    pinned: Instant,
    last_rss: i64,
    /// Faults so far, at the last look.
    last_faults: u64,
    /// When something last changed.
    moved: Instant,
    /// The program's CPU time, between these two, at the last look while it rested.
    program: [Duration; 2],
    /// Before activation: how near it is.
    approach: Approach,
    /// Activation failed; said once.
    failed: bool,
    /// How much of the budget is for compressed pages.
    share: PoolShare,
    /// For a budget of so many pages.
    divided: i64,
    /// What of the tree's budget is this process's.
    tree: Option<TreeShare>,
    kin: Kin,
    /// Forks so far.
    forks: u64,
    /// When it last looked for children that say nothing.
    children: Instant,
    stuck: UnevictableEstimate,
    /// What cannot be managed, and what the program is told of it.
    others: Unmanaged,
    /// Tables of libraries that the pager can take over.
    relocated: Relocated,
    /// Since when the program has been idle, for [`Monitor::parks_itself`].
    idle: IdleTimer,
}

/// The entry of an engine's first thread.
pub(crate) extern "C" fn first(plan: usize) -> ! {
    settle(crate::stat::THREAD_NAME.as_bytes());
    // SAFETY: spawn_first passed the address of the plan, which is never freed.
    let plan: &'static StartPlan = unsafe { &*(plan as *const StartPlan) };
    close_program_files(plan.descriptors());
    if let Ok(proc) = Proc::open() {
        proc.hold();
    }
    dormant::doze();
    match make(plan) {
        Ok(mut monitor) => {
            monitor.work();
            dormant::ready();
            monitor.run()
        }
        Err(why) => {
            dormant::failed(&why);
            exit_thread()
        }
    }
}

/// Makes the engine and its monitor.
fn make(plan: &'static StartPlan) -> Result<Monitor, String> {
    plan.give_heap()?;
    take_on_privileges()
        .map_err(|why| format!("an engine thread cannot give up privileges: {}", ErrnoText::from(why)))?;
    // Refused: perhaps the limit is enough.
    let _room = room_for_start(0);
    let e = Engine::build(plan)?;
    let monitor = Monitor::new(e, false).map_err(|error| format!("cannot read /proc: {}", ErrnoText::from(error)))?;
    e.looked();
    show_engine(e);
    dormant::hand_over(e);
    Ok(monitor)
}

/// The entry of the first thread in a child of a process whose engine managed memory.
pub(crate) extern "C" fn main(engine: usize) -> ! {
    settle(crate::stat::THREAD_NAME.as_bytes());
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    close_program_files([Some(e.fork.inherited_end()).filter(|fd| *fd >= 0), None]);
    // Refused: perhaps the limit is enough.
    let room = room_for_start(e.given_to_children().len());
    let mut monitor = match e.inherit().and_then(|()| Monitor::new(e, true)) {
        Ok(m) => m,
        Err(error) => give_up("in a forked child, whose swapped-out memory would be lost: cannot read /proc", error),
    };
    e.looked();
    e.start_as_child(&monitor.proc);
    drop(room);
    monitor.run()
}

/// Leaves only the engine's own descriptors in the table, which was copied from the program's.
fn close_program_files(mut keep: [Option<RawFd>; 2]) {
    keep.sort_unstable();
    match keep {
        [Some(one), Some(other)] if one != other => close_all_but(&[one, other]),
        [_, Some(one)] => close_all_but(&[one]),
        _ => close_all_but(&[]),
    }
}

/// What the program's main thread holds now, if this one, which it has made, holds something else: it may have slept.
fn take_on_privileges() -> Result<(), rustix::io::Errno> {
    let proc = Proc::held()?;
    let (Ok(main), Ok(own)) = (Privileges::of(&proc, None), Privileges::of_caller(&proc)) else { return Ok(()) };
    if own.are_those_of(&main) { Ok(()) } else { main.take_on(&proc) }
}

/// Takes this thread's part in the tree: the kernel marks the place when the process ends.
fn tree_share(e: &Engine, is_child: bool) -> Option<TreeShare> {
    if is_child && tree::segment().is_some() {
        // Where no place is free, a part, as for a program that has lost its tree.
        let placed = tree::joining::fork_child();
        let pages = if placed { share::FLOOR } else { share::FLOOR.max(pages(e.conf.ram) / 16) };
        e.budget.promise(pages);
        e.budget.sample(0, e.budget.grown());
    }
    let (segment, mine) = (tree::segment()?, tree::mine()?);
    if is_child {
        mine.claim.add(share::FLOOR as u64);
    }
    mine.set_kind(MemberKind::Watched);
    // Where that is refused, others find out by the process id.
    if robust::mark_at_end(&mine.claim.owner).is_ok() {
        mine.claim.owner.store(gettid(), SeqCst);
    }
    sums::begin(e.stat);
    Some(TreeShare::new(segment, mine))
}

/// Looks after processes without the library, if nobody has just done so; says once in a tree that they have more than
/// a tenth of its budget.
fn look_after_strangers(segment: &Segment) {
    let Some(held) = strangers::look_after(segment) else { return };
    if !held.much || told::is_said(WarningKind::Strangers) {
        return;
    }
    let (has, of) = (held.pages * PAGE_SIZE as u64, segment.budget() * PAGE_SIZE as u64);
    let text = format!(
        "programs that cannot load farpage's library (static, or with more rights) have {} of the budget of {}, and \
         cannot be swapped out; the largest is process {}: the others make room",
        size::format(has),
        size::format(of),
        held.largest
    );
    warn_once_in_tree(WarningKind::Strangers, &text);
}

impl Monitor {
    /// `is_child`: of a process with an engine, which has given what it holds.
    fn new(e: &'static Engine, is_child: bool) -> Result<Monitor, rustix::io::Errno> {
        if is_child {
            StatPage::renew(e.stat, e.most_bytes());
        } else if Proc::held().is_err() {
            Proc::open()?.hold();
        }
        uffd_device::hold();
        let proc = Proc::held()?;
        // A root directory or a working directory that the program leaves must not stay busy because of us.
        let _ = rustix::process::chdir("/");
        let (statm, maps) = (proc.file("self/statm")?, proc.file("self/maps")?);
        e.stack_top.store(stack_start(&proc).unwrap_or(0) / PAGE_SIZE * PAGE_SIZE, Relaxed);
        let now = Instant::now();
        // Present: a page fault of the monitor's waits behind every thread that maps memory, just when that must be
        // noticed.
        let buffer = vec![1; 32 * 1024];
        // Now, because later these calls may have to wait for a lock behind many threads, each of which fills memory.
        // Forked children can do without: there are programs that make thousands.
        let opened = if is_child { None } else { e.open(&proc).ok() };
        let (others, relocated) = (Unmanaged::new(&proc), Relocated::new(&proc));
        let resident = reach(&statm).map_or(0, |now| pages(now.resident));
        Ok(Monitor {
            e,
            proc,
            opened,
            statm,
            maps,
            buffer,
            unmanaged: 0,
            scanned: now,
            scan_pause: SCAN_PAUSE,
            scanned_rss: 0,
            pinned: now,
            last_rss: 0,
            last_faults: 0,
            moved: now,
            program: [Duration::ZERO; 2],
            approach: Approach::default(),
            failed: false,
            stuck: UnevictableEstimate::default(),
            others,
            relocated,
            idle: IdleTimer::new(now),
            share: PoolShare::new(e.conf.ram, e.space.usage().pool_limit_bytes),
            divided: e.most_pages(),
            tree: tree_share(e, is_child),
            kin: Kin::of_child(if is_child { resident } else { unwatched::forked_with() as i64 }),
            forks: 0,
            children: now,
        })
    }

    fn run(&mut self) -> ! {
        loop {
            let asked = self.e.wakeups.monitor.load(SeqCst);
            let wanted = self.tree.as_ref().map(|tree| (&tree.mine.wake, tree.mine.wake.load(SeqCst)));
            let mut pause = Some(self.work());
            while let Some(time) = pause {
                let time = time.as_nanos() as u64;
                match wanted {
                    Some(wanted) => futex::wait_any((&self.e.wakeups.monitor, asked), wanted, time),
                    None => futex::wait(&self.e.wakeups.monitor, asked, Some(time)),
                }
                let is_asked = self.e.wakeups.monitor.load(SeqCst) != asked
                    || wanted.is_some_and(|(word, seen)| word.load(SeqCst) != seen);
                pause = if is_asked { None } else { self.rest_on() };
            }
        }
    }

    /// How long to go on sleeping: the process is idle, and has done nothing since the last look, so there is nothing
    /// to be seen. `None`: it may have, or others have.
    fn rest_on(&mut self) -> Option<Duration> {
        if self.parks_itself() {
            return None;
        }
        let wakeups = &self.e.wakeups;
        if !wakeups.monitor_rests.load(SeqCst) {
            return None;
        }
        let [least, most] = self.program_time()?;
        let [at_least, at_most] = std::mem::replace(&mut self.program, [least, most]);
        if least > at_most || most < at_least {
            return None;
        }
        let Some(tree) = &self.tree else { return Some(REST) };
        // What others do is to be seen: who shares pages with it, and who has more than there is.
        if self.kin.is_related() {
            return None;
        }
        if strangers::are_left_to(tree.segment, tree.mine) {
            look_after_strangers(tree.segment);
        }
        if tree.is_somebody_to_give() {
            return None;
        }
        Some(tree.rests(REST))
    }

    /// CPU time of the program's threads, between these two.
    fn program_time(&self) -> Option<[Duration; 2]> {
        let wakeups = &self.e.wakeups;
        let tids = [&wakeups.pager_tid, &wakeups.writer_tid].map(|tid| tid.load(Relaxed));
        cpu::time_without(&[tids[0], tids[1], self.e.decompressor.tid()])
    }

    /// Where that is wanted: asks to be parked when the program has been idle for so long. Whether it has just done so.
    fn parks_itself(&mut self) -> bool {
        let (Some(after), Some(tree), now) = (self.e.conf.idle, &self.tree, Instant::now()) else { return false };
        let park = &tree.mine.park;
        if !self.idle.is_due(now) {
            return false;
        }
        let Some([_, most]) = self.program_time() else { return false };
        let parks = self.idle.look(now, most) >= after && park.load(SeqCst) == 0;
        if parks {
            self.idle.begin(now);
            park.store(park::ASKED, SeqCst);
        }
        parks
    }

    /// A turn, unless a fork is going on.
    fn work(&mut self) -> Duration {
        let (e, fork) = (self.e, &self.e.fork);
        // Not waiting for the gate itself: a thread that has closed it since may want to be served.
        loop {
            fork.pass_gate(|| {
                fork.channel.serve();
                e.oversee_at_gate(&self.proc);
            });
            if fork.monitor_gate.try_lock() {
                break;
            }
        }
        if e.retired.load(SeqCst) && !e.is_active() {
            self.retire();
            fork.monitor_gate.unlock();
            e.following.end(MONITOR);
            exit_thread();
        }
        let pause = self.turn();
        fork.monitor_gate.unlock();
        pause
    }

    /// Nobody will look any more: who is given what is left of the way to the budget says that there is none.
    fn retire(&mut self) {
        let e = self.e;
        let resident = reach(&self.statm).map_or(0, |now| now.resident);
        e.charges.allow(e.conf.ram.saturating_sub(resident));
        e.looked();
        while e.notes.take().is_some() {}
        e.notes.finish();
        if let Some(tree) = self.tree.take() {
            // This thread ends, and the process goes on: others look whether it is still there.
            robust::forget();
            tree.mine.is_left_to_others(std::process::id());
        }
    }

    /// One sample and what follows from it; returns how long to sleep.
    fn turn(&mut self) -> Duration {
        let e = self.e;
        e.oversee_privileges(&self.proc);
        self.parks_itself();
        let before = e.budget.grown();
        // Once memory is managed this is the pager's to ask.
        let given = if e.is_active() { 0 } else { (e.charges.drain() / PAGE_SIZE as u64) as i64 };
        let (rss, others) = match reach(&self.statm) {
            Ok(Reach { resident, others, .. }) => (pages(resident), pages(others)),
            Err(_) => return Duration::from_millis(1), // the process is ending
        };
        let forks = e.stat.forks.load(Relaxed);
        if std::mem::replace(&mut self.forks, forks) != forks {
            self.kin.forked();
        }
        let all = rss;
        let shared = self.kin.shared(&self.proc, rss, e.stat.pgfault.load(Relaxed));
        e.budget.shared_is(shared);
        let rss = rss - shared.paid_by_others;
        e.budget.sample(rss, before);
        e.publish_levels(all);
        let gives = self.look_at_tree(rss);
        if others > e.most_pages() {
            self.others.look_at_shared(e, &self.proc, &self.maps, &mut self.buffer);
        }
        if !e.active.load(Relaxed) {
            let look = Look { rss, given, threads: self.proc.threads(), cpus: cpu::count() };
            let mut next = self.approach.step(look, &e.budget);
            while next == Next::Manage
                && self.tree.as_ref().is_some_and(|tree| tree.puts_off(&e.budget, e.most_pages()))
            {
                next = self.approach.step(look, &e.budget);
            }
            let parks = self.tree.as_ref().is_some_and(|tree| tree.mine.park.load(SeqCst) == park::ASKED);
            let asked = e.early_notes() || parks;
            if (next == Next::Manage || asked) && !self.failed {
                e.charges.allow(0); // whoever is given more waits until memory is managed
                if e.left_alone() {
                    self.failed = true;
                    e.warn_alone();
                } else {
                    self.activate();
                }
            }
            if self.failed {
                e.charges.allow(UNLIMITED);
            } else if !e.is_active() {
                e.charges.allow(self.approach.allow(look, &e.budget));
            }
            e.looked();
            if asked && self.failed {
                while e.notes.take().is_some() {}
                e.notes.finish();
            }
            return match next {
                Next::Wait(time) if !e.is_active() => time,
                Next::Wait(_) => Duration::from_millis(1),
                Next::Manage => Duration::from_millis(1),
            };
        }
        if !e.left_alone() {
            self.look_after(rss);
        }
        self.divide_budget();
        if let Some(warning) = e.space.take_warning() {
            warn(&warning);
        }
        // SAFETY: the end is in this thread's table, and the lease that had it is forgotten.
        let close = |fd| drop(unsafe { OwnedFd::from_raw_fd(fd) });
        e.fork.leases.collect(&e.space, close);
        if e.budget.over_limit() > 0 {
            e.wake_writer();
            e.kick_pager();
        }
        if gives {
            e.wake_writer();
            e.kick_pager();
        }
        self.pause(gives, rss)
    }

    /// How long to sleep while memory is managed.
    fn pause(&mut self, gives: bool, rss: i64) -> Duration {
        let (e, now) = (self.e, Instant::now());
        // Who grows by memory that is not managed yet has faults, too.
        let faults = minor_faults() + e.stat.pgfault.load(Relaxed);
        let moved = gives || (rss - self.last_rss).abs() > 16;
        if moved || faults != self.last_faults {
            self.moved = now;
        }
        (self.last_rss, self.last_faults) = (rss, faults);
        let quiet = now - self.moved;
        let rests = quiet > IDLE;
        e.wakeups.monitor_rests.store(rests, SeqCst);
        if rests {
            return self.tree.as_ref().map_or(REST, |tree| tree.rests(REST));
        }
        let room = e.budget.room().max(0) as u64;
        let calm = if quiet < CALM { 1_000 } else { 4_000 };
        Duration::from_micros((room * 7 / 10).clamp(calm, 20_000))
    }

    fn activate(&mut self) {
        let e = self.e;
        self.find_mappings();
        self.pin_threads();
        match e.activate(&self.proc, self.opened.take()) {
            Ok(()) => {
                self.find_mappings(); // those made meanwhile
                if e.conf.verbose {
                    message("the budget is near: memory is managed from now on");
                }
            }
            Err(why) => {
                self.failed = true;
                e.hopeless.store(true, SeqCst);
                let text = format!("{why}; this process goes on without a budget; `farpage doctor` says what to allow");
                warn_once_in_tree(WarningKind::Unmanaged, &text);
            }
        }
    }

    /// Says in the tree what this process has, asks for more and gives. Whether it gives. Now and then, looks after
    /// those who cannot.
    fn look_at_tree(&mut self, used: i64) -> bool {
        let e = self.e;
        let Some(tree) = &mut self.tree else { return false };
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        tree.mine.swapped.store(e.table.swapped_pages(), Relaxed);
        tree.mine.shared.store(e.budget.shared().max(0) as u64, Relaxed);
        tree.mine.stalls.store(load(&e.stat.allocstall), Relaxed);
        tree.segment.header.sums.add(e.stat);
        let seen = TreeLook {
            used: used.max(e.budget.total()),
            major: load(&e.stat.pgmajfault),
            faults: load(&e.stat.pgfault),
            managed: e.is_active(),
            most: e.most_pages(),
            engine: e.engine_pages(),
        };
        let gives = tree.look(&e.budget, seen);
        if std::mem::take(&mut tree.comes_back) {
            e.comes_back.store(true, SeqCst);
            e.kick_pager();
        }
        self.find_children();
        gives
    }

    /// Now and then: looks for children of which the tree does not know, and at strangers.
    fn find_children(&mut self) {
        let (Some(tree), now) = (&self.tree, Instant::now()) else { return };
        if now - self.children > CHILDREN {
            self.children = now;
            let mut left = CHILDREN_THREADS;
            // What cannot be read now is read the next time.
            let _ = threads(&self.proc, |thread| {
                if left > 0 {
                    strangers::find_own_children(tree.segment, tree.mine, thread.listed);
                    left -= 1;
                }
            });
        }
        look_after_strangers(tree.segment);
    }

    /// Looks for new mappings when resident memory has grown by pages that the engine did not hand out.
    fn look_after(&mut self, rss: i64) {
        let e = self.e;
        let now = Instant::now();
        // A thread that begins has faults.
        if now - self.pinned > Duration::from_millis(20) && self.moved >= self.pinned {
            self.pin_threads();
        }
        let pool = (e.space.pool_bytes() / PAGE_SIZE as u64) as i64;
        let known = lock(&e.lru).active_len() as i64 + e.frames.present_count() as i64 + pool;
        let unmanaged = rss - known - (e.table.bytes() / PAGE_SIZE) as i64;
        let step = (e.budget.promised() / 1024).max(32) + e.left_out.load(Relaxed);
        let overdue = e.budget.pressure() && now - self.scanned > self.scan_pause && rss != self.scanned_rss;
        if unmanaged > self.unmanaged + step || overdue || e.leaves_out_too_much() {
            self.find_mappings();
            self.unmanaged = unmanaged;
            (self.scanned, self.scanned_rss) = (now, rss);
            self.scan_pause = SCAN_PAUSE.max(now.elapsed() * SCAN_PAUSE_TIMES);
        } else {
            self.unmanaged = self.unmanaged.min(unmanaged);
        }
        self.relocated.look(e, unmanaged, &self.maps, &mut self.buffer);
        let pages = UnknownPages { rss, unknown: unmanaged, leaves_soon: self.relocated.is_expecting() };
        self.others.look(e, pages, &self.maps, &mut self.buffer);
    }

    /// What was worked out for another budget follows it, if that has become another one by an eighth.
    fn follow_budget(&mut self) {
        let (e, pages) = (self.e, self.e.budget.promised().max(1));
        if (pages - self.divided).abs() <= self.divided / 8 {
            return;
        }
        self.divided = pages;
        let bytes = pages as u64 * PAGE_SIZE as u64;
        lock(&e.lru).resize(pages as usize);
        // Its memory was reserved for the budget at the start.
        let limit = self.share.resize(bytes.min(e.conf.ram));
        match e.space.is_tiered() {
            true => limit.into_iter().for_each(|limit| e.space.set_pool_limit(limit)),
            false => e.space.set_pool_limit(memory_most(bytes.min(e.conf.ram))),
        }
    }

    /// Moves the border between pages as they are and compressed ones. Without a file there is nowhere else to go.
    fn divide_budget(&mut self) {
        let e = self.e;
        self.follow_budget();
        if !e.space.is_tiered() {
            return;
        }
        let (pool_load_ns, file_load_ns) = e.load_times.means();
        let (taken, skipped) = (e.stat.pgsteal_anon.load(Relaxed), e.stat.move_skipped.load(Relaxed));
        let mut lru = lock(&e.lru);
        let sample = Sample {
            major: e.stat.pgmajfault.load(Relaxed),
            major_file: e.stat.pgmajfault_file.load(Relaxed),
            loaded: e.stat.pswpin.load(Relaxed),
            stored: e.stat.pswpout.load(Relaxed),
            pages: (lru.active_len() + lru.cached_len() + lru.ahead_len()) as u64,
            stuck: e
                .controls
                .settle(Controller::Immovable, self.stuck.estimate(taken, skipped, u64::from(lru.active_lens().0))),
            unmanaged: e.budget.unmanaged() as u64,
            pool_bytes: e.stat.pool_bytes.load(Relaxed),
            pool_orig_bytes: e.stat.pool_orig_bytes.load(Relaxed),
            pool_raw_bytes: e.stat.huge_pages.load(Relaxed) * PAGE_SIZE as u64,
            pool_load_ns,
            file_load_ns,
            out: e.table.swapped_pages(),
            unchanged: e.clean.unchanged_share(),
        };
        let promised = e.budget.promised().max(1) as u64 * PAGE_SIZE as u64;
        let limit = self.share.decide(&e.controls, promised, |share| share.turn(sample, &mut lru.distances));
        drop(lru);
        e.space.settle_pools(self.share.is_settled());
        if let Some(limit) = limit {
            e.space.set_pool_limit(limit);
            e.space.let_raw_wait(self.share.is_worth_room());
            e.wake_writer();
        }
    }

    /// Hands mappings that are not managed yet to the pager.
    fn find_mappings(&mut self) {
        let e = self.e;
        e.left_out.store(0, Relaxed);
        let (mut parts, mut small) = (Vec::new(), Vec::new());
        let result = mappings(&self.maps, &mut self.buffer, |m, _| {
            if e.is_worth_managing(m) {
                e.adoptable_parts(m.start, m.end, &mut parts);
            } else if m.adoptable() && m.kind != Kind::Stack {
                e.adoptable_parts(m.start, m.end, &mut small);
            }
        });
        if result.is_err() {
            return;
        }
        let managed = lock(&e.managed);
        let unmanaged = |parts: &[(usize, usize)]| -> Vec<(usize, usize)> {
            let gaps = parts.iter().flat_map(|(start, end)| managed.gaps(Vpn::of(*start), Vpn::of(*end)));
            gaps.map(|(s, t)| (s.addr(), t.addr())).collect()
        };
        let (mut found, small) = (unmanaged(&parts), unmanaged(&small));
        drop(managed);
        if small.iter().map(|(start, end)| end - start).sum::<usize>() > e.large_in_all() {
            found.extend(small);
        }
        // Where most can be filled while registering waits for the lock of the address space, first.
        found.sort_by_key(|(start, end)| std::cmp::Reverse(end - start));
        if !found.is_empty() {
            lock(&e.candidates).append(&mut found);
            e.kick_pager();
        }
    }

    /// Notes where the control blocks of the program's threads are: the kernel writes to them when a thread has
    /// already begun to exit, and does not wait for a page then.
    fn pin_threads(&mut self) {
        // A thread that ends in this moment is simply missed.
        let _ = thread_blocks(&self.proc, |head| self.e.pin_thread(head));
        self.pinned = Instant::now();
    }
}
