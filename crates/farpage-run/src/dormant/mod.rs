//! A program that is far from its budget has no engine: no thread, no address space, no descriptor, no device. It
//! counts what it is given, and looks itself, at steps, whether it is still far. This file has what is known and
//! counted meanwhile, and the stage; what looks, and starts the engine, is above it: [`crate::lifecycle::start`].
//!
//! ```text
//!   OFF --sleep--> DORMANT --wake--> STARTING --ready--> STARTED  (a child of an engine that manages nothing: DORMANT)
//!    ^                 |  \_______________/  |
//!    |                 |   a fork is going on|
//!    '-----------------+---------------------'  nothing can be kept here: said once
//! ```
//!
//! Which bytes can become resident without another word to us? Those of writable private mappings (`data` of
//! `/proc/self/statm`, filled or not), what has been written and may not be written any more (part of the resident),
//! and the first thread's stack, up to its limit. So a look takes the larger one of data and resident memory
//! ([`Reach`]), and while that is below half of what the usual stack leaves of the budget ([`threshold`]), the sum
//! cannot pass the budget. It grows by functions that are interposed (`mmap`, `malloc`, `mprotect`, `mremap`, `brk`,
//! `pthread_create`): a thread that is given as much as was left at the last look looks again
//! ([`crate::shared::charge`]), *before* it gets the memory into its hands, and if the threshold is passed it starts
//! the engine and waits for it. So there is nothing that has to be watched meanwhile. What grows without any of them
//! (system call instructions of the program's own, a library with much static memory that is loaded later) is seen at
//! the next look. So a program that is not linked with libc has an engine from its start on, and any other from its
//! second thread on: runtimes that map memory by themselves, as Go's, are of one of these kinds.
//!
//! The calling thread may be in the middle of anything, so it does little: it reserves address space and starts the
//! engine's first thread, which does the rest in a descriptor table of its own ([`crate::monitor`]). No locks,
//! no allocation, no function of libc that sets `errno` or may be cancelled.
//!
//! Forks and the start exclude each other: a fork counts itself and waits for a start that is under way, which depends
//! on nothing that the forking thread has; a thread that would start it finds the count, and waits until the fork is
//! done, for a while.

use crate::probe::is_misc_device;
use crate::shared::charge::{Charges, UNLIMITED};
use crate::shared::given_uffds;
use crate::shared::start_error::StartError;
use crate::shared::state::{Engine, engine, forget_engine};
use crate::shared::warn_once::{self, WarningKind, warn_once_in_tree};
pub(crate) mod unwatched;

use farpage_base::mem::arena::Arena;
use farpage_base::mem::heap::Heap;
use farpage_base::sys::futex;
use farpage_base::sys::proc::{Reach, hold as hold_proc, minor_faults, reach};
use farpage_base::sys::thread::{block_signals, restore_signals};
use farpage_ipc::conf::{Conf, SwapSpec};
use farpage_ipc::stat::{Stat, StatPage};
use farpage_ipc::tree::{self, Member};
use farpage_swap::PAGE_SIZE;
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{Mode, OFlags, open};
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::time::{Duration, Instant};

pub(crate) const OFF: u32 = 0;
pub(crate) const DORMANT: u32 = 1;
pub(crate) const STARTING: u32 = 2;
const STARTED: u32 = 3;

pub(crate) static STAGE: AtomicU32 = AtomicU32::new(OFF);
/// Forks that are going on.
pub(crate) static FORKS: AtomicU32 = AtomicU32::new(0);
/// The process that is dormant. A child that shares its memory (`vfork`) is another one.
pub(crate) static HOME: AtomicU32 = AtomicU32::new(0);
/// That of the last start: a process that was detached may be attached to again.
static PLAN: AtomicPtr<StartPlan> = AtomicPtr::new(std::ptr::null_mut());
/// Bytes that were given up to the last look, for a process that cannot look.
pub(crate) static GIVEN: AtomicU64 = AtomicU64::new(0);
/// Bytes of shared memory that were mapped.
pub(crate) static SHARED: AtomicU64 = AtomicU64::new(0);
/// The program has asked for memory that its children have without content.
static HAS_WIPEONFORK: AtomicBool = AtomicBool::new(false);
/// Its memory is not to be managed.
static EXCLUDED: AtomicBool = AtomicBool::new(false);

