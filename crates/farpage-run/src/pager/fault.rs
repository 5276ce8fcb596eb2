//! Serving one fault: zero page, swap cache, swapped page ([`crate::pager::swap_in`]), each with the neighbours
//! that are likely wanted next. Where the pages come from: [`crate::pager::fill`].
//!
//! A fault is served in this order:
//! 1. *Reserve* (`Reclaim::reserve`): room for a new page. Only here may something be reclaimed.
//! 2. *Look* at the mapping and at the page's word.
//! 3. *Fill*. Nothing is taken out of the program between the look and the fill, so what was seen still holds. (A
//!    writer may take a page of the swap cache; that is told by a compare-and-swap.)
//!
//! Caller: the pager's loop. Locks: `managed`, `lru`, `frame`, never two at a time.

use crate::pager::cx::{Fault, Outcome};
use crate::pager::state::Pager;
use crate::shared::page_table::{Node, State};
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_device::Entry;
use farpage_ipc::stat::{EventKind, Stat};
use farpage_swap::PAGE_SIZE;
use farpage_swap::workingset::Rank;

impl Pager {
    /// Serves one fault.
    pub(crate) fn serve(&mut self, fault: Fault) -> Outcome {
        let vpn = Vpn::of(fault.addr);
        self.cx.serving = Some(fault);
        self.cx.readahead.fault_of(fault.tid);
        let zeros = self.first_touch.wants();
        self.reclaim.reserve(&mut self.cx, &mut self.adoption, vpn, zeros);
        let mapping = self.range_of(vpn);
        let outcome = self.serve_page(vpn, mapping);
        if let (Some(trace), Outcome::Served) = (&mut self.cx.trace, outcome) {
            trace.note(vpn, fault.write);
        }
        let kind = match outcome {
            Outcome::Served | Outcome::InLot => EventKind::Fault,
            _ => EventKind::Later,
        };
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
                State::None => return self.first_touch.zero_fill(&mut self.cx, vpn, mapping),
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
        if let Some(range) = lock(&self.cx.e.memory.managed).covering(vpn) {
            return range;
        }
        let addr = vpn.addr();
        self.adoption.adopt_mappings(&mut self.cx, addr, addr + PAGE_SIZE);
        lock(&self.cx.e.memory.managed).covering(vpn).unwrap_or((vpn, vpn + 1))
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
}
