//! The pager's own state, and what its parts tell each other: data, below all of them.
//!
//! Callers: the files of this folder, of `mappings` and of `fork`, on the pager's thread. No locks.

use crate::cpus::affinity::{AdaptiveSpin, CpuAffinity};
use crate::cpus::cpu_latency::CpuLatency;
use crate::pager::cx::Cx;
use crate::pager::fault_threads::FaultThreads;
use crate::pager::robust::lists::RobustLists;
use farpage_base::mem::units::Vpn;
use farpage_swap::readahead::Streams;
use std::time::Instant;

/// The pager's name. A process with such a thread has memory that is swapped out by farpage, and has it brought in.
pub const THREAD_NAME: &[u8] = b"farpage-pager";
/// The same while it holds still for a fork and brings in nothing that others ask for.
pub(crate) const PAUSED_NAME: &[u8] = b"farpage-paused";

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
    pub(crate) cx: Cx,
    pub(crate) affinity: CpuAffinity,
    pub(crate) spin: AdaptiveSpin,
    pub(crate) cpu_latency: CpuLatency,
    /// Pages placed up to the last step of reclaim.
    pub(crate) filled_before: u64,
    /// Where the search for clean copies goes on.
    pub(crate) slot_hand: u32,
    /// Until then, pages that other processes have, too, are taken out as others are.
    pub(crate) unshares_until: Option<Instant>,
    /// Turns without anything to do, one after the other.
    pub(crate) idle_turns: u32,
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
    /// There are notes that have been acted on, for which somebody may wait.
    pub(crate) noted: bool,
    /// Mappings heard of; empty in between.
    pub(crate) news: Vec<(usize, usize)>,
    /// Since when they wait for a moment in which no change is pending.
    pub(crate) put_off_since: Option<Instant>,
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
}
