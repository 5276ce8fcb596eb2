//! Robust mutexes: the kernel tells the death of their owners.
//!
//! Each thread has a list of those that it holds, in the program's memory. When the thread ends, the kernel goes along the list
//! and marks them. It does not wait for a page then (userfaultfd is not asked for a thread that exits), but stops there: whoever waits for
//! that mutex, or for one behind it, waits for ever. And a process may be killed at any time. So a page with a mutex that is held, or just
//! being taken, stays in. The lists are looked at before pages are taken out, and once more afterwards, because a thread may have
//! taken a mutex in between: its page comes back at once.
//!
//! Lists have nodes only in programs that make such mutexes, which the preload library hears of ([`used`]). (Those that another process has
//! made are in shared memory, which is not managed.)
//!
//! The lists change while they are read, and memory may be unmapped, so it is read through `/proc/self/mem`, which fails on
//! what is not there and never waits.
//!
//! Caller: `reclaim` and `mappings::register`, on the pager's thread. Locks: those of what brings a page in.

use crate::PAGE_SIZE;
use crate::run::mappings::let_go::Step;
use crate::run::page_table::{State, Vpn};
use crate::run::pager::{Fault, Pager};
use crate::run::state::lock;
use crate::sys::proc::{Proc, thread_blocks};
use crate::sys::raw::{ErrnoText, warn};
use rustix::fd::OwnedFd;
use rustix::io::pread;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

static USED: AtomicBool = AtomicBool::new(false);

/// The program may have robust mutexes from now on. Any thread.
pub fn used() {
    USED.store(true, SeqCst);
}

/// So many nodes of a list the kernel looks at.
const NODES_MAX: usize = 2048;
/// So often a list is read that changes meanwhile.
const TRIES: usize = 16;
/// So often a page is tried that a writer has.
const STORES: usize = 20_000;
const NAP: Duration = Duration::from_micros(50);
/// The bit of a link that says that the mutex inherits priorities.
const LINK_BITS: usize = 1;

/// Reads the lists.
#[derive(Debug)]
pub(crate) struct Lists {
    proc: Proc,
    /// `/proc/self/mem`, once it is needed.
    memory: Option<OwnedFd>,
    failed: bool,
    heads: Vec<usize>,
}

impl Lists {
    pub(crate) fn new(proc: Proc) -> Lists {
        Lists { proc, memory: None, failed: false, heads: Vec::new() }
    }

    /// The pages of all nodes, and of their mutexes, sorted. Some of them may be out, and then what is behind them is not among them.
    fn pages(&mut self, pages: &mut Vec<Vpn>) {
        pages.clear();
        if self.memory.is_none() && !self.failed {
            match self.proc.file("self/mem") {
                Ok(memory) => self.memory = Some(memory),
                Err(error) => {
                    self.failed = true;
                    warn(&format!(
                        "cannot open /proc/self/mem: {}; whoever waits for a robust mutex may not be told that its owner died",
                        ErrnoText(error)
                    ));
                }
            }
        }
        let Some(memory) = &self.memory else { return };
        self.heads.clear();
        // A thread that ends in this moment is missed: the kernel has gone along its list.
        let _ = thread_blocks(&self.proc, |head| self.heads.push(head));
        for head in &self.heads {
            for _ in 0..TRIES {
                if walk(*head, &self.heads, |at, to| words(memory, at, to), pages) {
                    break;
                }
            }
        }
        pages.sort_unstable();
        pages.dedup();
    }
}

/// Reads neighbouring words at `at`; false: not all of them are there.
fn words(memory: &OwnedFd, at: usize, to: &mut [usize]) -> bool {
    let mut bytes = [0u8; 3 * size_of::<usize>()];
    let bytes = &mut bytes[..size_of_val(to)];
    if pread(memory, &mut *bytes, at as u64) != Ok(bytes.len()) {
        return false;
    }
    for (word, bytes) in to.iter_mut().zip(bytes.as_chunks().0) {
        *word = usize::from_ne_bytes(*bytes);
    }
    true
}

/// Goes along the list at `head`, one of `heads`. False: it has changed meanwhile, and nodes may be missing.
fn walk(head: usize, heads: &[usize], read: impl Fn(usize, &mut [usize]) -> bool, pages: &mut Vec<Vpn>) -> bool {
    // First node, distance from a node to its futex, node of the mutex that is being taken or given back.
    let mut list = [0; 3];
    let mut add = |at: usize| pages.push((at / PAGE_SIZE) as u64);
    add(head);
    if !read(head, &mut list) {
        return true;
    }
    let [first, distance, pending] = list;
    let mut node = |at: usize| {
        add(at);
        add(at.wrapping_add(distance));
    };
    if pending & !LINK_BITS != 0 {
        node(pending & !LINK_BITS);
    }
    let mut at = first & !LINK_BITS;
    for _ in 0..NODES_MAX {
        if at == head {
            return true;
        }
        // A node that was taken off, or that is on another list by now.
        if at == 0 || heads.contains(&at) {
            return false;
        }
        node(at);
        let mut next = [0];
        if !read(at, &mut next) {
            return true;
        }
        at = next[0] & !LINK_BITS;
    }
    true
}

