//! When the engine starts, and its first thread. What is known until then is in [`crate::dormant`], whose header
//! has the stages.
//!
//! Callers: program threads, by way of the preload library and [`crate::lifecycle::program`]; the initialiser; a forked
//! child ([`crate::lifecycle::fork_handlers`](crate::fork)). No locks.

use crate::dormant::unwatched;
use crate::dormant::{
    self, CHARGES, DORMANT, DOZES, FILTERED, FORKS, GIVEN, LOOK_BYTES_MIN, OFF, SHARED, STAGE, START_WAIT_MAX,
    STARTING, StartPlan, dormant, enter, failed, here, is_home, publish, threshold, wait_for_start,
};
use crate::lifecycle::images::{own_images, program_needs_libc};
use crate::monitor;
use crate::monitor::build::arena_sizes;
use crate::shared::budget::Budget;
use crate::shared::stacks::{MONITOR, stack};
use crate::shared::start_error::StartError;
use crate::shared::state::{Engine, engine, forget_engine};
use crate::shared::uffd_device;
use farpage_base::mem::arena::Arena;
use farpage_base::mem::heap::Heap;
use farpage_base::sys::message::begin_messages;
use farpage_base::sys::proc::{Proc, has_ended_child};
use farpage_base::sys::raw::gettid;
use farpage_base::sys::thread::{Start, block_signals, restore_signals, spawn};
use farpage_base::sys::{futex, valgrind};
use farpage_ipc::conf::Conf;
use farpage_ipc::stat::StatPage;
use farpage_ipc::tree;
use farpage_ipc::tree::strangers::{self, Watch};
use farpage_swap::PAGE_SIZE;
use rustix::fd::{BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::time::{Duration, Instant};

/// The program begins without an engine, or with one if its static memory is large. Called once, by the initialiser, on
/// the only thread; `heap` is the library's global allocator.
pub fn sleep(conf: Conf, heap: &'static Heap) {
    begin_messages(false, keep_unsaid);
    begin_dormant(conf, heap);
    match dormant() {
        // Nothing that it does would be seen.
        Some(plan) if !program_needs_libc() => wake(plan, true),
        _ => look(0),
    }
}

/// The program runs already, and has an engine from now on; with `wait`, when this returns.
pub(crate) fn at_once(conf: Conf, heap: &'static Heap, wait: bool) {
    begin_messages(true, keep_unsaid);
    // If a fork puts it off for too long, the next thread that is given memory starts it.
    CHARGES.allow(0);
    begin_dormant(conf, heap);
    if let Some(plan) = dormant() {
        wake(plan, wait);
    }
}

/// Keeps a message that could not be written for `farpage stat`.
fn keep_unsaid(text: &[u8]) {
    let of_plan = || dormant::plan().and_then(StartPlan::stat);
    if let Some(stat) = engine().map(|engine| engine.stat).or_else(of_plan) {
        stat.unsaid.keep(text);
    }
}

/// Makes the plan. The arena is a new one: of that of an engine that was here before some stays ([`Arena::give_back`]).
fn begin_dormant(conf: Conf, heap: &'static Heap) {
    let stat = StatPage::of_launcher();
    if let Some(stat) = stat {
        StatPage::begin(stat, conf.ram);
    }
    let mut exclude = own_images();
    if let Some(before) = dormant::plan() {
        exclude.extend(before.exclude.iter().copied());
        exclude.extend(before.arena.get().map(|arena| (arena.all.base, arena.all.end())));
        exclude.sort_unstable();
        exclude.dedup();
    }
    dormant::begin(StartPlan {
        exclude,
        uffd: uffd_device::passed_on(),
        stat: AtomicPtr::new(stat.map_or(std::ptr::null_mut(), |stat| std::ptr::from_ref(stat).cast_mut())),
        arena: OnceLock::new(),
        heap_given: AtomicBool::new(false),
        is_child: AtomicBool::new(false),
        conf,
        heap,
    });
}

/// The program was given `bytes` that it may fill. Returns when it cannot pass its budget with them unseen. Called on a
/// program thread, while there is no engine.
pub fn handed_out(bytes: usize) {
    match STAGE.load(Relaxed) {
        DORMANT | STARTING if CHARGES.charge(bytes.max(PAGE_SIZE) as u64) && is_home() => look(0),
        _ => {}
    }
}

/// The program's reach has grown by what cannot be counted: looks, whatever was counted. As [`handed_out`].
pub fn grown() {
    if STAGE.load(Relaxed) == DORMANT && is_home() {
        look(0);
    }
}

/// `bytes` of memory that is shared were mapped, anonymous or, where `fd` says so, of a file. They do not count; but
/// a monitor must be there to say so if they become more than the budget. As [`handed_out`].
pub fn shared(bytes: usize, fd: Option<RawFd>) {
    const TMPFS: u64 = 0x0102_1994;
    let Some(plan) = dormant() else { return };
    // SAFETY: only asked what it is; if it is not open, there is no answer.
    let fd = fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let is_memory = fd.is_none_or(|fd| rustix::fs::fstatfs(fd).is_ok_and(|of| of.f_type as u64 == TMPFS));
    if is_memory && SHARED.fetch_add(bytes as u64, SeqCst).saturating_add(bytes as u64) > plan.conf.ram {
        wake(plan, false);
    }
}

/// `bytes` are about to be filled in one call: the engine that has to be there by then, if any.
pub fn engine_for(bytes: usize) -> Option<&'static Engine> {
    if STAGE.load(Relaxed) == DORMANT && is_home() {
        look(bytes as u64);
    }
    engine()
}

