//! The slots of a file device: own and inherited files, and what a fork freezes.
//!
//! The rules are in the header of the file device, which keeps this behind its `inner` lock. No I/O here, except that
//! dropping an inherited file closes it.

use super::PAGE_BITS;
use super::backing::Backing;
use crate::device::Entry;
use crate::sys::cpu;
use farpage_swap::slots::SlotMap;
use std::collections::HashMap;
use std::sync::Arc;

/// What the table keeps for a slot.
#[derive(Clone, Copy, Default)]
pub struct FileSlot {
    pub check: [u32; 4],
    /// Fork counter when the slot was taken.
    pub epoch: u32,
    /// Freed, but a child may read it.
    pub deferred: bool,
    /// Its first write is not over: nobody has an entry for it yet.
    pub pending: bool,
    /// A write to it failed: never given out again.
    pub bad: bool,
    /// Its page is being copied to another device. A new page has none, so a mark that is still there means: the same.
    pub marked: bool,
    /// Its page is on another device now (`Inner::moved`).
    pub moved: bool,
    /// The page's number among those written to this file, in three parts for the alignment: its nonce.
    pub count: [u16; 3],
}

const _: () = assert!(size_of::<FileSlot>() <= 32);

impl FileSlot {
    /// The page's number among those written to this file.
    pub fn count(&self) -> u64 {
        self.count.iter().rev().fold(0, |count, &part| count << 16 | u64::from(part))
    }

    /// Changes it. It would start again after 2^48 pages, an exbibyte written to one file.
    pub fn set_count(&mut self, count: u64) {
        self.count = [count as u16, (count >> 16) as u16, (count >> 32) as u16];
    }

    /// Whether a page is stored here.
    pub fn is_used(&self) -> bool {
        !self.deferred && !self.bad && !self.pending
    }
}

/// One file: the own one, or one inherited from a parent.
pub struct File {
    /// `None`: not created yet (only the own one).
    pub backing: Option<Arc<Backing>>,
    pub slots: SlotMap<FileSlot>,
}

pub struct Inner {
    /// By file id.
    pub files: Vec<Option<File>>,
    /// Id of the own file; `None`: all 256 ids are taken by inherited files.
    pub own: Option<u8>,
    /// Forks so far.
    pub epoch: u32,
    /// Forks whose child may still live.
    pub leases: Vec<u32>,
    /// Slots of the own file that were freed under a lease, and the epoch then.
    pub deferred: Vec<(u64, u32)>,
    /// Slots of the own file that failed.
    pub bad: u64,
    /// Pages written to the own file.
    pub written: u64,
    /// Where pages went that were taken off a failing device, by slot of their entry.
    pub moved: HashMap<u64, Entry>,
    /// Where freed ones went: to be freed there.
    pub orphans: Vec<Entry>,
    /// A write has ended since the device failed: the slots may be ones that the drain has passed over as pending.
    pub late: bool,
    /// Monotonic second before which free disk space is not looked at again.
    pub retry_second: i64,
}

impl Inner {
    pub fn new(backing: Option<Backing>) -> Inner {
        let own = File { backing: backing.map(Arc::new), slots: SlotMap::with_discard(0, cpu::count()) };
        Inner {
            files: vec![Some(own)],
            own: Some(0),
            epoch: 0,
            leases: Vec::new(),
            deferred: Vec::new(),
            bad: 0,
            written: 0,
            moved: HashMap::new(),
            orphans: Vec::new(),
            late: false,
            retry_second: 0,
        }
    }

    /// Frees a page of a file; `false`: it was not in use.
    pub fn free(&mut self, id: usize, page: u64) -> bool {
        let own = self.own.is_some_and(|own| usize::from(own) == id);
        let Some(place) = self.files.get_mut(id) else { return false };
        let Some(file) = place.as_mut() else { return false };
        let Some(slot) = file.slots.get_mut(page).filter(|slot| slot.is_used()) else { return false };
        if std::mem::take(&mut slot.moved) {
            self.orphans.extend(self.moved.remove(&((id as u64) << PAGE_BITS | page)));
        }
        if own && self.leases.iter().any(|&lease| slot.epoch <= lease) {
            slot.deferred = true;
            self.deferred.push((page, self.epoch));
            return true;
        }
        file.slots.free(page);
        if !own && file.slots.in_use() == 0 {
            // The last page of an inherited file: dropping the file closes it.
            *place = None;
        }
        true
    }

    /// Ends one lease and frees what no other covers.
    pub fn end_lease(&mut self, lease: u32) {
        self.leases.retain(|&l| l != lease);
        let Some(Some(file)) = self.own.and_then(|own| self.files.get_mut(usize::from(own))) else { return };
        let leases = &self.leases;
        self.deferred.retain(|&(page, freed_at)| {
            let taken_at = file.slots.get(page).map_or(0, |slot| slot.epoch);
            let covered = leases.iter().any(|l| (taken_at..freed_at).contains(l));
            if !covered {
                file.slots.free(page);
            }
            covered
        });
    }

    /// The own file becomes an inherited one; a new own file is prepared (not created).
    pub fn become_child(&mut self) {
        // What the parent had freed is of no use here.
        self.leases.clear();
        self.end_lease(u32::MAX);
        self.epoch = 0;
        self.retry_second = 0;
        self.written = 0;
        self.late = false;
        self.forget_bad();
        if let Some(place) = self.own.take().and_then(|own| self.files.get_mut(usize::from(own))) {
            place.take_if(|file| file.slots.in_use() == 0);
        }
        let id = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        self.own = u8::try_from(id).ok();
        if self.own.is_some() {
            let file = File { backing: None, slots: SlotMap::with_discard(0, cpu::count()) };
            match self.files.get_mut(id) {
                Some(place) => *place = Some(file),
                None => self.files.push(Some(file)),
            }
        }
    }

    /// The own file is never written again: its bad slots need not be remembered.
    fn forget_bad(&mut self) {
        if let (1.., Some(Some(file))) = (self.bad, self.own.and_then(|own| self.files.get_mut(usize::from(own)))) {
            let bad: Vec<u64> = file.slots.iter().filter(|(_, slot)| slot.bad).map(|(page, _)| page).collect();
            bad.into_iter().for_each(|page| _ = file.slots.free(page));
            self.bad = 0;
        }
    }
}
