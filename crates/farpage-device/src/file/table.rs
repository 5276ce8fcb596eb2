//! The slots of a file device: own and inherited files, and what a fork freezes.
//!
//! The rules are in the header of the file device. A file's slots have their own locks (`farpage_swap::slots`); which
//! files there are, and what is rare, is [`FileSlots`], behind the device's `inner` lock. No I/O here, except that
//! dropping an inherited file closes it.

use super::backing::Backing;
use crate::{Entry, Usage};
use farpage_base::sys::cpu;
use farpage_base::sys::fd::Fd;
use farpage_base::sys::mutex::Mutex;
use farpage_server::PageStore;
use farpage_swap::PAGE_SIZE;
use farpage_swap::cluster::DeviceOptions;
use farpage_swap::slots::SlotMap;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Bits of the page number in a slot.
pub(super) const PAGE_BITS: u32 = 32;
pub(super) const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;

/// What the table keeps for a stored page. Slots that are being written, that failed, or that were freed but are
/// frozen, are in use and have none.
#[derive(Clone, Copy, Default)]
pub struct FileSlot {
    pub check: [u32; 4],
    /// Fork counter when the page was stored.
    pub epoch: u32,
    /// Its page is being copied to another device. A new page has none, so a mark that is still there means: the same.
    pub marked: bool,
    /// Its page is on another device now (`FileSlots::moved`).
    pub moved: bool,
    /// The page's number among those written to this file, which makes its nonce. It would start again after 2^48
    /// pages, an exbibyte written to one file.
    pub count: u64,
}

/// 32-bit words of a [`FileSlot`].
const WORDS: usize = 7;
const MARKED: u32 = 1 << 16;
const MOVED: u32 = 1 << 17;

impl From<FileSlot> for [u32; WORDS] {
    fn from(slot: FileSlot) -> [u32; WORDS] {
        let [a, b, c, d] = slot.check;
        let high = (slot.count >> 32) as u32 & 0xffff;
        let flags = if slot.marked { MARKED } else { 0 } | if slot.moved { MOVED } else { 0 };
        [a, b, c, d, slot.epoch, slot.count as u32, high | flags]
    }
}

impl From<[u32; WORDS]> for FileSlot {
    fn from([a, b, c, d, epoch, low, high]: [u32; WORDS]) -> FileSlot {
        let count = u64::from(high & 0xffff) << 32 | u64::from(low);
        FileSlot { check: [a, b, c, d], epoch, marked: high & MARKED != 0, moved: high & MOVED != 0, count }
    }
}

/// One file: the own one, or one inherited from a parent.
pub struct File {
    pub id: u8,
    /// Empty: not created yet (only the own one).
    pub backing: OnceLock<Backing>,
    pub slots: SlotMap<FileSlot, WORDS>,
    /// Pages written to it.
    pub written: AtomicU64,
    /// Slots that were freed, and that the server is to forget before they are used again.
    pub retired: Mutex<Vec<u64>>,
}

impl File {
    fn new(id: u8, backing: Option<Backing>, rotational: bool) -> File {
        let discard = backing.as_ref().is_none_or(Backing::discards);
        let options = DeviceOptions { rotational, discard, ..DeviceOptions::default() };
        let backing = backing.map_or_else(OnceLock::new, OnceLock::from);
        File {
            id,
            backing,
            slots: SlotMap::with_options(options, cpu::count()),
            written: AtomicU64::new(0),
            retired: Mutex::new(Vec::new()),
        }
    }

    /// Where its pages are, if that is on a server.
    pub fn store(&self) -> Option<&Arc<dyn PageStore>> {
        self.backing.get()?.store()
    }

    /// Whether the server is told of what is freed, one by one.
    fn forgets(&self) -> bool {
        self.store().is_some_and(|store| store.forgets())
    }

    /// Of the own file: frees a page, if it is one of `which`.
    pub fn free_if(&self, page: u64, which: impl FnOnce(&FileSlot) -> bool) -> bool {
        if !self.forgets() {
            return self.slots.free_if(page, which).is_some();
        }
        let freed = self.slots.remove_if(page, which).is_some();
        if freed {
            self.retired.lock().push(page);
        }
        freed
    }

