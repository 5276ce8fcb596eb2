//! Policies of the literature. All but [`Fifo`] see every access (or an accessed bit), which user space does not.

use super::{Met, Moved, Nodes, Policy};
use crate::lru::List;
use std::collections::VecDeque;

/// First in, first out.
#[derive(Debug)]
pub struct Fifo {
    size: u32,
    inside: Vec<bool>,
    links: Nodes,
    order: List,
}

impl Fifo {
    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> Fifo {
        let n = pages as usize;
        Fifo { size, inside: vec![false; n], links: Nodes::new(n), order: List::new() }
    }
}

impl Policy for Fifo {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        if std::mem::replace(&mut self.inside[page as usize], true) {
            return Met::Hit;
        }
        if self.order.len() >= self.size
            && let Some(old) = self.order.pop_back(&self.links)
        {
            self.inside[old as usize] = false;
            moved.out.push(old);
        }
        self.order.push_front(&self.links, page);
        Met::Miss
    }

    fn free(&mut self, page: u32) {
        if std::mem::take(&mut self.inside[page as usize]) {
            self.order.remove(&self.links, page);
        }
    }
}

/// Second chance: in order of arrival, but a page that was accessed goes round once more.
#[derive(Debug)]
pub struct Clock {
    size: u32,
    inside: Vec<bool>,
    accessed: Vec<bool>,
    links: Nodes,
    order: List,
}

impl Clock {
    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> Clock {
        let n = pages as usize;
        let flags = vec![false; n];
        Clock { size, inside: flags.clone(), accessed: flags, links: Nodes::new(n), order: List::new() }
    }
}

impl Policy for Clock {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        if std::mem::replace(&mut self.inside[page as usize], true) {
            self.accessed[page as usize] = true;
            return Met::Hit;
        }
        while self.order.len() >= self.size
            && let Some(old) = self.order.pop_back(&self.links)
        {
            if std::mem::take(&mut self.accessed[old as usize]) {
                self.order.push_front(&self.links, old);
            } else {
                self.inside[old as usize] = false;
                moved.out.push(old);
            }
        }
        self.order.push_front(&self.links, page);
        Met::Miss
    }

    fn free(&mut self, page: u32) {
        self.accessed[page as usize] = false;
        if std::mem::take(&mut self.inside[page as usize]) {
            self.order.remove(&self.links, page);
        }
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
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        if std::mem::replace(&mut self.inside[page as usize], true) {
            self.order.move_to_front(&self.links, page);
            return Met::Hit;
        }
        if self.order.len() >= self.size
            && let Some(old) = self.order.pop_back(&self.links)
        {
            self.inside[old as usize] = false;
            moved.out.push(old);
        }
        self.order.push_front(&self.links, page);
        Met::Miss
    }

    fn free(&mut self, page: u32) {
        if std::mem::take(&mut self.inside[page as usize]) {
            self.order.remove(&self.links, page);
        }
    }
}

/// After S3-FIFO (Yang et al., SOSP 2023): a small queue of a tenth, a main queue, a ghost queue as long as main. A
/// page that was accessed twice in the small queue, or comes back while it is a ghost, goes to main; there two bits
/// count its accesses, and each round costs one.
#[derive(Debug)]
pub struct S3Fifo {
    small_size: u32,
    size: u32,
    links: Nodes,
    small: List,
    main: List,
    /// Pages with the turn in which they became ghosts; a page that has become one again is here twice.
    ghosts: VecDeque<(u32, u32)>,
    ghost_since: Vec<u32>,
    turn: u32,
    at: Vec<Place>,
    count: Vec<u8>,
}

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    Small,
    Main,
}

impl S3Fifo {
    const COUNT_MAX: u8 = 3;

    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32) -> S3Fifo {
        let n = pages as usize;
        S3Fifo {
            small_size: (size / 10).max(1),
            size,
            links: Nodes::new(n),
            small: List::new(),
            main: List::new(),
            ghosts: VecDeque::new(),
            ghost_since: vec![0; n],
            turn: 0,
            at: vec![Place::Out; n],
            count: vec![0; n],
        }
    }

    fn enter(&mut self, page: u32, place: Place) {
        self.at[page as usize] = place;
        let list = if place == Place::Main { &mut self.main } else { &mut self.small };
        list.push_front(&self.links, page);
    }

    fn leaves(&mut self, page: u32, moved: &mut Moved) {
        self.at[page as usize] = Place::Out;
        moved.out.push(page);
    }

    fn evict(&mut self, moved: &mut Moved) {
        while self.small.len() + self.main.len() >= self.size {
            if (self.small.len() >= self.small_size || self.main.is_empty())
                && let Some(old) = self.small.pop_back(&self.links)
            {
                if self.count[old as usize] > 1 {
                    self.count[old as usize] = 0;
                    self.enter(old, Place::Main);
                    continue;
                }
                self.leaves(old, moved);
                self.turn += 1;
                self.ghost_since[old as usize] = self.turn;
                self.ghosts.push_back((old, self.turn));
                if self.ghosts.len() > (self.size - self.small_size) as usize
                    && let Some((gone, since)) = self.ghosts.pop_front()
                    && self.ghost_since[gone as usize] == since
                {
                    self.ghost_since[gone as usize] = 0;
                }
            } else if let Some(old) = self.main.pop_back(&self.links) {
                if self.count[old as usize] > 0 {
                    self.count[old as usize] -= 1;
                    self.enter(old, Place::Main);
                } else {
                    self.leaves(old, moved);
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        let at = page as usize;
        if self.at[at] != Place::Out {
            self.count[at] = (self.count[at] + 1).min(Self::COUNT_MAX);
            return Met::Hit;
        }
        let ghost = self.ghost_since[at] != 0;
        self.evict(moved);
        self.count[at] = 0;
        self.ghost_since[at] = 0;
        self.enter(page, if ghost { Place::Main } else { Place::Small });
        Met::Miss
    }

    fn free(&mut self, page: u32) {
        let at = page as usize;
        match std::mem::replace(&mut self.at[at], Place::Out) {
            Place::Out => {}
            Place::Small => self.small.remove(&self.links, page),
            Place::Main => self.main.remove(&self.links, page),
        }
        self.ghost_since[at] = 0;
    }
}
