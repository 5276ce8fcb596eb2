//! Warnings that each process of a tree would give are given once.
//!
//! Forked children have the parent's memory, so what it has said is known. Programs that are started anew have nothing
//! of it but their environment, which cannot be changed for those that run already, and the descriptor of
//! `/dev/userfaultfd` that all of the tree inherit. It is *one* open file, and with an open file the kernel keeps the
//! number of the signal that it would send to whoever asks for signals (`F_SETSIG`): nobody asks this device for any.
//! So that number is the note, a bit for each kind of warning; it goes away with the tree, and nothing else has to be
//! passed on, mapped or kept open. Two that warn at the same moment may both be heard. Where no such descriptor is
//! inherited, each program that is started says it once.

use crate::probe::{inherited_device, is_misc_device};
use crate::run::uffd_device;
use crate::sys::message::warn;
use crate::sys::raw::{nr, syscall};
use crate::sys::thread::is_engine_thread;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

const F_SETSIG: usize = 10;
const F_GETSIG: usize = 11;

/// What a warning is about. Signals have numbers up to 64, so there is room for six.
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
}

/// What this process, or one that it was forked from, has said.
static SAID: AtomicU32 = AtomicU32::new(0);

/// The number of the inherited descriptor, or -1.
static INHERITED: AtomicI32 = AtomicI32::new(-1);

/// Looks for the descriptor, at the start: later, the environment is the program's.
pub fn find() {
    INHERITED.store(inherited_device().map_or(-1, |fd| fd.as_raw_fd()), SeqCst);
}

fn inherited() -> Option<BorrowedFd<'static>> {
    let number = INHERITED.load(SeqCst);
    // SAFETY: not owned, and used only if it still is the device.
    let file = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) });
    file.filter(|file| is_misc_device(*file))
}

/// Whether this process knows that it has been said: what would be said need not be put into words.
pub fn is_said(kind: WarningKind) -> bool {
    SAID.load(SeqCst) & 1 << kind as u32 != 0
}

/// [`warn`], if no process of the tree has warned of this kind.
pub fn warn_once_in_tree(kind: WarningKind, text: &str) {
    let bit = 1 << kind as u32;
    if SAID.fetch_or(bit, SeqCst) & bit == 0 && !is_noted(bit) {
        warn(text);
    }
}

/// Whether another program of the tree has noted it; notes it.
fn is_noted(bit: u32) -> bool {
    // Engine threads have a descriptor table of their own, in which that number is still there while the engine is
    // being made.
    let has_engine = uffd_device::number().is_some();
    let device = if has_engine && is_engine_thread() {
        uffd_device::device().filter(|device| is_misc_device(*device))
    } else {
        inherited()
    };
    let Some(device) = device else { return false };
    let file = device.as_raw_fd() as usize;
    // SAFETY: fcntl of an open file, with integers.
    let control = |command, signal| unsafe { syscall(nr::FCNTL, [file, command, signal, 0, 0, 0]) };
    let Ok(noted) = control(F_GETSIG, 0) else { return false };
    if noted & bit as usize != 0 {
        return true;
    }
    let _ = control(F_SETSIG, noted | bit as usize);
    false
}