/// The program has given itself a seccomp filter, which an engine that is started from then on would have.
pub(crate) static FILTERED: AtomicBool = AtomicBool::new(false);

/// What program threads were given. The engine goes on with it.
pub static CHARGES: Charges = Charges::new();

/// How long a thread waits at most for a start or a fork: what those wait for may be in its hands. It is late then, not
/// wrong.
pub(crate) const START_WAIT_MAX: Duration = Duration::from_secs(1);

/// In a tree, a thread that was given so much looks whether there is as much, bytes.
pub(crate) const LOOK_BYTES_MIN: u64 = 128 << 10;

/// A first thread's stack, usually.
const STACK: u64 = 8 << 20;

/// 1: the engine's first thread is there, and sleeps. A forked child has it that could copy more of its parent's memory
/// than there is room for. When it has copied some, is given more, or lives for longer than [`DOZE`], an engine is
/// made.
pub(crate) static DOZES: AtomicU32 = AtomicU32::new(0);

/// Forked children that are short have ended or become another program by then, also on a busy machine.
const DOZE: Duration = Duration::from_millis(100);

/// Between two looks.
const DOZE_LOOK: Duration = Duration::from_millis(4);

/// A process that is about to become another program has not had as many faults.
const DOZE_FAULTS: u64 = 512;

/// What a child may be given meanwhile, bytes.
const DOZE_BYTES: u64 = 1 << 20;

/// What the engine will be started with.
pub struct StartPlan {
    /// As given.
    pub conf: Conf,
    /// The library's global allocator.
    pub heap: &'static Heap,
    /// Address ranges that the engine's code uses.
    pub exclude: Vec<(usize, usize)>,
    /// Number of the inherited `/dev/userfaultfd`, or -1.
    pub(crate) uffd: i32,
    /// The statistics page that the launcher made for this process, or null.
    pub(crate) stat: AtomicPtr<Stat>,
    /// Reserved at the first start; children start in their copy.
    pub(crate) arena: OnceLock<Arena>,
    pub(crate) heap_given: AtomicBool,
    /// This process was forked by the one that was started.
    pub(crate) is_child: AtomicBool,
}

impl StartPlan {
    /// For tests: of a process that was not forked.
    #[cfg(test)]
    pub(crate) fn for_test(conf: Conf, heap: &'static Heap, arena: Arena) -> StartPlan {
        StartPlan {
            conf,
            heap,
            exclude: Vec::new(),
            uffd: -1,
            stat: AtomicPtr::default(),
            arena: OnceLock::from(arena),
            heap_given: AtomicBool::new(false),
            is_child: AtomicBool::new(false),
        }
    }

    /// The statistics page that the launcher made for this process.
    pub fn stat(&self) -> Option<&'static Stat> {
        // SAFETY: null, or a page that is mapped for good.
        unsafe { self.stat.load(SeqCst).as_ref() }
    }
}

impl StartPlan {
    /// Of the descriptors that the program started with, or was given, those that are the engine's, as far as they are
    /// still what they were. On the engine's first thread.
    pub(crate) fn descriptors(&self) -> [Option<RawFd>; 4] {
        // SAFETY: only asked what it is; if it is not open, the answer is no.
        let is_device = |fd: &RawFd| *fd >= 0 && is_misc_device(unsafe { BorrowedFd::borrow_raw(*fd) });
        let page = self.stat().and_then(|_| StatPage::still_there());
        let [main, other] = given_uffds::still_there().map_or([None; 2], |numbers| numbers.map(Some));
        [Some(self.uffd).filter(is_device), page, main, other]
    }

    /// The `/dev/userfaultfd` among [`StartPlan::descriptors`], or -1.
    pub(crate) fn uffd(&self) -> RawFd {
        self.uffd
    }

    /// Gives the engine's heap its memory, once; the rest of the arena is as new. On the engine's first thread.
    pub(crate) fn give_heap(&self) -> Result<(), StartError> {
        let arena = arena(self)?;
        if self.heap_given.swap(true, SeqCst) {
            // SAFETY: a child's, whose parent's engine managed nothing: it would have started again itself.
            unsafe { arena.begin_anew() };
        // SAFETY: fresh memory of the arena, handed over once.
        } else if !unsafe { self.heap.give(arena.heap, 0) } {
            return Err(StartError::Heap);
        }
        Ok(())
    }