    /// Of the own file: a slot that has no value can be used again, or as soon as the server knows.
    fn give_back(&self, page: u64) {
        if self.forgets() {
            self.retired.lock().push(page);
        } else {
            self.slots.give_back(page);
        }
    }

    /// Whether empty clusters are given back to what is below, as far as is known.
    pub fn discards(&self) -> bool {
        self.backing.get().is_none_or(Backing::discards)
    }
}

/// The own file, to be found without a lock. Null: all 256 ids are taken by inherited files.
pub struct Own(AtomicPtr<File>);

impl Own {
    pub fn get(&self) -> Option<&File> {
        // SAFETY: null, or a file that `FileSlots::files` keeps for as long as it is the own one: only
        // `FileSlots::become_child` replaces it, in a process with one thread, which has no reference then.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    fn set(&self, file: Option<&Arc<File>>) {
        self.0.store(file.map_or(std::ptr::null_mut(), |file| Arc::as_ptr(file).cast_mut()), Release);
    }
}

/// The usual one takes its keys from a thread's storage, which engine threads do not have.
pub type PlainHasher = BuildHasherDefault<DefaultHasher>;

/// What concerns the device as a whole.
pub struct FileSlots {
    /// By file id, the own one included.
    pub files: Vec<Option<Arc<File>>>,
    /// Forks whose child may still live.
    pub leases: Vec<u32>,
    /// Slots of the own file that were freed under a lease, the epoch when they were taken, and the one then.
    pub deferred: Vec<(u64, u32, u32)>,
    /// Slots of the own file that failed: never given out again.
    pub bad: Vec<u64>,
    /// Where pages went that were taken off a failing device, by slot of their entry.
    pub moved: HashMap<u64, Entry, PlainHasher>,
    /// Where freed ones went: to be freed there.
    pub orphans: Vec<Entry>,
    /// A write has ended since the device failed: the slots may be ones that the drain has passed over, because they
    /// had no value.
    pub late: bool,
    rotational: bool,
}

impl FileSlots {
    /// With an own file, which is `backing` if there is one already. `rotational`: slots are taken in order, by all
    /// CPUs together.
    pub fn new(backing: Option<Backing>, rotational: bool) -> (FileSlots, Own) {
        let file = Arc::new(File::new(0, backing, rotational));
        let own = Own(AtomicPtr::default());
        own.set(Some(&file));
        let inner = FileSlots {
            files: vec![Some(file)],
            leases: Vec::new(),
            deferred: Vec::new(),
            bad: Vec::new(),
            moved: HashMap::default(),
            orphans: Vec::new(),
            late: false,
            rotational,
        };
        (inner, own)
    }

    /// Slots of the own file that were taken before this epoch are covered by a lease.
    pub fn frozen_below(&self) -> u32 {
        self.leases.iter().max().map_or(0, |lease| lease + 1)
    }

    /// Frees a page of any file at `epoch`, whatever is to be done for that; `false`: it was not in use.
    pub fn free(&mut self, own: Option<&File>, id: usize, page: u64, epoch: u32) -> bool {
        let own = own.is_some_and(|own| usize::from(own.id) == id);
        let Some(place) = self.files.get_mut(id) else { return false };
        let Some(file) = place.as_ref() else { return false };
        let Some(slot) = file.slots.remove_if(page, |_| true) else { return false };
        if slot.moved {
            self.orphans.extend(self.moved.remove(&((id as u64) << PAGE_BITS | page)));
        }
        if own && self.leases.iter().any(|&lease| slot.epoch <= lease) {
            self.deferred.push((page, slot.epoch, epoch));
            return true;
        }
        if own {
            file.give_back(page);
            return true;
        }
        file.slots.give_back(page);
        if file.slots.in_use() == 0 {
            // The last page of an inherited file: dropping the file closes it. (Its slots change under `inner` only, so
            // none that was given back can still count.)
            *place = None;
        }
        true
    }

    /// Ends one lease and gives back what no other covers.
    pub fn end_lease(&mut self, own: Option<&File>, lease: u32) {
        self.leases.retain(|&l| l != lease);
        let Some(file) = own else { return };
        let leases = &self.leases;
        self.deferred.retain(|&(page, taken_at, freed_at)| {
            let covered = leases.iter().any(|l| (taken_at..freed_at).contains(l));
            if !covered {
                file.give_back(page);
            }
            covered
        });
    }

