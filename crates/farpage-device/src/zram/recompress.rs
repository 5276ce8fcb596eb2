//! Cold pages, compressed once more with zstd, in the background.
//!
//! A hand of its own goes round the slots ([`Packing`]): a page that it passed and that was neither stored nor loaded
//! until it comes by again is cold. (`young`, which the writeback's hand clears, stays as it is: how old the pages are
//! that are loaded decides about the pool's size.) What zstd does not put into a smaller size class is not tried again.
//!
//! Locks: `recompressing` (one thread at a time), codec state, `inner` for look-ups and the copy of one object, as for
//! a store.

use super::*;

/// Slots the hand passes in one call.
const HAND_STEPS: usize = 512;

impl Zram {
    /// The same device, with recompression. Of no use with zstd.
    pub fn with_recompression(self) -> Zram {
        Zram { name: format!("{},recompress=zstd", self.name), dense: Some(Codec::dense()), ..self }
    }

    /// Moves the hand on, compressing up to `pages` cold pages anew; how many it tried. Returns 0 at once if another
    /// thread is at it.
    pub fn recompress(&self, pages: usize) -> usize {
        let Some(dense) = &self.dense else { return 0 };
        let Some(_turn) = self.recompressing.try_lock() else { return 0 };
        let (mut tried, mut steps) = (0, HAND_STEPS);
        while tried < pages && steps > 0 {
            steps -= 1;
            let mut inner = self.inner.lock();
            let slot = match self.slots.next_in_use(inner.recompress_hand, 4) {
                Ok(slot) => slot,
                Err(next) => {
                    inner.recompress_hand = next.max(1);
                    if next == 0 {
                        break; // once round at most
                    }
                    continue;
                }
            };
            inner.recompress_hand = slot + 1;
            let Some(record) = self.slots.get(slot).filter(|r| r.kind == RecordKind::Object && !r.marked) else {
                continue;
            };
            match record.packing {
                Packing::Fresh => self.slots.set_bits(slot, FLAGS, 0, PASSED),
                Packing::Passed => {
                    drop(inner);
                    self.pack(dense, slot, &record);
                    tried += 1;
                }
                Packing::Stubborn | Packing::Dense => {}
            }
        }
        self.trim();
        tried
    }

    /// Compresses one page anew, and keeps what is smaller.
    fn pack(&self, dense: &Codec, slot: u64, record: &Record) {
        let mut bytes = [0; COMPRESSED_MAX];
        let mut page = [0; PAGE_SIZE];
        let len = usize::from(record.len);
        let Some(bytes) = bytes.get_mut(..len) else { return };
        {
            // The object may have been moved or freed since: then its bytes are another's, or there are none.
            let inner = self.inner.lock();
            let Some(object) = self.same(slot, record).then(|| inner.pool.bytes(record.handle(), len)).flatten() else {
                return;
            };
            bytes.copy_from_slice(object);
        }
        if !self.codec.decompress(bytes, &mut page) {
            return; // its load will say so
        }
        let made = dense.compress(&page, |bytes| {
            let smaller = Pool::size_of(bytes.len()) < Pool::size_of(len);
            smaller.then(|| self.new_object(RecordKind::Object, bytes).ok().map(|handle| (handle, bytes.len())))
        });
        let mut inner = self.inner.lock();
        let same = self.same(slot, record);
        match made.flatten() {
            Some(Some((handle, new_len))) if same => {
                inner.drop_object(RecordKind::Object, record.handle(), len);
                self.slots.update(slot, |record| {
                    (record.data[0], record.len, record.packing) = (handle.raw(), new_len as u16, Packing::Dense);
                    Some(())
                });
                self.counts.recompressed.fetch_add(1, Relaxed);
                self.full.store(false, Relaxed);
            }
            Some(Some((handle, new_len))) => inner.drop_object(RecordKind::Object, handle, new_len),
            // No room for the moment.
            Some(None) => {}
            None if same => {
                self.slots.update(slot, |record| {
                    record.packing = Packing::Stubborn;
                    Some(())
                });
            }
            None => {}
        }
    }

    /// Whether a slot still holds the object that `record` describes. One that was freed and used again has not been
    /// passed by the hand, which only this thread moves. Caller has `inner`.
    fn same(&self, slot: u64, record: &Record) -> bool {
        self.slots.get(slot).is_some_and(|now| {
            now.kind == RecordKind::Object
                && now.data[0] == record.data[0]
                && now.packing == Packing::Passed
                && now.len == record.len
                && !now.marked
        })
    }
}