    /// The swap devices. A file with a name is the one process's that was started with it.
    pub(crate) fn swap(&self) -> Vec<SwapSpec> {
        let mut specs = self.conf.swap.clone();
        if self.is_child.load(SeqCst) {
            specs.iter_mut().for_each(SwapSpec::beside);
        }
        specs
    }
}

/// The program's whole reach, in bytes, from which on there is an engine.
pub fn threshold(ram: u64) -> u64 {
    ram.saturating_sub(STACK) / 2
}

/// What was planned last.
pub(crate) fn plan() -> Option<&'static StartPlan> {
    // SAFETY: null, or a leaked box.
    unsafe { PLAN.load(SeqCst).as_ref() }
}

/// This process is dormant from now on, as planned.
pub(crate) fn begin(plan: StartPlan) {
    PLAN.store(Box::into_raw(Box::new(plan)), SeqCst);
    HOME.store(std::process::id(), SeqCst);
    STAGE.store(DORMANT, SeqCst);
}

/// The plan of a process that is dormant, and this one.
pub(crate) fn dormant() -> Option<&'static StartPlan> {
    (STAGE.load(SeqCst) == DORMANT && is_home()).then(plan).flatten()
}

pub(crate) fn is_home() -> bool {
    HOME.load(SeqCst) == std::process::id()
}

/// Resident memory of the program that may not be written, bytes, as far as it is known.
static READ_ONLY: AtomicU64 = AtomicU64::new(0);

