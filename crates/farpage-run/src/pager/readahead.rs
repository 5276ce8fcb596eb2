//! Which pages come in with one that is missing, under `farpage run`, and whether they were wanted.
//!
//! ```text
//!   fault on a swapped page    -> on_miss -> Plan: these pages, or these slots     (swap_in brings them in)
//!   touch of a page that waits -> on_hit
//!   touch of another one that is cached -> on_refault -> the window of its stream
//! ```
//! The rules are pure ([`farpage_swap::readahead`]); this module keeps their states. Streams have one for each thread,
//! so that many threads do not push out each other's; a thread also goes on with what another one began. The kernel's
//! rules have one for each mapping, or one in all. They count pages as plain numbers, which become [`Vpn`]s here.
//!
//! Pages read ahead are mapped at once, so their first touch is not seen, and hits are not counted. With `exact`, and
//! with the kernel's rules, all pages read ahead wait in the swap cache, with a mark in their words; their first touch
//! is a minor fault, which takes the mark and counts it.
//!
//! Caller: `swap_in`, `prefetch`, `fault`, all on the pager's thread. No locks.

use farpage_base::mem::units::Vpn;
use farpage_device::Entry;
use farpage_swap::readahead::{ClusterState, LIST_MAX, Rule, Streams, Tuning, VmaState, Window};
use std::ops::Range;

/// Threads with streams of their own; more share.
const THREADS: usize = 8;
/// Mappings whose state the kernel's rule keeps.
const MAPPINGS: usize = 16;
/// Most pages that are read in slot order beside our own rule, the kernel's default.
const BESIDE_MAX: u32 = 8;

/// What to bring in for a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The page's neighbours in this window, up to the first that is not swapped out.
    Run(Window),
    /// All pages of this window that are swapped out, [`LIST_MAX`] at most.
    Each(Window),
    /// What lies in these slots of the page's device.
    Slots(Range<u64>),
}

/// The window of just this page.
pub(crate) fn single(vpn: Vpn) -> Window {
    Window::single(vpn.number())
}

/// The first page of a window, and the one behind its last.
pub(crate) fn bounds(window: &Window) -> (Vpn, Vpn) {
    (Vpn::new(window.start), Vpn::new(window.end()))
}

/// The pages of a window, ascending.
pub(crate) fn pages_of(window: &Window) -> impl DoubleEndedIterator<Item = Vpn> {
    window.iter().map(Vpn::new)
}

/// [`farpage_swap::readahead::run_around`] a page.
pub(crate) fn run_around(vpn: Vpn, low: Vpn, high: Vpn, inside: impl Fn(Vpn) -> bool) -> (Vpn, Vpn) {
    let run = farpage_swap::readahead::run_around(vpn.number(), low.number(), high.number(), |number| {
        inside(Vpn::new(number))
    });
    (Vpn::new(run.start), Vpn::new(run.end))
}

/// What is known of one mapping.
struct MappingStreams {
    start: Vpn,
    vma: VmaState,
}

/// See the module documentation.
pub(crate) struct Readahead {
    tuning: Tuning,
    max: u32,
    /// The thread's place among `streams`.
    own: usize,
    streams: Box<[Streams; THREADS]>,
    /// The one used last first.
    mappings: Vec<MappingStreams>,
    cluster: ClusterState,
}

impl Readahead {
    /// For a program with a budget of `ram` bytes.
    pub(crate) fn new(tuning: Tuning, ram: u64) -> Readahead {
        Readahead {
            tuning,
            max: tuning.max_pages_of_run(ram / farpage_swap::PAGE_SIZE as u64),
            own: 0,
            streams: Box::new([const { Streams::with_strides() }; THREADS]),
            mappings: Vec::with_capacity(MAPPINGS),
            cluster: ClusterState::default(),
        }
    }

    /// The next calls are for a fault of thread `tid`.
    pub(crate) fn fault_of(&mut self, tid: u32) {
        self.own = (tid.wrapping_mul(0x9e37_79b9) >> 29) as usize;
    }

    /// The streams that were asked last, for [`Readahead::resume`].
    pub(crate) fn turn(&self) -> usize {
        self.own
    }

    /// The next calls are for a fault that was put off, with what [`Readahead::turn`] said then.
    pub(crate) fn resume(&mut self, turn: usize) {
        self.own = turn % THREADS;
    }

    /// Whether every page read ahead waits for its touch.
    pub(crate) fn is_exact(&self) -> bool {
        self.tuning.is_exact()
    }

