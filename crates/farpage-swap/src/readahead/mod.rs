//! How many pages to bring in around a fault, and which.
//!
//! Pure rules: no I/O, no page state, no locks; all numbers are page (or slot) numbers. An instance is meant to be used
//! under one lock of its owner.
//!
//! | module | rule | needs |
//! | --- | --- | --- |
//! | [`vma`] | the kernel's, by address: [`VmaState`], one for each mapping | a minor fault for each page read ahead |
//! | [`slots`] | the kernel's, in slot order (rotational devices): [`ClusterState`], one for all devices | the same |
//! | [`streams`] | ours: [`Streams`], one for each mapping and thread | the next fault, or a *marker* |
//! | [`stride`] | equal distances between faults: [`Strides`], part of ours | |
//! | [`lengths`] | how far runs of neighbours go: [`Lengths`], part of ours | |
//!
//! A *marker* is a page that was read ahead and left unmapped: its first touch is a minor fault, and says that the
//! program has come so far. Called by regions and by the pager of `farpage run`.

pub mod lengths;
pub mod slots;
pub mod streams;
pub mod stride;
pub mod vma;

pub use lengths::Lengths;
pub use slots::ClusterState;
pub use streams::Streams;
pub use stride::Strides;
pub use vma::{VmaState, window};

use std::fmt;
use std::ops::Range;

/// Windows take this part of the budget at most.
pub const BUDGET_PART: u64 = 64;
/// Most pages of a window that is not of neighbours, under `farpage run`.
pub const LIST_MAX: usize = 32;
/// Most pages loaded and placed at a time.
pub const READAHEAD_MAX: u32 = 32;
/// Most pages of a window of ours there by default: the fault waits for all of them.
const RUN_MAX: u32 = 32;
/// Largest `page_cluster` of our own rule: 2^9 pages are 2 MiB.
pub const PAGE_CLUSTER_MAX: u32 = 9;

/// Pages to bring in for one fault or hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Lowest page.
    pub start: u64,
    /// Number of pages, at least 1.
    pub pages: u32,
    /// From one page to the next: 1 are neighbours.
    pub stride: u32,
    /// Pages of earlier windows of the same stream that are now known to have been used (only where there are no
    /// markers; see [`Streams::on_fault`]).
    pub confirmed: u32,
    /// The program goes downwards.
    pub down: bool,
    /// The page was on its way already, asked for at a marker ([`Streams::on_hit`]): the background is too slow.
    pub late: bool,
}

impl Window {
    /// Just this page.
    pub const fn single(page: u64) -> Window {
        Window::of(page, 1)
    }

    /// `pages` neighbours from `start` on.
    pub const fn of(start: u64, pages: u32) -> Window {
        Window { start, pages, stride: 1, confirmed: 0, down: false, late: false }
    }

    /// One past the last page.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add((self.pages as u64).saturating_sub(1).saturating_mul(self.stride as u64) + 1)
    }

    /// What of it lies in `[first, end)`.
    pub fn clipped(self, first: u64, end: u64) -> Option<Window> {
        let step = u64::from(self.stride.max(1));
        let skip = first.saturating_sub(self.start).div_ceil(step);
        let start = self.start.saturating_add(skip.saturating_mul(step));
        let room = end.checked_sub(start).filter(|room| *room > 0)?.div_ceil(step);
        let pages = u64::from(self.pages).checked_sub(skip).filter(|pages| *pages > 0)?.min(room);
        Some(Window { start, pages: pages as u32, ..self }) // not more than it was
    }

    /// The pages, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> {
        let (start, stride) = (self.start, u64::from(self.stride));
        (0..u64::from(self.pages)).map(move |i| start.saturating_add(i * stride))
    }
}

/// The longest run of pages around `page`, inside `[low, high)`, of which all others are `inside`.
pub fn run_around(page: u64, low: u64, high: u64, inside: impl Fn(u64) -> bool) -> Range<u64> {
    let (mut start, mut end) = (page, page + 1);
    while start > low && inside(start - 1) {
        start -= 1;
    }
    while end < high && inside(end) {
        end += 1;
    }
    start..end
}

/// By which rule pages are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// Not at all.
    None,
    /// The kernel's slot order.
    Slot,
    /// The kernel's virtual-address order.
    Vma,
    /// Ours: streams; slot order for single faults on rotational devices.
    #[default]
    Stream,
}

impl Rule {
    /// As written.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::None => "none",
            Rule::Slot => "slot",
            Rule::Vma => "vma",
            Rule::Stream => "stream",
        }
    }
}

/// The tunables of readahead, under the kernel's names where it has them.
///
/// Text form, parts in any order, separated by commas: `none`, `slot`, `vma` or `stream`; `page_cluster=N`;
/// `vma_ra_enabled=0` (the same as `slot`) or `=1`; `exact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuning {
    /// The rule.
    pub rule: Rule,
    /// Binary logarithm of the most pages in a window; `None`: the rule's own. 0: no readahead.
    pub page_cluster: Option<u32>,
    /// Every page read ahead stays unmapped until it is touched, so that hits are counted exactly. The kernel's rules
    /// always work like this.
    pub exact: bool,
}

