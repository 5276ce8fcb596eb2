//! What the process that writes the copies for all knows of them, and no other.
//!
//! Caller: `shared`, under its lock.

use super::map::{CopyMap, RECORDS_STEP};
use crate::pool::{Handle, Pool, Release, SPAN_BYTES};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

/// New copies are made as long as those that only descendants may need are fewer than one in so many.
const DEAD_PART: usize = 2;
/// ... or fewer than this.
const DEAD_FEW: usize = 256;

/// Of one record.
struct Object {
    /// `None`: the record is not in use.
    handle: Option<Handle>,
    /// How many of this process's pages need it.
    uses: u32,
}

/// See the module header.
pub(super) struct Writer {
    pool: Pool,
    /// Of each record so far.
    objects: Vec<Object>,
    /// Numbers that are not in use.
    unused: Vec<u32>,
    /// Records that this process does not need and its descendants may.
    dead: usize,
    /// How far there is memory for records, bytes from the beginning.
    allocated: usize,
}

impl Writer {
    pub(super) fn new(map: &CopyMap) -> Writer {
        // SAFETY: addresses of the map's own, which the pool alone writes to; they are mapped before.
        let pool = unsafe { Pool::on_file(map.write.pages(), map.layout.pages) };
        Writer { pool, objects: Vec::new(), unused: Vec::new(), dead: 0, allocated: 0 }
    }

    /// Whether less than an eighth of the room is left.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.pool.resident_bytes() > self.pool.limit() / 8 * 7
    }

    /// Records in use.
    pub(super) fn len(&self) -> usize {
        self.objects.len() - self.unused.len()
    }

    /// Another page needs the record of this hash, if there is one.
    pub(super) fn find(&mut self, map: &CopyMap, check: u128) -> Option<u32> {
        let number = map.find(check)?;
        let object = self.objects.get_mut(number as usize)?;
        self.dead -= usize::from(object.uses == 0);
        object.uses += 1;
        Some(number)
    }

    /// A new record; `None`: there is no room. `bytes`: [`COMPRESSED_MAX`](crate::pool::COMPRESSED_MAX) at most.
    pub(super) fn add(&mut self, map: &CopyMap, bytes: &[u8], check: u128, vpn: u64) -> Option<u32> {
        let too_many = self.dead > DEAD_FEW && self.dead * DEAD_PART > self.len();
        if too_many || bytes.is_empty() {
            return None;
        }
        let number = self.unused.last().copied().unwrap_or(self.objects.len() as u32);
        let end = map.record_at(number + 1);
        let record = map.write.records().get(number as usize)?;
        if end > self.allocated {
            let at = self.allocated.max(map.record_at(0));
            map.allocate(at, RECORDS_STEP).ok()?;
            self.allocated = at + RECORDS_STEP;
        }
        let (handle, at) = self.new_object(map, bytes.len())?;
        // SAFETY: a new object with room for them, which no record names; there is memory for it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        record.check[0].store(check as u64, Relaxed);
        record.check[1].store((check >> 64) as u64, Relaxed);
        record.vpn.store(vpn, Relaxed);
        record.place.store((at.as_ptr() as usize - map.write.pages().as_ptr() as usize) as u32, Relaxed);
        record.len.store(bytes.len() as u32, Relaxed);
        // From here on descendants find it.
        if !map.name(check, vpn, number) {
            map.forget(check, number);
            self.pool.free(handle);
            return None;
        }
        let object = Object { handle: Some(handle), uses: 1 };
        match self.unused.pop() {
            Some(number) => self.objects[number as usize] = object,
            None => self.objects.push(object),
        }
        Some(number)
    }

    /// A new object of `len` bytes that there is memory for, and where it is.
    fn new_object(&mut self, map: &CopyMap, len: usize) -> Option<(Handle, NonNull<u8>)> {
        let before = self.pool.resident_bytes();
        let handle = self.pool.alloc(len)?;
        let at = self.pool.object(handle, len)?;
        let in_map = map.layout.pages_at + (at.as_ptr() as usize - map.write.pages().as_ptr() as usize);
        let is_new_span = self.pool.resident_bytes() > before;
        let has_memory = || !is_new_span || map.allocate(in_map / SPAN_BYTES * SPAN_BYTES, SPAN_BYTES).is_ok();
        if map.reach(in_map + len) && has_memory() {
            return Some((handle, at));
        }
        self.pool.free(handle);
        // The span is as if it had never been taken.
        if is_new_span && let Some(span) = self.pool.take_empty() {
            self.pool.released(span);
        }
        None
    }

    /// One page fewer needs the record. `leases`: descendants may. `false`: no page did.
    pub(super) fn free(&mut self, map: &CopyMap, number: u32, leases: bool) -> bool {
        let Some(object) = self.objects.get_mut(number as usize).filter(|object| object.uses > 0) else {
            return false;
        };
        object.uses -= 1;
        if object.uses == 0 {
            self.dead += 1;
            if !leases {
                self.remove(map, number);
            }
        }
        true
    }

    /// There is no descendant any more.
    pub(super) fn remove_dead(&mut self, map: &CopyMap) {
        for number in 0..self.objects.len() as u32 {
            if self.dead == 0 {
                break;
            }
            self.remove(map, number);
        }
        if self.len() == 0 {
            (self.objects, self.unused, self.allocated) = (Vec::new(), Vec::new(), 0);
            map.clear();
        }
    }

    /// Removes a record that is in use and not needed.
    fn remove(&mut self, map: &CopyMap, number: u32) {
        let object = &mut self.objects[number as usize];
        let Some(handle) = object.handle.take_if(|_| object.uses == 0) else { return };
        map.check(number).into_iter().for_each(|check| map.forget(check, number));
        self.pool.free(handle);
        self.unused.push(number);
        self.dead -= 1;
    }

    /// Bytes of memory.
    pub(super) fn resident_bytes(&self, map: &CopyMap) -> u64 {
        let tables = map.bucket_bytes() + map.record_at(self.objects.len() as u32) - map.record_at(0);
        self.pool.resident_bytes() + tables as u64
    }

    /// A span that is not needed, to be given back without the lock.
    pub(super) fn take_empty(&mut self) -> Option<Release> {
        self.pool.take_empty()
    }

    /// Its memory was given back.
    pub(super) fn released(&mut self, release: Release) {
        self.pool.released(release);
    }
}
