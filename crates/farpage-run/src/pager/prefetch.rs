//! Windows that are read from a file while the pager does something else: before the program comes to them, or, where
//! several threads wait for pages, because one has come to them.
//!
//! *In advance.* A program that has gone through a window in order will most likely want the next one. So its pages are
//! read (`device::read_queue`) while the program is busy with those it has, and wait in frames. The words of the pages
//! stay `Swapped`, with a mark ([`crate::shared::page_table::PageTable::mark_reading`]) that every change of the word
//! takes away: content is placed only if the mark is still there, so what was discarded, moved or freed meanwhile is
//! thrown away with what was read for it. The first fault in the window places all of it, and has the next one read.
//!
//! ```text
//!   fault                 fault: placed at once          fault
//!     v                     v                              v
//!   --[ read, placed ][ read meanwhile, in frames ][ read meanwhile ...
//! ```
//!
//! *Asked for.* The fault of a single thread is served by a read that the pager waits for; no other thread wants
//! anything, and a queue costs more than it gains. With several threads ([`windows::FaultConcurrency`]) the page's
//! window is queued instead, the fault stays with those that wait, and the faults of the others are served, or read,
//! meanwhile.
//!
//! What fails to be read is dropped. If it is wanted it is read again, waited for, and then an error is one.
//!
//! *Compressed pages* are read in advance by a thread ([`crate::threads::helper`]), if that brings in more pages
//! a second than to do without, which is tried ([`crate::cpus::ab_trial::Trial`]): it takes an idle CPU, and, while the
//! helper runs, what is moved from one place to another costs an interrupt of its CPU.
//!
//! Caller: `swap_in`, `reclaim`, `fork::pause`, the pager's loop; all on its thread. Locks: those of `frame` and the
//! devices.

mod begin;
pub(crate) mod windows;

use crate::pager::cx::{Cx, Outcome};
use crate::pager::prefetch::windows::PrefetchWindow;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::uffd::UffdError;
use farpage_ipc::stat::Stat;

impl Cx {
    /// Places a window that has arrived. `None`: the page at `vpn`, which is waited for, is not among what can be used.
    pub(crate) fn swap_in_read(&mut self, vpn: Vpn, window: PrefetchWindow, mapping: (Vpn, Vpn)) -> Option<Outcome> {
        let e = self.e;
        let loaded = window.loaded.unwrap_or(0);
        let usable = |i: usize| {
            i < loaded && e.table.node(window.start + i).is_some_and(|n| e.table.is_reading(n, window.entries[i]))
        };
        let wanted = vpn - window.start;
        if !usable(wanted) {
            self.prefetch.throw_away(self.e, window);
            return None;
        }
        let stream = match window.asked {
            Some(asked) => {
                for counter in [&e.stat.pgmajfault, &e.stat.pgmajfault_file, &e.stat.pgmajfault_queued] {
                    Stat::add(counter, 1);
                }
                if window.entries.len() == 1 {
                    e.slots.load_times.note(true, asked.since.elapsed().as_nanos() as u64);
                }
                self.readahead.resume(asked.streams);
                asked.stream
            }
            None => {
                Stat::add(&e.stat.swap_ra_windows_hit, 1);
                self.readahead.on_stream(vpn, |vpn| e.table.is_there(vpn))
            }
        };
        let exact = self.readahead.is_exact();
        let (mut placed, mut stop) = (0, None);
        // The page that is waited for first, then those before it.
        for (from, to) in [(wanted, window.entries.len()), (0, wanted)] {
            let mut at = from;
            while at < to {
                let mut end = at;
                while end < to && usable(end) && stop.is_none() {
                    end += 1;
                }
                if end == at {
                    e.frames.put_free(window.frame + at, 1);
                    at += 1;
                    continue;
                }
                let frame = window.frame + at;
                if exact && at != wanted {
                    self.add_to_swap_cache(window.start + at, frame, window.entries[at]);
                    (at, placed) = (at + 1, placed + 1);
                    continue;
                }
                end = if exact { at + 1 } else { end };
                let (done, refused) = self.fill_read(&window, at, end, at == wanted);
                placed += done;
                if at + done < end {
                    stop = Some(refused);
                }
                if at == wanted && done == 0 {
                    for i in (end..to).chain(0..wanted) {
                        e.frames.put_free(window.frame + i, 1);
                    }
                    return Some(self.resolve_refusal(vpn, refused));
                }
                at = end;
            }
        }
        let (start, end) = window.pages();
        if stream.pages > 1 {
            self.readahead.on_served(start, (end - start) as u32);
        }
        e.stat.note_readahead(mapping, placed as u64 - 1, stream.pages);
        self.read_next(mapping, (start, end), stream);
        Some(Outcome::Served)
    }

    /// Places pages `[from, to)` of a window; how many, and why not more. All their frames have found their way.
    fn fill_read(
        &mut self,
        window: &PrefetchWindow,
        from: usize,
        to: usize,
        wanted: bool,
    ) -> (usize, Option<UffdError>) {
        let e = self.e;
        let (vpn, frame) = (window.start + from, window.frame + from);
        // SAFETY: the frames are this window's, and nothing writes to them any more.
        unsafe { e.verify_run(vpn, &window.entries[from..to], e.frames.addr(frame)) };
        let n = self.new_pages(to - from);
        let placed = self.copy_in(vpn, e.frames.addr(frame), n);
        e.frames.put_free(frame, to - from);
        self.map_swapped_in(vpn, &window.entries[from..from + placed.done], wanted);
        (placed.done, placed.stop)
    }
}
