//! A file device whose pages are on a server: what is told to the server, and what processes share there.
//!
//! A slot that was freed is *retired*: it has no value, and is not given out before the server has forgotten it. What
//! may still be done at any later time (a connection broke) is never used again.
//!
//! Locks: `inner` for an instant; `retired`, a leaf.

use super::device::FileDevice;
use super::health::Warning;
use super::table::File;
use crate::DeviceError;
use farpage_server::areas::SharedAreas;

/// Slots that the server is told of at once.
const FORGET: usize = 512;

impl FileDevice {
    /// What is to be done now and then about a server; whether there was something.
    pub fn look_after_server(&self) -> bool {
        let Some(server) = &self.site.server else { return false };
        server.tick();
        // Inherited ones, too: the process that made them may be gone.
        for id in 0.. {
            let Some(file) = self.tables.inner.lock().files.get(id).cloned() else { break };
            if let Some(why) = file.as_ref().and_then(|file| file.store()?.tick()) {
                self.health.fail_with(Warning::Unfit(why));
            }
        }
        self.tables.own.get().filter(|_| self.site.accepts(&self.health)).is_some_and(|own| self.forget_retired(own))
    }

    /// Tells the server what it need not keep; whether there was something.
    fn forget_retired(&self, own: &File) -> bool {
        let Some(store) = own.store().filter(|store| store.forgets()) else { return false };
        let slots = {
            let mut retired = own.retired.lock();
            let keep = retired.len().saturating_sub(FORGET);
            retired.split_off(keep)
        };
        if slots.is_empty() {
            return false;
        }
        if store.forget(&slots) {
            slots.iter().for_each(|slot| _ = own.slots.give_back(*slot));
            self.health.has_room();
        } else {
            self.tables.inner.lock().bad.extend(slots);
        }
        true
    }

    /// No process wants the pages any more.
    pub fn remove_from_server(&self) {
        let Some(own) = self.tables.own.get() else { return };
        // A child may need what is there; it says that it is alive, and the rest is for `farpage swapoff`.
        if let Some(store) = own.store().filter(|_| self.tables.inner.lock().leases.is_empty()) {
            store.remove(own.slots.slots());
        }
    }

    /// From now on the space on its server is for several processes together, and this says which has what.
    pub fn share_areas(&self, with: SharedAreas) {
        if self.site.server.as_ref().is_some_and(|server| !server.share(with)) {
            let why = "the memory in which processes tell each other what is whose is not there, or full";
            self.health.fail_with(Warning::Unfit(why));
        }
    }

    /// As [`crate::SwapSpace::check_connections`].
    pub fn check_connections(&self) -> Result<(), DeviceError> {
        let (reason, remedy) =
            ("the server allows one connection, and a pager needs two", "let it allow more (qemu-nbd --shared=8)");
        match &self.site.server {
            Some(server) if !server.allows_another() => Err(DeviceError::new(self.name.clone(), reason, remedy)),
            _ => Ok(()),
        }
    }

    /// The export that has its pages.
    #[cfg(test)]
    pub fn export(&self) -> Option<&farpage_server::nbd::Export> {
        self.site.server.as_ref()?.export()
    }
}
