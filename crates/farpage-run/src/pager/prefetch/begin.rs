//! Windows are begun: what is read in advance, or because threads wait for it, and by which thread.
//!
//! Callers: `swap_in`, the parent module; on the pager's thread.

use super::windows::{ALL_MAX, Asked, COMPRESSED_DEPTH, EPOCH, PrefetchWindow, TRY_OFTEN, WINDOW_MIN, WINDOWS_MAX};
use crate::cpus::ab_trial::Trial;
use crate::pager::cx::Cx;
use crate::threads::helper;
use farpage_base::mem::units::{FrameNo, Page, Vpn};
use farpage_device::Entry;
use farpage_device::read_queue::Submitted;
use farpage_ipc::stat::Stat;
use farpage_swap::readahead;
use farpage_swap::readahead::READAHEAD_MAX;
use farpage_swap::tuning::Controller;
use std::time::Instant;

/// The part of `[start, end)` around `vpn` that is in none of the windows. No page is in two: the mark in its word says
/// that the content that was read for it is right, and must mean one window.
fn clear_of(vpn: Vpn, (start, end): (Vpn, Vpn), windows: impl Iterator<Item = (Vpn, Vpn)>) -> (Vpn, Vpn) {
    windows.fold((start, end), |(start, end), (first, last)| match first > vpn {
        true => (start, end.min(first)),
        false => (start.max(last), end),
    })
}

impl Cx {
    /// Has the window behind `served` read if the stream is sure enough. `stream`: the window that
    /// was just brought in, as it was asked for.
    pub(crate) fn read_next(&mut self, mapping: (Vpn, Vpn), served: (Vpn, Vpn), stream: readahead::Window) {
        let want = (stream.pages as usize).min(READAHEAD_MAX as usize);
        if want < WINDOW_MIN || stream.stride != 1 || !self.readahead.reads_next() {
            return;
        }
        let mut edge = served;
        let depth = self.e.controls.value_for(Controller::Depth, self.prefetch.depth.max(1) as u64) as usize;
        for far in 0..depth.max(COMPRESSED_DEPTH) {
            let (low, high) = match stream.down {
                true => (edge.0.saturating_sub(want).max(mapping.0), edge.0),
                false => (edge.1, (edge.1 + want).min(mapping.1)),
            };
            let mut windows = self.prefetch.windows.iter().map(PrefetchWindow::pages);
            let there = windows.find(|(start, end)| *start < high && low < *end);
            edge = match there {
                Some(window) => window,
                None => match self.read(low, high, stream.down, (far, depth)) {
                    Some(window) => window,
                    None => break,
                },
            };
        }
    }

    /// Starts to read what is swapped out of `[low, high)`, from the end on where the program comes from; which pages.
    /// `far`: windows between that one and the program; `depth`: how many there may be, from a file.
    fn read(&mut self, low: Vpn, high: Vpn, down: bool, (far, depth): (usize, usize)) -> Option<(Vpn, Vpn)> {
        let e = self.e;
        let near = |i: usize| if down { high - 1 - i } else { low + i };
        let most = if low < high { high - low } else { 0 };
        let n = (0..most).take_while(|i| e.table.swapped(near(*i)).is_some()).count();
        let queued = (0..n).filter_map(|i| e.table.swapped(near(i))).any(|entry| !e.space.is_synchronous(entry));
        let in_advance = self.prefetch.windows.iter().filter(|w| w.asked.is_none()).count();
        let wanted = n >= WINDOW_MIN
            && match queued {
                true => far < depth,
                false => far < COMPRESSED_DEPTH && self.helper_pays(),
            };
        if !wanted || (in_advance >= WINDOWS_MAX && !self.prefetch.drop_one(self.e, None)) {
            return None;
        }
        let (frame, n) = match self.buffer_frames(n, n) {
            Some((frame, got)) if got >= WINDOW_MIN => (frame, got),
            Some((frame, got)) => {
                e.frames.put_free(frame, got);
                return None;
            }
            None => return None,
        };
        let start = if down { high - n } else { low };
        match queued {
            true => self.submit(start, frame, n, None),
            false => self.submit_compressed(start, frame, n)?,
        }
        Stat::add(&e.stat.swap_ra_windows, 1);
        Some((start, start + n))
    }

