//! Intrusive doubly linked lists of pages.
//!
//! Owns the order of the nodes and the length of each list, nothing else: a node is a `u32` id, and its two links live
//! in storage of the caller (one word pair per frame or page, see [`Links`]). So a list allocates nothing, and moving a
//! whole batch onto it is O(1): the batch is linked on a local list without any lock, and only the splice happens under
//! the LRU lock. Called by the engine's reclaim (active and inactive lists, batches) and by its frame recycling.
//!
//! Rules for the caller: a node is on at most one list, `remove` and `move_to_front` name the list that it is on, and
//! all lists over the same nodes are changed under one lock (or by one owner). A node that is on no list has no defined
//! links. A broken rule gives wrong lists, never undefined behaviour; debug builds check what can be checked in O(1).

/// "No node": the end of a list.
pub const NIL: u32 = u32::MAX;

/// Where the links of the nodes live. Setters take `&self`, because the storage is shared (relaxed atomics are enough:
/// the lock around the lists orders them).
pub trait Links {
    /// The node in front of `n`, or [`NIL`].
    fn prev(&self, n: u32) -> u32;
    /// The node behind `n`, or [`NIL`].
    fn next(&self, n: u32) -> u32;
    /// Sets the node in front of `n`.
    fn set_prev(&self, n: u32, to: u32);
    /// Sets the node behind `n`.
    fn set_next(&self, n: u32, to: u32);
}

/// A doubly linked list of nodes whose links live in a [`Links`]. All operations but iteration are O(1).
#[derive(Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }

    /// How many nodes are on the list.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether no node is on the list.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first node.
    pub const fn front(&self) -> Option<u32> {
        some(self.head)
    }

    /// The last node.
    pub const fn back(&self) -> Option<u32> {
        some(self.tail)
    }

    /// Puts `n`, which is on no list, in front of all others.
    pub fn push_front(&mut self, links: &impl Links, n: u32) {
        let mut one = Self::single(links, n);
        self.splice_front(links, &mut one);
    }

    /// Puts `n`, which is on no list, behind all others.
    pub fn push_back(&mut self, links: &impl Links, n: u32) {
        let mut one = Self::single(links, n);
        self.splice_back(links, &mut one);
    }

    /// Takes `n` off this list, which it is on.
    pub fn remove(&mut self, links: &impl Links, n: u32) {
        debug_assert!(self.len > 0, "remove of node {n} from an empty list");
        let (prev, next) = (links.prev(n), links.next(n));
        debug_assert!(prev != NIL || self.head == n, "node {n} is not the first of this list");
        debug_assert!(next != NIL || self.tail == n, "node {n} is not the last of this list");
        debug_assert!(prev == NIL || links.next(prev) == n, "node {n} is on no list");
        match prev {
            NIL => self.head = next,
            _ => links.set_next(prev, next),
        }
        match next {
            NIL => self.tail = prev,
            _ => links.set_prev(next, prev),
        }
        self.len = self.len.saturating_sub(1);
        debug_assert!((self.len == 0) == (self.head == NIL), "node {n} was not on this list");
        debug_assert!((self.head == NIL) == (self.tail == NIL), "node {n} was not on this list");
    }

    /// Takes the first node off.
    pub fn pop_front(&mut self, links: &impl Links) -> Option<u32> {
        self.front().inspect(|&n| self.remove(links, n))
    }

    /// Takes the last node off.
    pub fn pop_back(&mut self, links: &impl Links) -> Option<u32> {
        self.back().inspect(|&n| self.remove(links, n))
    }

    /// Moves all nodes of `other`, in their order, in front of this list's; `other` is empty afterwards.
    pub fn splice_front(&mut self, links: &impl Links, other: &mut List) {
        let other = std::mem::take(other);
        let old = std::mem::replace(self, other);
        self.append(links, old);
    }

    /// Moves all nodes of `other`, in their order, behind this list's; `other` is empty afterwards.
    pub fn splice_back(&mut self, links: &impl Links, other: &mut List) {
        let other = std::mem::take(other);
        self.append(links, other);
    }

    /// Makes `n`, which is on this list, its first node.
    pub fn move_to_front(&mut self, links: &impl Links, n: u32) {
        if self.head != n {
            self.remove(links, n);
            self.push_front(links, n);
        }
    }

    /// The nodes from front to back (`.rev()`: from back to front). The list must not change meanwhile; should it do
    /// so, the iterator still ends after as many nodes as the list had.
    pub fn iter<'a, L: Links>(&self, links: &'a L) -> Iter<'a, L> {
        Iter { links, front: self.head, back: self.tail, left: self.len }
    }

    fn single(links: &impl Links, n: u32) -> Self {
        debug_assert!(n != NIL, "NIL is not a node");
        links.set_prev(n, NIL);
        links.set_next(n, NIL);
        Self { head: n, tail: n, len: 1 }
    }

    fn append(&mut self, links: &impl Links, other: List) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            *self = other;
            return;
        }
        links.set_next(self.tail, other.head);
        links.set_prev(other.head, self.tail);
        self.tail = other.tail;
        self.len = self.len.saturating_add(other.len);
    }
}

const fn some(n: u32) -> Option<u32> {
    if n == NIL { None } else { Some(n) }
}

