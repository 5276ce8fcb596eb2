//! Which page goes next: two lists, as for adopted memory ([`crate::lru`]). *Mapped* pages in the order in which they
//! came in; the oldest are moved out into the swap cache, *cached*, where a touch brings them back as the youngest.

use super::space::Space;
use super::word::State;
use farpage_swap::lru::List;

/// The lists; kept in a mutex.
#[derive(Debug, Default)]
pub struct Lists {
    /// Pages in regions, youngest first.
    pub mapped: List,
    /// Pages in the swap cache, youngest first.
    pub cached: List,
}

impl Lists {
    /// A page that the caller has busy came in: it is the youngest.
    pub fn link_mapped(&mut self, space: &Space, page: u32) {
        self.mapped.push_front(space, page);
    }

    /// A page that the caller has busy was taken out into a frame.
    pub fn link_cached(&mut self, space: &Space, page: u32) {
        self.cached.push_front(space, page);
    }

    /// Takes a page that the caller has busy off the list of its state.
    pub fn unlink(&mut self, space: &Space, page: u32, state: State) {
        match state {
            State::Mapped(_) => self.mapped.remove(space, page),
            State::Cached(_) => self.cached.remove(space, page),
            _ => {}
        }
    }
}