    /// Has the pages `[start, end)` read, all swapped out, because a thread waits for the one at `vpn`; what its fault
    /// asked for. `false`: they are better read at once, by the caller.
    pub(crate) fn submit_demand(&mut self, vpn: Vpn, (start, end): (Vpn, Vpn), stream: readahead::Window) -> bool {
        let e = self.e;
        let queued = || e.table.swapped(vpn).is_some_and(|entry| e.space.may_be_in_flight(entry));
        let crowded = e.controls.decide(Controller::Crowd, self.prefetch.concurrency.is_there());
        if !crowded || !queued() {
            return false;
        }
        if self.prefetch.windows.len() >= ALL_MAX && !self.prefetch.drop_one(self.e, None) {
            return false;
        }
        let windows = self.prefetch.windows.iter().map(PrefetchWindow::pages);
        let (start, end) = clear_of(vpn, (start, end), windows);
        let want = (end - start).min(READAHEAD_MAX as usize);
        let (start, end) = if stream.down { (end - want, end) } else { (start, start + want) };
        let Some((frame, got)) = self.buffer_frames(want, want) else { return false };
        let (start, n) = if got == want { (start, want) } else { (vpn, got.min(end - vpn)) };
        if n < got {
            e.frames.put_free(frame + n, got - n);
        }
        self.submit(start, frame, n, Some(Asked { stream, streams: self.readahead.turn(), since: Instant::now() }));
        true
    }

    /// Starts to read `n` swapped pages from `start` on into as many free frames.
    fn submit(&mut self, start: Vpn, frame: FrameNo, n: usize, asked: Option<Asked>) {
        let e = self.e;
        let entries = self.mark(start, n);
        // SAFETY: frames from the free list are present and ours, each named once; they stay the window's until it has
        // landed.
        let mut pages: Vec<&mut Page> = (0..n).map(|i| unsafe { e.frames.page_mut(frame + i) }).collect();
        self.prefetch.last_tag += 1;
        let tag = self.prefetch.last_tag;
        // SAFETY: as above; the queue is only used on this thread.
        let submitted = unsafe { self.prefetch.queue.submit(&e.space, tag, &entries, &mut pages) };
        drop(pages);
        self.prefetch.windows.push(PrefetchWindow { tag, start, entries, frame, loaded: None, ticket: None, asked });
        if let Submitted::Done(arrived) = submitted {
            self.prefetch.note_arrived(arrived);
        }
    }

    /// Has a helper load `n` compressed pages from `start` on into as many free frames. `None`: they have enough
    /// to do.
    fn submit_compressed(&mut self, start: Vpn, frame: FrameNo, n: usize) -> Option<()> {
        let e = self.e;
        let entries = self.mark(start, n);
        let ticket = e.helpers.post(&entries, e.frames.addr(frame)).or_else(|| {
            self.prefetch.reap(self.e);
            e.helpers.post(&entries, e.frames.addr(frame))
        });
        let Some(ticket) = ticket else {
            e.frames.put_free(frame, n);
            return None;
        };
        self.prefetch.last_tag += 1;
        let (tag, ticket) = (self.prefetch.last_tag, Some(ticket));
        self.prefetch.windows.push(PrefetchWindow { tag, start, entries, frame, loaded: None, ticket, asked: None });
        Some(())
    }

    /// The entries of `n` swapped pages from `start` on, whose words know from now on that they are being read.
    fn mark(&self, start: Vpn, n: usize) -> Vec<Entry> {
        let e = self.e;
        let pages = || start.up_to(start + n);
        let entries: Vec<Entry> = pages().filter_map(|vpn| e.table.swapped(vpn)).collect();
        for (vpn, entry) in pages().zip(&entries) {
            if let Some(node) = e.table.node(vpn) {
                e.table.mark_reading(node, *entry);
            }
        }
        entries
    }

    /// Whether the next compressed window is a helper's.
    fn helper_pays(&mut self) -> bool {
        let (now, placed) = (Instant::now(), self.filled);
        let trial = self.prefetch.trial.get_or_insert_with(|| Trial::new(EPOCH, TRY_OFTEN, now));
        self.e.controls.decide(Controller::Decompressor, trial.turn(placed, now)) && helper::run(self.e, 1) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_in_two_windows() {
        let pages = |(start, end)| (Vpn::new(start), Vpn::new(end));
        let clear = |windows: &[(u64, u64)]| {
            let (start, end) = clear_of(Vpn::new(50), pages((40, 60)), windows.iter().copied().map(pages));
            (start.number(), end.number())
        };
        assert_eq!(clear(&[]), (40, 60));
        assert_eq!(clear(&[(10, 20), (70, 80)]), (40, 60));
        assert_eq!(clear(&[(30, 45), (55, 57), (51, 52), (42, 43)]), (45, 51));
        assert_eq!(clear(&[(49, 50), (51, 90)]), (50, 51));
    }
}
