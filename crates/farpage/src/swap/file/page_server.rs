//! The server that has a device's pages, of either kind, and the way to it.
//!
//! Callers: the file device. No locks.

use super::server::ExportSpace;
use crate::swap::remote::link::{InReach, Link};
use crate::swap::remote::page_store::PageStores;
use crate::sys::table::Table;
use std::sync::Arc;

/// The server that has a device's pages.
pub enum PageServer {
    /// In a space of its own that looks like a file.
    Space(Arc<ExportSpace>),
    /// By number.
    Numbers(Box<dyn PageStores>),
}

impl PageServer {
    fn link(&self) -> &Link {
        match self {
            PageServer::Space(space) => space.export().link(),
            PageServer::Numbers(stores) => stores.link(),
        }
    }

    /// Whether it is in reach; takes a step to get there. Does not wait.
    pub fn reach(&self) -> InReach {
        self.link().reach()
    }

    /// Whether it was given up.
    pub fn is_lost(&self) -> bool {
        self.link().is_lost()
    }

    /// From now on its descriptors are ones of this table.
    pub fn belongs_to(&self, table: &Arc<Table>) {
        self.link().belongs_to(table);
    }

    /// In a forked child, whose only thread this is.
    pub fn fork_child(&self) {
        match self {
            PageServer::Space(space) => space.export().fork_child(),
            PageServer::Numbers(stores) => stores.fork_child(),
        }
    }

    /// Something that the user should know, once. `mirrored`: there is a second copy of every page.
    pub fn take_note(&self, mirrored: bool) -> Option<String> {
        self.link().take_note(mirrored)
    }
}
