//! Reading a page of a file: finding it, one transfer, and whether what came is right.
//!
//! Locks: `inner` only to look an inherited file up; none across I/O.

use super::table::{File, FileSlot};
use super::*;
use crate::io::Medium;
use std::ops::Deref;

/// A file that stays there as long as this lives.
pub(super) enum FoundFile<'a> {
    Own(&'a File),
    Inherited(Arc<File>),
}

impl Deref for FoundFile<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            FoundFile::Own(file) => file,
            FoundFile::Inherited(file) => file,
        }
    }
}

impl FileDevice {
    /// As `SwapDevice::load_with`.
    pub(super) fn read(&self, entry: Entry, into: &mut Page, patient: bool) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let (file, page, value) = self.find(entry).ok_or(LoadError::NotInUse { device, slot })?;
        let backing = file.backing.get().ok_or(LoadError::NotInUse { device, slot })?;
        let at = (page, value.count);
        let Some(mirror) = backing.mirror() else { return self.read_first(entry, backing, at, into, patient) };
        // What has another copy is not waited for, unless that one is not there.
        let first = match self.is_there() {
            true => self.read_first(entry, backing, at, into, false),
            false => Err(LoadError::OutOfReach { device, slot }),
        };
        match first {
            Ok(()) => Ok(()),
            Err(_) if self.read_mirror(entry, &mirror.file, page, into) => Ok(()),
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
        let outcome = if aligned(into) || !backing.is_direct() {
            self.transfer_one(backing, at, Direction::Read, into, patient)
        } else {
            let mut bounce = Bounce([0; PAGE_SIZE]);
            let outcome = self.transfer_one(backing, at, Direction::Read, &mut bounce.0, patient);
            into.copy_from_slice(&bounce.0);
            outcome
        };
        self.book_read(entry, outcome, into)
    }

    /// Reads the second copy of a page; whether it is there, and right.
    fn read_mirror(&self, entry: Entry, mirror: &Backing, slot: u64, into: &mut Page) -> bool {
        let mut bounce = Bounce([0; PAGE_SIZE]);
        let outcome = self.transfer_one(mirror, (slot, 0), Direction::Read, &mut bounce.0, false);
        into.copy_from_slice(&bounce.0);
        outcome == Transferred::Done && self.complete_from(entry, into, true)
    }

    /// Makes what was read into the page that was stored; whether it is that page. `mirrored`: it is the second copy.
    pub(super) fn complete_from(&self, entry: Entry, page: &mut Page, mirrored: bool) -> bool {
        let right = self.unseal(entry, page, mirrored);
        self.transfers.read.fetch_add(1, Relaxed);
        // Mostly it is zero, and its line stays with all who read.
        if right && self.reads_failed.load(Relaxed) != 0 {
            self.reads_failed.store(0, Relaxed);
        }
        right
    }

    /// What became of a page that was read.
    fn book_read(&self, entry: Entry, outcome: Transferred, page: &mut Page) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let error = match outcome {
            Transferred::Done if self.complete(entry, page) => return Ok(()),
            Transferred::OutOfReach => return Err(LoadError::OutOfReach { device, slot }),
            Transferred::Done => LoadError::Corrupt { device, slot },
            Transferred::EndOfFile => LoadError::ShortRead { device, slot },
            Transferred::Gone => LoadError::Gone { device, slot },
            Transferred::Failed(errno) => LoadError::Io { errno, device, slot },
        };
        Err(self.read_failed(error))
    }

    /// The file of an entry in use, the page in it, and what is kept for it.
    pub(super) fn find(&self, entry: Entry) -> Option<(FoundFile<'_>, u64, FileSlot)> {
        let (id, page) = split(entry)?;
        let own = self.own.get().filter(|own| usize::from(own.id) == id);
        let file = match own {
            Some(own) => FoundFile::Own(own),
            None => FoundFile::Inherited(self.inner.lock().files.get(id)?.clone()?),
        };
        let slot = file.slots.get(page)?;
        Some((file, page, slot))
    }

    /// Whether a page that was read is the one that was stored, decrypted if need be.
    fn unseal(&self, entry: Entry, page: &mut Page, mirrored: bool) -> bool {
        if self.cipher.is_none() && self.key.get().is_none() {
            return true;
        }
        let Some((file, _, slot)) = self.find(entry) else { return false };
        if let Some(cipher) = &self.cipher {
            let Some(backing) = file.backing.get() else { return false };
            // What packs pages has decrypted them.
            if mirrored || backing.store().is_none_or(|store| !store.packs()) {
                cipher.apply(backing.salt(), slot.count, page);
            }
        }
        self.key.get().is_none_or(|key| check_value(slot.check) == key.hash(page))
    }

    /// Transfers one page, aligned; switches O_DIRECT off if that is what the kernel minds.
    pub(super) fn transfer_one(
        &self,
        backing: &Backing,
        (slot, count): (u64, u64),
        direction: Direction,
        page: &mut Page,
        patient: bool,
    ) -> Transferred {
        for last in [false, true] {
            let batch = Batch::new(direction);
            let mut batch = if patient { batch } else { batch.impatient() };
            let place = Place { has_copy: false, ..self.place_in(backing, slot, count) };
            // SAFETY: the page is borrowed mutably until after `run`.
            unsafe { batch.push(&place, page) };
            self.rings.run(&mut batch, &mut || {});
            match batch.outcome(0) {
                Transferred::Failed(Errno::INVAL) if !last && backing.give_up_direct().is_ok() => {}
                outcome => return outcome,
            }
        }
        Transferred::Failed(Errno::INVAL)
    }

    pub(super) fn place_in(&self, backing: &Backing, slot: u64, count: u64) -> Place {
        let on = match backing.store() {
            Some(store) => Medium::Server(store.clone()),
            None => Medium::File {
                fd: backing.fd.raw().unwrap_or(-1),
                direct: backing.is_direct(),
                injector: self.injector.clone(),
            },
        };
        Place { on, at: backing.at(slot), count, has_copy: backing.mirror().is_some() }
    }

    /// Counts what keeps failing.
    fn read_failed(&self, error: LoadError) -> LoadError {
        self.read_errors.fetch_add(1, Relaxed);
        if self.reads_failed.fetch_add(1, Relaxed) + 1 >= READ_ERRORS_MAX {
            self.fail("reads keep failing", if let LoadError::Io { errno, .. } = error { errno } else { Errno::IO });
        }
        error
    }
}
