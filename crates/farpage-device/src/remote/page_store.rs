//! Pages of a file device that are on a server, not in a file.
//!
//! The file device gives out the slots, knows what a fork freezes, counts what is written and compares what comes back.
//! A [`PageStore`] has the pages of one process, as a file has: a forked child has one of its own, and reads its
//! parent's. Where a page is, and what a store does with it on its way, is its own affair (it may compress it), except
//! that it goes through the device's cipher, if there is one.
//!
//! Callers: the file device. No locks.

use super::areas::SharedAreas;
use super::link::Link;
use crate::io::{RemoteRuns, Transferred};
use farpage_base::mem::units::Page;
use farpage_codec::crypt::{Cipher, Salt};
use rustix::io::Errno;
use std::sync::Arc;

/// With what the pages of one store are encrypted.
pub struct Seal {
    cipher: Arc<Cipher>,
    salt: Salt,
}

impl Seal {
    /// For a new store.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new(cipher: &Arc<Cipher>) -> Result<Seal, Errno> {
        Ok(Seal { cipher: cipher.clone(), salt: Salt::random()? })
    }

    /// Encrypts what is stored for page number `count`, or decrypts it. The number is used for nothing else.
    pub fn apply(&self, count: u64, bytes: &mut [u8]) {
        self.cipher.apply(&self.salt, count, bytes);
    }
}

/// A page on its way to the server.
pub struct OutgoingPage<'a> {
    /// Where it goes.
    pub slot: u64,
    /// Its number among all that were ever written.
    pub count: u64,
    /// Its content.
    pub page: &'a Page,
}

/// The pages of one process on a server.
pub trait PageStore: Send + Sync {
    /// Who reads them, by batches.
    fn runs(&self) -> Arc<dyn RemoteRuns>;

    /// Where the page of a slot is, for those.
    fn at(&self, slot: u64) -> u64;

    /// Makes what was read the page that was stored with this number, where `runs` does not do so.
    fn unseal(&self, _count: u64, _page: &mut Page) {}

    /// Stores pages, a batch at most; `out` says of each whether the server has confirmed it. Does not wait for one that
    /// is out of reach. [`Transferred::Failed`] with [`Errno::NOSPC`]: there is no room, and it is not there. With
    /// anything else it may still get there later.
    fn store(&self, pages: &[OutgoingPage<'_>], out: &mut [Transferred]);

    /// Whether a slot that was freed is used again only when the server has forgotten its page.
    fn forgets(&self) -> bool {
        false
    }

    /// The server need not keep these any more. `false`: nobody knows whether it still will forget them, so they must
    /// not be used again.
    fn forget(&self, _slots: &[u64]) -> bool {
        true
    }

    /// Slots from `end` on are wanted, `step` of them if possible: where they end then.
    fn grow(&self, end: u64, step: u64) -> u64;

    /// Whether the server takes the space of slots back.
    fn discards(&self) -> bool {
        false
    }

    /// Gives it back: whether the server has done that. `None`: nobody knows; it may still happen.
    fn discard(&self, _slot: u64, _count: u64) -> Option<bool> {
        Some(false)
    }

    /// Whether forked children may need what is there.
    fn keep(&self, _keep: bool) {}

    /// What has to be done now and then. `Some`: why the device must not be used any longer.
    fn tick(&self) -> Option<&'static str> {
        None
    }

    /// The pages are not wanted by anybody any more; there are none from `end` on.
    fn remove(&self, _end: u64) {}
}

/// Makes the stores of one server.
pub trait PageStores: Send + Sync {
    /// A new one, whose pages are encrypted if there is something to do it with. Does not wait for a server that is out
    /// of reach.
    ///
    /// # Errors
    /// It cannot be had now.
    fn make(&self, seal: Option<Seal>) -> Result<Arc<dyn PageStore>, Errno>;

    /// The way to it.
    fn link(&self) -> &Link;

    /// From now on its space is for several processes together, and this says who has what. Whether that is so, where it
    /// must be.
    fn share(&self, _with: SharedAreas) -> bool {
        true
    }

    /// Whether another connection can be had while there is one.
    fn allows_another(&self) -> bool {
        true
    }

    /// What has to be done now and then, whether there are stores or not.
    fn tick(&self) {}

    /// In a forked child, whose only thread this is.
    fn fork_child(&self);

    /// The export, if it is one.
    #[cfg(test)]
    fn export(&self) -> Option<&super::nbd::Export> {
        None
    }
}
