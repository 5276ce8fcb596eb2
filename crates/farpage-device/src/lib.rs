//! Swap devices: where the pages go.
//!
//! ```text
//!   engine --> SwapSpace (priority order) --> zram --(does not compress, full)--> file --> ...
//!                                              '----------- writeback ----------->'
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`content`] | what a page that leaves needs, and whether what comes back is what left |
//! | [`entry`] | the name of a stored page |
//! | [`error`] | why a page was not stored or read, or a device cannot be used |
//! | [`space`] | the devices in priority order; all the engine calls |
//! | [`zram`] | compressed pages in memory, same-filled pages, demotion to a file |
//! | [`pool`] | the memory of the compressed pages |
//! | [`ram`] | plain memory, for measurements and tests |
//! | [`file`](mod@file) | pages in a file, on a block device or a server; what a fork shares; encryption, draining |
//! | [`io`] | batches of page I/O, io_uring, injected faults |
//! | [`shared`] | compressed pages that forked processes have together |
//! | [`leases`] | children that may need what is stored in files, or shared |
//! | [`read_queue`] | reads in flight while their thread does something else |
//!
//! An [`Entry`] names a stored page until it is freed; it stays valid across writeback and in a forked child.
//! The engine serialises per page: it never calls `load` and `free` of the same entry at the same time.
//! Everything else may run concurrently.
//!
//! Locks: docs/dev/locking.md has their order. `inner` locks are held for look-ups and copies of one page at most,
//! never across a device wait.

pub mod content;
pub mod entry;
pub mod error;
pub mod file;
pub mod frame_entries;
pub mod io;
pub mod leases;
#[cfg(test)]
mod lies;
pub mod pool;
pub mod ram;
pub mod read_queue;
pub mod shared;
pub mod slot_pages;
pub mod space;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod zram;

use std::os::fd::RawFd;

use farpage_base::mem::units::Page;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;

pub use entry::Entry;
pub use error::{DeviceError, LoadError, StoreError};
pub use space::SwapSpace;

/// What a device is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Loads and stores finish at the speed of memory: they are done in place, on the caller's stack, without queue or
    /// allocation. Others are queued ([`SwapDevice::place`], [`io`]).
    pub synchronous: bool,
    /// Seeks are slow: read ahead in slot order.
    pub rotational: bool,
    /// Freed space is given back to what is below (the disk, the filesystem). False once that has refused.
    pub discard: bool,
    /// A page must not change while it is stored (it is hashed, compressed or encrypted on the way). So it is for all
    /// devices here, and the engine and regions let no thread write to a page that is being stored; a device without it
    /// could be given pages that are still mapped.
    pub stable_writes: bool,
    /// Bytes of the unit in which the device transfers, a power of two, a page at most: a write that is torn stores
    /// whole units.
    pub block_size: u32,
    /// Higher is used first.
    pub priority: i32,
}

impl Default for Caps {
    /// A queued device without seeks.
    fn default() -> Caps {
        Caps {
            synchronous: false,
            rotational: false,
            discard: false,
            stable_writes: true,
            block_size: PAGE_SIZE as u32,
            priority: -1,
        }
    }
}

/// Sums over devices; bytes unless the name says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Memory of the compressed pool (touched spans).
    pub pool_bytes: u64,
    /// Most memory the pool may take.
    pub pool_limit_bytes: u64,
    /// Compressed pages in the pool, their compressed sizes.
    pub pool_compressed_bytes: u64,
    /// Compressed pages in the pool, their original sizes.
    pub pool_orig_bytes: u64,
    /// Pages kept as one word.
    pub same_filled_pages: u64,
    /// Pages in swap files, own and inherited.
    pub file_bytes: u64,
    /// Read from swap files.
    pub file_read_bytes: u64,
    /// Written to them.
    pub file_write_bytes: u64,
    /// Slots that were freed but are kept for a forked child.
    pub deferred_slots: u64,
    /// Pages stored, over all devices; a page moved by writeback counts once.
    pub slots_in_use: u64,
    /// Slots that are never used again because a write to them failed.
    pub bad_slots: u64,
    /// Devices that had no room at the last try.
    pub devices_full: u32,
    /// Devices that take no more pages after a failure.
    pub devices_failed: u32,
    /// Failed writes.
    pub write_errors: u64,
    /// Failed reads (each try).
    pub read_errors: u64,
    /// Loads of compressed pages that had not been stored or loaded since the clock hand passed them.
    pub pool_old_loads: u64,
    /// Pages moved from memory to a file.
    pub writeback: u64,
    /// Pages that zram refused because they do not compress.
    pub incompressible_pages: u64,
    /// Most memory the pool has held.
    pub pool_peak_bytes: u64,
    /// Pages kept in the pool as they are, for want of a better device.
    pub raw_pages: u64,
    /// Objects moved to fill holes of the pool.
    pub compacted_pages: u64,
    /// Pages compressed anew, to less.
    pub recompressed_pages: u64,
    /// Space given back to disks and filesystems.
    pub discarded_bytes: u64,
    /// Pages taken off devices that failed.
    pub drained_pages: u64,
    /// `free` of something that was not in use: bugs.
    pub bad_frees: u64,
    /// Memory for tables and codec states.
    pub meta_bytes: u64,
}