/// The engine of a forked child whose first thread sleeps ([`fork_child`]): it is made now.
pub fn engine_that_dozes() -> Option<&'static Engine> {
    match dormant() {
        Some(plan) if dormant::dozes() => wake(plan, true),
        Some(_) => return None,
        None => wait_for_start(),
    }
    engine()
}

/// Looks how far the budget is, and starts the engine if `more` bytes might come near to it.
fn look(more: u64) {
    let Some(plan) = dormant() else { return wait_for_start() };
    let given = CHARGES.drain();
    let reach = here(given + GIVEN.fetch_add(given, SeqCst));
    if let Some(stat) = plan.stat() {
        publish(stat, reach);
    }
    if let Some(mine) = tree::mine() {
        mine.used.store(reach.resident / PAGE_SIZE as u64);
    }
    // What is to be parked has to be watched.
    let most = threshold(plan.conf.ram).min(if plan.conf.idle.is_some() { WORTH_PARKING } else { u64::MAX });
    let reach = reach.bytes().saturating_add(more);
    // Not less than a part: very near to it, one would look at each piece.
    let mut left = most.saturating_sub(reach).max(most / 16);
    if tree::mine().is_some() {
        left = left.min((reach / 4).clamp(LOOK_BYTES_MIN, LOOK_BYTES_MAX));
    }
    if reach > most || !unwatched::hold((reach + left).div_ceil(PAGE_SIZE as u64)) {
        wake(plan, true);
    } else {
        CHARGES.allow(left);
    }
}

/// In a tree a process without an engine claims so much at most beyond what it could fill, bytes, and looks again when
/// it was given as much. The least is [`LOOK_BYTES_MIN`].
const LOOK_BYTES_MAX: u64 = 16 << 20;

/// A smaller process is not worth it, bytes.
const WORTH_PARKING: u64 = 32 << 20;

/// The engine starts, if there is none: the process is to be parked. On a program thread that holds no lock.
pub fn wake_now() {
    if let Some(plan) = dormant() {
        wake(plan, false);
    }
}