    /// The own file becomes an inherited one; a new own file is prepared (not created). The process has one thread, and
    /// it has no reference to the own file.
    pub fn become_child(&mut self, own: &Own) {
        // What the parent had freed is of no use here.
        self.leases.clear();
        self.end_lease(own.get(), u32::MAX);
        self.late = false;
        let old = own.get().map(|file| {
            // Never written again, so what failed need not be remembered.
            let retired = std::mem::take(&mut *file.retired.lock());
            self.bad.drain(..).chain(retired).for_each(|page| _ = file.slots.give_back(page));
            usize::from(file.id)
        });
        own.set(None);
        if let Some(place) = old.and_then(|id| self.files.get_mut(id)) {
            place.take_if(|file| file.slots.in_use() == 0);
        }
        let id = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        let Ok(number) = u8::try_from(id) else { return };
        let file = Arc::new(File::new(number, None, self.rotational));
        own.set(Some(&file));
        match self.files.get_mut(id) {
            Some(place) => *place = Some(file),
            None => self.files.push(Some(file)),
        }
    }
}

/// A file that stays there as long as this lives.
pub enum FoundFile<'a> {
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

/// (file id, page of the file) of an entry of a file device.
pub fn split(entry: Entry) -> Option<(usize, u64)> {
    let slot = entry.slot();
    Some(((slot >> PAGE_BITS) as usize, slot & PAGE_MASK)).filter(|&(_, page)| page != 0)
}

/// The files of a device, and what a fork has frozen of the own one.
pub struct FileTables {
    pub own: Own,
    pub inner: Mutex<FileSlots>,
    /// Forks so far.
    epoch: AtomicU32,
    /// Pages of the own file that were stored before this epoch are frozen; [`FileSlots::frozen_below`].
    frozen_below: AtomicU32,
    pub drain: FileDrain,
}

/// How far the pages of a failed device have been taken off.
#[derive(Default)]
pub struct FileDrain {
    /// The next page to take off.
    pub hand: Mutex<u64>,
    pub drained: AtomicBool,
    /// Some page has been taken off.
    pub any_moved: AtomicBool,
}

impl FileTables {
    /// As [`FileSlots::new`].
    pub fn new(backing: Option<Backing>, rotational: bool) -> FileTables {
        let (inner, own) = FileSlots::new(backing, rotational);
        let (epoch, frozen_below) = (AtomicU32::new(0), AtomicU32::new(0));
        FileTables { own, inner: Mutex::new(inner), epoch, frozen_below, drain: FileDrain::default() }
    }

    /// What the own file's pages are on, if there is something.
    pub fn own_backing(&self) -> Option<&Backing> {
        self.own.get()?.backing.get()
    }

    /// Shows the descriptors of all files.
    pub fn each_fd(&self, look: &mut dyn FnMut(&Fd)) {
        let inner = self.inner.lock();
        inner.files.iter().flatten().filter_map(|f| f.backing.get()).for_each(|backing| backing.each_fd(look));
    }

    /// The file of an entry in use, the page in it, and what is kept for it.
    pub fn find(&self, entry: Entry) -> Option<(FoundFile<'_>, u64, FileSlot)> {
        let (id, page) = split(entry)?;
        let own = self.own.get().filter(|own| usize::from(own.id) == id);
        let file = match own {
            Some(own) => FoundFile::Own(own),
            None => FoundFile::Inherited(self.inner.lock().files.get(id)?.clone()?),
        };
        let slot = file.slots.get(page)?;
        Some((file, page, slot))
    }

    /// The value of a page that is stored now.
    pub fn value(&self, check: [u32; 4], count: u64) -> FileSlot {
        FileSlot { check, epoch: self.epoch.load(Relaxed), count, ..FileSlot::default() }
    }

    /// Frees an entry; `false`: it was not in use.
    pub fn free(&self, entry: Entry) -> bool {
        let Some((id, page)) = split(entry) else { return false };
        let (own, frozen_below) = (self.own.get(), self.frozen_below.load(Relaxed));
        let simple = own
            .filter(|own| usize::from(own.id) == id)
            .is_some_and(|file| file.free_if(page, |slot| !slot.moved && slot.epoch >= frozen_below));
        simple || self.inner.lock().free(own, id, page, self.epoch.load(Relaxed))
    }