impl Usage {
    /// Shows them in a statistics page.
    pub fn publish(&self, stat: &Stat) {
        for (value, to) in [
            (&stat.pool_bytes, self.pool_bytes),
            (&stat.pool_compressed_bytes, self.pool_compressed_bytes),
            (&stat.pool_orig_bytes, self.pool_orig_bytes),
            (&stat.pool_limit_bytes, self.pool_limit_bytes),
            (&stat.pool_peak_bytes, self.pool_peak_bytes),
            (&stat.same_filled_pages, self.same_filled_pages),
            (&stat.huge_pages, self.raw_pages),
            (&stat.pages_compacted, self.compacted_pages),
            (&stat.pool_recompressed, self.recompressed_pages),
            (&stat.incompressible_pages, self.incompressible_pages),
            (&stat.discarded_bytes, self.discarded_bytes),
            (&stat.drained_pages, self.drained_pages),
            (&stat.bad_slots, self.bad_slots),
            (&stat.file_bytes, self.file_bytes),
            (&stat.file_read_bytes, self.file_read_bytes),
            (&stat.file_write_bytes, self.file_write_bytes),
            (&stat.pool_writeback, self.writeback),
            (&stat.pool_old_loads, self.pool_old_loads),
            (&stat.write_errors, self.write_errors),
            (&stat.read_errors, self.read_errors),
        ] {
            value.store(to, Relaxed);
        }
    }
}

/// One swap device. Devices know their number and deal in whole entries.
pub trait SwapDevice: Send + Sync {
    /// The device as the user wrote it.
    fn name(&self) -> &str;

    /// What the device is like.
    fn caps(&self) -> Caps;

    /// Stores a page. `check` is returned by [`SwapDevice::check`] until the entry is freed.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing was stored.
    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError>;

    /// Stores a page as it is, for want of a better device.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing was stored.
    fn store_raw(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        self.store(page, check)
    }