/// The program is about to wait for children, or (`blocks` is false) to ask for them. Some may be unable to load the
/// library: then a process of the tree has to look after them, and this process, which has nothing else to do, gets a
/// monitor, unless there is one in the tree. Of a child that has just been forked it is not known yet: it is waited
/// for, but not for long. On a program thread.
pub fn waits_for_children(blocks: bool) {
    // (A handler that interrupts a fork would wait for it.)
    let may = !FILTERED.load(SeqCst) && FORKS.load(SeqCst) == 0;
    let Some(plan) = dormant().filter(|_| may) else { return };
    let (Some(segment), Some(mine)) = (tree::segment(), tree::mine()) else { return };
    if segment.needs_a_watch() {
        return wake(plan, false);
    }
    let since = Instant::now();
    let mut pause_ns = UNDECIDED_PAUSE_NS;
    let mut has_looked = !blocks;
    loop {
        match strangers::watch(segment, mine) {
            Watch::NotNeeded if has_looked => return,
            Watch::NotNeeded => {
                strangers::find_own_children(segment, mine, gettid());
                has_looked = true;
            }
            Watch::Undecided if !blocks || has_ended_child() => return,
            Watch::Undecided if since.elapsed() < UNDECIDED_MAX => {
                strangers::wait_for_news(segment, mine, pause_ns);
                pause_ns = (2 * pause_ns).min(UNDECIDED_PAUSE_MAX_NS);
            }
            // Without /proc, as in a sandbox of Chromium's, no child can be looked at, and no engine started.
            Watch::Undecided | Watch::Missing if Proc::open().is_err() => return,
            Watch::Undecided | Watch::Missing => return wake(plan, false),
        }
    }
}

/// How long a process waits to hear what a child becomes: as long as a child without an engine waits ([`dormant`]
/// dozes), because on a busy machine a short one takes long, too. And between two looks, at first and at most.
const UNDECIDED_MAX: Duration = Duration::from_millis(100);
const UNDECIDED_PAUSE_NS: u64 = 100_000;
const UNDECIDED_PAUSE_MAX_NS: u64 = 2_000_000;

/// Starts the engine, and waits for it if that is wanted.
fn wake(plan: &'static StartPlan, and_wait: bool) {
    let since = Instant::now();
    loop {
        // A handler that interrupts the start would wait for it.
        let mask = block_signals();
        let mine = STAGE.compare_exchange(DORMANT, STARTING, SeqCst, SeqCst).is_ok();
        let forks = if mine { FORKS.load(SeqCst) } else { 0 };
        if mine && forks == 0 {
            if let Err(why) = begin_or_rouse(plan) {
                failed(&why);
            }
        } else if mine {
            enter(DORMANT);
        }
        restore_signals(mask);
        let left = START_WAIT_MAX.saturating_sub(since.elapsed());
        if forks == 0 || left.is_zero() {
            break;
        }
        futex::wait(&FORKS, forks, Some(left.as_nanos() as u64));
    }
    if and_wait {
        wait_for_start();
    }
}

/// In a child with memory of its own, made while there was no engine.
pub(crate) fn fork_child() {
    if !dormant::fork_child(None) {
        doze();
    }
}

/// In a forked child that could pass what its tree has without another word: the engine's first thread is there, and
/// makes the engine if the child lives for longer than a moment.
fn doze() {
    let Some(plan) = dormant() else { return };
    let mask = block_signals();
    DOZES.store(1, SeqCst);
    if let Err(why) = begin(plan) {
        DOZES.store(0, SeqCst);
        failed(&why);
    }
    restore_signals(mask);
}

/// The parent has forked a child, and may fork others.
pub(crate) fn fork_parent() {
    dormant::fork_parent();
    if let Some(plan) = dormant().filter(|_| unwatched::leaves_no_room_for_a_child()) {
        wake(plan, false);
    }
}

/// The engine's first thread is started, or does not sleep any longer.
fn begin_or_rouse(plan: &'static StartPlan) -> Result<(), StartError> {
    if DOZES.swap(0, SeqCst) == 0 {
        return begin(plan);
    }
    futex::wake_all(&DOZES);
    Ok(())
}

/// Starts the engine's first thread.
fn begin(plan: &'static StartPlan) -> Result<(), StartError> {
    if FILTERED.load(SeqCst) {
        return Err(StartError::Filtered);
    }
    if valgrind::is_here() {
        return Err(StartError::Valgrind);
    }
    let arena = match plan.arena.get() {
        Some(arena) => *arena,
        None => {
            let sizes = arena_sizes(plan.conf.ram);
            let arena = Arena::reserve(sizes).map_err(|e| StartError::AddressSpace(e.into()))?;
            *plan.arena.get_or_init(|| arena)
        }
    };
    spawn_first(plan, &arena).map_err(|e| StartError::Thread(e.into()))
}

