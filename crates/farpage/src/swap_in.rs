//! Swapped pages: bringing in the one that is wanted, with its neighbours if the program reads in order.
//!
//! Caller: `fault`, on the pager's thread. Locks: `lru`, `frame`, the devices'.

use crate::PAGE_SIZE;
use crate::ahead::Flight;
use crate::device::{Entry, Page};
use crate::engine::lock;
use crate::fault::{Outcome, run_around};
use crate::lru::Batch;
use crate::page_table::{State, Vpn};
use crate::pager::Pager;
use crate::stat::Stat;
use crate::sys::uffd::Refused;
use std::time::Instant;

/// Most pages brought in for one swap-in fault.
pub(crate) const READAHEAD_MAX: u32 = 32;

impl Pager {
    /// Brings a swapped page in, and its neighbours if the program reads in order.
    pub(crate) fn swap_in(&mut self, vpn: Vpn) -> Outcome {
        let e = self.e;
        // What was read and is of no use, because the read failed or the page was changed, is not queued again.
        let mut at_once = false;
        match self.flight_with(vpn) {
            Flight::None => {}
            Flight::OnItsWay => return Outcome::Later,
            Flight::Here(window) => {
                if let Some(outcome) = self.swap_in_read(vpn, &window) {
                    return outcome;
                }
                at_once = true;
            }
        }
        let window = self.streams.on_fault(vpn, READAHEAD_MAX.min(e.conf.readahead.max_pages()));
        let mapping = self.range_of(vpn);
        let (low, high) = mapping;
        let (low, high) = (low.max(window.start), high.min(window.end()));
        let (start, end) = run_around(vpn, low, high, |v| e.table.swapped(v).is_some());
        if !at_once && self.ask(vpn, (start, end), window) {
            match self.flight_with(vpn) {
                // Nothing could be queued after all.
                Flight::Here(window) => {
                    if let Some(outcome) = self.swap_in_read(vpn, &window) {
                        return outcome;
                    }
                }
                Flight::OnItsWay | Flight::None => return Outcome::Later,
            }
        }
        let mut outcome = Outcome::Later;
        let mut ahead = 0;
        // The page that is waited for first, then the rest of the window.
        for (from, to) in [(vpn, end), (start, vpn)] {
            let mut at = from;
            while at < to {
                let (done, stop) = self.swap_in_run(at, (to - at) as usize, at == vpn);
                if at == vpn && done > 0 {
                    outcome = Outcome::Served;
                    Stat::add(&e.stat.pgmajfault, 1);
                    ahead += done as u64 - 1;
                } else {
                    ahead += done as u64;
                }
                at += done as u64;
                if let Some(stop) = stop {
                    if at == vpn {
                        return self.unplaced(vpn, stop);
                    }
                    break;
                }
            }
            if outcome != Outcome::Served {
                return outcome;
            }
        }
        self.streams.on_served(start, (end - start) as u32);
        e.stat.note_readahead(mapping, ahead, window.confirmed.into(), window.pages);
        self.read_next(mapping, (start, end), window);
        outcome
    }

    /// Loads and places up to `n` swapped pages from `vpn` on. Returns how many, and why it stopped early
    /// (`Some(None)`: no frames). `wanted`: a thread waits for the first one.
    fn swap_in_run(&mut self, vpn: Vpn, n: usize, wanted: bool) -> (usize, Option<Option<Refused>>) {
        let e = self.e;
        let Some((stage, got)) = self.stage(n, wanted) else { return (0, Some(None)) };
        let base = self.stage_addr(stage);
        let mut entries: Vec<Entry> = Vec::with_capacity(got);
        let mut pages: Vec<&mut Page> = Vec::with_capacity(got);
        for i in 0..got.min(READAHEAD_MAX as usize) {
            let Some(entry) = e.table.swapped(vpn + i as u64) else { break };
            entries.push(entry);
            // SAFETY: the stage has `got` pages, present and ours, each named once.
            pages.push(unsafe { &mut *((base + i * PAGE_SIZE) as *mut Page) });
        }
        let from_file = wanted && entries.first().is_some_and(|entry| !e.space.is_synchronous(*entry));
        let since = Instant::now();
        let (loaded, error) = e.space.load_many(&entries, &mut pages);
        drop(pages);
        if wanted && entries.len() == 1 {
            e.load_times.note(from_file, since.elapsed().as_nanos() as u64);
        }
        Stat::add(&e.stat.pgmajfault_file, u64::from(from_file));
        if let (0, true, Some(error)) = (loaded, wanted, error) {
            // Perhaps it is not the first page that cannot be read.
            // SAFETY: as above.
            let alone = n > 1 && e.space.load(entries[0], unsafe { &mut *(base as *mut Page) }).is_ok();
            self.unstage(stage, 0, got);
            if alone {
                return self.swap_in_run(vpn, 1, true);
            }
            return (0, Some(self.lose(vpn, entries[0], &error)));
        }
        // SAFETY: just loaded, owned.
        unsafe { e.verify_run(vpn, &entries[..loaded], base) };
        self.unstage(stage, loaded, got);
        let placed = self.place_stage(vpn, stage, loaded);
        self.book_swapped_in(vpn, &entries[..placed.done], wanted);
        let stop = if placed.done < loaded { Some(placed.stop) } else { (loaded < n && loaded < got).then_some(None) };
        (placed.done, stop)
    }

    /// The pages from `vpn` on are in the program now: words, lists, slots. `wanted`: a thread waits for the first one.
    pub(crate) fn book_swapped_in(&mut self, vpn: Vpn, entries: &[Entry], wanted: bool) {
        let e = self.e;
        let mut kept = [None; READAHEAD_MAX as usize];
        for (kept, entry) in kept.iter_mut().zip(entries) {
            *kept = (e.clean.keep() && e.space.keep(*entry)).then_some(*entry);
        }
        let (mut touched, mut batch) = (None, Batch::default());
        for (i, kept) in kept[..entries.len()].iter().enumerate() {
            let Some(node) = e.table.node(vpn + i as u64) else { continue };
            if wanted && i == 0 {
                touched = Some((node, State::Mapped(*kept)));
            } else {
                batch.map(&e.table, node, State::Mapped(*kept));
            }
        }
        let mut lru = lock(&e.lru);
        lru.map_batch(&e.table, &mut batch);
        if let Some((node, to)) = touched {
            lru.map_refaulted(&e.table, node, to);
        }
        drop(lru);
        for (entry, _) in entries.iter().zip(&kept).filter(|(_, kept)| kept.is_none()) {
            e.free_entry(Some(*entry));
        }
        Stat::add(&e.stat.pswpin, entries.len() as u64);
    }
}
