//! Plain memory as a swap device: it stands for persistent memory, in measurements and tests.
//!
//! Synchronous: a store is a table look-up and a copy of one page, a load the same backwards. Under `farpage run` its
//! pages count against the budget like the compressed pool's, so it saves nothing there.
//!
//! Callers: `space`. Locks: those of the slots, for stores and frees; none while a page is copied (a slot that was just
//! taken is known to no other thread; one that is being loaded is not freed meanwhile, which is the caller's duty).
//! Memory once used is kept, as persistent memory would be there: giving it back would put page faults into what is
//! measured.

use super::{Caps, Entry, LoadError, Page, StoreError, SwapDevice, Usage, check_value, check_words};
use farpage_base::mem::open::Opening;
use farpage_base::sys::cpu;
use farpage_swap::PAGE_SIZE;
use farpage_swap::cluster::CLUSTER_SLOTS;
use farpage_swap::slots::SlotMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Memory as a swap device.
pub struct Ram {
    index: u8,
    caps: Caps,
    base: NonNull<u8>,
    opening: Opening,
    /// Check values.
    slots: SlotMap<[u32; 4], 4>,
    /// Highest slot ever used: the memory up to it has been touched.
    top: AtomicU64,
    full: AtomicBool,
    bad_frees: AtomicU64,
}

// SAFETY: the memory belongs to the device (contract of `new`) and is reached only through its methods.
unsafe impl Send for Ram {}
// SAFETY: as above; which thread may touch which page is ruled by the slot table.
unsafe impl Sync for Ram {}

impl Ram {
    /// A device number `index` over `len` bytes at `base`, whole clusters of 2 MiB.
    ///
    /// # Safety
    /// `base..base+len` is a reservation of private anonymous memory, aligned to a page (the device opens it), that
    /// nothing else uses for as long as the device exists.
    pub unsafe fn new(index: u8, priority: i32, base: NonNull<u8>, len: usize) -> Ram {
        let clusters = len / PAGE_SIZE / CLUSTER_SLOTS;
        let at = base.as_ptr() as usize;
        Ram {
            index,
            caps: Caps { synchronous: true, priority, ..Caps::default() },
            base,
            // SAFETY: caller's promise.
            opening: unsafe { Opening::new(at, at + len) }.giving_way(),
            slots: SlotMap::new((clusters * CLUSTER_SLOTS) as u64, cpu::count()),
            top: AtomicU64::new(0),
            full: AtomicBool::new(false),
            bad_frees: AtomicU64::new(0),
        }
    }

    /// Bytes of memory it has touched (an upper bound).
    pub fn resident_bytes(&self) -> u64 {
        self.top.load(Relaxed) * PAGE_SIZE as u64
    }

    fn page(&self, slot: u64) -> *mut Page {
        // SAFETY: every slot of the table lies in the memory.
        unsafe { self.base.add(slot as usize * PAGE_SIZE) }.as_ptr().cast()
    }
}

impl SwapDevice for Ram {
    fn name(&self) -> &str {
        "ram"
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn accepts(&self) -> bool {
        !self.full.load(Relaxed)
    }

    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        let Some((slot, _)) = self.slots.take_run(cpu::current(), 1) else {
            self.full.store(true, Relaxed);
            return Err(StoreError::Full);
        };
        if !self.opening.reach(self.page(slot) as usize + PAGE_SIZE) {
            self.slots.insert(slot, check_words(check));
            self.slots.free(slot);
            self.full.store(true, Relaxed);
            return Err(StoreError::Full);
        }
        self.top.fetch_max(slot, Relaxed);
        // SAFETY: the slot was taken above and no other thread knows it yet; `page` is not in the device's memory.
        unsafe { self.page(slot).copy_from_nonoverlapping(page, 1) };
        self.slots.insert(slot, check_words(check));
        Entry::new(self.index, slot).ok_or(StoreError::Full)
    }

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        self.slots.get(slot).ok_or(LoadError::NotInUse { device, slot })?;
        // SAFETY: the slot is in use, so it was written before its entry became known, and it is not freed during the
        // call (the engine serialises load and free of an entry).
        unsafe { std::ptr::from_mut(into).copy_from_nonoverlapping(self.page(slot), 1) };
        Ok(())
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        self.slots.get(entry.slot()).map(check_value)
    }

    fn free(&self, entry: Entry) -> bool {
        let freed = self.slots.free(entry.slot()).is_some();
        if !freed {
            self.bad_frees.fetch_add(1, Relaxed);
        } else if self.full.load(Relaxed) {
            self.full.store(false, Relaxed);
        }
        freed
    }

    fn add_usage(&self, usage: &mut Usage) {
        usage.slots_in_use += self.slots.in_use();
        usage.pool_bytes += self.resident_bytes();
        usage.meta_bytes += self.slots.meta_bytes() as u64;
        usage.devices_full += u32::from(self.full.load(Relaxed));
        usage.bad_frees += self.bad_frees.load(Relaxed);
    }
}