/// What the program has and may have; `given`: for want of anything better.
pub(crate) fn here(given: u64) -> Reach {
    let seen =
        open("/proc/thread-self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).and_then(|file| reach(&file));
    let mut reach = seen.unwrap_or(Reach { resident: 0, data: given, others: 0 });
    // Beside what may be written, the program has what was and may not be any more: tables of libraries, mostly. At the
    // start it has hardly anything else; what it is cannot be more than what is there.
    let least = READ_ONLY.load(Relaxed).max(reach.resident.saturating_sub(reach.data)).min(reach.resident);
    READ_ONLY.store(least, Relaxed);
    reach.data = reach.data.saturating_add(least);
    // Grown without a call. What is usual is allowed for in the threshold.
    let stack = rustix::process::getrlimit(rustix::process::Resource::Stack).current.unwrap_or(u64::MAX);
    reach.data = reach.data.saturating_add(stack.saturating_sub(STACK));
    reach
}

pub(crate) fn publish(stat: &Stat, reach: Reach) {
    if let Some(segment) = tree::segment() {
        stat.budget_bytes.store(segment.most_of_one() * PAGE_SIZE as u64, Relaxed);
    }
    stat.rss_anon_bytes.store(reach.resident, Relaxed);
    stat.rss_anon_peak_bytes.fetch_max(reach.resident, Relaxed);
}

/// A last look, for a reader of the statistics of a program that has ended.
pub(crate) fn end() {
    let Some(plan) = dormant() else { return };
    let (stat, mine) = (plan.stat(), tree::mine());
    // There are many small ones, which begin and end all the time, and no user asks for those.
    if stat.is_some() || mine.is_some_and(|member| member.reach.load() > unwatched::SMALL) {
        let reach = here(0);
        stat.into_iter().for_each(|stat| publish(stat, reach));
        if let Some(segment) = tree::segment() {
            segment.header.largest.note(std::process::id(), reach.resident / PAGE_SIZE as u64);
        }
    }
    tree::leave();
}

/// On the engine's first thread: where it is to live.
pub(crate) fn arena(plan: &StartPlan) -> Result<Arena, StartError> {
    plan.arena.get().copied().ok_or(StartError::NoArena)
}

/// There is an engine, and it has looked.
pub(crate) fn ready() {
    warn_once::started();
    enter(STARTED);
}

/// There will be none.
pub(crate) fn failed(why: &StartError) {
    // What a sandbox forks that has no /proc counts in its tree, and others make room: that is said if it is much.
    let is_child = plan().is_some_and(|plan| plan.is_child.load(SeqCst));
    if !matches!(why, StartError::Proc(..)) || !is_child || tree::mine().is_none() {
        warn_once_in_tree(WarningKind::NoEngine, &format!("{why}; this process goes on without a budget"));
    }
    CHARGES.allow(UNLIMITED);
    if let Some(mine) = tree::mine() {
        mine.is_left_to_others(std::process::id());
    }
    enter(OFF);
}

pub(crate) fn enter(stage: u32) {
    STAGE.store(stage, SeqCst);
    futex::wake_all(&STAGE);
}

/// A process without an engine gets none any more. False: one is being started.
pub(crate) fn goes_off() -> bool {
    wait_for_start();
    !dozes() && STAGE.compare_exchange(DORMANT, OFF, SeqCst, SeqCst).map_or_else(|stage| stage != STARTING, |_| true)
}

/// An engine that has ended is forgotten, but not that the program looks at its own memory. A fork that is going on is
/// done before; the next one has none. Filters are judged anew at the next start. On a program thread.
pub(crate) fn forget_ended() {
    let Some(ended) = engine() else { return };
    // A handler that forks would wait for this thread.
    let mask = block_signals();
    ended.fork.lock.lock();
    EXCLUDED.fetch_or(ended.stage.excluded.load(SeqCst), SeqCst);
    FILTERED.store(false, SeqCst);
    forget_engine();
    enter(OFF);
    ended.fork.lock.unlock();
    restore_signals(mask);
}

/// Returns when no start is under way, or after a while.
pub(crate) fn wait_for_start() {
    let since = Instant::now();
    while STAGE.load(SeqCst) == STARTING {
        let left = START_WAIT_MAX.saturating_sub(since.elapsed());
        if left.is_zero() {
            return;
        }
        futex::wait(&STAGE, STARTING, Some(left.as_nanos() as u64));
    }
}

/// The program has asked for memory that its children have without content.
pub fn has_wipeonfork() {
    HAS_WIPEONFORK.store(true, SeqCst);
    if let Some(engine) = engine() {
        engine.memory.has_wipeonfork.store(true, SeqCst);
    }
}

/// From now on the memory of this process is its own. Returns when all of it is there. Called on a program thread.
pub fn leave_alone() {
    match engine() {
        Some(engine) => engine.leave_alone(),
        None if is_home() => EXCLUDED.store(true, SeqCst),
        None => {}
    }
    // It may have begun meanwhile.
    if let Some(engine) = engine().filter(|_| EXCLUDED.load(SeqCst)) {
        engine.leave_alone();
    }
}

/// On the engine's first thread, once program threads can see the engine: it learns what they have told before.
pub(crate) fn hand_over(e: &Engine) {
    THREADS.iter().map(|place| place.load(SeqCst)).filter(|block| *block != 0).for_each(|block| e.pin_thread(block));
    e.memory.has_wipeonfork.fetch_or(HAS_WIPEONFORK.load(SeqCst), SeqCst);
    e.stage.excluded.fetch_or(EXCLUDED.load(SeqCst), SeqCst);
}

/// Before a fork: the engine, if there is one. Without, there is none until [`fork_parent`] or [`fork_child`].
pub(crate) fn fork_prepare() -> Option<&'static Engine> {
    FORKS.fetch_add(1, SeqCst);
    loop {
        match STAGE.load(SeqCst) {
            STARTING => futex::wait(&STAGE, STARTING, None),
            STARTED => match engine() {
                Some(engine) => {
                    fork_parent();
                    return Some(engine);
                }
                // It is just being forgotten.
                None => futex::wait(&STAGE, STARTED, None),
            },
            _ => {
                tree::mine().into_iter().for_each(Member::forks);
                return None;
            }
        }
    }
}

/// The fork is done, or has failed.
pub(crate) fn fork_parent() {
    // None where a signal handler's fork in between has reset it in a child.
    let _ = FORKS.fetch_update(SeqCst, SeqCst, |forks| forks.checked_sub(1));
    futex::wake_all(&FORKS);
}

