//! The pager: its parts.
//!
//! Callers: its loop, and [`crate::fork`], on the pager's thread. No locks.

use crate::pager::cx::Cx;
use crate::pager::fault_threads::FaultThreads;
use crate::pager::first_touch::FirstTouch;
use crate::pager::pace::Pace;
use crate::pager::reclaim::Reclaim;
use crate::pager::register::Adoption;
use crate::pager::unpark::Unpark;

/// The pager's name. A process with such a thread has memory that is swapped out by farpage, and has it brought in.
pub const THREAD_NAME: &[u8] = b"farpage-pager";
/// The same while it holds still for a fork and brings in nothing that others ask for.
pub(crate) const PAUSED_NAME: &[u8] = b"farpage-paused";

/// Each part has its own fields; what all of them need is [`Cx`].
pub struct Pager {
    pub(crate) cx: Cx,
    /// Which memory is managed.
    pub(crate) adoption: Adoption,
    pub(crate) reclaim: Reclaim,
    pub(crate) first_touch: FirstTouch,
    pub(crate) unpark: Unpark,
    /// How it waits.
    pub(crate) pace: Pace,
    pub(crate) fault_threads: FaultThreads,
    /// Messages were read, and there were no more.
    pub(crate) drained: bool,
    /// The same, also where there mostly is another by now.
    pub(crate) read_all: bool,
    /// A fault that waited for long was told of.
    pub(crate) reported: bool,
}
