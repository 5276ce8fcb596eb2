//! Which of the program's memory may be managed, and is worth it.
//!
//! Callers: the monitor, which looks for mappings; the pager, which registers them; the forking thread. Locks:
//! `managed`.

use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::maps::{Kind, Mapping};
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

/// Smallest mapping adopted, bytes, unless those that are smaller come to such a part of the budget.
const ADOPT_MIN: usize = 8 * PAGE_SIZE;
const SMALL_PART: i64 = 8;

/// The first thread's stack is managed if it is at least this part of the budget, and so large.
const STACK_PART: usize = 16;
const STACK_MIN: usize = 1 << 20;
/// The kernel lets no more go to arguments and environment; nothing else is mapped there.
const STACK_HEAD_MAX: usize = 8 << 20;

/// Where the managed memory around `addr` ends; `addr` itself if that is not managed.
pub fn managed_until(e: &Engine, addr: usize) -> usize {
    let range = lock(&e.memory.managed).covering(Vpn::of(addr));
    range.map_or(addr, |(_, last)| last.addr())
}

/// Bytes of small mappings that are worth managing.
pub fn large_in_all(e: &Engine) -> usize {
    (e.budget.promised() / SMALL_PART) as usize * PAGE_SIZE
}

/// Whether the mapping is to be managed: not small ones, each of which takes as many calls as a large one, and none
/// for which there would be no words.
pub fn is_worth_managing(e: &Engine, mapping: Mapping) -> bool {
    let least = match mapping.kind {
        Kind::Stack if e.memory.stack_top.load(Relaxed) == 0 => return false,
        // Mostly it has some pages, all of them in use.
        Kind::Stack => (e.conf.ram as usize / STACK_PART).max(STACK_MIN),
        _ => ADOPT_MIN,
    };
    mapping.adoptable() && mapping.end - mapping.start >= least && !e.table.is_short()
}

/// The part of a candidate range that may be managed.
pub fn adoptable_parts(e: &Engine, start: usize, end: usize, out: &mut Vec<(usize, usize)>) {
    let mut from = start;
    let own = [(e.arena.all.base, e.arena.all.end()), stack_head(e)];
    while from < end {
        let blocked = e.memory.exclude.iter().chain(&own).filter(|(s, e)| *e > from && *s < end);
        match blocked.min_by_key(|(s, _)| *s) {
            Some(&(s, e)) => {
                if s > from {
                    out.push((from, s));
                }
                from = e.max(from);
            }
            None => {
                out.push((from, end));
                break;
            }
        }
    }
}

/// The part of the first thread's stack that stays (bytes): arguments and environment are read by others, who do
/// not wait for a page (`/proc/PID/cmdline`).
fn stack_head(e: &Engine) -> (usize, usize) {
    match e.memory.stack_top.load(Relaxed) {
        0 => (0, 0),
        top => (top, top + STACK_HEAD_MAX),
    }
}
