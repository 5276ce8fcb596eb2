//! Pages of a file device that are on a server which keeps them by number, not in something that looks like a file.
//!
//! The file device gives out the slots, knows what a fork freezes, counts what is written and compares what comes back.
//! A [`PageStore`] has the pages of one process, as a file has: a forked child has one of its own, and reads its
//! parent's. What a store does with a page on its way is its own affair (it may compress it), except that it goes
//! through the device's cipher, if there is one.
//!
//! Callers: the file device. No locks.

use crate::mem::units::Page;
use crate::swap::crypt::{Cipher, Salt};
use crate::swap::io::Transferred;
use crate::sys::table::Table;
use rustix::io::Errno;
use std::sync::Arc;

/// With what a page is encrypted: the number is used for nothing else.
#[derive(Clone, Copy)]
pub struct Sealing<'a> {
    /// The device's cipher.
    pub cipher: &'a Cipher,
    /// The file's salt.
    pub salt: &'a Salt,
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

/// A page that is wanted back.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Where it is.
    pub slot: u64,
    /// Its number when it was written.
    pub count: u64,
    /// Which of the caller's pages it becomes.
    pub at: usize,
}

/// The pages of one process on a server.
pub trait PageStore: Send + Sync {
    /// Stores pages; `out` says of each whether the server has confirmed it. Does not wait for one that is out of
    /// reach. [`Transferred::Failed`] with [`Errno::NOSPC`]: there is no room, and it is not there. With anything else
    /// it may still get there later.
    fn store(&self, sealing: Option<Sealing<'_>>, pages: &[OutgoingPage<'_>], out: &mut [Transferred]);

    /// Reads pages: `out` says of each of `wanted` what came. Waits for a server that is out of reach until it is given
    /// up. Allocates nothing.
    fn load(&self, sealing: Option<Sealing<'_>>, wanted: &[Wanted], into: &mut [&mut Page], out: &mut [Transferred]);

    /// The server need not keep these any more. `false`: nobody knows whether it still will forget them, so they must
    /// not be used again.
    fn forget(&self, slots: &[u64]) -> bool;

    /// From now on there may be slots up to this one; whether the server knows that.
    fn grow(&self, end: u64) -> bool;

    /// What has to be done now and then. `Some`: why the device must not be used any longer.
    fn tick(&self) -> Option<&'static str>;

    /// The pages are not wanted by anybody any more; there are none from `end` on.
    fn remove(&self, end: u64);
}

/// Makes the stores of one server.
pub trait PageStores: Send + Sync {
    /// A new one. Does not wait for a server that is out of reach.
    ///
    /// # Errors
    /// It cannot be had now.
    fn make(&self) -> Result<Arc<dyn PageStore>, Errno>;

    /// Whether pages can be read now, as far as is known.
    fn is_up(&self) -> bool;

    /// Whether the server was given up, which [`PageStores::take_note`] says.
    fn is_lost(&self) -> bool;

    /// Whether pages can be stored now, as far as is known. Takes no time.
    fn accepts(&self) -> bool;

    /// From now on its descriptors are ones of this table.
    fn belongs_to(&self, table: &Arc<Table>);

    /// In a forked child, whose only thread this is.
    fn fork_child(&self);

    /// Something that the user should know, once.
    fn take_note(&self) -> Option<String>;
}