/// Iterator of [`List::iter`].
#[derive(Debug)]
pub struct Iter<'a, L> {
    links: &'a L,
    front: u32,
    back: u32,
    left: u32,
}

impl<L: Links> Iterator for Iter<'_, L> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let n = some(self.front)?;
        self.front = self.links.next(n);
        Some(n)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

impl<L: Links> DoubleEndedIterator for Iter<'_, L> {
    fn next_back(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let n = some(self.back)?;
        self.back = self.links.prev(n);
        Some(n)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::VecDeque;

    const NODES: u32 = 24;
    const LISTS: usize = 3;

    /// Links start as rubbish: nothing may depend on the links of a node that is on no list.
    struct Store(Vec<(Cell<u32>, Cell<u32>)>);

    impl Store {
        fn new() -> Self {
            Self((0..NODES).map(|n| (Cell::new(n ^ 5), Cell::new(n ^ 3))).collect())
        }
    }

    impl Links for Store {
        fn prev(&self, n: u32) -> u32 {
            self.0[n as usize].0.get()
        }
        fn next(&self, n: u32) -> u32 {
            self.0[n as usize].1.get()
        }
        fn set_prev(&self, n: u32, to: u32) {
            self.0[n as usize].0.set(to);
        }
        fn set_next(&self, n: u32, to: u32) {
            self.0[n as usize].1.set(to);
        }
    }

    fn check(links: &Store, lists: &[List], models: &[VecDeque<u32>]) {
        for (list, model) in lists.iter().zip(models) {
            assert_eq!(list.len() as usize, model.len());
            assert_eq!(list.is_empty(), model.is_empty());
            assert_eq!((list.front(), list.back()), (model.front().copied(), model.back().copied()));
            assert!(list.iter(links).eq(model.iter().copied()));
            assert!(list.iter(links).rev().eq(model.iter().rev().copied()));
            if let (Some(front), Some(back)) = (list.front(), list.back()) {
                assert_eq!((links.prev(front), links.next(back)), (NIL, NIL));
            }
        }
    }

    #[test]
    fn a_batch_is_spliced_in_its_order() {
        let links = Store::new();
        let (mut lru, mut batch) = (List::new(), List::new());
        lru.push_back(&links, 7);
        (0..3).for_each(|n| batch.push_front(&links, n));
        lru.splice_front(&links, &mut batch);
        assert!(batch.is_empty() && batch.front().is_none() && batch.back().is_none());
        assert_eq!(lru.iter(&links).collect::<Vec<_>>(), [2, 1, 0, 7]);
        lru.splice_back(&links, &mut batch);
        lru.move_to_front(&links, 7);
        assert_eq!(lru.iter(&links).collect::<Vec<_>>(), [7, 2, 1, 0]);
        assert_eq!((lru.pop_front(&links), lru.pop_back(&links), lru.len()), (Some(7), Some(0), 2));
    }

    #[test]
    fn iteration_from_both_ends_meets_in_the_middle() {
        let links = Store::new();
        let mut list = List::new();
        (0..5).for_each(|n| list.push_back(&links, n));
        let mut it = list.iter(&links);
        assert_eq!((it.next(), it.next_back(), it.next(), it.next_back()), (Some(0), Some(4), Some(1), Some(3)));
        assert_eq!((it.next(), it.next(), it.next_back()), (Some(2), None, None));
    }

    proptest! {
        #[test]
        fn lists_behave_as_deques(ops in prop::collection::vec((0..8u8, 0..LISTS, 0..LISTS, 0..NODES), 0..300)) {
            let links = Store::new();
            let mut lists: Vec<List> = (0..LISTS).map(|_| List::new()).collect();
            let mut models = vec![VecDeque::new(); LISTS];
            for (op, a, b, n) in ops {
                let at = models.iter().position(|m| m.contains(&n));
                match op {
                    0 | 1 => {
                        if let Some(o) = at {
                            lists[o].remove(&links, n);
                            models[o].retain(|&m| m != n);
                        }
                        if op == 0 {
                            lists[a].push_front(&links, n);
                            models[a].push_front(n);
                        } else {
                            lists[a].push_back(&links, n);
                            models[a].push_back(n);
                        }
                    }
                    2 => if let Some(o) = at {
                        lists[o].remove(&links, n);
                        models[o].retain(|&m| m != n);
                    },
                    3 => if let Some(o) = at {
                        lists[o].move_to_front(&links, n);
                        models[o].retain(|&m| m != n);
                        models[o].push_front(n);
                    },
                    4 => prop_assert_eq!(lists[a].pop_front(&links), models[a].pop_front()),
                    5 => prop_assert_eq!(lists[a].pop_back(&links), models[a].pop_back()),
                    _ => if let Ok([la, lb]) = lists.get_disjoint_mut([a, b]) {
                        let mut moved = std::mem::take(&mut models[b]);
                        if op == 6 {
                            la.splice_front(&links, lb);
                            moved.append(&mut models[a]);
                            models[a] = moved;
                        } else {
                            la.splice_back(&links, lb);
                            models[a].append(&mut moved);
                        }
                    },
                }
                check(&links, &lists, &models);
            }
        }
    }
}
