//! Warnings that each process of a tree would give are given once.
//!
//! Forked children have the parent's memory, so what it has said is known. Programs that are started anew look into the
//! tree's segment ([`farpage_ipc::tree`]), which has a bit for each kind of warning. Without a tree, each program that
//! is started says it once.
//!
//! Where a caller waits for a start ([`StartOutcome`]), what is about that goes there instead.
//!
//! Callers: all code that warns. No locks.

use crate::shared::outcome::StartOutcome;
use farpage_base::sys::message::warn;
use farpage_ipc::tree;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

/// What a warning is about.
#[derive(Debug, Clone, Copy)]
pub enum WarningKind {
    /// The engine cannot start.
    NoEngine,
    /// Memory cannot be managed.
    Unmanaged,
    /// The swap devices are full.
    Full,
    /// Tables take much of the budget.
    SpreadThin,
    /// The program wants its memory for itself.
    Excluded,
    /// A swap device cannot be used any more.
    NoDevice,
    /// Processes without the library have much.
    Strangers,
    /// Memory that cannot be swapped out leaves too little for the rest.
    Stuck,
    /// The program waited for most of its time.
    Waited,
    /// It does so now.
    Waits,
    /// The engine keeps a directory that the program has left.
    Proc,
    /// A child can write to a swap file of its parent's.
    SwapFileInChild,
    /// A process has no place in its tree.
    NoPlace,
    /// All together have more than the budget, and none can give any more.
    Exceeded,
    /// Swapping has begun, on a terminal.
    Swaps,
}

/// What this process, or one that it was forked from, has said.
static SAID: AtomicU32 = AtomicU32::new(0);

/// Whether it has been said in this tree: what would be said need not be put into words.
pub fn is_said(kind: WarningKind) -> bool {
    let bit = 1 << kind as u32;
    SAID.load(SeqCst) & bit != 0 || tree::segment().is_some_and(|segment| segment.is_said(bit))
}

/// What is told instead of the program's standard error.
static LISTENER: AtomicPtr<StartOutcome> = AtomicPtr::new(std::ptr::null_mut());

/// A start: nothing has been said.
pub fn begin() {
    SAID.store(0, SeqCst);
}

/// From now on `outcome` is told whether there is an engine.
pub fn set_listener(outcome: &'static StartOutcome) {
    LISTENER.store(std::ptr::from_ref(outcome).cast_mut(), SeqCst);
}

/// There is no listener any more.
pub fn unset_listener() {
    LISTENER.store(std::ptr::null_mut(), SeqCst);
}

fn listener() -> Option<&'static StartOutcome> {
    // SAFETY: null, or static.
    unsafe { LISTENER.load(SeqCst).as_ref() }
}

/// There is an engine.
pub fn started() {
    if let Some(outcome) = listener() {
        outcome.succeed();
        unset_listener();
    }
}

/// [`warn`], if no process of the tree has warned of this kind.
pub fn warn_once_in_tree(kind: WarningKind, text: &str) {
    if let (WarningKind::NoEngine | WarningKind::Unmanaged, Some(outcome)) = (kind, listener()) {
        return outcome.fail(text);
    }
    let bit = 1 << kind as u32;
    let noted = || tree::segment().is_some_and(|segment| segment.note_said(bit));
    if SAID.fetch_or(bit, SeqCst) & bit == 0 && !noted() {
        warn(text);
    }
}