impl Pager {
    /// The pages that have to stay in, sorted. Those that were out have been brought in; `None`: that cannot be done now.
    pub(crate) fn robust_pages(&mut self) -> Option<Vec<Vpn>> {
        let mut pages = Vec::new();
        if !USED.load(SeqCst) {
            return Some(pages);
        }
        // Behind a page that was out there may be others.
        for _ in 0..NODES_MAX {
            self.robust.pages(&mut pages);
            let out: Vec<Vpn> = pages.iter().copied().filter(|vpn| self.is_out(*vpn)).collect();
            if out.is_empty() {
                break;
            }
            if !out.iter().all(|vpn| self.bring_back(*vpn)) {
                return None;
            }
        }
        Some(pages)
    }

    fn is_out(&self, vpn: Vpn) -> bool {
        let state = self.e.table.node(vpn).map(|node| self.e.table.state(node));
        matches!(state, Some(State::Cached(_) | State::Writeback(_) | State::Swapped(_)))
    }

    /// Brings a page in at once. False: not now, but as soon as it can be.
    fn bring_back(&mut self, vpn: Vpn) -> bool {
        let e = self.e;
        for _ in 0..STORES {
            let Some(node) = e.table.node(vpn) else { return true };
            match self.bring_in_some(vpn, vpn + 1, node) {
                Step::Here(_) => {
                    // Like any other page that is there.
                    if !lock(&e.lost).contains(&vpn) {
                        e.found_present(vpn);
                    }
                    return true;
                }
                Step::Later if self.changing() => break,
                Step::Later => std::thread::sleep(NAP),
            }
        }
        let (addr, tid) = (vpn as usize * PAGE_SIZE, 0);
        self.waiting.push(Fault { addr, write: false, tid, since: Instant::now(), reported: false });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const DISTANCE: usize = 0usize.wrapping_sub(32);

    /// Memory with one list: `nodes` in order, `pending`.
    fn memory(head: usize, nodes: &[usize], pending: usize) -> BTreeMap<usize, usize> {
        let mut memory = BTreeMap::from([(head + 8, DISTANCE), (head + 16, pending)]);
        let mut at = head;
        for node in nodes.iter().chain([&head]) {
            memory.insert(at, *node);
            at = *node & !LINK_BITS;
        }
        memory
    }

    fn pages_of(memory: &BTreeMap<usize, usize>, head: usize, heads: &[usize]) -> (bool, Vec<Vpn>) {
        let mut pages = Vec::new();
        let read = |at: usize, to: &mut [usize]| {
            to.iter_mut().enumerate().all(|(i, word)| memory.get(&(at + 8 * i)).map(|found| *word = *found).is_some())
        };
        let whole = walk(head, heads, read, &mut pages);
        pages.sort_unstable();
        pages.dedup();
        (whole, pages)
    }

    #[test]
    fn pages_of_nodes_their_mutexes_and_the_one_being_taken() {
        let head = 0x10_0100;
        assert_eq!(pages_of(&memory(head, &[], 0), head, &[head]), (true, vec![0x100]));
        // The second one inherits priorities; the third lies over a page boundary.
        let list = memory(head, &[0x20_0800, 0x30_0801, 0x40_0010], 0x50_0800);
        assert_eq!(pages_of(&list, head, &[head]), (true, vec![0x100, 0x200, 0x300, 0x3ff, 0x400, 0x500]));
    }

    #[test]
    fn a_list_that_changes_is_read_again_and_one_that_ends_is_not() {
        let (head, other) = (0x10_0100, 0x11_0100);
        let mut list = memory(head, &[0x20_0800, 0x30_0800], 0);
        list.insert(0x20_0800, 0);
        assert_eq!(pages_of(&list, head, &[head]), (false, vec![0x100, 0x200]), "taken off");
        list.insert(0x20_0800, other);
        assert!(!pages_of(&list, head, &[head, other]).0, "on another list");
        list.remove(&0x20_0800);
        assert_eq!(pages_of(&list, head, &[head]), (true, vec![0x100, 0x200]), "not there: the kernel stops, too");
        list.insert(0x20_0800, 0x20_0800);
        assert!(pages_of(&list, head, &[head]).0, "in a circle");
        assert_eq!(pages_of(&BTreeMap::new(), head, &[head]), (true, vec![0x100]));
    }

    #[test]
    fn own_memory_is_read_and_what_is_not_there_is_not() {
        let memory = Proc::open().unwrap().file("self/mem").unwrap();
        let (here, mut to) = ([7usize, 8, 9], [0; 3]);
        assert!(words(&memory, here.as_ptr() as usize, &mut to) && to == here);
        assert!(!words(&memory, 64, &mut to) && !words(&memory, usize::MAX - 7, &mut to[..1]));
    }
}