/// The calling program thread is about to give itself a seccomp filter, or all of them. Not under that, but under one
/// of its own, the engine is to run: so it is started before. Whether a filter for all threads has to be made one for
/// the caller, because there are no others but the engine's. For all others no engine is started any more, and one that
/// manages nothing yet ends. `is_main`: the caller is the main thread.
pub fn before_filter(is_main: bool, for_all: bool) -> bool {
    let threads = || rustix::fs::stat("/proc/self/task").map_or(0, |stat| stat.st_nlink as usize).saturating_sub(2);
    // One that has begun is not seen before it has started.
    wait_for_start();
    let engine = || engine().filter(|e| e.fork.is_home());
    let own = || engine().map_or(usize::from(dormant::dozes()), Engine::threads);
    let alone = || is_main && threads() == own() + 1;
    let for_others = for_all && !alone();
    let plan = dormant();
    if let Some(plan) = plan.filter(|_| !for_others) {
        wake(plan, true);
    }
    let engine = engine();
    match engine {
        Some(engine) if for_others => engine.retire(),
        Some(engine) if is_main => engine.confine(),
        _ => {}
    }
    // (Not by the child of a vfork, whose memory is its parent's.)
    if plan.is_some() || engine.is_some() {
        FILTERED.store(true, SeqCst);
    }
    for_all && !for_others
}

/// In a child whose parent had an engine that managed nothing: it needs none before it grows, if it cannot do so
/// unseen.
pub(crate) fn fork_child_of(e: &Engine) {
    let activation_failed = e.stage.activation_failed.load(SeqCst);
    forget_engine();
    STAGE.store(if activation_failed { OFF } else { DORMANT }, SeqCst);
    let reach = here(GIVEN.load(SeqCst)).bytes();
    let holds = dormant::fork_child(Some(reach / PAGE_SIZE as u64));
    let Some(plan) = dormant() else { return };
    if tree::segment().is_some() {
        if !holds {
            doze();
        }
        return; // it looks soon
    }
    let near = Budget::new(plan.conf.ram.div_ceil(PAGE_SIZE as u64)).activation() as u64 * PAGE_SIZE as u64;
    if reach > near {
        wake(plan, false);
    } else {
        CHARGES.drain();
        CHARGES.allow((near - reach).max(threshold(plan.conf.ram) / 16));
    }
}

/// A thread was started, with so much stack. On a program thread. The engine starts now: a program with threads need
/// not be alone, and runtimes that map memory by system call instructions of their own (Go's) have them.
pub(crate) fn thread_started(stack: usize) {
    handed_out(stack);
    if let Some(plan) = dormant() {
        wake(plan, true);
    }
}

/// Starts the engine's first thread, which makes the engine. On a program thread; the new thread has a copy of its
/// descriptors.
///
/// # Errors
/// The errno of clone.
pub(crate) fn spawn_first(plan: &'static StartPlan, arena: &Arena) -> Result<(), rustix::io::Errno> {
    let arg = std::ptr::from_ref(plan) as usize;
    let name = farpage_ipc::stat::THREAD_NAME.as_bytes();
    let start = Start { entry: monitor::first, arg, name, share_files: false };
    // SAFETY: the monitor's place in the stacks part; there is no other engine in this process. The entry keeps the
    // rules for engine threads.
    unsafe { spawn(stack(arena, 0), &start) }.map(drop)
}

/// In a forked child: starts the first engine thread again, which gets a descriptor table of its own: a copy of the
/// caller's.
///
/// # Errors
/// One line.
pub fn spawn_monitor(e: &'static Engine) -> Result<(), StartError> {
    let name = farpage_ipc::stat::THREAD_NAME.as_bytes();
    e.fork.own_here();
    let tid = e
        .spawn_patiently(MONITOR, &Start { entry: monitor::main, arg: e.address(), name, share_files: false })
        .map_err(|e| StartError::Thread(e.into()))?;
    // Known before a thread can fork: a fork fetches descriptors from this thread's table.
    e.fork.set_monitor(tid);
    Ok(())
}
