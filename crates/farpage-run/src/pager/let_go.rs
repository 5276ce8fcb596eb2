//! Memory that the program is to have for itself: all of it is brought in, and none of it is managed any more.
//!
//! * A range: the program registers it with a userfaultfd of its own, and the kernel allows one. Until that is undone.
//! * Everything: the program has opened its own pagemap. What is swapped out here looks there as if it had never been
//!   used, and a program that clears only what has been used would keep the rest. Until the process ends.
//! * Everything, because the process is being detached. That can be taken back.
//!
//! Pages come in above the budget if need be. Each one loses its word as soon as it is there, so that it is out of
//! reclaim's reach; when no page of the range has a word, the range is no longer registered. Nothing of the program
//! runs in between that could fill a word: the pager serves all faults.
//!
//! This is what the pager does; program threads ask for it in [`crate::mappings::requests`].

use crate::pager::bring_in::Step;
use crate::pager::cx::Cx;
use crate::pager::scans::Scans;
use crate::shared::charge::UNLIMITED;
use crate::shared::page_table::leaf_end;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{USER_END, Vpn};
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Pages looked at in one step, and brought in, so that faults do not wait for all of them.
const LOOKED_AT: usize = 4096;
const BROUGHT_IN: usize = 64;
/// A range that could not be registered is tried again after this time: what kept it may be gone.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Everything, bytes.
const ALL: (usize, usize) = (PAGE_SIZE, USER_END);

/// Memory that is to be the program's alone, or cannot be managed: the pager's part.
pub(crate) struct LetGo {
    /// Ranges (bytes) that cannot be registered, so that they are not tried again and again, and since when there are
    /// any.
    refused: Vec<(usize, usize)>,
    refused_since: Instant,
    /// Ranges (bytes) that are to be the program's alone, and how far that has come with the first.
    ranges: Vec<(usize, usize)>,
    up_to: Vpn,
    /// All of the process's memory is, or was, among them.
    excluded: bool,
}

impl LetGo {
    pub(crate) fn new() -> LetGo {
        LetGo {
            refused: Vec::new(),
            refused_since: Instant::now(),
            ranges: Vec::new(),
            up_to: Vpn::default(),
            excluded: false,
        }
    }

    /// Nothing is being let go.
    pub(crate) fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// `[start, end)` (bytes) is to be the program's alone.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        self.ranges.push((start, end));
    }

    /// A step of letting go. Whether there was anything to do.
    pub(crate) fn step(&mut self, cx: &mut Cx, scans: &mut Scans) -> bool {
        let e = cx.e;
        let is_excluded = e.is_excluded();
        if is_excluded != self.excluded {
            self.excluded = is_excluded;
            self.ranges.retain(|range| *range != ALL);
            self.up_to = Vpn::default();
            e.stage.let_go.store(false, SeqCst);
            if is_excluded {
                e.discovery.charges.allow(UNLIMITED);
                self.ranges.push(ALL);
            } else {
                // What has come in is to be on the lists again, or can be managed again.
                self.refused.retain(|range| *range != ALL);
                scans.0.extend(lock(&e.memory.managed).iter());
            }
        }
        let Some(&(start, end)) = self.ranges.first() else { return false };
        let (first, last) = (Vpn::of(start), Vpn::of(end.next_multiple_of(PAGE_SIZE)));
        scans.cut(first, last);
        let parts = lock(&e.memory.managed).overlaps(first, last);
        if !self.bring_in(cx, &parts) {
            return true;
        }
        // Faults were served between the steps. From here on none is.
        self.up_to = Vpn::default();
        if parts.iter().all(|part| cx.forget_words(*part)) {
            unregister(cx, start, end, &parts);
            self.refuse(start, end);
            self.ranges.remove(0);
            if self.ranges.is_empty() {
                e.stage.let_go.store(is_excluded, SeqCst);
                e.discovery.notes.finish();
            }
        }
        true
    }

    /// Goes on bringing pages of these ranges in. Whether the end was reached.
    fn bring_in(&mut self, cx: &mut Cx, parts: &[(Vpn, Vpn)]) -> bool {
        let e = cx.e;
        let (mut looked, mut here) = (0, 0);
        for &(low, high) in parts {
            let mut at = self.up_to.max(low);
            while at < high {
                let Some(node) = e.table.node(at) else {
                    at = leaf_end(at);
                    continue;
                };
                self.up_to = at;
                if looked == LOOKED_AT || here >= BROUGHT_IN {
                    return false;
                }
                match cx.bring_in_some(at, high, node) {
                    Step::Here(pages) => {
                        at += pages.max(1);
                        here += pages;
                        looked += 1;
                    }
                    Step::Later => {
                        cx.sleep(Some(50_000));
                        return false;
                    }
                }
            }
        }
        true
    }

    /// `[start, end)` (bytes) cannot be registered, or is not to be.
    pub(crate) fn refuse(&mut self, start: usize, end: usize) {
        if self.refused.is_empty() {
            self.refused_since = Instant::now();
        }
        self.refused.push((start, end));
    }

    /// Whether something of `[start, end)` (bytes) is not to be registered at this time.
    pub(crate) fn is_refused(&self, start: usize, end: usize) -> bool {
        self.refused.iter().chain(&self.ranges).any(|(from, to)| *from < end && start < *to)
    }

    /// What could not be registered may be by now.
    pub(crate) fn forget_refused(&mut self) {
        if !self.refused.is_empty() && self.refused_since.elapsed() > REFUSED_FOR {
            self.refused.clear();
        }
    }
}

/// What is mapped in these ranges is the program's from now on: `parts` (pages), and what has grown out of them,
/// inside `[start, end)` (bytes).
fn unregister(cx: &mut Cx, start: usize, end: usize, parts: &[(Vpn, Vpn)]) {
    let e = cx.e;
    for &(first, last) in parts {
        let (mut at, to) = (first.addr(), last.addr());
        while at < to {
            let found = match cx.mm.mapping_from(at) {
                Ok(Some(found)) if found.start < to => (found.start.max(start), found.end.min(end)),
                Ok(_) => break,
                Err(_) => (at, to),
            };
            // Refused where nothing is mapped any more.
            let _ = cx.mm.unregister(found.0, found.1 - found.0);
            at = found.1;
        }
        lock(&e.memory.managed).remove(first, last);
        e.discovery.recent.cut(first.addr(), to);
    }
}