    /// Stores the pages whose `out` is `None`, in one I/O if the device can. `out` is at least as long as `pages`.
    ///
    /// # Errors
    /// Why some were not stored (the last reason); the others were.
    fn store_batch(&self, pages: &[(&Page, u128)], out: &mut [Option<Entry>]) -> Result<(), StoreError> {
        let mut result = Ok(());
        for (&(page, check), out) in pages.iter().zip(out).filter(|(_, out)| out.is_none()) {
            match self.store(page, check) {
                Ok(entry) => *out = Some(entry),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Reads a page.
    ///
    /// # Errors
    /// See [`LoadError`]; the content of `into` is then unspecified.
    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError>;

    /// The same; `patient`: waits for a server that is out of reach.
    ///
    /// # Errors
    /// As [`SwapDevice::load`]; [`LoadError::OutOfReach`] if it does not wait.
    fn load_with(&self, entry: Entry, into: &mut Page, _patient: bool) -> Result<(), LoadError> {
        self.load(entry, into)
    }

    /// Where the page is, if it is to be read by a queue ([`io::Batch`]); `None`: by [`SwapDevice::load`]. Stays true
    /// while the entry is in use.
    fn place(&self, _entry: Entry) -> Option<io::Place> {
        None
    }

    /// Makes what a queue has read into the page that was stored (decrypts it); whether it is that page, as far as the
    /// device can tell.
    fn complete(&self, _entry: Entry, _page: &mut Page) -> bool {
        true
    }

    /// From now on, check values are hashes of the page with this key, and what is read back is compared.
    fn check_contents(&self, _key: farpage_codec::page_hash::ContentKey) {}

    /// Whether there is a second copy of a page, where a load looks if the first one cannot be had.
    fn has_copy(&self, _entry: Entry) -> bool {
        false
    }

    /// Whether pages are on a server.
    fn is_remote(&self) -> bool {
        false
    }

    /// Whether a load would not have to wait for a server that is out of reach.
    fn in_reach(&self) -> bool {
        true
    }

    /// Whether a store has a chance.
    fn accepts(&self) -> bool {
        true
    }

    /// The entry under which the page really is, if this device has passed it on to another one.
    fn resolve(&self, entry: Entry) -> Entry {
        entry
    }

    /// Whether loading this entry finishes at the speed of memory.
    fn is_synchronous(&self, _entry: Entry) -> bool {
        self.caps().synchronous
    }

    /// The check value given at store; `None`: not in use.
    fn check(&self, entry: Entry) -> Option<u128>;

    /// Frees an entry; `false`: it was not in use (a bug of the caller).
    fn free(&self, entry: Entry) -> bool;

    /// The page of this entry is about to leave memory unchanged: whether it should be `promote`d.
    fn wants_back(&self, _entry: Entry) -> bool {
        false
    }

    /// Takes the page of this entry (`page`, its content) to a faster place. The entry stays.
    fn promote(&self, _entry: Entry, _page: &Page) {}

    /// The page of this entry is in memory again, and memory is scarce: gives up what the entry takes of it. `false`:
    /// it takes some, and only freeing it helps.
    fn give_up(&self, _entry: Entry) -> bool {
        true
    }

    /// Adds this device's numbers.
    fn add_usage(&self, usage: &mut Usage);

    /// In the parent, after a fork, engine still quiet: everything stored now stays readable for the child until
    /// [`SwapDevice::end_lease`].
    fn fork_parent(&self) {}

    /// The child of fork number `lease` and all its descendants are gone.
    fn end_lease(&self, _lease: u32) {}

    /// In the child, after a fork, before anything else is asked of the device: what is stored stays readable, new
    /// pages go elsewhere. `fds` maps the parent's descriptors ([`SwapDevice::fds`]) to the child's own; those that
    /// are not in it are gone. Nothing is closed except descriptors of the child.
    fn fork_child(&self, _fds: &[(RawFd, RawFd)]) {}

    /// Appends the open descriptors.
    fn fds(&self, _out: &mut Vec<RawFd>) {}

    /// Uses other descriptors from now on (all at once: a new number may equal another's old one). Closes nothing.
    fn replace_fds(&self, _fds: &[(RawFd, RawFd)]) {}

    /// Something the user should know, once; one line.
    fn take_warning(&self) -> Option<String> {
        None
    }
}

/// A check value in the alignment of the slot tables.
pub fn check_words(check: u128) -> [u32; 4] {
    [check as u32, (check >> 32) as u32, (check >> 64) as u32, (check >> 96) as u32]
}

/// Back from [`check_words`].
pub fn check_value(words: [u32; 4]) -> u128 {
    words.iter().rev().fold(0, |value, &word| value << 32 | u128::from(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_entries_round_trip() {
        for (device, slot) in [(0, 1), (255, (1 << 40) - 1), (3, 1 << 39)] {
            let entry = Entry::new(device, slot).unwrap();
            assert_eq!((entry.device(), entry.slot()), (device, slot));
            assert_eq!(Entry::from_raw(entry.raw()), Some(entry));
            assert!(entry.raw() >> 48 == 0);
        }
        assert!(Entry::new(1, 0).is_none() && Entry::new(1, 1 << 40).is_none());
        assert!(Entry::from_raw(0).is_none() && Entry::from_raw(1 << 48 | 1).is_none());
        assert!(Entry::from_raw(5 << 40).is_none());
        let check = 0x0123_4567_89ab_cdef_1122_3344_5566_7788;
        assert_eq!(check_value(check_words(check)), check);
    }
}
