//! Pages of a device that are on a server, not in a file.
//!
//! The device gives out the slots, knows what a fork freezes, counts what is written and compares what comes back. A
//! [`PageStore`] has the pages of one process, as a file has: a forked child has one of its own, and reads its
//! parent's. Where a page is there, and whether it is compressed on its way, is the store's affair.
//!
//! Callers: the device. No locks.

use crate::areas::SharedAreas;
use crate::link::{Link, Patience};
use crate::request::{RemoteRequest, ReplyReader, RequestBytes, Transferred};
use farpage_base::mem::units::Page;
use farpage_codec::crypt::{Cipher, Salt};
use rustix::io::Errno;
use std::sync::Arc;

/// With what the pages of a store that packs them are encrypted.
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
    /// Its content; encrypted already, if the device encrypts and the store does not pack.
    pub page: &'a Page,
}

/// The pages of one process on a server.
pub trait PageStore: Send + Sync {
    /// Whether what is stored is not the page as it is: it is compressed, and encrypted after that. Then each page is a
    /// run of its own.
    fn packs(&self) -> bool {
        false
    }

    /// Where the page of a slot is, in what the server counts in: bytes, unless it packs.
    fn at(&self, slot: u64) -> u64;

    /// The way to its server: the same for all stores there.
    fn link(&self) -> &Arc<Link>;

    /// How replies on a connection with reads in flight are understood.
    fn replies(&self) -> Box<dyn ReplyReader>;

    /// Writes what such a connection is sent to have runs of this store's read.
    fn ask(&self, requests: &[RemoteRequest], bytes: &mut RequestBytes);

    /// Makes what the server keeps for a page that page, in the request's memory. `false`: it is something else.
    fn decode(&self, _request: &RemoteRequest, _value: &mut [u8]) -> bool {
        false
    }

    /// Reads runs, a batch at most, and waits for them; `ends` says what became of each. Allocates nothing.
    fn read(&self, patience: Patience, requests: &[RemoteRequest], ends: &mut [Transferred]);

    /// Stores pages, a batch at most; `out` says of each whether the server has confirmed it. Does not wait for one
    /// that is out of reach. [`Transferred::Failed`] with [`Errno::NOSPC`]: there is no room, and it is not there. With
    /// anything else it may still get there later.
    fn store(&self, pages: &[OutgoingPage<'_>], out: &mut [Transferred]);

    /// Whether a slot that was freed is used again only when the server has forgotten its page.
    fn forgets(&self) -> bool {
        false
    }

    /// The server need not keep these any more. `false`: it may forget them at any later time, so they must not be used
    /// again.
    fn forget(&self, _slots: &[u64]) -> bool {
        true
    }

    /// Slots from `end` on are wanted, `step` of them if possible: where they end then.
    fn grow(&self, end: u64, step: u64) -> u64;

    /// Whether the server takes the space of slots back.
    fn discards(&self) -> bool {
        false
    }

    /// Gives it back: whether the server has done that. `None`: it may still happen.
    fn discard(&self, _slot: u64, _count: u64) -> Option<bool> {
        Some(false)
    }

    /// Whether forked children may need what is there.
    fn keep(&self, _keep: bool) {}

    /// What has to be done now and then. `Some`: why the device must not be used any longer.
    fn tick(&self) -> Option<&'static str> {
        None
    }

    /// No process wants the pages any more; there are none from `end` on.
    fn remove(&self, _end: u64) {}
}

/// Makes the stores of one server.
pub trait PageStores: Send + Sync {
    /// A new one; one that packs encrypts its pages if there is something to do it with. Does not wait for a server
    /// that is out of reach.
    ///
    /// # Errors
    /// It cannot be had now.
    fn make(&self, seal: Option<Seal>) -> Result<Arc<dyn PageStore>, Errno>;

    /// The way to it.
    fn link(&self) -> &Arc<Link>;

    /// From now on its space is for several processes together, and this says which has what. Whether that is so, where
    /// it must be.
    fn share(&self, _with: SharedAreas) -> bool {
        true
    }

    /// Whether another connection can be had while there is one.
    fn allows_another(&self) -> bool {
        true
    }

    /// What has to be done now and then, whether there are stores or not.
    fn tick(&self) {}

    /// In a forked child, which has this thread alone.
    fn fork_child(&self);

    /// The export, if it is one.
    #[cfg(any(test, feature = "testing"))]
    fn export(&self) -> Option<&crate::nbd::Export> {
        None
    }
}
