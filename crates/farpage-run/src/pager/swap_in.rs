//! Swapped pages: bringing in the one that is wanted, with its neighbours if the program reads in order.
//!
//! Caller: `fault`, on the pager's thread. Locks: `lru`, `frame`, the devices'.

use crate::pager::cx::{Cx, Outcome, SCRATCH_PAGES};
use crate::pager::prefetch::windows::Inflight;
use crate::pager::readahead::{Plan, bounds, pages_of, run_around, single};
use crate::shared::page_table::{Node, State};
use farpage_base::mem::units::{FrameNo, Page, Vpn};
use farpage_base::sys::uffd::UffdError;
use farpage_device::{Entry, LoadError};
use farpage_ipc::stat::Stat;
use farpage_swap::readahead::{LIST_MAX, READAHEAD_MAX, Window};
use std::ops::Range;
use std::time::Instant;

/// What became of a run of pages.
pub(crate) struct Ran {
    /// Pages that have come in, from the first on.
    pub(crate) done: usize,
    /// Why not more, if there were more; `Some(None)`: no frames.
    stop: Option<Option<UffdError>>,
}

impl Ran {
    fn nothing(why: Option<UffdError>) -> Ran {
        Ran { done: 0, stop: Some(why) }
    }
}

/// `vpn`, then the others, [`LIST_MAX`] at most in all.
fn list_of(vpn: Vpn, others: impl Iterator<Item = Vpn>) -> Vec<Vpn> {
    std::iter::once(vpn).chain(others).take(LIST_MAX).collect()
}

impl Cx {
    /// Brings a swapped page in, whose content is at `entry`, and what is to come with it.
    pub(crate) fn swap_in(&mut self, vpn: Vpn, entry: Entry, mapping: (Vpn, Vpn)) -> Outcome {
        let e = self.e;
        if !e.space.in_reach(entry) {
            return Outcome::Later;
        }
        // What was read and is of no use, because the read failed or the page was changed, is not queued again.
        let mut at_once = false;
        match self.prefetch.inflight_with(self.e, vpn) {
            Inflight::None => {}
            Inflight::OnItsWay => return Outcome::Later,
            Inflight::Here(window) => {
                if let Some(outcome) = self.swap_in_read(vpn, window, mapping) {
                    return outcome;
                }
                at_once = true;
            }
        }
        let is_there = |vpn| e.table.is_there(vpn);
        let window = match self.readahead.on_miss(vpn, entry, mapping, e.space.is_rotational(entry), is_there) {
            Plan::Run(window) => window,
            Plan::Each(window) => {
                let others = || pages_of(&window).filter(|v| *v != vpn && (mapping.0..mapping.1).contains(v));
                let list = match window.down {
                    true => list_of(vpn, others().rev()),
                    false => list_of(vpn, others()),
                };
                return self.swap_in_each(mapping, &list, window, self.readahead.is_exact());
            }
            Plan::Slots(slots) => {
                let list = self.beside(vpn, entry, slots);
                // The slots of neighbours say no more than a stream will, which reads more of them.
                let streams = self.readahead.reads_next() && list[1..].iter().any(|v| *v + 1 == vpn || *v == vpn + 1);
                if list.len() > 1 && !streams {
                    // Stride 0: they need not be neighbours in the program.
                    let window = Window { stride: 0, pages: list.len() as u32, ..single(vpn) };
                    return self.swap_in_each(mapping, &list, window, true);
                }
                single(vpn)
            }
        };
        let (low, high) = bounds(&window);
        let (low, high) = (low.max(mapping.0), high.min(mapping.1));
        let (start, end) = run_around(vpn, low, high, |v| e.table.swapped(v).is_some());
        if !at_once && self.submit_demand(vpn, (start, end), window) {
            match self.prefetch.inflight_with(self.e, vpn) {
                // Nothing could be queued after all.
                Inflight::Here(window) => {
                    if let Some(outcome) = self.swap_in_read(vpn, window, mapping) {
                        return outcome;
                    }
                }
                Inflight::OnItsWay | Inflight::None => return Outcome::Later,
            }
        }
        if self.readahead.is_exact() && end - start > 1 {
            let list: Vec<Vpn> = match window.down {
                true => start.up_to(vpn + 1).rev().collect(),
                false => vpn.up_to(end).collect(),
            };
            return self.swap_in_each(mapping, &list, window, true);
        }
        if window.pages == 1
            && let Some(outcome) = self.put_into_lot(vpn, entry, mapping)
        {
            return outcome;
        }
        let mut outcome = Outcome::Later;
        let (mut ahead, mut reached) = (0, end);
        // The page that is waited for first, then the rest of the window.
        for (from, to) in [(vpn, end), (start, vpn)] {
            let mut at = from;
            while at < to {
                let n = (to - at).min(READAHEAD_MAX as usize);
                let Ran { done, stop } = self.swap_in_run(at, n, at == vpn);
                ahead += done as u64;
                if at == vpn && done > 0 {
                    outcome = Outcome::Served;
                    Stat::add(&e.stat.pgmajfault, 1);
                    ahead -= 1;
                }
                at += done;
                if let Some(stop) = stop {
                    if at == vpn {
                        return self.resolve_refusal(vpn, stop);
                    }
                    if to == end {
                        reached = at;
                    }
                    break;
                }
            }
            if outcome != Outcome::Served {
                return outcome;
            }
        }
        if window.pages > 1 {
            self.readahead.on_served(start, (reached - start) as u32);
        }
        e.stat.note_readahead(mapping, ahead, window.pages);
        self.read_next(mapping, (start, reached), window);
        outcome
    }

