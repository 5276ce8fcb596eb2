//! What a background thread does with compressed pages: moving the oldest to a file, and filling holes in the pool.
//! A page that has a copy in a file already only gives up its place in the pool. One that forked processes have, too,
//! has one copy for all ([`crate::shared`]).
//!
//! Locks: `writeback` for the whole move (one thread at a time), `inner` for short holds: a few hundred slots of the
//! clock hand (records of objects change nowhere else meanwhile), one page's copy. Decompression and file I/O run
//! without `inner`; the mark of a record tells afterwards whether its slot is still the page that was written.

use super::record::MARKED;
use super::*;

/// Slots a hand passes in one hold of the lock.
const HAND_STEPS: usize = 256;

impl Zram {
    /// See [`crate::SwapSpace::set_pools_steady`].
    pub fn set_steady(&self, steady: bool) {
        self.steady.store(steady, Relaxed);
    }

    /// Bytes the pool holds beyond 7/8 of its limit; beyond all of it if it is steady.
    pub fn over_share(&self) -> u64 {
        let inner = self.inner.lock();
        match self.steady.load(Relaxed) {
            true => inner.pool.resident_bytes().saturating_sub(inner.pool.limit()),
            false => inner.above(SHARE_EIGHTHS),
        }
    }

    /// Whether pages that are also in memory should not stay in the pool.
    pub fn is_tight(&self) -> bool {
        !self.steady.load(Relaxed) && self.inner.lock().above(TIGHT_EIGHTHS) > 0
    }

    /// Moves up to `pages` of the oldest pages on, to the first file that takes them; how many were moved.
    /// Returns 0 at once if another thread is at it. Pages whose write fails stay where they are.
    pub fn writeback(&self, pages: usize) -> usize {
        let Some(mut buffers) = self.writeback.try_lock() else { return 0 };
        if buffers.is_empty() {
            buffers.resize_with(WRITEBACK_BATCH, || WritebackPage([0; PAGE_SIZE]));
        }
        let mut moved = 0;
        let mut files = self.files.iter().filter(|file| file.accepts());
        let mut file = files.next();
        while moved < pages {
            if file.is_none() && !self.can_share() && self.inner.lock().backed_pages == 0 {
                break; // a look at every slot would find nothing
            }
            let mut victims = [0; WRITEBACK_BATCH];
            let want = (pages - moved).min(WRITEBACK_BATCH);
            let most = if file.is_some() || self.can_share() { want } else { 0 };
            let (found, dropped) = self.mark_oldest(&mut victims[..most], want);
            let (mut done, mut left) = (dropped, 0);
            for i in 0..found {
                if self.move_to_shared(victims[i]) {
                    done += 1;
                } else {
                    (victims[left], left) = (victims[i], left + 1);
                }
            }
            let left = &victims[..left];
            match file {
                Some(file) => done += self.move_to(file, left, &mut buffers),
                None => left.iter().for_each(|slot| self.unmark(*slot)),
            }
            self.trim();
            moved += done;
            if file.is_some_and(|file| !file.accepts()) {
                file = files.next();
            } else if done == 0 {
                break;
            }
        }
        self.counts.written_back.fetch_add(moved as u64, Relaxed);
        moved
    }

    /// Goes over the next `want` old pages at the clock hand: marks up to `out.len()` that are to be written, and lets
    /// those go that have a copy in a file. How many of each.
    fn mark_oldest(&self, out: &mut [u64], want: usize) -> (usize, usize) {
        let (mut found, mut dropped) = (0, 0);
        // Two rounds: the first may only make everything old.
        let mut steps = 2 * self.slots.in_use() + HAND_STEPS as u64;
        while found + dropped < want && steps > 0 {
            let mut inner = self.inner.lock();
            for _ in 0..HAND_STEPS {
                if found + dropped == want || steps == 0 {
                    break;
                }
                steps -= 1;
                let slot = match self.slots.next_in_use(inner.hand, HAND_STEPS) {
                    Ok(slot) => slot,
                    Err(next) => {
                        inner.hand = next.max(1);
                        continue;
                    }
                };
                inner.hand = slot + 1;
                let Some(record) = self.slots.get(slot).filter(Record::in_pool) else { continue };
                // What is there as it is gets no second round: it saves nothing.
                if record.young && record.kind != RecordKind::Raw {
                    self.slots.set_bits(slot, FLAGS, YOUNG, 0);
                } else if record.marked {
                } else if record.backup().is_some() {
                    if record.kind == RecordKind::Object {
                        self.promote_policy.note(false);
                    }
                    dropped += usize::from(self.drop_backed(&mut inner, slot));
                } else if let Some(place) = out.get_mut(found) {
                    self.slots.set_bits(slot, FLAGS, 0, MARKED);
                    *place = slot;
                    found += 1;
                }
            }
        }
        if dropped > 0 {
            self.full.store(false, Relaxed);
        }
        (found, dropped)
    }

    fn can_share(&self) -> bool {
        self.shared.get().is_some_and(|shared| shared.is_at_work())
    }

    /// Makes the slot of a marked page forward to the copy for all, if there is one, or forked processes may have it.
    fn move_to_shared(&self, slot: u64) -> bool {
        let Some(shared) = self.shared.get().filter(|_| self.can_share()) else { return false };
        let mut bytes = [0; COMPRESSED_MAX];
        let Some((record, len)) = self.copy_object(slot, &mut bytes) else { return false };
        let check = check_value(record.check);
        // What was stored since the last fork is this process's alone. Without a file, nothing is gained.
        let adds = record.epoch != self.epoch.load(Relaxed) && shared.is_settled() && !self.files.is_empty();
        // Others have its slot, and need not find it by its number.
        let vpn = adds.then_some(0);
        let Some(entry) = shared.share_compressed(&bytes[..len], check, vpn) else { return false };
        let moved = self.forward(slot, entry);
        if !moved {
            shared.free(entry);
        }
        moved
    }

