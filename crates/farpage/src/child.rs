//! The engine's second start, in a forked child: same memory, new userfaultfd.
//!
//! Runs on the child's monitor thread while the program's only thread waits in the atfork handler, so nothing changes
//! underneath. The inherited words are right for every mapping that is still the one they were kept for; what other
//! threads of the parent changed in the last moment is in the verdict (see [`crate::fork`]).

use crate::PAGE_SIZE;
use crate::engine::{Engine, lock};
use crate::fork::Verdict;
use crate::page_table::State;
use crate::pager::Pager;
use crate::sys::pagemap::present_runs;
use crate::sys::proc::{Proc, mappings};
use crate::sys::uffd::Message;
use farpage_swap::range::RangeSet;
use farpage_swap::workingset::Rank;
use std::time::Instant;

/// Stack that the handlers in the child may use.
const DEAD_STACK: usize = 256 * 1024;

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
            if m.adoptable {
                let (s, t) = pages(m.start, m.end);
                mapped.insert(s, t);
            }
        })
        .map_err(read)?;
        if verdict.overflowed() {
            return Err("too many mapping changes in other threads at the moment of the fork".into());
        }
        for event in verdict.events() {
            match event {
                // Whether the copy was made before or after: what another thread unmaps during a fork, the child
                // cannot count on; and what somebody else mapped there since is not ours. The same for what it discards.
                Message::Unmap { .. } | Message::Remove { .. } => pager.accept(event, Instant::now()),
                Message::Remap { to, .. } if mapped.contains((to / PAGE_SIZE) as u64) => {
                    pager.accept(event, Instant::now())
                }
                _ => {}
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

    /// Between the fork and this moment the child's memory was not registered. If something touched a page that is
    /// swapped out, it saw zeros; better to end the child than to let it go on with them.
    fn check_untouched(&self, pager: &mut Pager) -> Result<(), String> {
        let stack = self.fork.child_stack();
        let dead = ((stack - DEAD_STACK) / PAGE_SIZE) as u64..(stack / PAGE_SIZE) as u64;
        let managed = lock(&self.managed).clone();
        for (start, end) in managed.iter() {
            let mut touched = None;
            let pagemap = pager.uffd.pagemap();
            present_runs(pagemap, start as usize * PAGE_SIZE, end as usize * PAGE_SIZE, |s, t| {
                for vpn in (s / PAGE_SIZE) as u64..(t / PAGE_SIZE) as u64 {
                    let Some(node) = self.table.node_or_create(vpn) else { return false };
                    match self.table.state(node) {
                        State::Mapped(_) => {}
                        State::None => lock(&self.lru).map(&self.table, node, State::Mapped(None), Rank::NEW),
                        // Below the stack pointer of the forking thread everything is dead.
                        State::Swapped(entry) if dead.contains(&vpn) => {
                            lock(&self.lru).map(&self.table, node, State::Mapped(None), Rank::NEW);
                            self.space.free(entry);
                        }
                        State::Cached(f) if dead.contains(&vpn) => {
                            lock(&self.lru).uncache(&self.table, node, State::Cached(f), State::Mapped(None));
                            self.release_frame_entry(f);
                            self.frames.put_free(f, 1);
                        }
                        state => touched = Some((vpn, state)),
                    }
                }
                true
            })
            .map_err(|e| format!("PAGEMAP_SCAN failed: {e}"))?;
            if let Some((vpn, state)) = touched {
                let at = vpn as usize * PAGE_SIZE;
                return Err(format!(
                    "the page at {at:#x} ({state:?}) was touched before the engine of the child could start (stack at {stack:#x})"
                ));
            }
        }
        Ok(())
    }
}