    /// `vpn`, and what is beside its content on the device: slots without a gap, of pages that are still there.
    fn beside(&self, vpn: Vpn, entry: Entry, slots: Range<u64>) -> Vec<Vpn> {
        let e = self.e;
        let page_at = |slot: u64| {
            let other = Entry::new(entry.device(), slot).filter(|other| !e.space.is_moved(*other))?;
            let node = Node(e.slots.slot_pages.as_ref()?.page_of(other));
            (e.table.state(node) == State::Swapped(other)).then(|| e.table.vpn(node))
        };
        let up = (entry.slot() + 1..slots.end).map_while(page_at);
        let down = (slots.start..entry.slot()).rev().map_while(page_at);
        list_of(vpn, up.chain(down))
    }

    /// Brings in what is swapped out of `list`, with one read. The first page is waited for. The others wait for their
    /// touch (`wait`), or are mapped.
    fn swap_in_each(&mut self, mapping: (Vpn, Vpn), list: &[Vpn], window: Window, wait: bool) -> Outcome {
        let (e, vpn) = (self.e, list[0]);
        let room = self.new_pages(list.len());
        // Pages that wait keep their frames. The others are copied.
        let mut frames = Vec::with_capacity(list.len());
        while wait
            && frames.len() + 1 < list.len().min(room)
            && let Some((first, n)) = self.buffer_frames(list.len() - 1 - frames.len(), 1)
        {
            frames.extend(first.run(n));
        }
        let give_back = |frames: &[FrameNo]| frames.iter().for_each(|f| e.frames.put_free(*f, 1));
        let most = if wait { frames.len() + 1 } else { room }.min(SCRATCH_PAGES);
        let swapped = |v: &Vpn| e.table.swapped(*v).map(|entry| (*v, entry));
        let found: Vec<(Vpn, Entry)> = list.iter().filter_map(swapped).take(most).collect();
        if room == 0 || found.first().is_none_or(|(first, _)| *first != vpn) {
            give_back(&frames);
            return Outcome::Later;
        }
        let entries: Vec<Entry> = found.iter().map(|(_, entry)| *entry).collect();
        let (first, rest) = self.scratch.0.split_at_mut(1);
        // SAFETY: free frames that were taken: present and ours, each named once.
        let kept = frames.iter().map(|f| unsafe { e.frames.page_mut(*f) });
        let others = rest.iter_mut().take(if wait { 0 } else { SCRATCH_PAGES });
        let mut pages: Vec<&mut Page> = first.iter_mut().chain(kept).chain(others).take(found.len()).collect();
        let (loaded, error) = e.space.load_in_reach(&entries, &mut pages);
        drop(pages);
        let kept = frames.len().min(loaded.saturating_sub(1));
        give_back(&frames[kept..]);
        frames.truncate(kept);
        if loaded == 0 {
            return match error {
                // Perhaps it is not the first page that cannot be read.
                Some(LoadError::OutOfReach { .. }) => Outcome::Later,
                Some(_) if list.len() > 1 => {
                    self.granted = room;
                    self.swap_in_each(mapping, &list[..1], single(vpn), wait)
                }
                Some(error) => {
                    let stop = self.poison(vpn, entries[0], &error);
                    self.resolve_refusal(vpn, stop)
                }
                None => Outcome::Later,
            };
        }
        let mut came = 0;
        for (i, (at, entry)) in found[..loaded].iter().enumerate() {
            let frame = if i > 0 { frames.get(i - 1) } else { None };
            let content = frame.map_or_else(|| std::ptr::from_ref(&self.scratch.0[i]) as usize, |f| e.frames.addr(*f));
            // SAFETY: just loaded, owned.
            unsafe { e.verify_run(*at, &[*entry], content) };
            if let Some(f) = frame {
                self.add_to_swap_cache(*at, *f, *entry);
                came += 1;
                continue;
            }
            let placed = self.copy_in(*at, content, 1);
            if i == 0 && placed.done == 0 {
                give_back(&frames);
                return self.resolve_refusal(vpn, placed.stop);
            }
            self.map_swapped_in(*at, &[*entry][..placed.done], i == 0);
            came += placed.done;
        }
        Stat::add(&e.stat.pgmajfault, 1);
        Stat::add(&e.stat.pgmajfault_file, u64::from(!e.space.is_synchronous(entries[0])));
        e.stat.note_readahead(mapping, came as u64 - 1, window.pages);
        if window.stride == 1 && self.readahead.reads_next() {
            let (start, end) = if window.down { (vpn + 1 - loaded, vpn + 1) } else { (vpn, vpn + loaded) };
            self.readahead.on_served(start, loaded as u32);
            self.read_next(mapping, (start, end), window);
        }
        Outcome::Served
    }