/// In a child with memory of its own, made while there was no engine: it is as far from the budget as its parent. Also
/// for one that was not announced. False: in its tree it is not, a monitor is to watch it. (`reach`: pages, where its
/// parent's place does not say what the child could fill.)
pub(crate) fn fork_child(reach: Option<u64>) -> bool {
    let was_announced = FORKS.swap(0, SeqCst) > 0;
    DOZES.store(0, SeqCst);
    hold_proc(-1);
    match STAGE.load(SeqCst) {
        DORMANT => HOME.store(std::process::id(), SeqCst),
        // A thread that would have started it would have found the fork.
        STARTING if was_announced => {
            HOME.store(std::process::id(), SeqCst);
            STAGE.store(DORMANT, SeqCst);
        }
        STARTING => enter(OFF), // half a start, and no thread to end it
        _ => {}
    }
    let holds = unwatched::forked(reach);
    if tree::segment().is_some() {
        // What its parent may still be given is not its own.
        CHARGES.drain();
        CHARGES.allow(if holds { LOOK_BYTES_MIN } else { DOZE_BYTES });
    }
    StatPage::forget();
    if let Some(plan) = plan() {
        plan.stat.store(std::ptr::null_mut(), SeqCst);
        plan.is_child.store(true, SeqCst);
    }
    holds
}

/// On an engine's first thread, in a child that is to have an engine by and by: returns when it is to be made.
/// Allocates nothing: the process may be copied meanwhile.
pub(crate) fn doze() {
    let since = Instant::now();
    while DOZES.load(SeqCst) != 0 {
        let is_over = since.elapsed() > DOZE || minor_faults() > DOZE_FAULTS;
        if is_over && STAGE.compare_exchange(DORMANT, STARTING, SeqCst, SeqCst).is_ok() {
            if FORKS.load(SeqCst) == 0 {
                DOZES.store(0, SeqCst);
                return;
            }
            enter(DORMANT);
        }
        futex::wait(&DOZES, 1, Some(DOZE_LOOK.as_nanos() as u64));
    }
}

/// Whether the engine's first thread sleeps.
pub(crate) fn dozes() -> bool {
    DOZES.load(SeqCst) != 0
}

/// Control blocks that are remembered, a power of two.
const BLOCKS: usize = 1024;

/// Control blocks of threads that were started before memory was managed, also of those that have ended: libc keeps
/// their stacks, and touches them in a forked child. A set, with the place by the address; what finds no place is not
/// remembered.
static THREADS: [AtomicUsize; BLOCKS] = [const { AtomicUsize::new(0) }; BLOCKS];

pub(crate) fn remember(block: usize) {
    let hash = (block as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    for i in 0..BLOCKS {
        let place = &THREADS[(hash as usize + i) % BLOCKS];
        match place.compare_exchange(0, block, SeqCst, SeqCst) {
            Err(other) if other != block => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::budget::Budget;

    const MIB: u64 = 1 << 20;

    /// What can be reached unseen stays below the budget: data, what is resident beside it, the usual stack.
    #[test]
    fn nothing_below_the_threshold_can_pass_the_budget() {
        for ram in [16 * MIB, 24 * MIB, 64 * MIB, 1 << 30, 1 << 40] {
            let most = threshold(ram);
            assert!(2 * most + STACK <= ram && most >= ram / 4, "{ram}: {most}");
            // And the engine is there before it has to act.
            let activation = Budget::new(ram / PAGE_SIZE as u64).activation() as u64 * PAGE_SIZE as u64;
            assert!(most <= activation, "{ram}: {most}, {activation}");
        }
    }

    #[test]
    fn the_reach_of_this_process_has_what_it_maps() {
        let before = here(0);
        let len = 64 * MIB as usize;
        let (prot, flags) = (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::PRIVATE);
        // SAFETY: new memory, unmapped again below.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }.unwrap();
        let after = here(0);
        // Other tests map and unmap, too.
        assert!(after.data > before.data + 32 * MIB && after.bytes() >= after.data, "{before:?} {after:?}");
        // SAFETY: mapped above, used by no other code.
        unsafe { rustix::mm::munmap(at, len) }.unwrap();
    }

    #[test]
    fn a_block_is_remembered_once() {
        let block = 0x7f00_1234_5000;
        (0..3).for_each(|_| remember(block));
        assert_eq!(THREADS.iter().filter(|place| place.load(SeqCst) == block).count(), 1);
    }
}