    /// Whether windows may be read before the program comes to them: only streams know where they are going.
    pub(crate) fn reads_next(&self) -> bool {
        self.tuning.rule == Rule::Stream
    }

    /// What to bring in for a fault on the page at `vpn` of `mapping`, whose content is at `entry`; `rotational`: its
    /// device has heads to move. What a stream does not explain there is read with what lies beside it, for as long as
    /// that is of use. `is_there` says of another page whether it is in memory.
    pub(crate) fn on_miss(
        &mut self,
        vpn: Vpn,
        entry: Entry,
        mapping: (Vpn, Vpn),
        rotational: bool,
        is_there: impl Fn(Vpn) -> bool,
    ) -> Plan {
        let cluster = self.max.ilog2().min(LIST_MAX.ilog2());
        match self.tuning.rule {
            _ if self.max == 1 => Plan::Run(single(vpn)),
            Rule::None => Plan::Run(single(vpn)),
            Rule::Stream => match self.on_stream(vpn, is_there) {
                // Not if all pages read ahead wait: which touch counts could not be told then.
                window if window.pages == 1 && rotational && !self.is_exact() => self.in_slot_order(entry),
                window if window.stride == 1 => Plan::Run(window),
                window => Plan::Each(window),
            },
            Rule::Vma => {
                let (vpn, start, end) = (vpn.number(), mapping.0.number(), mapping.1.number());
                let range = self.mapping(mapping.0).vma.on_miss(vpn, start, end, cluster);
                Plan::Each(Window::of(range.start, (range.end - range.start) as u32))
            }
            Rule::Slot => self.in_slot_order(entry),
        }
    }

    fn in_slot_order(&mut self, entry: Entry) -> Plan {
        let most = self.max.min(match self.tuning.rule {
            Rule::Slot => LIST_MAX as u32,
            _ => BESIDE_MAX,
        });
        // The end of the device: slots behind it belong to no page.
        Plan::Slots(self.cluster.on_miss(entry.slot(), u64::MAX >> 24, most.ilog2()))
    }

    /// The window of the stream that a fault at `vpn` continues, or begins: the thread's own, or one handed on to it.
    pub(crate) fn on_stream(&mut self, vpn: Vpn, is_there: impl Fn(Vpn) -> bool) -> Window {
        let own = self.own;
        self.own =
            (0..THREADS).map(|i| (own + i) % THREADS).find(|i| self.streams[*i].follows(vpn.number())).unwrap_or(own);
        self.streams[self.own].on_fault(vpn.number(), self.max, |page| is_there(Vpn::new(page)))
    }

    /// The window of the stream of neighbours that the touch of a page of the swap cache continues, if it does.
    pub(crate) fn on_refault(&mut self, vpn: Vpn, is_there: impl Fn(Vpn) -> bool) -> Option<Window> {
        let streams = self.tuning.rule == Rule::Stream && self.max > 1;
        let goes = streams && self.streams.iter().any(|streams| streams.goes_through(vpn.number()));
        goes.then(|| self.on_stream(vpn, is_there)).filter(|window| window.stride == 1)
    }

    /// What really came in of the last window of neighbours.
    pub(crate) fn on_served(&mut self, start: Vpn, pages: u32) {
        self.streams[self.own].on_served(start.number(), pages);
    }

    /// A page that waited was touched; `ahead`: it had been read ahead, and this is its first touch.
    pub(crate) fn on_hit(&mut self, vpn: Vpn, mapping: Vpn, ahead: bool) {
        match self.tuning.rule {
            Rule::Vma => self.mapping(mapping).vma.on_hit(vpn.number(), ahead),
            // Only what was read in slot order waits for its touch then.
            Rule::Slot | Rule::Stream if ahead => self.cluster.on_hit(),
            _ => {}
        }
    }

    /// Whether [`Readahead::on_hit`] is to be told also of pages that had not been read ahead.
    pub(crate) fn wants_all_touches(&self) -> bool {
        self.tuning.rule == Rule::Vma
    }

    fn mapping(&mut self, start: Vpn) -> &mut MappingStreams {
        let known = self.mappings.iter().position(|m| m.start == start);
        let at = known.unwrap_or_else(|| {
            self.mappings.truncate(MAPPINGS - 1);
            self.mappings.push(MappingStreams { start, vma: VmaState::default() });
            self.mappings.len() - 1
        });
        self.mappings[..=at].rotate_right(1);
        &mut self.mappings[0]
    }
}

#[cfg(test)]
mod tests;
