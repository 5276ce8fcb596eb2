//! A swap file, a block device, or pages on a server ([`farpage_server`]).
//!
//! The directory is opened when the device is made, the file in it at the first store (unnamed, so that no other
//! process can open it and nothing stays behind), and both stay open. When the program changes its root directory or
//! its user, the file is made if it was not, and a directory that the program cannot reach any more is closed. A path
//! that is a regular file stands for its directory.
//!
//! ```text
//!  slot of an entry:  | file id: 8 | page of the file: 32 |        (page 0 is the header, never a slot)
//! ```
//!
//! # Forks
//! A forked child shares the open file, but has its own copy of the tables. What was in use at the fork is *frozen*:
//! the parent may forget it, but must not overwrite it while the child can need it; the child must not write at all.
//!
//! * Parent: fork number `e` opens *lease* `e`. A slot taken at epoch `s` and freed at epoch `f` is covered by the
//!   leases `s <= e < f` that are still open; while there is one, the slot is *deferred*: not in use, not free.
//! * Child: its parent's file (and the files that was given) become *inherited*: read-only, forgotten with their
//!   last slot. New pages go to a file of its own with the next free id, so old entries stay valid. (Of a block device
//!   a child has no part of its own: its pages go to the next device.)
//!
//! Callers: `space`, and `zram` for writeback. Locks: `create` (held while the own file is made or grows); `inner`
//! (leases, inherited files, what was drained, failed slots; never held across I/O); inside both those of a file's
//! slots. A page of the own file is stored with locks of its slots only, freed with them unless it is frozen or was
//! moved, and loaded without any: its file stays where it is ([`table::Own`]), and of an inherited one a reader has a
//! counted reference.

mod backing;
mod block;
mod device;
mod disk;
mod drain;
mod health;
mod open;
mod page_io;
mod read;
mod seal;
mod server;
mod site;
mod table;
#[cfg(test)]
mod tests;
mod write;

pub use device::{FileDevice, SharedSize};
pub use open::{check, check_mirror, file_name};

use crate::io::Place;
use crate::{Caps, Entry, LoadError, StoreError, SwapDevice, Usage, check_value};
use farpage_base::mem::units::Page;
use farpage_codec::page_hash::ContentKey;
use std::os::fd::RawFd;
use table::File;

impl SwapDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        Caps { discard: self.tables.own.get().is_some_and(File::discards), ..self.caps }
    }

    fn accepts(&self) -> bool {
        let health = &self.health;
        self.site.accepts(health) && !health.has_failed() && (!health.is_full() || self.may_have_grown())
    }

    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        let mut out = [None];
        let result = self.store_batch(&[(page, check)], &mut out);
        out[0].ok_or_else(|| result.err().unwrap_or(StoreError::Full))
    }

    fn is_remote(&self) -> bool {
        self.site.server.is_some()
    }

    fn in_reach(&self) -> bool {
        self.site.in_reach()
    }

    fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        self.write_all(pages, out)
    }

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        self.read(entry, into, true)
    }

    fn load_with(&self, entry: Entry, into: &mut Page, patient: bool) -> Result<(), LoadError> {
        self.read(entry, into, patient)
    }

    fn place(&self, entry: Entry) -> Option<Place> {
        let (file, page, value) = self.tables.find(entry)?;
        Some(self.io.place(file.backing.get()?, page, value.count))
    }

    fn complete(&self, entry: Entry, page: &mut Page) -> bool {
        self.complete_from(entry, page, false)
    }

    fn has_copy(&self, entry: Entry) -> bool {
        self.tables
            .find(entry)
            .is_some_and(|(file, ..)| file.backing.get().is_some_and(|backing| backing.mirror().is_some()))
    }

    fn resolve(&self, entry: Entry) -> Entry {
        self.tables.went_to(entry).unwrap_or(entry)
    }

    fn check_contents(&self, key: ContentKey) {
        let _ = self.seal.key.set(key);
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        self.tables.find(entry).map(|(.., slot)| check_value(slot.check))
    }

    fn free(&self, entry: Entry) -> bool {
        let freed = self.tables.free(entry);
        if freed {
            self.health.has_room();
        } else {
            self.health.bad_free();
        }
        freed
    }

    fn add_usage(&self, usage: &mut Usage) {
        self.tables.add_usage(usage);
        self.health.add_usage(usage);
        usage.meta_bytes += self.seal.spare_bytes();
    }

    fn fork_parent(&self) {
        self.tables.fork_parent();
        self.keep(true);
    }

    fn end_lease(&self, lease: u32) {
        if self.tables.end_lease(lease) {
            self.keep(false);
        }
        self.health.has_room();
    }

    fn fork_child(&self, fds: &[(RawFd, RawFd)]) {
        // SAFETY: the child has one thread, which is here and has no guard.
        unsafe {
            self.tables.free_in_child();
            self.health.fork_child();
            self.seal.fork_child();
        }
        self.site.server.iter().for_each(|server| server.fork_child());
        self.io.rings.fork_child();
        self.each_fd(&mut |fd| fd.replace(fds, true));
        self.tables.become_child();
    }

    fn fds(&self, out: &mut Vec<RawFd>) {
        self.each_fd(&mut |fd| out.extend(fd.raw()));
    }

    fn replace_fds(&self, fds: &[(RawFd, RawFd)]) {
        self.each_fd(&mut |fd| fd.replace(fds, false));
    }

    fn take_warning(&self) -> Option<String> {
        let of_link = || self.site.server.as_ref()?.link().take_note(self.site.mirror.is_some());
        self.health.take_warning(&self.name).or_else(of_link)
    }
}

impl FileDevice {
    /// Whether children may need what was stored so far.
    fn keep(&self, keep: bool) {
        self.tables.own.get().and_then(File::store).into_iter().for_each(|store| store.keep(keep));
    }
}
