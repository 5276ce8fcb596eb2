//! Reading a page of a file: finding it, one transfer, and whether what came is right.
//!
//! Locks: `inner` only to look an inherited file up; none across I/O.

use super::backing::Backing;
use super::device::FileDevice;
use crate::io::Transferred;
use crate::{Entry, LoadError};
use farpage_base::mem::units::Page;

impl FileDevice {
    /// As `SwapDevice::load_with`.
    pub(super) fn read(&self, entry: Entry, into: &mut Page, patient: bool) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let (file, page, value) = self.tables.find(entry).ok_or(LoadError::NotInUse { device, slot })?;
        let backing = file.backing.get().ok_or(LoadError::NotInUse { device, slot })?;
        let at = (page, value.count);
        let Some(mirror) = backing.mirror() else { return self.read_first(entry, backing, at, into, patient) };
        // What has another copy is not waited for, unless that one is not there.
        let first = match self.site.is_there() {
            true => self.read_first(entry, backing, at, into, false),
            false => Err(LoadError::OutOfReach { device, slot }),
        };
        let has_copy = |into: &mut Page| {
            self.io.read(&mirror.file, (page, 0), into, false) == Transferred::Done
                && self.complete_from(entry, into, true)
        };
        match first {
            Ok(()) => Ok(()),
            Err(_) if has_copy(into) => Ok(()),
            Err(LoadError::OutOfReach { .. }) => self.read_first(entry, backing, at, into, patient),
            first => first,
        }
    }

    /// Reads a page from its file, or its server.
    fn read_first(
        &self,
        entry: Entry,
        backing: &Backing,
        at: (u64, u64),
        into: &mut Page,
        patient: bool,
    ) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let error = match self.io.read(backing, at, into, patient) {
            Transferred::Done if self.complete_from(entry, into, false) => return Ok(()),
            Transferred::OutOfReach => return Err(LoadError::OutOfReach { device, slot }),
            Transferred::Done => LoadError::Corrupt { device, slot },
            Transferred::EndOfFile => LoadError::ShortRead { device, slot },
            Transferred::Gone => LoadError::Gone { device, slot },
            Transferred::Failed(errno) => LoadError::Io { errno, device, slot },
        };
        Err(self.health.read_failed(error))
    }

    /// Makes what was read into the page that was stored; whether it is that page. `mirrored`: it is the second copy.
    pub(super) fn complete_from(&self, entry: Entry, page: &mut Page, mirrored: bool) -> bool {
        let right = !self.seal.looks()
            || self.tables.find(entry).is_some_and(|(file, _, slot)| {
                file.backing.get().is_some_and(|backing| self.seal.open(backing, slot, page, mirrored))
            });
        self.health.read(right);
        right
    }
}
