//! Pages that come back into the pool: the pool as a cache in front of the files.
//!
//! A page that was moved on to a file, read back and taken out again unchanged could stay where it is. But then the
//! pool would keep what is not wanted while what goes back and forth is read from the file each time. So such a page is
//! compressed into the pool once more ([`Zram::take_back`]), *backed* by its copy in the file: when it grows old again,
//! it leaves without being written, and when it is loaded into scarce memory, only the compressed copy goes
//! ([`Zram::drop_copy`]). Whether this pays depends on the program; [`PromotePolicy`] watches.
//!
//! Locks: codec state, then `inner`, as for a store.

use super::*;

impl Zram {
    /// [`super::SwapSpace::hold_promotion`].
    pub(crate) fn hold_promotion(&self, promote: bool) {
        self.promote_policy.hold(promote);
    }

    /// Whether promotion pays.
    pub(crate) fn promotion_pays(&self) -> bool {
        self.promote_policy.pays()
    }

    /// Its copy in a file, if the page of `entry` was moved on to one.
    fn in_file(&self, entry: Entry) -> Option<Entry> {
        self.forwarded(entry).filter(|to| self.files.iter().any(|file| file.index() == to.device()))
    }

    /// Whether the page of `entry` was moved on to a file, and may be taken back because that pays.
    pub(super) fn wants(&self, entry: Entry) -> bool {
        !self.full.load(Relaxed) && self.in_file(entry).is_some() && self.promote_policy.promote()
    }

    /// Takes `page`, the content of `entry`, back into the pool if it was moved on to a file. The file's copy stays.
    /// Whether it was done.
    pub(super) fn take_back(&self, entry: Entry, page: &Page) -> bool {
        let Some(backup) = self.in_file(entry) else { return false };
        let put = |kind, bytes: &[u8]| {
            let handle = self.new_object(kind, bytes).ok()?;
            Some(self.promoted(entry.slot(), backup, kind, handle, bytes.len()))
        };
        let done = self.codec.compress(page, |bytes| match bytes.len() {
            0..=COMPRESSED_MAX => put(RecordKind::Object, bytes),
            _ if self.has_room_for_raw() => put(RecordKind::Raw, page),
            _ => None,
        });
        done.flatten().unwrap_or(false)
    }

    /// Puts an object in the place of the forwarding; frees it if the slot is another page's by now.
    fn promoted(&self, slot: u64, backup: Entry, kind: RecordKind, handle: Handle, len: usize) -> bool {
        let mut inner = self.inner.lock();
        let done = self.slots.update(slot, |record| {
            let same = record.kind == RecordKind::Forward && record.data() == backup.raw();
            *record = Record::backed(kind, handle, len, backup, check_value(record.check));
            same.then_some(())
        });
        match done {
            Some(()) => inner.backed_pages += 1,
            None => inner.drop_object(kind, handle, len),
        }
        done.is_some()
    }

    /// The page of `entry` is in memory again and memory is scarce: gives up its compressed copy if there is one in a
    /// file. Whether the entry takes no pool memory (any more).
    pub(super) fn drop_copy(&self, entry: Entry) -> bool {
        let mut inner = self.inner.lock();
        let Some(record) = self.slots.get(entry.slot()) else { return false };
        if !record.in_pool() {
            return true;
        }
        let given = self.drop_backed(&mut inner, entry.slot());
        drop(inner);
        if given {
            self.full.store(false, Relaxed);
            self.trim();
        }
        given
    }

    /// Lets a slot forward to its copy in a file again, if it has one.
    pub(super) fn drop_backed(&self, inner: &mut ZramState, slot: u64) -> bool {
        let old = self.slots.update(slot, |record| {
            let old = *record;
            let backup = old.backup()?;
            *record =
                Record { young: false, ..Record::new(RecordKind::Forward, backup.raw(), 0, check_value(old.check)) };
            Some(old)
        });
        old.inspect(|old| inner.forget(old)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::promote_policy::PromotePolicy;

    #[test]
    fn promotion_stops_when_it_does_not_pay_and_notices_when_it_does() {
        let policy = PromotePolicy::default();
        assert!(policy.promote());
        (0..3000).for_each(|_| policy.note(false));
        assert_eq!((0..640).filter(|_| policy.promote()).count(), 20);
        (0..1000).for_each(|_| policy.note(true));
        assert!((0..100).all(|_| policy.promote()));
    }
}
