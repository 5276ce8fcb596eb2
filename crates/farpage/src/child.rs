//! The engine's second start, in a forked child: same memory, new userfaultfd.
//!
//! Runs on the child's monitor thread while the program's only thread waits in the atfork handler, so nothing changes
//! underneath. The inherited words are right for every mapping that is still the one they were kept for; what another
//! thread of the parent changed in the last moment is in the verdict (see [`crate::fork`]).

use crate::PAGE_SIZE;
use crate::engine::{Engine, lock};
use crate::fork::Verdict;
use crate::page_table::State;
use crate::pager::Pager;
use crate::sys::proc::{Proc, mappings, marked_mappings};
use crate::sys::raw::fatal;
use crate::sys::uffd::Message;
use farpage_swap::range::RangeSet;
use std::time::Instant;

fn pages(start: usize, end: usize) -> (u64, u64) {
    ((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64)
}

impl Engine {
    /// Starts the engine again in a child whose parent's engine was active.
    ///
    /// # Errors
    /// One line: why memory cannot be managed. The child cannot go on then, because its swapped-out pages would read
    /// as zeros.
    pub fn activate_child(&'static self, proc: &Proc, verdict: &Verdict) -> Result<(), String> {
        let mut pager = self.open_pager(proc)?;
        let mut buffer = vec![0u8; 32 * 1024];
        let mut mapped = RangeSet::new();
        let read = |e| format!("cannot read /proc/self/maps: {e}");
        let maps = proc.file("self/maps").map_err(read)?;
        mappings(&maps, &mut buffer, |m| {
            if m.anonymous {
                let (s, t) = pages(m.start, m.end);
                mapped.insert(s, t);
            }
        })
        .map_err(read)?;
        if !verdict.is_empty() {
            mapped = self.still_adopted(proc, &mut buffer, &mapped).map_err(read)?;
        }
        for event in verdict.events() {
            if let Message::Remap { from, to, len } = event {
                let (s, t) = pages(from, from + len);
                let moved = mapped.overlaps(s, t).is_empty() && mapped.contains((to / PAGE_SIZE) as u64);
                if moved {
                    pager.accept(event, Instant::now());
                } else if !mapped.overlaps(s, t).is_empty() && mapped.contains((to / PAGE_SIZE) as u64) && verdict.overflowed() {
                    fatal("fork: too many mapping changes in other threads at the moment of the fork");
                }
            }
        }
        let managed = lock(&self.managed).clone();
        for (start, end) in managed.iter() {
            for (s, t) in mapped.gaps(start, end) {
                let gone = Message::Unmap { start: s as usize * PAGE_SIZE, end: t as usize * PAGE_SIZE };
                pager.accept(gone, Instant::now());
            }
            for (s, t) in mapped.overlaps(start, end) {
                let (from, len) = (s as usize * PAGE_SIZE, (t - s) as usize * PAGE_SIZE);
                pager.uffd.register(from, len).map_err(|e| format!("cannot register inherited memory: {e:?}"))?;
            }
        }
        self.check_untouched(&mut pager)?;
        self.run_pager(pager)
    }

    /// The mappings that carry the mark of adoption: those that are still the ones the words were kept for.
    fn still_adopted(&self, proc: &Proc, buffer: &mut [u8], mapped: &RangeSet) -> Result<RangeSet, rustix::io::Errno> {
        let smaps = proc.file("self/smaps")?;
        let mut marked = RangeSet::new();
        marked_mappings(&smaps, buffer, |start, end| {
            let (s, t) = pages(start, end);
            for (s, t) in mapped.overlaps(s, t) {
                marked.insert(s, t);
            }
        })?;
        Ok(marked)
    }

    /// Between the fork and this moment the child's memory was not registered. If something touched a page that is
    /// swapped out, it saw zeros; better to end the child than to let it go on with them.
    fn check_untouched(&self, pager: &mut Pager) -> Result<(), String> {
        let managed = lock(&self.managed).clone();
        for (start, end) in managed.iter() {
            let mut touched = None;
            pager
                .present(start as usize * PAGE_SIZE, end as usize * PAGE_SIZE, |s, t| {
                    for vpn in (s / PAGE_SIZE) as u64..(t / PAGE_SIZE) as u64 {
                        let Some(node) = self.table.node_or_create(vpn) else { return false };
                        match self.table.state(node) {
                            State::Mapped(_) => {}
                            State::None => lock(&self.lru).map(&self.table, node, State::Mapped(None)),
                            state => touched = Some((vpn, state)),
                        }
                    }
                    true
                })
                .map_err(|e| format!("PAGEMAP_SCAN failed: {e}"))?;
            if let Some((vpn, state)) = touched {
                let at = vpn as usize * PAGE_SIZE;
                return Err(format!("the page at {at:#x} ({state:?}) was touched before the engine of the child could start"));
            }
        }
        Ok(())
    }
}
