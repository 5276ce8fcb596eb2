//! The pager's own state, and what its parts tell each other: data, below all of them.
//!
//! Callers: the files of this folder, of `mappings` and of `fork`, on the pager's thread. No locks.

use crate::cpus::affinity::{AdaptiveSpin, CpuAffinity};
use crate::cpus::cpu_latency::CpuLatency;
use crate::mappings::event_order::Order;
use crate::mappings::grace_period::GracePeriod;
use crate::pager::fault_threads::FaultThreads;
use crate::pager::prefetch::windows::Prefetch;
use crate::pager::readahead::Readahead;
use crate::pager::robust::lists::RobustLists;
use crate::pager::trace::Recorder;
use crate::shared::address_space::AddressSpace;
use crate::shared::given_uffds::Forks;
use crate::shared::state::Engine;
use farpage_base::mem::units::{Page, Vpn};
use farpage_device::Entry;
use farpage_swap::readahead::{READAHEAD_MAX, Streams};
use rustix::fd::OwnedFd;
use std::time::Instant;

/// The pager's name. A process with such a thread has memory that is swapped out by farpage, and has it brought in.
pub const THREAD_NAME: &[u8] = b"farpage-pager";
/// The same while it holds still for a fork and brings in nothing that others ask for.
pub(crate) const PAUSED_NAME: &[u8] = b"farpage-paused";

/// Pages that are loaded and placed at once.
pub(crate) const SCRATCH_PAGES: usize = READAHEAD_MAX as usize;

/// Engine memory that pages are loaded into, and copied from into the program.
#[repr(align(4096))]
pub(crate) struct Scratch(pub(crate) [Page; SCRATCH_PAGES]);

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The page is there and the thread woken.
    Served,
    /// Nothing to do (the page was there, or its mapping is gone); the thread was woken and looks again.
    Dropped,
    /// To be tried again: an event is pending, or there is no frame.
    Later,
}

/// A fault that waits to be served.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Page address.
    pub addr: usize,
    /// Write access.
    pub write: bool,
    /// The thread that has it.
    pub tid: u32,
    /// When its message was read.
    pub since: Instant,
}

/// Whether there is a way for executable memory ([`crate::pager::transit`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transit {
    /// Not yet.
    Unwanted,
    Open,
    /// The system refuses such memory.
    Closed,
}

/// The pager's own state.
pub struct Pager {
    pub(crate) e: &'static Engine,
    /// The program's address space.
    pub(crate) mm: Box<dyn AddressSpace>,
    pub(crate) kick: OwnedFd,
    pub(crate) affinity: CpuAffinity,
    pub(crate) spin: AdaptiveSpin,
    pub(crate) cpu_latency: CpuLatency,
    /// Pages placed so far, and at the last step of reclaim.
    pub(crate) filled: u64,
    pub(crate) filled_before: u64,
    /// Where the search for clean copies goes on.
    pub(crate) slot_hand: u32,
    /// Until then, pages that other processes have, too, are taken out as others are.
    pub(crate) unshares_until: Option<Instant>,
    /// Turns without anything to do, one after the other.
    pub(crate) idle_turns: u32,
    /// Pages that the fault that is being served may have although there is no room.
    pub(crate) granted: usize,
    /// The page of the fault that is being served.
    pub(crate) serving: Vpn,
    /// Ranges (bytes) in which a copy found guards ([`crate::pager::marks`]).
    pub(crate) guards: Vec<(usize, usize)>,
    /// What pages are loaded into on their way to the program.
    pub(crate) scratch: Box<Scratch>,
    /// Faults to be tried (again).
    pub(crate) waiting: Vec<Fault>,
    /// One that waited for long was told of.
    pub(crate) reported: bool,
    /// Registered ranges (pages) whose present pages are not on the lists yet.
    pub(crate) scans: Vec<(Vpn, Vpn)>,
    /// Ranges (bytes) that cannot be registered, so that they are not tried again and again, and since when there are
    /// any.
    pub(crate) refused: Vec<(usize, usize)>,
    pub(crate) refused_since: Instant,
    /// Ranges (bytes) that are to be the program's alone, and how far that has come with the first.
    pub(crate) letting_go: Vec<(usize, usize)>,
    pub(crate) let_go_to: Vpn,
    /// All of the process's memory is, or was, among them.
    pub(crate) alone: bool,
    /// Ranges (bytes) that were registered and still may have huge pages; empty in between.
    pub(crate) unadvised: Vec<(usize, usize)>,
    /// Runs of the shared zero page that a scan found; empty in between.
    pub(crate) zeros: Vec<(Vpn, Vpn)>,
    /// Changes of mappings that were read.
    pub(crate) order: Order,
    /// Who may not have told one that was made before.
    pub(crate) grace_period: GracePeriod,
    /// Entries on their way to [`Engine::free_later`]; empty in between.
    pub(crate) pending_frees: Vec<Entry>,
    /// There are notes that have been acted on, for which somebody may wait.
    pub(crate) noted: bool,
    /// Mappings heard of; empty in between.
    pub(crate) news: Vec<(usize, usize)>,
    /// Since when they wait for a moment in which no change is pending.
    pub(crate) put_off_since: Option<Instant>,
    /// Which swapped pages come in with one that is missing.
    pub(crate) readahead: Readahead,
    /// What is read before it is wanted.
    pub(crate) prefetch: Prefetch,
    pub(crate) fault_threads: FaultThreads,
    /// All that is out is being brought in, from here on, and when some came in last.
    pub(crate) comes_back_from: Option<(Vpn, Instant)>,
    /// Mutexes whose owners' death is to be told.
    pub(crate) robust: RobustLists,
    /// Sequential first touches.
    pub(crate) zero_streams: Streams,
    /// Pages that were to be zero-filled for the last first touch.
    pub(crate) zero_window: u32,
    /// How executable memory is taken out.
    pub(crate) transit: Transit,
    /// Records the faults, if that was asked for.
    pub(crate) trace: Option<Recorder>,
    /// Userfaultfds of forked children.
    pub(crate) forks: Forks,
}
