//! The monitor thread: samples resident memory, switches the engine on, finds new mappings.
//!
//! It is started when the program has come to a part of its budget ([`crate::dormant`]), and makes the engine.
//! Below the activation threshold it is the only thread: it reads one line of `/proc` now and then, the sooner again
//! the less room is left. After that it samples every one to four milliseconds while there is pressure, the sooner if
//! there was more than the engine knew of: memory that the program maps anew is not registered until it was found here,
//! so the sampling interval bounds by how much the budget can be overrun.

mod activity;
pub mod build;
mod detach;
mod division;
mod ending;
mod member;
mod scan;

use self::activity::{Activity, REST};
use self::build::build;
use self::division::BudgetDivision;
use self::ending::Ending;
use self::member::Membership;
use self::scan::Scan;
use crate::budget::activation::{Approach, Look, Next};
use crate::budget::park;
use crate::budget::shared_pages::pages;
use crate::dormant::{self, StartPlan};
use crate::fork::reserve::given_to_children;
use crate::fork::restart;
use crate::pager::start::{self, PagerParts};
use crate::shared::charge::UNLIMITED;
use crate::shared::protocol::room_for_start;
use crate::shared::stacks::{MONITOR, stack};
use crate::shared::start_error::StartError;
use crate::shared::state::{Engine, give_up, show_engine};
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use crate::shared::{given_uffds, uffd_device};
use farpage_base::sys::message::{is_on_terminal, message, warn};
use farpage_base::sys::privilege::Privileges;
use farpage_base::sys::proc::{Proc, Reach, reach, stack_start};
use farpage_base::sys::thread::{begin_thread, close_all_but, exit_thread};
use farpage_base::sys::{cpu, futex};
use farpage_ipc::stat::StatPage;
use farpage_swap::PAGE_SIZE;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The first look of a forked child's monitor: many a child has ended or become another program by then.
const BORN: Duration = Duration::from_millis(5);

/// What the monitor holds open, and what it knows.
pub struct Monitor {
    e: &'static Engine,
    /// `/proc`.
    pub proc: &'static Proc,
    /// What the pager will need, if it is there already.
    opened: Option<PagerParts>,
    statm: OwnedFd,
    /// Before activation: how near it is.
    approach: Approach,
    /// Activation failed; said once.
    failed: bool,
    /// It has swapped something out; said once.
    swaps: bool,
    division: BudgetDivision,
    member: Membership,
    scan: Scan,
    activity: Activity,
    ending: Ending,
}

