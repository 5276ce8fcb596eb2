//! Robust mutexes: the kernel tells the death of their owners.
//!
//! Each thread has a list of those that it holds, in the program's memory. When the thread ends, the kernel goes along
//! the list and marks them. It does not wait for a page then (userfaultfd is not asked for a thread that exits), but
//! stops there: a thread that waits for that mutex, or for one behind it, waits for ever. And a process may be killed
//! at any time. So a page with a mutex that is held, or just being taken, stays in. The lists are looked at before
//! pages are taken out, and once more afterwards, because a thread may have taken a mutex in between: its page comes
//! back at once.
//!
//! Lists have nodes only in programs that make such mutexes, which the preload library hears of
//! ([`robust_mutexes_seen`]). (Those that another process has made are in shared memory, which is not managed.)
//!
//! The same holds for the control blocks of threads that are being started ([`crate::mappings::thread_starts`]); those
//! of other threads are noted once, and never go ([`Engine::pin_thread`](crate::shared::state::Engine::pin_thread)).
//!
//! The lists change while they are read, and memory may be unmapped, so it is read through `/proc/self/mem`, which
//! fails on what is not there and never waits.
//!
//! Caller: `reclaim` and `register`, on the pager's thread. Locks: those of what brings a page in.

pub(crate) mod lists;

use crate::mappings::thread_starts;
use crate::pager::bring_in::{Step, found_present};
use crate::pager::cx::{Cx, Fault};
use crate::pager::robust::lists::{NODES_MAX, RobustLists};
use crate::shared::page_table::State;
use farpage_base::mem::units::Vpn;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

static ROBUST_MUTEXES_SEEN: AtomicBool = AtomicBool::new(false);

/// The program may have robust mutexes from now on. Any thread.
pub fn robust_mutexes_seen() {
    ROBUST_MUTEXES_SEEN.store(true, SeqCst);
}

/// So often a page is tried that a writer has.
const STORES: usize = 20_000;
const NAP: Duration = Duration::from_micros(50);

impl RobustLists {
    /// The pages that have to stay in, sorted. Those that were out have been brought in; `None`: that cannot be done
    /// now.
    pub(crate) fn held_pages(&mut self, cx: &mut Cx) -> Option<Vec<Vpn>> {
        let mut pages = Vec::new();
        // Behind a page that was out there may be others.
        for _ in 0..NODES_MAX {
            pages.clear();
            thread_starts::unknown_blocks(&cx.e.discovery.notes, |at| self.word(at), &mut pages);
            if ROBUST_MUTEXES_SEEN.load(SeqCst) {
                self.pages(&mut pages);
            }
            pages.sort_unstable();
            pages.dedup();
            let out: Vec<Vpn> = pages.iter().copied().filter(|vpn| is_out(cx, *vpn)).collect();
            if out.is_empty() {
                break;
            }
            if !out.iter().all(|vpn| bring_back(cx, *vpn)) {
                return None;
            }
        }
        Some(pages)
    }
}

fn is_out(cx: &Cx, vpn: Vpn) -> bool {
    let state = cx.e.table.node(vpn).map(|node| cx.e.table.state(node));
    matches!(state, Some(State::Cached(_) | State::Writeback(_) | State::Swapped(_)))
}

/// Brings a page in at once. False: not now, but as soon as it can be.
fn bring_back(cx: &mut Cx, vpn: Vpn) -> bool {
    let e = cx.e;
    for _ in 0..STORES {
        let Some(node) = e.table.node(vpn) else { return true };
        match cx.bring_in_some(vpn, vpn + 1, node) {
            Step::Here(_) => {
                // Like any other page that is there.
                found_present(e, vpn);
                return true;
            }
            Step::Later if cx.changing() => break,
            Step::Later => std::thread::sleep(NAP),
        }
    }
    let (addr, tid) = (vpn.addr(), 0);
    cx.waiting.push(Fault { addr, write: false, tid, since: Instant::now(), put_off_ms: None });
    false
}
