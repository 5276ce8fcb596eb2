//! What makes a page unreadable on its way out, and what is looked at when it comes back.
//!
//! Callers: reading and writing. Locks: `scratch`, a leaf.

use super::backing::Backing;
use super::table::FileSlot;
use crate::check_value;
use crate::io::BATCH_MAX;
use farpage_base::mem::units::Page;
use farpage_base::sys::mutex::Mutex;
use farpage_codec::crypt::Cipher;
use farpage_codec::page_hash::ContentKey;
use farpage_swap::PAGE_SIZE;
use std::sync::{Arc, OnceLock};

/// A page to go through when the caller's is not aligned.
#[repr(align(4096))]
pub struct Bounce(pub Page);

pub fn aligned(page: &Page) -> bool {
    page.as_ptr().addr().is_multiple_of(PAGE_SIZE)
}

/// See the module header.
#[derive(Default)]
pub struct FileSeal {
    /// With it, what is read is compared with its check value.
    pub key: OnceLock<ContentKey>,
    /// With it, what is written is encrypted.
    pub cipher: Option<Arc<Cipher>>,
    /// Memory for encrypted batches.
    scratch: Mutex<Vec<Box<[Bounce]>>>,
}

impl FileSeal {
    /// Encrypts the pages of a batch, numbered from `first` on, into memory of the device's own; `None`: this device
    /// does not encrypt. To be given back.
    pub fn seal<'a>(
        &self,
        backing: &Backing,
        first: u64,
        pages: impl Iterator<Item = &'a Page>,
    ) -> Option<Box<[Bounce]>> {
        let cipher = self.cipher.as_ref()?;
        let spare = self.scratch.lock().pop();
        let mut copies = spare.unwrap_or_else(|| (0..BATCH_MAX).map(|_| Bounce([0; PAGE_SIZE])).collect());
        for (count, (page, copy)) in (first..).zip(pages.zip(copies.iter_mut())) {
            copy.0 = *page;
            cipher.apply(backing.salt(), count, &mut copy.0);
        }
        Some(copies)
    }

    /// Takes such memory back.
    pub fn recycle(&self, copies: Option<Box<[Bounce]>>) {
        self.scratch.lock().extend(copies);
    }

    /// In a forked child. The parent's spare memory is thrown away, without being freed.
    ///
    /// # Safety
    /// It has one thread, which has no guard.
    pub unsafe fn fork_child(&self) {
        // SAFETY: caller's promise; a list of spare memory that is half changed is not looked at.
        unsafe { self.scratch.free_in_child() };
        std::mem::forget(std::mem::take(&mut *self.scratch.lock()));
        self.cipher.iter().for_each(|cipher| cipher.guard());
    }

    /// Bytes of it that are not in use.
    pub fn spare_bytes(&self) -> u64 {
        (self.scratch.lock().len() * BATCH_MAX * PAGE_SIZE) as u64
    }

    /// Whether what is read has to be looked at.
    pub fn looks(&self) -> bool {
        self.cipher.is_some() || self.key.get().is_some()
    }

    /// Whether a page that was read is the one that was stored, decrypted if need be. `mirrored`: it is the second
    /// copy.
    pub fn open(&self, backing: &Backing, slot: FileSlot, page: &mut Page, mirrored: bool) -> bool {
        // What packs pages has decrypted them.
        if let Some(cipher) = &self.cipher
            && (mirrored || !backing.packs())
        {
            cipher.apply(backing.salt(), slot.count, page);
        }
        self.key.get().is_none_or(|key| check_value(slot.check) == key.hash(page))
    }
}
