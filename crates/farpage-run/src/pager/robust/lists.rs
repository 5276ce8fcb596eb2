//! The lists of robust mutexes that the program's threads have: how they are read.
//!
//! Caller: [`crate::pager::robust`], on the pager's thread. No locks.

use farpage_base::mem::units::Vpn;
use farpage_base::sys::control_blocks;
use farpage_base::sys::message::warn;
use farpage_base::sys::proc::Proc;
use farpage_base::sys::raw::{Errno, ErrnoText};
use rustix::fd::OwnedFd;
use rustix::io::pread;

/// So many nodes of a list the kernel looks at.
pub(super) const NODES_MAX: usize = 2048;

/// So often a list is read that changes meanwhile.
const TRIES: usize = 16;

/// The bit of a link that says that the mutex inherits priorities.
const LINK_BITS: usize = 1;

/// Reads the lists.
#[derive(Debug)]
pub(crate) struct RobustLists {
    proc: &'static Proc,
    /// `/proc/self/mem`.
    memory: Result<OwnedFd, Errno>,
    warned: bool,
    heads: Vec<usize>,
}

impl RobustLists {
    pub(crate) fn new(proc: &'static Proc, memory: Result<OwnedFd, Errno>) -> RobustLists {
        RobustLists { proc, memory, warned: false, heads: Vec::new() }
    }

    /// Adds the pages of all nodes, and of their mutexes. Some of them may be out, and then what is behind them is
    /// not among them.
    pub(super) fn pages(&mut self, pages: &mut Vec<Vpn>) {
        let memory = match &self.memory {
            Ok(memory) => memory,
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    warn(&format!(
                        "cannot open /proc/self/mem: {}; whoever waits for a robust mutex may not be told that \
                         its owner died",
                        ErrnoText(*error)
                    ));
                }
                return;
            }
        };
        self.heads.clear();
        // A thread that ends in this moment is missed: the kernel has gone along its list.
        let _ = control_blocks::of_threads(self.proc, |head| self.heads.push(head));
        for head in &self.heads {
            for _ in 0..TRIES {
                if walk(*head, &self.heads, |at, to| words(memory, at, to), pages) {
                    break;
                }
            }
        }
    }

    /// The word at `at`, if it is in memory.
    pub(super) fn word(&self, at: usize) -> Option<usize> {
        let mut word = [0];
        self.memory.as_ref().is_ok_and(|memory| words(memory, at, &mut word)).then_some(word[0])
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
    let mut add = |at: usize| pages.push(Vpn::of(at));
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

    fn pages_of(memory: &BTreeMap<usize, usize>, head: usize, heads: &[usize]) -> (bool, Vec<u64>) {
        let mut pages = Vec::new();
        let read = |at: usize, to: &mut [usize]| {
            to.iter_mut().enumerate().all(|(i, word)| memory.get(&(at + 8 * i)).map(|found| *word = *found).is_some())
        };
        let whole = walk(head, heads, read, &mut pages);
        pages.sort_unstable();
        pages.dedup();
        (whole, pages.into_iter().map(Vpn::number).collect())
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
        let memory = Proc::open().unwrap().file("thread-self/mem").unwrap();
        let (here, mut to) = ([7usize, 8, 9], [0; 3]);
        assert!(words(&memory, here.as_ptr() as usize, &mut to) && to == here);
        assert!(!words(&memory, 64, &mut to) && !words(&memory, usize::MAX - 7, &mut to[..1]));
    }
}
