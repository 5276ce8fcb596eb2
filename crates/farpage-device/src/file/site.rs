//! Where the pages of a device go: files in a directory, or what stands for them on a server, with second copies in
//! another directory.
//!
//! Callers: the device. No locks but a link's.

use super::backing::Backing;
use super::health::FileHealth;
use super::open;
use crate::io::Rings;
use farpage_base::sys::fd::Fd;
use farpage_codec::crypt::Cipher;
use farpage_server::link::InReach;
use farpage_server::{PageStores, Seal};
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// See the module header.
pub struct FileSite {
    /// Where files are made; `None`: the device is a block device, or on a server.
    dir: Option<Fd>,
    /// The program cannot reach that any more.
    pub has_left: AtomicBool,
    /// The server that has the pages.
    pub server: Option<Box<dyn PageStores>>,
    /// Where second copies are kept of what is on a server.
    pub mirror: Option<Fd>,
    /// Bytes that stay free on the filesystem, if not the default.
    pub keep_free: Option<u64>,
    pub use_tmpfile: bool,
}

impl FileSite {
    /// Files in a directory, if there is one.
    pub fn in_directory(dir: Option<Fd>) -> FileSite {
        let has_left = AtomicBool::new(false);
        FileSite { dir, has_left, server: None, mirror: None, keep_free: None, use_tmpfile: true }
    }

    /// Shows the directories.
    pub fn each_fd(&self, look: &mut dyn FnMut(&Fd)) {
        self.dir.iter().chain(&self.mirror).for_each(look);
    }

    /// The directories, by descriptor.
    pub fn directories(&self) -> impl Iterator<Item = RawFd> {
        self.dir.iter().chain(&self.mirror).filter_map(Fd::raw)
    }

    /// The program cannot reach directory `number` any more, and what is open under it now is none.
    pub fn leave_directory(&self, number: RawFd) {
        let is_own = self.dir.as_ref().is_some_and(|dir| dir.raw() == Some(number));
        self.has_left.fetch_or(is_own, Relaxed);
    }

    /// Whether its own part can be made when it is wanted: not that of a block device.
    pub fn makes_files(&self) -> bool {
        self.dir.is_some() && !self.has_left.load(Relaxed) || self.server.is_some()
    }

    /// Makes what pages go to.
    pub fn make(&self, cipher: Option<&Arc<Cipher>>, rings: &Rings, health: &FileHealth) -> Result<Backing, Errno> {
        // The second copies first: what is on the server by then would stay there.
        let mirror = self.mirror.as_ref().and_then(|mirror| {
            let made = self.make_in(mirror, rings);
            made.map_err(|errno| health.no_copies("the mirror's file cannot be made", errno)).ok()
        });
        let Some(server) = &self.server else { return self.make_in(self.dir.as_ref().ok_or(Errno::NOENT)?, rings) };
        let seal = cipher.map(Seal::new).transpose()?;
        Ok(Backing::of_store(server.make(seal)?)?.with_mirror(mirror))
    }

    fn make_in(&self, dir: &Fd, rings: &Rings) -> Result<Backing, Errno> {
        let backing = Backing::create_in(dir.borrow()?, self.use_tmpfile)?;
        rings.table().into_iter().for_each(|table| backing.fd.set_fd_table(table));
        Ok(backing)
    }

    /// How far a file may grow that has `end` slots, by `step` if possible, and its second copies with it.
    pub fn grant(&self, backing: &Backing, end: u64, step: u64) -> u64 {
        open::grant(backing, end, step, self.keep_free)
    }

    /// Its server, if it has one, is not away: as far as one can say, and after a step towards it.
    pub fn is_there(&self) -> bool {
        self.server.as_ref().is_none_or(|server| server.link().reach() == InReach::Up)
    }

    /// Whether its server, if it has one, was given up.
    pub fn is_lost(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.link().is_lost())
    }

    /// Whether its server, if it has one, takes pages now. A device whose server was given up is to be drained.
    pub fn accepts(&self, health: &FileHealth) -> bool {
        let (up, lost) = (self.is_there(), self.is_lost());
        if lost {
            health.gave_up();
        }
        up && !lost
    }

    /// Whether a page can be read without waiting for a server that is out of reach.
    pub fn in_reach(&self) -> bool {
        let waits = || self.server.as_ref().is_some_and(|server| server.link().reach() == InReach::Waiting);
        self.mirror.is_some() || !waits()
    }
}
