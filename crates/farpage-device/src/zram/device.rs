//! Compressed memory as a swap device.
//!
//! Locks: codec state, then `inner`, for one page at most.

use super::*;

impl SwapDevice for Zram {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        Caps { synchronous: true, priority: self.priority, ..Caps::default() }
    }

    fn store(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        if let Some(word) = same_filled(page) {
            return self.insert_same(word, check);
        }
        if self.full.load(Relaxed) {
            return Err(StoreError::Full);
        }
        let stored = self.codec.compress(page, |bytes| {
            if bytes.len() > COMPRESSED_MAX {
                return Err(StoreError::Incompressible);
            }
            self.insert(RecordKind::Object, bytes, check)
        });
        let stored = stored.unwrap_or(Err(StoreError::Incompressible));
        if stored == Err(StoreError::Incompressible) {
            self.counts.incompressible.fetch_add(1, Relaxed);
        }
        stored
    }

    fn store_raw(&self, page: &Page, check: u128) -> Result<Entry, StoreError> {
        match same_filled(page) {
            Some(word) => self.insert_same(word, check),
            None => self.insert(RecordKind::Raw, page, check),
        }
    }

    fn resolve(&self, entry: Entry) -> Entry {
        self.forwarded(entry).unwrap_or(entry)
    }

    fn load(&self, entry: Entry, into: &mut Page) -> Result<(), LoadError> {
        let (device, slot) = (self.index, entry.slot());
        let missing = LoadError::NotInUse { device, slot };
        let mut record = self.slots.get(slot).ok_or(missing)?;
        if record.in_pool() {
            self.objects.fetch(record.handle(), usize::from(record.len));
        }
        let mut bytes = [0; COMPRESSED_MAX];
        let mut inner = None;
        if record.in_pool() {
            inner = Some(self.inner.lock());
            // Where it is now, and stays.
            record = self.slots.get(slot).ok_or(missing)?;
        }
        if record.in_pool() {
            let passed = if record.packing == Packing::Passed { PASSED } else { 0 };
            if !record.young || passed != 0 {
                self.slots.set_bits(slot, FLAGS, passed, YOUNG);
            }
            if !record.young {
                self.counts.old_loads.fetch_add(1, Relaxed);
            }
            if record.kind == RecordKind::Object && record.backup().is_some() {
                self.promote_policy.note(true);
            }
        }
        let pool = inner.as_ref().map(|inner| &inner.pool);
        let corrupt = LoadError::Corrupt { device, slot };
        match record.kind {
            RecordKind::Same => {
                fill(into, record.data());
                Ok(())
            }
            RecordKind::Raw => {
                into.copy_from_slice(pool.and_then(|pool| pool.bytes(record.handle(), OBJECT_MAX)).ok_or(corrupt)?);
                Ok(())
            }
            RecordKind::Object => {
                let len = usize::from(record.len);
                let object = pool.and_then(|pool| pool.bytes(record.handle(), len)).ok_or(corrupt)?;
                let bytes = bytes.get_mut(..object.len()).ok_or(corrupt)?;
                bytes.copy_from_slice(object);
                drop(inner);
                if self.codec_of(&record).decompress(bytes, into) { Ok(()) } else { Err(corrupt) }
            }
            RecordKind::Forward => {
                drop(inner);
                let entry = Entry::from_raw(record.data()).ok_or(corrupt)?;
                self.next_of(entry).ok_or(corrupt)?.load(entry, into)
            }
        }
    }

    fn is_synchronous(&self, entry: Entry) -> bool {
        self.forwarded(entry).is_none()
    }

    fn check(&self, entry: Entry) -> Option<u128> {
        self.slots.get(entry.slot()).map(|record| check_value(record.check))
    }

    fn free(&self, entry: Entry) -> bool {
        let slot = entry.slot();
        let mut release = None;
        let simple = self.slots.get(slot).is_some_and(|record| !record.in_pool());
        let record = simple.then(|| self.slots.free_if(slot, |record| !record.in_pool())).flatten().or_else(|| {
            let mut inner = self.inner.lock();
            let record = self.slots.remove_if(slot, |_| true)?;
            inner.forget(&record);
            release = inner.pool.take_excess();
            drop(inner);
            self.slots.give_back(slot);
            Some(record)
        });
        let Some(record) = record else {
            self.counts.bad_frees.fetch_add(1, Relaxed);
            return false;
        };
        if record.kind == RecordKind::Same {
            self.counts.same_pages.fetch_sub(1, Relaxed);
        }
        if let Some(release) = release {
            release.run();
            self.inner.lock().pool.released(release);
        }
        if record.kind != RecordKind::Forward && self.full.load(Relaxed) {
            self.full.store(false, Relaxed);
        }
        let in_file = if record.kind == RecordKind::Forward { Entry::from_raw(record.data()) } else { record.backup() };
        if let Some((entry, next)) = in_file.and_then(|e| Some((e, self.next_of(e)?))) {
            next.free(entry);
        }
        true
    }

    fn wants_back(&self, entry: Entry) -> bool {
        self.wants(entry)
    }

    fn promote(&self, entry: Entry, page: &Page) {
        self.take_back(entry, page);
    }

    fn give_up(&self, entry: Entry) -> bool {
        self.drop_copy(entry)
    }

    fn fork_parent(&self) {
        self.epoch.fetch_add(1, Relaxed);
    }

    fn fork_child(&self, _fds: &[(RawFd, RawFd)]) {
        // SAFETY: the child has one thread, which is here and has no guard. The parent's pager may have been reading a
        // page: it noted that it is young, in one step, and copied it; or it was decompressing it, which begins anew
        // each time.
        unsafe {
            self.inner.free_in_child();
            self.codec.fork_child();
            self.dense.iter().for_each(|codec| codec.fork_child());
        }
    }

    fn add_usage(&self, usage: &mut Usage) {
        let inner = self.inner.lock();
        usage.pool_bytes += inner.pool.resident_bytes();
        usage.pool_limit_bytes += inner.pool.limit();
        usage.pool_compressed_bytes += inner.compressed_bytes;
        usage.pool_orig_bytes += inner.pool_pages * PAGE_SIZE as u64;
        let same_pages = self.counts.same_pages.load(Relaxed);
        usage.same_filled_pages += same_pages;
        usage.pool_peak_bytes += inner.pool.peak_bytes();
        usage.raw_pages += inner.raw_pages;
        usage.compacted_pages += inner.compacted_pages;
        // Pages that have a place in a file are counted there.
        usage.slots_in_use += inner.pool_pages - inner.backed_pages + same_pages;
        usage.meta_bytes += inner.pool.meta_bytes() as u64;
        drop(inner);
        usage.meta_bytes += self.slots.meta_bytes() as u64;
        usage.meta_bytes += self.codec.meta_bytes() + self.dense.as_ref().map_or(0, Codec::meta_bytes);
        usage.recompressed_pages += self.counts.recompressed.load(Relaxed);
        if let Some(buffers) = self.writeback.try_lock() {
            usage.meta_bytes += (buffers.len() * PAGE_SIZE) as u64;
        }
        usage.devices_full += u32::from(self.full.load(Relaxed));
        usage.incompressible_pages += self.counts.incompressible.load(Relaxed);
        usage.writeback += self.counts.written_back.load(Relaxed);
        usage.pool_old_loads += self.counts.old_loads.load(Relaxed);
        usage.bad_frees += self.counts.bad_frees.load(Relaxed);
    }
}
