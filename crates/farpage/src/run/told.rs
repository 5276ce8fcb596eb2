//! Warnings that each process of a tree would give are given once.
//!
//! Forked children have the parent's memory, so what it has said is known. Programs that are started anew look into the
//! tree's segment ([`crate::tree`]), which has a bit for each kind of warning. Without a tree, each program that is
//! started says it once.
//!
//! Callers: everybody who warns. No locks.

use crate::sys::message::warn;
use crate::tree;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

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
    Alone,
    /// A swap device cannot be used any more.
    NoDevice,
    /// Processes without the library have much.
    Strangers,
    /// Memory that cannot be swapped out leaves too little for the rest.
    Stuck,
}

/// What this process, or one that it was forked from, has said.
static SAID: AtomicU32 = AtomicU32::new(0);

/// Whether this process knows that it has been said: what would be said need not be put into words.
pub fn is_said(kind: WarningKind) -> bool {
    SAID.load(SeqCst) & 1 << kind as u32 != 0
}

/// [`warn`], if no process of the tree has warned of this kind.
pub fn warn_once_in_tree(kind: WarningKind, text: &str) {
    let bit = 1 << kind as u32;
    let noted = || tree::segment().is_some_and(|segment| segment.note_said(bit));
    if SAID.fetch_or(bit, SeqCst) & bit == 0 && !noted() {
        warn(text);
    }
}