/// The entry of an engine's first thread.
pub(crate) extern "C" fn first(plan: usize) -> ! {
    begin_thread(farpage_ipc::stat::THREAD_NAME.as_bytes());
    // SAFETY: spawn_first passed the address of the plan, which is never freed.
    let plan: &'static StartPlan = unsafe { &*(plan as *const StartPlan) };
    close_program_files(plan.descriptors());
    let proc = Proc::open().map(Proc::hold);
    dormant::doze();
    match proc.map_err(|why| StartError::Proc("open /proc", why.into())).and_then(|()| make(plan)) {
        Ok(mut monitor) => {
            monitor.scan.begin();
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
fn make(plan: &'static StartPlan) -> Result<Monitor, StartError> {
    plan.give_heap()?;
    take_on_privileges().map_err(|why| StartError::Privileges(why.into()))?;
    // Refused: perhaps the limit is enough.
    let _room = room_for_start(0);
    let e = build(plan)?;
    let monitor = Monitor::new(e, false).map_err(|error| StartError::Proc("read /proc", error.into()))?;
    e.publish_look();
    show_engine(e);
    dormant::hand_over(e);
    Ok(monitor)
}

/// The entry of the first thread in a child of a process whose engine managed memory.
pub(crate) extern "C" fn main(engine: usize) -> ! {
    begin_thread(farpage_ipc::stat::THREAD_NAME.as_bytes());
    // SAFETY: spawn passed the address of the engine, which is never freed.
    let e: &'static Engine = unsafe { &*(engine as *const Engine) };
    close_program_files([Some(e.fork.inherited_end()).filter(|fd| *fd >= 0)]);
    // Refused: perhaps the limit is enough.
    let room = room_for_start(given_to_children(e).len());
    let mut monitor = match restart::inherit(e).and_then(|()| Monitor::new(e, true)) {
        Ok(m) => m,
        Err(error) => give_up("in a forked child, whose swapped-out memory would be lost: cannot read /proc", error),
    };
    e.publish_look();
    let seen = monitor.wakeups();
    let parts = restart::start_as_child(e, monitor.proc);
    drop(room);
    if let Some(parts) = parts {
        restart::start_late(e, monitor.proc, parts, BORN);
    }
    monitor.sleep(seen, BORN);
    monitor.scan.begin();
    monitor.run()
}

/// Leaves only the engine's own descriptors in the table, which was copied from the program's.
fn close_program_files<const N: usize>(keep: [Option<RawFd>; N]) {
    let (mut kept, mut n) = ([0; N], 0);
    for fd in keep.into_iter().flatten() {
        if !kept[..n].contains(&fd) {
            kept[n] = fd;
            n += 1;
        }
    }
    kept[..n].sort_unstable();
    close_all_but(&kept[..n]);
}

/// What the program's main thread holds now, if this one, which it has made, holds something else: it may have slept.
fn take_on_privileges() -> Result<(), rustix::io::Errno> {
    let proc = Proc::held()?;
    let (Ok(main), Ok(own)) = (Privileges::of(proc, None), Privileges::of_caller(proc)) else { return Ok(()) };
    if own.are_those_of(&main) { Ok(()) } else { main.take_on(proc) }
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
        let statm = proc.file("thread-self/statm")?;
        if !is_child {
            e.memory.stack_top.store(stack_start(proc).unwrap_or(0) / PAGE_SIZE * PAGE_SIZE, Relaxed);
        }
        let now = Instant::now();
        // Now, because later these calls may have to wait for a lock behind many threads, each of which fills memory.
        // Forked children can do without: there are programs that make thousands. Where forks are told, nothing may be
        // registered before there is a pager.
        let opened = if is_child || given_uffds::numbers().is_some() { None } else { start::open(e, proc).ok() };
        let scan = Scan::new(proc, now)?;
        let resident = reach(&statm).map_or(0, |now| pages(now.resident));
        Ok(Monitor {
            e,
            proc,
            opened,
            statm,
            approach: Approach::default(),
            failed: false,
            swaps: false,
            division: BudgetDivision::new(e),
            member: Membership::new(e, is_child, resident, now),
            scan,
            activity: Activity::new(now),
            ending: Ending::new(now),
        })
    }

    fn run(&mut self) -> ! {
        loop {
            let seen = self.wakeups();
            let pause = self.work();
            if self.e.wakeups.monitor_rests.load(Relaxed) {
                self.scan.rest();
                stack(&self.e.arena, MONITOR).give_back_unused();
            }
            self.sleep(seen, pause);
        }
    }

    /// How often it was woken so far: by this process, by others.
    fn wakeups(&self) -> (u32, Option<u32>) {
        let by_others = self.member.share.as_ref().map(|tree| tree.mine.wake.load(SeqCst));
        (self.e.wakeups.monitor.load(SeqCst), by_others)
    }

    /// Sleeps for so long, unless it was woken since `seen`; goes on as long as the process rests.
    fn sleep(&mut self, mut seen: (u32, Option<u32>), pause: Duration) {
        let mut until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_nanos() as u64;
            match self.member.share.as_ref().zip(seen.1) {
                _ if left == 0 => match self.rest_on() {
                    Some(more) => until = Instant::now() + more,
                    None => return,
                },
                Some((tree, by_others)) => {
                    futex::wait_any((&self.e.wakeups.monitor, seen.0), (&tree.mine.wake, by_others), left)
                }
                None => futex::wait(&self.e.wakeups.monitor, seen.0, Some(left)),
            }
            if self.wakeups() != seen {
                if !self.e.fork.channel.is_asked() {
                    return;
                }
                // For a fork, which has nothing to tell. What else woke it counts beside.
                self.stand_at_gate();
                seen.0 = seen.0.wrapping_add(1);
            }
        }
    }

    /// How long to go on sleeping: the process is idle, and has done nothing since the last look, so there is nothing
    /// to be seen. `None`: it may have, or others have.
    fn rest_on(&mut self) -> Option<Duration> {
        let parks = self.activity.parks_itself(self.e, self.member.share.as_ref());
        if parks || self.ending.is_near() || !self.activity.still_rests(self.e) {
            return None;
        }
        self.member.rests(REST)
    }

    /// Returns when no fork is going on; does meanwhile what the forking thread asks for.
    fn stand_at_gate(&self) {
        self.e.fork.gates.pass(|| {
            self.e.fork.channel.serve();
            self.e.oversee_at_gate(self.proc);
        });
    }

    /// A turn, unless a fork is going on.
    fn work(&mut self) -> Duration {
        let (e, fork) = (self.e, &self.e.fork);
        // Not waiting for the gate itself: a thread that has closed it since may want to be served.
        loop {
            self.stand_at_gate();
            if fork.gates.monitor.try_lock() {
                break;
            }
        }
        if e.stage.retired.load(SeqCst) && !e.is_active() {
            self.retire();
            fork.gates.monitor.unlock();
            e.following.end(MONITOR);
            exit_thread();
        }
        if detach::is_asked(e, &self.member) && detach::can_end(e) {
            self.opened = None;
            detach::end(e, &mut self.member);
        }
        let pause = self.turn();
        fork.gates.monitor.unlock();
        pause
    }

    /// No thread will look any more: one that is given what is left of the way to the budget says that there is none.
    fn retire(&mut self) {
        let e = self.e;
        let resident = reach(&self.statm).map_or(0, |now| now.resident);
        e.discovery.charges.allow(e.conf.ram.saturating_sub(resident));
        e.publish_look();
        while e.discovery.notes.take().is_some() {}
        e.discovery.notes.finish();
        self.member.leave();
    }

    /// One sample and what follows from it; returns how long to sleep.
    fn turn(&mut self) -> Duration {
        let e = self.e;
        self.ending.look(self.proc);
        e.oversee_privileges(self.proc);
        self.activity.parks_itself(e, self.member.share.as_ref());
        let before = e.budget.grown();
        // Once memory is managed this is the pager's to ask.
        let given = if e.is_active() { 0 } else { (e.discovery.charges.drain() / PAGE_SIZE as u64) as i64 };
        let (rss, others) = match reach(&self.statm) {
            Ok(Reach { resident, others, .. }) => (pages(resident), pages(others)),
            Err(_) => return Duration::from_millis(1), // the process is ending
        };
        let all = rss;
        let rss = self.member.own_pages(e, self.proc, rss);
        let unexpected = e.budget.sample(rss, before);
        e.publish_levels(all);
        if e.stage.detaching.load(SeqCst) {
            return detach::turn(e, &self.member, rss);
        }
        let gives = self.member.look(e, self.proc, rss);
        if gives {
            e.space.gives();
        }
        if others > e.most_pages() {
            self.scan.look_at_shared(e, self.proc);
        }
        if !e.stage.active.load(Relaxed) {
            let look = Look { rss, given, threads: self.proc.threads(), cpus: cpu::count() };
            let mut next = self.approach.step(look, &e.budget);
            let tree = self.member.share.as_ref();
            while next == Next::Manage && tree.is_some_and(|tree| tree.defer_activation(&e.budget, e.most_pages())) {
                next = self.approach.step(look, &e.budget);
            }
            let parks = tree.is_some_and(|tree| tree.mine.park.load(SeqCst) == park::ASKED);
            let asked = e.early_notes() || parks;
            if (next == Next::Manage || asked) && !self.failed {
                e.discovery.charges.allow(0); // a thread that is given more waits until memory is managed
                if e.is_excluded() {
                    self.failed = true;
                    e.warn_excluded();
                } else {
                    self.activate();
                }
            }
            if self.failed {
                e.discovery.charges.allow(UNLIMITED);
            } else if !e.is_active() {
                e.discovery.charges.allow(self.approach.allow(look, &e.budget));
            }
            e.publish_look();
            if asked && self.failed {
                while e.discovery.notes.take().is_some() {}
                e.discovery.notes.finish();
            }
            return match next {
                Next::Wait(time) if !e.is_active() => time,
                Next::Wait(_) => Duration::from_millis(1),
                Next::Manage => Duration::from_millis(1),
            };
        }
        if !e.is_excluded() {
            if self.scan.pin_due().is_some_and(|then| self.activity.has_moved_since(then)) {
                self.scan.pin_threads(e, self.proc);
            }
            self.scan.look_after(e, rss);
        }
        self.say_that_it_swaps();
        self.division.turn(e);
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
        self.activity.pause(e, &self.member, gives, rss, unexpected)
    }

    /// On a terminal: else nothing is said until it is slow.
    fn say_that_it_swaps(&mut self) {
        if self.swaps || self.e.conf.quiet || self.e.stat.pswpout.load(Relaxed) == 0 {
            return;
        }
        self.swaps = true;
        if is_on_terminal(dormant::FILTERED.load(SeqCst)) {
            let text = "the budget is used up, so swapping has begun; farpage top shows it, -q: without this line";
            warn_once_in_tree(WarningKind::Swaps, text);
        }
    }

    fn activate(&mut self) {
        let e = self.e;
        self.scan.find_mappings(e);
        self.scan.pin_threads(e, self.proc);
        match start::activate(e, self.proc, self.opened.take()) {
            Ok(()) => {
                self.scan.find_mappings(e); // those made meanwhile
                if e.conf.verbose {
                    message("the budget is near: memory is managed from now on");
                }
            }
            Err(why) => {
                self.failed = true;
                e.stage.activation_failed.store(true, SeqCst);
                let text = format!("{why}; this process goes on without a budget; `farpage doctor` says what to allow");
                warn_once_in_tree(WarningKind::Unmanaged, &text);
            }
        }
    }
}
