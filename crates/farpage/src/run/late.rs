//! A start in a program that runs already: [`super::preload`]'s part of it.
//!
//! By then there are threads, fork handlers of others, memory above the budget. The engine is started at once: it finds
//! threads by what the kernel knows of them, and memory in `/proc/self/maps`, as it does all the time.
//!
//! Caller: the preload library, on a program thread that holds no lock of the allocator's or the loader's. No locks.

use crate::conf::{Conf, ENV_CONF, ENV_UFFD_FD, give_variables};
use crate::mem::heap::Heap;
use crate::run::given_uffds;
use crate::run::outcome::StartOutcome;
use crate::run::told::{self, hear};
use crate::run::{pager::robust, preload, start};
use crate::sys::descriptor::keep_across_exec;
use crate::sys::message::set_quiet;
use crate::sys::pagemap;
use crate::sys::uffd::{FEATURES, Uffd};
use crate::tree::{self, ENV_TREE_FD};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ffi::c_int;

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
pub fn prepare(configuration: &str, device: c_int, segment: c_int) -> Result<Prepared, String> {
    let conf = Conf::parse(configuration).map_err(|why| why.to_string())?;
    // The engine opens its own when the process comes near its budget. Who would be refused then is told now.
    // SAFETY: the caller's, open for this call.
    let device = (device >= 0).then(|| unsafe { BorrowedFd::borrow_raw(device) });
    let pagemap = pagemap::own().map_err(|why| format!("cannot open /proc/self/pagemap: {why}"))?;
    if given_uffds::numbers().is_none() {
        drop(Uffd::open(device, FEATURES, pagemap).map_err(|why| why.to_string())?);
    }
    let failed = |why: rustix::io::Errno| format!("cannot make the memory that all processes of a tree share: {why}");
    // SAFETY: the caller's, open for this call.
    let joined = (segment >= 0).then(|| unsafe { BorrowedFd::borrow_raw(segment) });
    let made = if joined.is_none() { Some(tree::create(conf.ram, None).map_err(failed)?) } else { None };
    let segment = joined.or(made.as_ref().map(AsFd::as_fd)).ok_or("no tree")?;
    tree::open(segment).map_err(failed)?;
    let segment = keep_across_exec(segment).map_err(failed)?;
    let name = tree::named(segment.as_fd()).map_err(failed)?;
    let mut variables = vec![(ENV_CONF, configuration.to_owned()), (ENV_TREE_FD, name)];
    let mut files = vec![segment];
    if let Some(device) = device {
        let kept = keep_across_exec(device).map_err(failed)?;
        variables.push((ENV_UFFD_FD, kept.as_raw_fd().to_string()));
        files.push(kept);
    }
    give_variables(variables.clone());
    Ok(Prepared { conf, files, variables })
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
) -> Result<(), String> {
    let Prepared { conf, files, .. } = prepared;
    if !tree::joining::join() {
        return Err("cannot join its own tree".into());
    }
    if conf.quiet {
        set_quiet();
    }
    if !preload::follow_forks() {
        return Err("cannot follow forks: out of memory".into());
    }
    // It may have some.
    robust::used();
    hear(outcome);
    start::at_once(conf, heap, wait);
    if let Some(why) = outcome.failure() {
        told::deaf();
        return Err(why);
    }
    // They stay open.
    for file in files {
        let _stays_open = file.into_raw_fd();
    }
    Ok(())
}