/// Why a [`Tuning`] was refused: the part that is wrong, and what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningError(String);

impl fmt::Display for TuningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TuningError(part) = self;
        write!(
            f,
            "readahead: unknown {part:?}; use none, slot, vma, stream, page_cluster=0..{PAGE_CLUSTER_MAX}, \
             vma_ra_enabled=0|1, exact"
        )
    }
}

impl std::error::Error for TuningError {}

impl Tuning {
    /// A rule with its own limits.
    pub const fn of(rule: Rule) -> Tuning {
        Tuning { rule, page_cluster: None, exact: false }
    }

    /// Reads the text form; an empty text is the default.
    ///
    /// # Errors
    /// An unknown part, or a number out of range.
    pub fn parse(text: &str) -> Result<Tuning, TuningError> {
        let mut tuning = Tuning::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = || TuningError(part.to_owned());
            match part.split_once('=') {
                None => match part {
                    "none" => tuning.rule = Rule::None,
                    "slot" => tuning.rule = Rule::Slot,
                    "vma" => tuning.rule = Rule::Vma,
                    "stream" => tuning.rule = Rule::Stream,
                    "exact" => tuning.exact = true,
                    _ => return Err(bad()),
                },
                Some(("page_cluster", n)) => {
                    let n = n.parse().ok().filter(|n| *n <= PAGE_CLUSTER_MAX).ok_or_else(bad)?;
                    tuning.page_cluster = Some(n);
                }
                Some(("vma_ra_enabled", "0" | "false")) => tuning.rule = Rule::Slot,
                Some(("vma_ra_enabled", "1" | "true")) => {
                    if tuning.rule == Rule::Slot {
                        tuning.rule = Rule::Vma;
                    }
                }
                Some(_) => return Err(bad()),
            }
        }
        Ok(tuning)
    }

    /// The effective `page_cluster`: the kernel's rules have 3 unless told otherwise, ours 7.
    pub fn page_cluster(&self) -> u32 {
        let own = if self.rule == Rule::Stream { 7 } else { 3 };
        self.page_cluster.unwrap_or(own).min(PAGE_CLUSTER_MAX)
    }

    /// Most pages in a window.
    pub fn max_pages(&self) -> u32 {
        if self.rule == Rule::None { 1 } else { 1 << self.page_cluster() }
    }

    /// The same under `farpage run` with a budget of `pages`.
    pub fn max_pages_of_run(&self, pages: u64) -> u32 {
        let own = match (self.rule, self.page_cluster) {
            (Rule::Stream, None) => RUN_MAX,
            _ => self.max_pages(),
        };
        own.min((pages / BUDGET_PART).clamp(8, 512) as u32)
    }

    /// Whether pages read ahead stay unmapped.
    pub fn is_exact(&self) -> bool {
        self.exact || self.rule != Rule::Stream
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())?;
        if let Some(n) = self.page_cluster {
            write!(f, ",page_cluster={n}")?;
        }
        f.write_str(if self.exact { ",exact" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunables_round_trip_and_bad_ones_are_named() {
        for text in ["stream", "none", "vma,page_cluster=5", "slot,page_cluster=0", "stream,page_cluster=9,exact"] {
            assert_eq!(Tuning::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Tuning::parse(""), Ok(Tuning::default()));
        assert_eq!(Tuning::parse("vma_ra_enabled=0"), Ok(Tuning::of(Rule::Slot)));
        assert_eq!(Tuning::parse("slot,vma_ra_enabled=1"), Ok(Tuning::of(Rule::Vma)));
        assert_eq!(Tuning::parse("vma_ra_enabled=1"), Ok(Tuning::default()), "nothing to switch on");
        for (text, part) in
            [("page_cluster=10", "page_cluster=10"), ("exact,sideways", "sideways"), ("vma_ra_enabled=2", "=2")]
        {
            let message = Tuning::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let (none, one) = (Tuning::of(Rule::None), Tuning::parse("page_cluster=0").unwrap());
        assert_eq!((none.max_pages(), one.max_pages(), Tuning::default().max_pages()), (1, 1, 128));
        assert!(Tuning::of(Rule::Vma).is_exact() && !Tuning::default().is_exact());
    }

    #[test]
    fn windows_name_their_pages() {
        let w = Window { stride: 7, ..Window::of(10, 4) };
        assert_eq!((w.iter().collect::<Vec<_>>(), w.end()), (vec![10, 17, 24, 31], 32));
        assert_eq!((Window::single(5).end(), Window::of(5, 3).end()), (6, 8));
        let pages = |first, end| w.clipped(first, end).map(|w| w.iter().collect::<Vec<_>>());
        assert_eq!(pages(0, 99), Some(vec![10, 17, 24, 31]));
        assert_eq!((pages(11, 31), pages(17, 32)), (Some(vec![17, 24]), Some(vec![17, 24, 31])));
        assert_eq!((pages(32, 99), pages(0, 10), pages(11, 17)), (None, None, None));
    }
}
