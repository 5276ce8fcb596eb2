//! A start in a program that runs already: [`super::preload`]'s part of it.
//!
//! By then there are threads, fork handlers of others, memory above the budget. The engine is started at once: it finds
//! threads by what the kernel knows of them, and memory in `/proc/self/maps`, as it does all the time. Of threads that
//! have ended libc keeps the stacks, and nothing tells where they are: they are looked for here.
//!
//! Caller: the preload library, on a program thread that holds no lock of the allocator's or the loader's. No locks.

use crate::dormant::{self, CHARGES, OFF, STAGE};
use crate::lifecycle::{preload, program, start};
use crate::pager::robust;
use crate::shared::charge::UNLIMITED;
use crate::shared::given_uffds;
use crate::shared::outcome::{StartFailure, StartOutcome};
use crate::shared::state::{Engine, engine};
use crate::shared::warn_once::{self, set_listener};
use farpage_base::mem::heap::Heap;
use farpage_base::sys::control_blocks;
use farpage_base::sys::descriptor::keep_across_exec;
use farpage_base::sys::futex;
use farpage_base::sys::message::set_quiet;
use farpage_base::sys::pagemap;
use farpage_base::sys::proc::Proc;
use farpage_base::sys::raw::ErrnoText;
use farpage_base::sys::uffd::{FEATURES, OpenError, Uffd};
use farpage_ipc::conf::{Conf, ConfError, ENV_CONF, ENV_UFFD_FD};
use farpage_ipc::tree::{self, ENV_TREE_FD};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Why a program that runs already was not put under a budget. `Display` is one line.
#[derive(Debug, thiserror::Error)]
pub enum LateStartError {
    /// Of the text that configures it.
    #[error("the configuration is not UTF-8")]
    NotUtf8,
    /// By this library or another one.
    #[error("this process runs under farpage already")]
    Already,
    /// What stands behind its functions cannot be found by name then.
    #[error("the library was preloaded, and begins with the program")]
    Preloaded,
    /// What it says.
    #[error(transparent)]
    Configuration(#[from] ConfError),
    /// As the kernel says.
    #[error("cannot open /proc/self/pagemap: {}", ErrnoText(*.0))]
    Pagemap(Errno),
    /// The kernel gives none.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// As the kernel says.
    #[error("cannot make the memory that all processes of a tree share: {}", ErrnoText(*.0))]
    Tree(#[from] Errno),
    /// It has no place in the tree's memory.
    #[error("cannot join its own tree")]
    Join,
    /// libc has no room for handlers.
    #[error("cannot follow forks: out of memory")]
    Forks,
    /// What the engine has said.
    #[error(transparent)]
    Engine(#[from] StartFailure),
}

/// What a start needs, had before anything changes.
pub struct Prepared {
    conf: Conf,
    /// What is open for what the process starts: the tree's segment, and the userfaultfd device, if it was given.
    files: Vec<OwnedFd>,
    /// The environment variables that name them, and the configuration.
    pub variables: Vec<(&'static str, String)>,
}

/// Reads the configuration, and makes the segment of a tree that begins with this process, if it is to join none.
/// `device`: an open `/dev/userfaultfd`, `segment`: that of the tree to join; they stay the caller's, or are -1.
///
/// # Errors
/// The configuration is wrong, the kernel gives no userfaultfd, or there is no descriptor left.
pub fn prepare(configuration: &str, device: c_int, segment: c_int) -> Result<Prepared, LateStartError> {
    let conf = Conf::parse(configuration)?;
    // The engine opens its own when the process comes near its budget. A process that would be refused then is told
    // now. SAFETY: the caller's, open for this call.
    let device = (device >= 0).then(|| unsafe { BorrowedFd::borrow_raw(device) });
    let pagemap = pagemap::own().map_err(LateStartError::Pagemap)?;
    if given_uffds::numbers().is_none() {
        drop(Uffd::open(device, FEATURES, pagemap)?);
    }
    // SAFETY: the caller's, open for this call.
    let joined = (segment >= 0).then(|| unsafe { BorrowedFd::borrow_raw(segment) });
    let made;
    let segment = match joined {
        Some(segment) => segment,
        None => {
            made = tree::create(conf.ram, None)?;
            made.as_fd()
        }
    };
    tree::open(segment)?;
    let segment = keep_across_exec(segment)?;
    let name = tree::named(segment.as_fd())?;
    let mut variables = vec![(ENV_CONF, configuration.to_owned()), (ENV_TREE_FD, name)];
    let mut files = vec![segment];
    if let Some(device) = device {
        let kept = keep_across_exec(device)?;
        variables.push((ENV_UFFD_FD, kept.as_raw_fd().to_string()));
        files.push(kept);
    }
    Ok(Prepared { conf, files, variables })
}

/// The process has been detached, or has no engine: it belongs to no tree from now on, and gets no engine. False: it
/// has one, or one is being started. On a program thread.
pub fn detach() -> bool {
    const ENDS: Duration = Duration::from_secs(1);
    if !dormant::goes_off() {
        return false;
    }
    let since = Instant::now();
    let has_engine = || engine().is_some_and(|e| e.is_active() || e.fork.monitor_is_there());
    while has_engine() {
        if since.elapsed() > ENDS {
            return false;
        }
        futex::wait(&AtomicU32::new(0), 0, Some(1_000_000));
    }
    dormant::forget_ended();
    CHARGES.allow(UNLIMITED);
    tree::forget();
    true
}

/// Whether this process has an engine, or may get one. On a program thread.
pub fn is_there() -> bool {
    let has_ended = |e: &Engine| e.stage.retired.load(SeqCst) && !e.is_active();
    STAGE.load(SeqCst) != OFF && !engine().is_some_and(has_ended)
}

/// Notes the control blocks of the threads that there were before the library stood in front of `pthread_create`, also
/// of those that have ended. Where they cannot be looked for, a forked child may have to be ended, with a message. On a
/// program thread.
pub fn note_control_blocks() {
    let _ =
        Proc::open().and_then(|proc| control_blocks::above_stacks(&proc, |block| program::thread_started(block, 0)));
}

/// Starts the engine, and waits for it if `wait` says so. What becomes of it afterwards is noted in `outcome`.
///
/// # Errors
/// Why there is none.
pub fn start(
    prepared: Prepared,
    heap: &'static Heap,
    outcome: &'static StartOutcome,
    wait: bool,
) -> Result<(), LateStartError> {
    let Prepared { conf, files, .. } = prepared;
    warn_once::begin();
    outcome.begin();
    if !tree::joining::join() {
        return Err(LateStartError::Join);
    }
    if conf.quiet {
        set_quiet();
    }
    if !preload::follow_forks() {
        return Err(LateStartError::Forks);
    }
    // It may have some.
    robust::robust_mutexes_seen();
    set_listener(outcome);
    start::at_once(conf, heap, wait);
    if let Some(why) = outcome.failure() {
        warn_once::unset_listener();
        return Err(why.into());
    }
    // They stay open.
    for file in files {
        let _stays_open = file.into_raw_fd();
    }
    Ok(())
}
