//! Policies of the literature. All but [`Fifo`] see every access (or an accessed bit), which user space does not.

use super::{Met, Nodes, Policy};
use crate::lru::List;
use std::collections::VecDeque;

/// First in, first out.
#[derive(Debug)]
pub struct Fifo {
    size: usize,
    inside: Vec<bool>,
    queue: VecDeque<u32>,
}

impl Fifo {
    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> Fifo {
        Fifo { size: size as usize, inside: vec![false; pages as usize], queue: VecDeque::new() }
    }
}

impl Policy for Fifo {
    fn access(&mut self, page: u32, out: &mut Vec<u32>) -> Met {
        if std::mem::replace(&mut self.inside[page as usize], true) {
            return Met::Hit;
        }
        if self.queue.len() >= self.size
            && let Some(old) = self.queue.pop_front()
        {
            self.inside[old as usize] = false;
            out.push(old);
        }
        self.queue.push_back(page);
        Met::Miss
    }
}

/// Second chance: in order of arrival, but a page that was accessed goes round once more.
#[derive(Debug)]
pub struct Clock {
    size: usize,
    inside: Vec<bool>,
    accessed: Vec<bool>,
    queue: VecDeque<u32>,
}

impl Clock {
    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> Clock {
        let flags = vec![false; pages as usize];
        Clock { size: size as usize, inside: flags.clone(), accessed: flags, queue: VecDeque::new() }
    }
}

impl Policy for Clock {
    fn access(&mut self, page: u32, out: &mut Vec<u32>) -> Met {
        if std::mem::replace(&mut self.inside[page as usize], true) {
            self.accessed[page as usize] = true;
            return Met::Hit;
        }
        while self.queue.len() >= self.size
            && let Some(old) = self.queue.pop_front()
        {
            if std::mem::take(&mut self.accessed[old as usize]) {
                self.queue.push_back(old);
            } else {
                self.inside[old as usize] = false;
                out.push(old);
            }
        }
        self.queue.push_back(page);
        Met::Miss
    }
}

/// Least recently used, exactly.
#[derive(Debug)]
pub struct Lru {
    size: u32,
    inside: Vec<bool>,
    links: Nodes,
    order: List,
}

impl Lru {
    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> Lru {
        let n = pages as usize;
        Lru { size, inside: vec![false; n], links: Nodes::new(n), order: List::new() }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: u32, out: &mut Vec<u32>) -> Met {
        if std::mem::replace(&mut self.inside[page as usize], true) {
            self.order.move_to_front(&self.links, page);
            return Met::Hit;
        }
        if self.order.len() >= self.size
            && let Some(old) = self.order.pop_back(&self.links)
        {
            self.inside[old as usize] = false;
            out.push(old);
        }
        self.order.push_front(&self.links, page);
        Met::Miss
    }
}

/// After S3-FIFO (Yang et al., SOSP 2023): a small queue of a tenth, a main queue, a ghost queue as long as main. A
/// page that was accessed twice in the small queue, or comes back while it is a ghost, goes to main; there two bits
/// count its accesses, and each round costs one.
#[derive(Debug)]
pub struct S3Fifo {
    small_size: usize,
    size: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Pages with the turn in which they became ghosts; a page that has become one again is here twice.
    ghosts: VecDeque<(u32, u32)>,
    ghost_since: Vec<u32>,
    turn: u32,
    inside: Vec<bool>,
    count: Vec<u8>,
}

impl S3Fifo {
    const COUNT_MAX: u8 = 3;

    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> S3Fifo {
        let n = pages as usize;
        S3Fifo {
            small_size: (size as usize / 10).max(1),
            size: size as usize,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghost_since: vec![0; n],
            turn: 0,
            inside: vec![false; n],
            count: vec![0; n],
        }
    }

    fn evict(&mut self, out: &mut Vec<u32>) {
        while self.small.len() + self.main.len() >= self.size {
            if (self.small.len() >= self.small_size || self.main.is_empty())
                && let Some(old) = self.small.pop_front()
            {
                if self.count[old as usize] > 1 {
                    self.count[old as usize] = 0;
                    self.main.push_back(old);
                } else {
                    self.inside[old as usize] = false;
                    self.turn += 1;
                    self.ghost_since[old as usize] = self.turn;
                    self.ghosts.push_back((old, self.turn));
                    if self.ghosts.len() > self.size - self.small_size
                        && let Some((gone, since)) = self.ghosts.pop_front()
                        && self.ghost_since[gone as usize] == since
                    {
                        self.ghost_since[gone as usize] = 0;
                    }
                    out.push(old);
                }
            } else if let Some(old) = self.main.pop_front() {
                if self.count[old as usize] > 0 {
                    self.count[old as usize] -= 1;
                    self.main.push_back(old);
                } else {
                    self.inside[old as usize] = false;
                    out.push(old);
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: u32, out: &mut Vec<u32>) -> Met {
        let at = page as usize;
        if self.inside[at] {
            self.count[at] = (self.count[at] + 1).min(Self::COUNT_MAX);
            return Met::Hit;
        }
        let ghost = self.ghost_since[at] != 0;
        self.evict(out);
        self.inside[at] = true;
        self.count[at] = 0;
        self.ghost_since[at] = 0;
        if ghost {
            self.main.push_back(page)
        } else {
            self.small.push_back(page)
        }
        Met::Miss
    }
}
