//! A file device whose pages are on a server: whether it can be reached, and what its children need.
//!
//! Callers: the device. No locks.

use super::*;

impl FileDevice {
    /// From now on the space on its server is for several processes together, and this says who has what.
    pub fn share_areas(&self, with: SharedAreas) {
        if let Some(server) = &self.server
            && !server.share(with)
            && !self.failed.swap(true, Relaxed)
        {
            let why = "the memory in which processes tell each other what is whose is not there, or full";
            *self.warning.lock() = Some(Warning::Unfit(why));
        }
    }

    /// As [`crate::SwapSpace::check_connections`].
    pub fn check_connections(&self) -> Result<(), DeviceError> {
        match &self.server {
            Some(server) if !server.allows_another() => Err(DeviceError {
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
        let (up, lost) = (server.link().reach() == InReach::Up, server.link().is_lost());
        if lost {
            self.failed.store(true, Relaxed);
        }
        up && !lost
    }

    /// Whether its server, if it has one, can be reached now.
    pub(super) fn is_there(&self) -> bool {
        self.server.as_ref().is_none_or(|server| server.link().reach() == InReach::Up)
    }

    /// Whether children may need what was stored so far.
    pub(super) fn keep_areas(&self, keep: bool) {
        if let Some(store) = self.own.get().and_then(File::store) {
            store.keep(keep);
        }
    }

    /// The export that has its pages.
    #[cfg(test)]
    pub fn export(&self) -> Option<&farpage_server::nbd::Export> {
        self.server.as_ref()?.export()
    }
}
