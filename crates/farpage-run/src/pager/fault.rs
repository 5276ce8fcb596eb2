//! Serving one fault: zero page, swap cache, swapped page ([`crate::pager::swap_in`]), each with the neighbours
//! that are likely wanted next. Where the pages come from: [`crate::pager::fill`].
//!
//! A fault is served in this order:
//! 1. *Reserve* ([`Pager::reserve`]): room for a new page. Only here may something be reclaimed.
//! 2. *Look* at the mapping and at the page's word.
//! 3. *Fill*. Nothing is taken out of the program between the look and the fill, so what was seen still holds. (A
//!    writer may take a page of the swap cache; that is told by a compare-and-swap.)
//!
//! Caller: the pager's loop. Locks: `managed`, `lru`, `frame`, never two at a time.

use crate::pager::cx::Fault;
use crate::pager::cx::Outcome;
use crate::pager::readahead::{bounds, run_around};
use crate::pager::state::Pager;
use crate::shared::lru::PageBatch;
use crate::shared::page_table::{Node, State, leaf_end, leaf_start};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::mem::zeros::ZERO_PAGES;
use farpage_base::sys::uffd::UffdError;
use farpage_device::Entry;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::PAGE_SIZE;
use farpage_swap::workingset::Rank;

/// Most pages zero-filled for one fault: in plenty, and under pressure.
const ZERO_MAX: u32 = 512;
pub(crate) const ZERO_MAX_TIGHT: u32 = 32;

impl Pager {
    /// Serves one fault.
    pub(crate) fn serve(&mut self, fault: Fault) -> Outcome {
        let vpn = Vpn::of(fault.addr);
        self.cx.serving = vpn;
        self.cx.readahead.fault_of(fault.tid);
        self.reserve(vpn);
        let mapping = self.range_of(vpn);
        let outcome = self.serve_page(vpn, mapping);
        if let (Some(trace), Outcome::Served) = (&mut self.cx.trace, outcome) {
            trace.note(vpn, fault.write);
        }
        let kind = if let Outcome::Served = outcome { EventKind::Fault } else { EventKind::Later };
        self.cx.e.stat.events.note(kind, vpn.number(), 1);
        outcome
    }

    fn serve_page(&mut self, vpn: Vpn, mapping: (Vpn, Vpn)) -> Outcome {
        let e = self.cx.e;
        let Some(node) = e.table.node_or_create(vpn) else {
            // Never touched, or zero; it is not managed from now on.
            let placed = self.cx.fill_zeros(vpn, 1);
            return if placed.done == 0 { self.cx.resolve_refusal(vpn, placed.stop) } else { Outcome::Served };
        };
        loop {
            match e.table.state(node) {
                State::None => return self.zero_fill(vpn, mapping),
                State::Mapped(entry) => return self.zero_again(vpn, node, entry),
                State::Swapped(entry) => return self.cx.swap_in(vpn, entry, mapping),
                // Its frame belongs to a writer for some microseconds; then the page is on a device, or free.
                State::Writeback(_) => return Outcome::Later,
                State::Cached(f) => {
                    let ahead = e.table.is_ahead(node);
                    if let Some(outcome) = self.cx.refault(vpn, node, f, mapping) {
                        if outcome == Outcome::Served && !ahead {
                            self.cx.refault_around(vpn, mapping);
                        }
                        return outcome;
                    }
                    // A writer took the page in this moment: look again.
                }
            }
        }
    }

    /// The registered range around a page. A page outside lies in a mapping that has grown in place: it is registered
    /// (the kernel sent the fault), and from now on known to be.
    pub(crate) fn range_of(&mut self, vpn: Vpn) -> (Vpn, Vpn) {
        if let Some(range) = lock(&self.cx.e.managed).covering(vpn) {
            return range;
        }
        let addr = vpn.addr();
        self.adopt_mappings(addr, addr + PAGE_SIZE);
        lock(&self.cx.e.managed).covering(vpn).unwrap_or((vpn, vpn + 1))
    }

    /// The word says present, the fault says absent: the program has discarded the page, and gets zeros. Or it is
    /// present again, and the fault is an old one; then the kernel refuses the zero page, and nothing happens.
    fn zero_again(&mut self, vpn: Vpn, node: Node, entry: Option<Entry>) -> Outcome {
        let e = self.cx.e;
        let placed = self.cx.fill_zeros(vpn, 1);
        if placed.done == 0 {
            return self.cx.resolve_refusal(vpn, placed.stop);
        }
        let mut lru = lock(&e.lru);
        lru.unmap(&e.table, node, State::None);
        lru.map(&e.table, node, State::Mapped(None), Rank::NEW);
        drop(lru);
        e.free_entry(entry);
        Stat::add(&e.stat.swpin_zero, 1);
        Outcome::Served
    }

    /// First touch: zeros, also for neighbours.
    fn zero_fill(&mut self, vpn: Vpn, (low, high): (Vpn, Vpn)) -> Outcome {
        let e = self.cx.e;
        let tight = e.budget.pressure();
        let is_none = |v: Vpn| e.table.node(v).is_none_or(|n| e.table.state(n) == State::None);
        let most = match tight {
            _ if self.cx.trace.is_some() => 1,
            true => ZERO_MAX_TIGHT,
            false => ZERO_MAX,
        };
        let window = self.zero_streams.on_fault(vpn.number(), most, |v| !is_none(Vpn::new(v)));
        self.zero_window = window.pages;
        let (first, last) = bounds(&window);
        // A run inside one leaf, so that the leaf made for the faulting page serves all.
        let (low, high) = (low.max(leaf_start(vpn)).max(first), high.min(leaf_end(vpn)).min(last));
        let (start, end) = run_around(vpn, low, high, is_none);
        // The page that is waited for first, then those after it, then those before it.
        let (after, stop) = self.zero_run(vpn, end);
        if after == vpn {
            return stop.map_or(Outcome::Later, |stop| self.cx.resolve_refusal(vpn, Some(stop)));
        }
        let before = if self.zero_run(start, vpn).0 == vpn { start } else { vpn };
        self.zero_streams.on_served(before.number(), (after - before) as u32);
        Outcome::Served
    }

    /// Puts zero pages at `[from, to)`, as far as there are some; where it stopped, and why if it was refused.
    fn zero_run(&mut self, from: Vpn, to: Vpn) -> (Vpn, Option<UffdError>) {
        let e = self.cx.e;
        let mut at = from;
        while at < to {
            let placed = self.cx.fill_zeros(at, (to - at).min(ZERO_PAGES));
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
}