    /// Where the page of an entry went.
    pub fn went_to(&self, entry: Entry) -> Option<Entry> {
        if !self.drain.any_moved.load(Relaxed) {
            return None;
        }
        self.inner.lock().moved.get(&entry.slot()).copied()
    }

    /// In the parent, after a fork.
    pub fn fork_parent(&self) {
        let mut inner = self.inner.lock();
        inner.leases.push(self.epoch.fetch_add(1, Relaxed));
        self.frozen_below.store(inner.frozen_below(), Relaxed);
    }

    /// A child and all its descendants are gone; whether it was the last.
    pub fn end_lease(&self, lease: u32) -> bool {
        let mut inner = self.inner.lock();
        inner.end_lease(self.own.get(), lease);
        self.frozen_below.store(inner.frozen_below(), Relaxed);
        inner.leases.is_empty()
    }

    /// In a forked child, before anything else.
    ///
    /// # Safety
    /// It has one thread, which has no guard.
    pub unsafe fn free_in_child(&self) {
        // SAFETY: caller's promise. The parent's pager may have looked for an inherited file, or where a page was
        // moved.
        unsafe {
            self.inner.free_in_child();
            self.own.get().iter().for_each(|own| own.retired.free_in_child());
        }
    }

    /// As [`FileSlots::become_child`].
    pub fn become_child(&self) {
        self.inner.lock().become_child(&self.own);
        self.epoch.store(0, Relaxed);
        self.frozen_below.store(0, Relaxed);
        self.drain.drained.store(false, Relaxed);
        *self.drain.hand.lock() = 0;
    }

    pub fn add_usage(&self, usage: &mut Usage) {
        let inner = self.inner.lock();
        let files = inner.files.iter().flatten();
        let bad = inner.bad.len() as u64;
        let retired = files.clone().map(|f| f.retired.lock().len() as u64).sum::<u64>();
        let kept = inner.deferred.len() as u64 + bad + retired;
        // What was moved to another device is counted there.
        let elsewhere = kept + inner.moved.len() as u64;
        let slots = files.clone().map(|f| f.slots.in_use()).sum::<u64>().saturating_sub(elsewhere);
        usage.slots_in_use += slots;
        usage.file_bytes += slots * PAGE_SIZE as u64;
        usage.deferred_slots += inner.deferred.len() as u64;
        usage.bad_slots += bad;
        usage.meta_bytes += files.map(|f| f.slots.meta_bytes() as u64).sum::<u64>();
        usage.meta_bytes += (inner.deferred.capacity() * size_of::<(u64, u32, u32)>()) as u64;
        usage.meta_bytes += (inner.moved.capacity() * size_of::<(u64, Entry)>()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_rotational_device_come_in_order_whoever_takes_them() {
        let in_order = |rotational| {
            let (_inner, own) = FileSlots::new(None, rotational);
            let slots = &own.get().unwrap().slots;
            slots.grow(1 << 14);
            let any = FileSlot { check: [0; 4], epoch: 0, marked: false, moved: false, count: 0 };
            let taken: Vec<u64> = (0..64).map(|cpu| slots.alloc(cpu, any).unwrap()).collect();
            taken.windows(2).all(|pair| pair[1] == pair[0] + 1)
        };
        assert!(in_order(true));
        assert_eq!(in_order(false), cpu::count() == 1, "other devices have a place for each CPU");
    }

    #[test]
    fn a_slot_is_the_same_in_words() {
        let slot = FileSlot { check: [1, 2, 3, u32::MAX], epoch: 7, marked: false, moved: true, count: (1 << 48) - 2 };
        let back = FileSlot::from(<[u32; WORDS]>::from(slot));
        assert_eq!((back.check, back.epoch, back.count), (slot.check, slot.epoch, slot.count));
        assert_eq!((back.marked, back.moved), (false, true));
        let full = FileSlot::from([u32::MAX; WORDS]);
        assert!(full.marked && full.moved && full.count == (1 << 48) - 1);
    }
}
