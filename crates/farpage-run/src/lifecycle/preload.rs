//! Inside a program, before its `main`.

use crate::lifecycle::{fork_handlers, start};
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_base::mem::heap::Heap;
use farpage_base::sys::message::{message, set_quiet};
use farpage_ipc::conf::redis::ENV_PASSWORD;
use farpage_ipc::conf::{Conf, ENV_CONF, ENV_DISABLE, ENV_UFFD_FD, RAM_MIN, size};
use farpage_ipc::tree;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Whether the environment asks for an engine.
pub fn is_asked() -> bool {
    std::env::var_os(ENV_CONF).is_some()
}

/// Begins as `FARPAGE_CONF` says; does nothing without it. A program that was told to have a budget and
/// cannot have one goes on without, and says so: the launcher has checked everything before. The variables that the
/// programs are to have that it starts.
///
/// Called once, by the library's initialiser, while the process has one thread; `heap` is the library's global
/// allocator.
pub fn start(heap: &'static Heap) -> Vec<(&'static str, String)> {
    if std::env::var_os(ENV_DISABLE).is_some_and(|v| !v.is_empty() && v != "0") {
        return Vec::new();
    }
    let Ok(text) = std::env::var(ENV_CONF) else { return Vec::new() };
    match Conf::parse(&text) {
        Ok(mut conf) => {
            if !tree::joining::join() && std::env::var_os(tree::ENV_TREE_FD).is_some() {
                alone(&mut conf);
            }
            if conf.quiet {
                set_quiet();
            }
            if !follow_forks() {
                message("cannot follow forks: out of memory");
            }
            start::sleep(conf, heap);
        }
        Err(why) => warn_once_in_tree(
            WarningKind::NoEngine,
            &format!("{ENV_CONF}: {why}; this process goes on without a budget"),
        ),
    }
    let names = [ENV_CONF, tree::ENV_TREE_FD, ENV_UFFD_FD, ENV_PASSWORD];
    names.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?))).collect()
}

/// A program of a tree that has lost the tree: it has a small budget of its own, because others have theirs.
fn alone(conf: &mut Conf) {
    const PART: u64 = 16;
    conf.ram = (conf.ram / PART).max(RAM_MIN).min(conf.ram);
    let budget = size::format(conf.ram);
    let text = format!("the descriptor {} is gone: this one has a budget of {budget} of its own", tree::ENV_TREE_FD);
    warn_once_in_tree(WarningKind::NoPlace, &text);
}

/// Registers the handlers of forks, once; false: no memory for that. In a child libc calls handlers in the order in
/// which they were registered, and those of others (allocators have some) may touch pages that are swapped out: so this
/// must be done before other code registers any, engine or not. Without an engine they do nothing.
pub fn follow_forks() -> bool {
    static ASKED: AtomicBool = AtomicBool::new(false);
    static FAILED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, SeqCst) {
        // SAFETY: three handlers that live as long as the process (the library is never unloaded).
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } != 0;
        FAILED.store(failed, SeqCst);
    }
    !FAILED.load(SeqCst)
}

unsafe extern "C" fn prepare() {
    fork_handlers::prepare();
}

unsafe extern "C" fn parent() {
    fork_handlers::parent();
}

unsafe extern "C" fn child() {
    fork_handlers::child();
}
