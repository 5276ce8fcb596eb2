//! Pages that are touched for the first time: zeros, also for the neighbours that are likely wanted next.
//!
//! Caller: `fault`, on the pager's thread. Locks: `lru`.

use crate::pager::cx::{Cx, Outcome};
use crate::pager::readahead::{bounds, run_around};
use crate::shared::lru::PageBatch;
use crate::shared::page_table::{State, leaf_end, leaf_start};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::mem::zeros::ZERO_PAGES;
use farpage_base::sys::uffd::UffdError;
use farpage_ipc::stat::Stat;
use farpage_swap::readahead::Streams;

/// Most pages zero-filled for one fault: in plenty, and under pressure.
const ZERO_MAX: u32 = 512;
pub(crate) const ZERO_MAX_TIGHT: u32 = 32;

/// How many pages are zero-filled for a fault.
pub(crate) struct FirstTouch {
    /// Sequential first touches.
    streams: Streams,
    /// Pages that were to be zero-filled for the last one.
    window: u32,
}

impl FirstTouch {
    pub(crate) fn new() -> FirstTouch {
        FirstTouch { streams: Streams::new(), window: 1 }
    }

    /// Pages that there should be room for before the next one is served.
    pub(crate) fn wants(&self) -> usize {
        self.window.clamp(1, ZERO_MAX_TIGHT) as usize
    }

    /// First touch: zeros, also for neighbours.
    pub(crate) fn zero_fill(&mut self, cx: &mut Cx, vpn: Vpn, (low, high): (Vpn, Vpn)) -> Outcome {
        let e = cx.e;
        let tight = e.budget.pressure();
        let is_none = |v: Vpn| e.table.node(v).is_none_or(|n| e.table.state(n) == State::None);
        let most = match tight {
            _ if cx.trace.is_some() => 1,
            true => ZERO_MAX_TIGHT,
            false => ZERO_MAX,
        };
        let window = self.streams.on_fault(vpn.number(), most, |v| !is_none(Vpn::new(v)));
        self.window = window.pages;
        let (first, last) = bounds(&window);
        // A run inside one leaf, so that the leaf made for the faulting page serves all.
        let (low, high) = (low.max(leaf_start(vpn)).max(first), high.min(leaf_end(vpn)).min(last));
        let (start, end) = run_around(vpn, low, high, is_none);
        // The page that is waited for first, then those after it, then those before it.
        let (after, stop) = zero_run(cx, vpn, end);
        if after == vpn {
            return stop.map_or(Outcome::Later, |stop| cx.resolve_refusal(vpn, Some(stop)));
        }
        let before = if zero_run(cx, start, vpn).0 == vpn { start } else { vpn };
        self.streams.on_served(before.number(), (after - before) as u32);
        Outcome::Served
    }
}

/// Puts zero pages at `[from, to)`, as far as there are some; where it stopped, and why if it was refused.
fn zero_run(cx: &mut Cx, from: Vpn, to: Vpn) -> (Vpn, Option<UffdError>) {
    let e = cx.e;
    let mut at = from;
    while at < to {
        let placed = cx.fill_zeros(at, (to - at).min(ZERO_PAGES));
        let mut batch = PageBatch::default();
        for node in at.up_to(at + placed.done).filter_map(|v| e.table.node(v)) {
            batch.map(&e.table, node, State::Mapped(None));
        }
        if !batch.is_empty() {
            lock(&e.lru).map_batch(&e.table, &mut batch);
        }
        Stat::add(&e.stat.swpin_zero, placed.done as u64);
        at += placed.done;
        if placed.done == 0 || placed.stop.is_some() {
            return (at, placed.stop);
        }
    }
    (at, None)
}