    /// Writes marked pages to a file and makes their slots forward to it; how many.
    fn move_to(&self, file: &FileDevice, victims: &[u64], buffers: &mut [WritebackPage]) -> usize {
        let mut slots = [0; WRITEBACK_BATCH];
        let mut checks = [0; WRITEBACK_BATCH];
        let mut n = 0;
        for &slot in victims {
            let Some(buffer) = buffers.get_mut(n) else { break };
            match self.copy_marked(slot, &mut buffer.0) {
                Some(check) => {
                    (slots[n], checks[n]) = (slot, check);
                    n += 1;
                }
                None => self.unmark(slot),
            }
        }
        let Some(first) = buffers.first() else { return 0 };
        let mut pages = [(&first.0, 0); WRITEBACK_BATCH];
        for (page, (buffer, check)) in pages.iter_mut().zip(buffers.iter().zip(checks)) {
            *page = (&buffer.0, check);
        }
        let mut entries = [None; WRITEBACK_BATCH];
        // What was not stored has no entry; the file keeps count of its errors.
        let _ = file.store_batch(&pages[..n], &mut entries[..n]);
        let mut moved = 0;
        for (&slot, entry) in slots[..n].iter().zip(entries) {
            let Some(entry) = entry else {
                self.unmark(slot);
                continue;
            };
            if self.forward(slot, entry) {
                moved += 1;
            } else {
                file.free(entry);
            }
        }
        moved
    }

    /// The bytes of an object of the device's codec, if its slot still bears the mark: its record, and their number.
    fn copy_object(&self, slot: u64, into: &mut [u8; COMPRESSED_MAX]) -> Option<(Record, usize)> {
        let inner = self.inner.lock();
        let record = self.slots.get(slot).filter(|record| record.marked && record.kind == RecordKind::Object)?;
        let object = inner.pool.bytes(record.handle(), usize::from(record.len))?;
        into.get_mut(..object.len()).filter(|_| record.packing != Packing::Dense)?.copy_from_slice(object);
        Some((record, object.len()))
    }

    /// The content and check value of a slot, if it still bears the mark.
    fn copy_marked(&self, slot: u64, into: &mut Page) -> Option<u128> {
        let mut bytes = [0; COMPRESSED_MAX];
        let inner = self.inner.lock();
        let record = self.slots.get(slot).filter(|record| record.marked)?;
        let object = inner.pool.bytes(record.handle(), usize::from(record.len))?;
        let codec = self.codec_of(&record);
        if record.kind == RecordKind::Raw {
            into.copy_from_slice(object);
        } else {
            let bytes = bytes.get_mut(..object.len())?;
            bytes.copy_from_slice(object);
            drop(inner);
            if !codec.decompress(bytes, into) {
                return None;
            }
        }
        Some(check_value(record.check))
    }

    fn unmark(&self, slot: u64) {
        let _inner = self.inner.lock();
        if self.slots.get(slot).is_some_and(|record| record.marked) {
            self.slots.set_bits(slot, FLAGS, MARKED, 0);
        }
    }

    /// Lets a slot forward to the file, if it is still the page that was written.
    fn forward(&self, slot: u64, entry: Entry) -> bool {
        let mut inner = self.inner.lock();
        let old = self.slots.update(slot, |record| {
            let old = *record;
            *record =
                Record { young: false, ..Record::new(RecordKind::Forward, entry.raw(), 0, check_value(old.check)) };
            old.marked.then_some(old)
        });
        let Some(old) = old else { return false };
        inner.forget(&old);
        self.full.store(false, Relaxed);
        true
    }

    /// Moves objects out of sparse spans if the pool has holes, looking at `slots` slots at most, and gives the
    /// emptied spans back; bytes given back. After a round that found nothing to move it pauses until some objects have
    /// been freed since the round began: what was freed behind the hand is for the next one.
    pub fn compact(&self, slots: usize) -> u64 {
        let before = self.inner.lock().pool.resident_bytes();
        let mut steps = slots;
        while steps > 0 {
            let mut inner = self.inner.lock();
            if !inner.pool.is_loose() {
                break;
            }
            if inner.compact_waits {
                if inner.compact_freed < 64 + inner.pool_pages / 32 {
                    break;
                }
                (inner.compact_waits, inner.compact_freed) = (false, 0);
            }
            for _ in 0..HAND_STEPS.min(steps) {
                steps -= 1;
                let slot = match self.slots.next_in_use(inner.compact_hand, HAND_STEPS) {
                    Ok(slot) => slot,
                    Err(next) => {
                        inner.compact_hand = next.max(1);
                        if next == 0 {
                            inner.compact_waits = !std::mem::take(&mut inner.compacted);
                            if !inner.compact_waits {
                                inner.compact_freed = 0;
                            }
                            break;
                        }
                        continue;
                    }
                };
                inner.compact_hand = slot + 1;
                let Some(record) = self.slots.get(slot).filter(Record::in_pool) else { continue };
                let Some(handle) = inner.pool.relocate(record.handle()) else { continue };
                inner.compacted = true;
                inner.compacted_pages += 1;
                self.slots.update(slot, |record| {
                    record.data[0] = handle.raw();
                    Some(())
                });
            }
        }
        self.trim();
        before.saturating_sub(self.inner.lock().pool.resident_bytes())
    }
}
