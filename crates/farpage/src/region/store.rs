//! Finding or making the copies of pages that leave.
//!
//! Callers: reclaim, for pages that it has busy: `evict` where they are, `reclaim` in frames of the swap cache. No
//! locks but those of the devices.

use super::pager_core::{PagerCore, count};
use super::word::PageState;
use farpage_base::mem::units::Page;
use farpage_device::Entry;
use farpage_device::content::Leaving;

/// A page that leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvictPage<'a> {
    /// Which.
    pub page: u32,
    /// What it contains.
    pub content: &'a Page,
    /// The copy that was kept, which may hold the same.
    pub old: Option<Entry>,
}

/// What has become of it. The copy that was kept is freed, unless it is the one that is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// It needs no new copy. Its word can say so.
    Had(PageState),
    /// It has a new copy.
    New(Entry),
    /// No device takes it.
    Nowhere,
}

impl PagerCore {
    /// Finds or makes copies of pages that no thread writes. `moves`: the program may still discard one of them while
    /// it is read.
    pub(super) fn store(&self, pages: &[EvictPage], moves: bool) -> Vec<Stored> {
        let mut stored: Vec<Stored> = Vec::with_capacity(pages.len());
        let mut new: Vec<(&Page, u128)> = Vec::with_capacity(pages.len());
        for &EvictPage { page, content, old } in pages {
            let leaving = self.swap.leaving(content, old, &self.key, &self.clean);
            match leaving {
                Leaving::Zero => count(&self.stat.swpout_zero, 1),
                Leaving::Same(entry) if moves => self.promote_in_place(entry, content),
                Leaving::Same(entry) => self.swap.promote(entry, || Some(content)),
                Leaving::New(hash) => new.push((content, hash)),
            }
            if old.is_some() && leaving != Leaving::Zero {
                self.was_unchanged(page, matches!(leaving, Leaving::Same(_)));
            }
            stored.push(match leaving {
                Leaving::Same(entry) => Stored::Had(PageState::Swapped(entry)),
                Leaving::Zero => Stored::Had(PageState::None),
                Leaving::New(_) => Stored::Nowhere,
            });
            if !matches!(leaving, Leaving::Same(_)) {
                self.free_entry(old);
            }
        }
        let mut entries = vec![None; new.len()];
        if let Err(error) = self.swap.store_batch(&new, &mut entries) {
            self.warn_full(error);
        }
        let places = stored.iter_mut().filter(|stored| **stored == Stored::Nowhere);
        for (place, entry) in places.zip(entries) {
            if let Some(entry) = entry {
                count(&self.stat.pswpout, 1);
                *place = Stored::New(entry);
            }
        }
        for (one, stored) in pages.iter().zip(&stored) {
            if let Stored::Had(PageState::Swapped(entry)) | Stored::New(entry) = stored {
                self.readahead.stored(one.page, *entry);
            }
        }
        stored
    }

    /// A page that had come in leaves: was it unchanged?
    pub(super) fn was_unchanged(&self, page: u32, so: bool) {
        self.readahead.write_protect(page, |policy| policy.left(so));
        count(&self.stat.swpout_clean, usize::from(so));
    }

    /// [`SwapSpace::promote`](farpage_device::SwapSpace::promote), of a page in a region, which is what `entry` holds
    /// unless the program discards it meanwhile. So the page is copied first, and the copy is looked at.
    pub(super) fn promote_in_place(&self, entry: Entry, content: &Page) {
        self.swap.promote(entry, || {
            // SAFETY: the page is there, or zeros are served. Volatile: the copy must not be the page itself.
            let copy = unsafe { std::ptr::read_volatile(content) };
            (self.swap.check(entry) == Some(self.key.hash(&copy))).then_some(copy)
        });
    }
}
