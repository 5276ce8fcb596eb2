//! A file device whose pages are on a server: whether it can be reached, and what its children need.
//!
//! Callers: the device. No locks.

use super::server::ExportSpace;
use super::*;
use crate::swap::remote::link::Link;
use crate::swap::remote::page_store::PageStores;

/// The server that has a device's pages.
pub(super) enum PageServer {
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
        match self {
            PageServer::Space(space) => space.export().link().reach(),
            PageServer::Numbers(stores) => stores.reach(),
        }
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
            PageServer::Space(space) => space.export().link().fork_child(),
            PageServer::Numbers(stores) => stores.fork_child(),
        }
    }

    /// Something that the user should know, once. `mirrored`: there is a second copy of every page.
    pub fn take_note(&self, mirrored: bool) -> Option<String> {
        self.link().take_note(mirrored)
    }
}

impl FileDevice {
    /// From now on the space on its server is for several processes together, and this says who has what.
    pub fn share_areas(&self, with: SharedAreas) {
        if let Some(PageServer::Space(space)) = &self.server
            && !space.share(with)
            && !self.failed.swap(true, Relaxed)
        {
            let why = "the memory in which processes tell each other what is whose is not there, or full";
            *self.warning.lock() = Some(Warning::Unfit(why));
        }
    }

    /// As [`crate::swap::SwapSpace::check_connections`].
    pub fn check_connections(&self) -> Result<(), DeviceError> {
        match &self.server {
            Some(PageServer::Space(space)) if !space.export().allows_another() => Err(DeviceError {
                name: self.name.clone(),
                reason: "the server allows one connection, and a pager needs two".into(),
                remedy: "let it allow more (qemu-nbd --shared=8)".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether its server, if it has one, takes pages now. One that was given up is to be drained.
    pub(super) fn server_accepts(&self) -> bool {
        let Some(server) = &self.server else { return true };
        let (up, lost) = (server.reach() == InReach::Up, server.is_lost());
        if lost {
            self.failed.store(true, Relaxed);
        }
        up && !lost
    }

    /// Whether its server, if it has one, can be reached now.
    pub(super) fn is_there(&self) -> bool {
        self.server.as_ref().is_none_or(|server| server.reach() == InReach::Up)
    }

    /// Whether children may need what was stored so far.
    pub(super) fn keep_areas(&self, keep: bool) {
        if let Some((server, areas)) = self.own.get().and_then(|own| own.backing.get()?.areas()) {
            server.keep(areas, keep);
        }
    }
}