    /// Loads and places up to `n` swapped pages from `vpn` on, as far as there is room. `wanted`: a thread waits for
    /// the first one.
    pub(crate) fn swap_in_run(&mut self, vpn: Vpn, n: usize, wanted: bool) -> Ran {
        let e = self.e;
        let n_max = n.min(SCRATCH_PAGES);
        let got = if wanted { self.new_pages(n_max) } else { n_max.min(self.room_for(n_max)) };
        let entries: Vec<Entry> = vpn.up_to(vpn + got).map_while(|vpn| e.table.swapped(vpn)).collect();
        if entries.is_empty() {
            return Ran::nothing(None);
        }
        let from_file = wanted && !e.space.is_synchronous(entries[0]);
        let since = Instant::now();
        let mut pages: Vec<&mut Page> = self.scratch.0[..entries.len()].iter_mut().collect();
        let (loaded, error) = e.space.load_in_reach(&entries, &mut pages);
        drop(pages);
        if let (0, Some(LoadError::OutOfReach { .. })) = (loaded, error) {
            return Ran::nothing(None);
        }
        if wanted && entries.len() == 1 {
            e.slots.load_times.note(from_file, since.elapsed().as_nanos() as u64);
        }
        Stat::add(&e.stat.pgmajfault_file, u64::from(from_file));
        if let (0, true, Some(error)) = (loaded, wanted, error) {
            // Perhaps it is not the first page that cannot be read.
            if n > 1 && e.space.load(entries[0], &mut self.scratch.0[0]).is_ok() {
                self.granted = got;
                return self.swap_in_run(vpn, 1, true);
            }
            return Ran::nothing(self.poison(vpn, entries[0], &error));
        }
        if loaded == 0 {
            return Ran::nothing(None);
        }
        let base = self.scratch.0.as_ptr() as usize;
        // SAFETY: just loaded, into memory that is this thread's.
        unsafe { e.verify_run(vpn, &entries[..loaded], base) };
        let placed = self.copy_in(vpn, base, loaded);
        self.map_swapped_in(vpn, &entries[..placed.done], wanted);
        let stop = match placed.done < loaded {
            true => Some(placed.stop),
            false => (loaded < n && loaded < got).then_some(None),
        };
        Ran { done: placed.done, stop }
    }
}
