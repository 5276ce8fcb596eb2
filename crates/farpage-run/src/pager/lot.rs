//! Faults of several threads that are served together: what is the same for all is done once, and pages that come in
//! alone, out of compressed memory, are loaded and placed by the pager and its helpers ([`crate::shared::board`]).
//!
//! ```text
//!   pager    look at each fault: room, word, readahead | load, place | wake all | words, lists, slots
//!   helper                                             | load, place |
//! ```
//! To wake a thread the kernel goes through all that wait. So no thread is woken before all pages are there, and then
//! all are at once. They sleep until then, which is also when pages can leave without an interrupt
//! ([`crate::pager::reclaim::Moment`]).
//!
//! Before they are loaded, their words are looked at once more: what reclaim or another fault has changed meanwhile is
//! served anew. After that the pager does nothing else until all are there.
//!
//! Callers: `messages`, `swap_in`, on the pager's thread. Locks: `lru`, those of the devices.

use crate::cpus::ab_trial::Trial;
use crate::pager::cx::{Cx, LotPage, Outcome};
use crate::shared::board::JOB_MAX;
use crate::shared::stacks::HELPERS_MAX;
use crate::threads::helper;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::cpu;
use farpage_device::Entry;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use farpage_swap::tuning::Controller;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Faults that make a lot, and where there are helpers. Of fewer, the first thread would wait for longer than waking it
/// at once costs.
const LOT_MIN: usize = 10;
const HELPED_MIN: usize = 4;
/// CPUs for each helper, besides those of pager and writer.
const CPUS_A_HELPER: usize = 2;
/// How long helpers are used, or not, before the other is tried, and how often. Not a multiple of what others try.
const EPOCH: Duration = Duration::from_millis(40);
const TRY_OFTEN: u32 = 16;

impl Cx {
    /// From now on faults are put into the lot, if there are many.
    pub(crate) fn open_lot(&mut self) {
        let faults = self.waiting.len();
        self.lot.helpers = if faults >= HELPED_MIN { self.helpers() } else { 0 };
        self.lot.open = faults >= if self.lot.helpers > 0 { HELPED_MIN } else { LOT_MIN };
    }

    /// Whether the lot is to be served before another fault is looked at: it is full, or that fault needs something to
    /// be reclaimed, for which the threads of the lot would wait.
    pub(crate) fn lot_is_due(&self) -> bool {
        let n = self.lot.pages.len();
        n == JOB_MAX || n > 0 && self.room() == 0
    }

    /// Puts the page at `vpn`, which comes in alone, into the lot. `None`: it is to be served at once.
    pub(crate) fn put_into_lot(&mut self, vpn: Vpn, entry: Entry, mapping: (Vpn, Vpn)) -> Option<Outcome> {
        let e = self.e;
        // Where there may be guards, each is looked for right before its page is placed.
        if !self.lot.open || !e.space.is_synchronous(entry) || e.memory.marked.load(SeqCst) {
            return None;
        }
        let (fault, node) = (self.serving?, e.table.node(vpn)?);
        if self.lot.pages.iter().any(|page| page.vpn == vpn) {
            // Both threads wait for the same page, and are woken for it.
            return Some(Outcome::Dropped);
        }
        if self.new_pages(1) == 0 {
            return Some(Outcome::Later);
        }
        self.lot.pages.push(LotPage { fault, vpn, node, entry, mapping });
        Some(Outcome::InLot)
    }

    /// How many helpers a lot has.
    fn helpers(&mut self) -> usize {
        let e = self.e;
        let most = (cpu::count().saturating_sub(2) / CPUS_A_HELPER).min(HELPERS_MAX);
        if most == 0 && e.controls.pinned(Controller::Helpers).is_none() {
            return 0;
        }
        let now = Instant::now();
        let pays = self.lot.trial.get_or_insert_with(|| Trial::new(EPOCH, TRY_OFTEN, now)).turn(self.filled, now);
        let wanted = e.controls.value_for(Controller::Helpers, if pays { most as u64 } else { 0 });
        helper::run(e, wanted as usize)
    }

    /// Loads these pages, places them, and wakes the threads that wait for them; a bit for each that could not be
    /// placed. `alone`: no others wait.
    pub(crate) fn load_lot(&mut self, lot: &[LotPage], alone: bool) -> u32 {
        let (e, helpers) = (self.e, self.lot.helpers);
        let pages = lot.iter().map(|page| (page.entry, page.vpn.addr()));
        let verify = |vpn, entry, page: &_| e.verify(vpn, entry, page);
        let failed = e.helpers.load_lot(&e.space, pages, &self.mm, helpers, verify);
        let places = || lot.iter().map(|page| page.vpn.addr());
        match (places().min(), places().max()) {
            (Some(first), Some(last)) if alone && failed == 0 => self.mm.wake(first, last + PAGE_SIZE - first),
            // A thread that is woken in vain has the same fault again.
            _ => {
                let placed = places().enumerate().filter(|(i, _)| failed & 1 << i == 0);
                placed.for_each(|(_, page)| self.mm.wake(page, PAGE_SIZE));
            }
        }
        failed
    }

    /// These pages are in the program now.
    pub(crate) fn map_lot(&mut self, lot: &[LotPage]) {
        let Some(first) = lot.first() else { return };
        self.map_all(first.vpn, lot.iter().map(|page| (page.node, page.entry)), lot.len());
        self.e.budget.add(lot.len() as i64);
        self.filled += lot.len() as u64;
        Stat::add(&self.e.stat.pgmajfault, lot.len() as u64);
    }
}
