//! The windows that are read before they are wanted, and how many threads have faults: data of the pager.
//!
//! Callers: [`crate::pager::prefetch`] and the files that serve faults, on the pager's thread. No locks.

use crate::cpus::ab_trial::Trial;
use crate::shared::board::Ticket;
use crate::shared::state::Engine;
use farpage_base::mem::units::{FrameNo, Vpn};
use farpage_device::Entry;
use farpage_device::read_queue::{Arrived, ReadQueue};
use farpage_swap::readahead;
use std::time::{Duration, Instant};

/// Windows read in advance at the same time, of all sequential readers together.
pub(super) const WINDOWS_MAX: usize = 8;
/// And of one of them.
pub(super) const DEPTH_MAX: usize = 4;
/// A shorter window is not read in advance.
pub(super) const WINDOW_MIN: usize = 8;
/// Windows of both kinds at the same time.
pub(super) const ALL_MAX: usize = 16;
/// For so many faults after one of another thread there are several that wait for pages.
pub(super) const CONCURRENT_FOR: u32 = 64;

/// A window that is read, or was.
#[derive(Debug)]
pub(crate) struct PrefetchWindow {
    pub(super) tag: u64,
    pub(super) start: Vpn,
    pub(super) entries: Vec<Entry>,
    /// The first of as many frames.
    pub(super) frame: FrameNo,
    /// Pages that are in their frames, from the first on; `None`: still on their way.
    pub(super) loaded: Option<usize>,
    /// A helper has it, and not the queue.
    pub(super) ticket: Option<Ticket>,
    pub(super) asked: Option<Asked>,
}

/// A thread waits for a page of the window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// What its fault asked for, and of which thread's streams.
    pub(super) stream: readahead::Window,
    pub(super) streams: usize,
    pub(super) since: Instant,
}

/// How long windows are given to a helper, or not, before the other is tried. Not a multiple of what `affinity`
/// tries.
pub(super) const EPOCH: Duration = Duration::from_millis(50);
/// Often: programs do not read in order for long, and the wrong way costs a quarter.
pub(super) const TRY_OFTEN: u32 = 2;
/// Compressed windows that are read in advance for one reader: one is loaded while the other is placed.
pub(super) const COMPRESSED_DEPTH: usize = 2;

/// Whether more than one thread waits for pages these days.
#[derive(Debug, Default)]
pub(crate) struct FaultConcurrency {
    pub(super) tid: u32,
    pub(super) left: u32,
}

impl FaultConcurrency {
    /// More than one.
    pub(crate) fn is_there(&self) -> bool {
        self.left > 0
    }

    /// Thread `tid` has a fault.
    pub(crate) fn fault(&mut self, tid: u32) {
        self.left = if self.tid != tid && self.tid != 0 { CONCURRENT_FOR } else { self.left.saturating_sub(1) };
        self.tid = tid;
    }
}

impl PrefetchWindow {
    /// The first page, and the one behind the last.
    pub(super) fn pages(&self) -> (Vpn, Vpn) {
        (self.start, self.start + self.entries.len())
    }

    pub(super) fn has(&self, vpn: Vpn) -> bool {
        let (start, end) = self.pages();
        (start..end).contains(&vpn)
    }
}

/// What there is of a page that may have been read in advance.
pub(crate) enum Inflight {
    /// Nothing.
    None,
    /// It will be there soon.
    OnItsWay,
    /// It is in a frame of this window, which is the caller's now.
    Here(PrefetchWindow),
}

/// The windows of one pager.
#[derive(Default)]
pub(crate) struct Prefetch {
    pub(crate) queue: ReadQueue,
    pub(crate) concurrency: FaultConcurrency,
    pub(super) windows: Vec<PrefetchWindow>,
    pub(super) last_tag: u64,
    /// Windows that are read in advance for one reader; one more each time that one was late.
    pub(super) depth: usize,
    /// Whether a helper pays; begun with the first window that it could have.
    pub(super) trial: Option<Trial>,
}

impl Prefetch {
    /// Whether the page is being read by the queue and is not there yet, as far as is known.
    pub(crate) fn is_on_its_way(&self, vpn: Vpn) -> bool {
        self.windows.iter().any(|w| w.has(vpn) && w.loaded.is_none() && w.ticket.is_none())
    }

    /// Whether the page is in a window that was read in advance, and how far that is.
    pub(crate) fn inflight_with(&mut self, e: &Engine, vpn: Vpn) -> Inflight {
        let Some(mut at) = self.windows.iter().position(|w| w.has(vpn)) else { return Inflight::None };
        if let Some(ticket) = self.windows[at].ticket.take() {
            let window = &mut self.windows[at];
            window.loaded = Some(e.helpers.take_over(&e.space, ticket, window.entries.len()));
        }
        if self.windows[at].loaded.is_none() {
            self.reap(e);
            match self.windows.iter().position(|w| w.has(vpn)) {
                Some(i) if self.windows[i].loaded.is_none() => {
                    if self.windows[i].asked.is_none() {
                        self.depth = (self.depth + 1).min(DEPTH_MAX);
                    }
                    return Inflight::OnItsWay;
                }
                Some(i) => at = i,
                None => return Inflight::None,
            }
        }
        Inflight::Here(self.windows.swap_remove(at))
    }

    /// Books what has arrived.
    pub(crate) fn reap(&mut self, e: &Engine) {
        while let Some(arrived) = self.queue.next(&e.space) {
            self.note_arrived(arrived);
        }
        for window in &mut self.windows {
            if let Some(ticket) = window.ticket.take_if(|ticket| e.helpers.is_over(ticket)) {
                window.loaded = Some(e.helpers.take_over(&e.space, ticket, window.entries.len()));
            }
        }
    }

    pub(super) fn note_arrived(&mut self, arrived: Arrived) {
        if let Some(window) = self.windows.iter_mut().find(|w| w.tag == arrived.tag) {
            window.loaded = Some(arrived.loaded);
        }
    }

    /// Drops the oldest window that is not on its way from a file, but not one with the page `wanted`; first those that
    /// no thread has asked for.
    pub(crate) fn drop_one(&mut self, e: &Engine, wanted: Option<Vpn>) -> bool {
        self.reap(e);
        let is_idle = |w: &PrefetchWindow| w.loaded.is_some() || w.ticket.is_some();
        let windows = self.windows.iter().enumerate();
        let idle = windows.filter(|(_, w)| is_idle(w) && !wanted.is_some_and(|vpn| w.has(vpn)));
        let Some((at, _)) = idle.min_by_key(|(_, w)| (w.asked.is_some(), w.tag)) else { return false };
        let window = self.windows.swap_remove(at);
        self.throw_away(e, window);
        true
    }

    /// Waits for what is on its way and drops all: nothing is read any more, no frame is kept.
    pub(crate) fn land_all(&mut self, e: &Engine) {
        while let Some(arrived) = self.queue.wait(&e.space) {
            self.note_arrived(arrived);
        }
        while let Some(window) = self.windows.pop() {
            self.throw_away(e, window);
        }
    }

    /// Frees the frames of a window that is not on its way from a file.
    pub(super) fn throw_away(&self, e: &Engine, window: PrefetchWindow) {
        if let Some(ticket) = window.ticket {
            e.helpers.take_back(ticket);
        }
        e.frames.put_free(window.frame, window.entries.len());
    }
}
