//! Belady's OPT: the page whose next access is farthest away goes. Knows the future, so it is a bound, not a policy.

use super::{Access, AccessKind, Met, Moved, Policy};
use std::collections::BinaryHeap;

const NEVER: u32 = u32::MAX;

/// See the module documentation.
#[derive(Debug)]
pub struct Opt {
    size: usize,
    /// For each access of the trace: when its page is accessed next.
    next: Vec<u32>,
    now: usize,
    /// For each page in memory: when it is accessed next.
    due: Vec<Option<u32>>,
    inside: usize,
    /// (next access, page); what does not agree with `due` is out of date.
    heap: BinaryHeap<(u32, u32)>,
}

impl Opt {
    /// A memory of `size` pages that is going to see `trace` (fewer than 2^32 accesses), with pages below `pages`.
    pub fn new(size: u32, trace: &[Access], pages: u32) -> Opt {
        let mut last = vec![NEVER; pages as usize];
        let mut next = vec![NEVER; trace.len()];
        for (at, access) in trace.iter().enumerate().rev() {
            let due = if access.kind() == AccessKind::Free { NEVER } else { at as u32 };
            next[at] = std::mem::replace(&mut last[access.page() as usize], due);
        }
        let due = vec![None; pages as usize];
        Opt { size: size as usize, next, now: 0, due, inside: 0, heap: BinaryHeap::new() }
    }
}

impl Policy for Opt {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        let next = self.next.get(self.now).copied().unwrap_or(NEVER);
        self.now += 1;
        let met = if self.due[page as usize].is_some() { Met::Hit } else { Met::Miss };
        if met == Met::Miss {
            while self.inside >= self.size
                && let Some((due, old)) = self.heap.pop()
            {
                if self.due[old as usize] == Some(due) {
                    self.due[old as usize] = None;
                    self.inside -= 1;
                    moved.out.push(old);
                }
            }
            self.inside += 1;
        }
        self.due[page as usize] = Some(next);
        self.heap.push((next, page));
        met
    }
    fn free(&mut self, page: u32) {
        self.now += 1;
        self.inside -= usize::from(self.due[page as usize].take().is_some());
    }
}
