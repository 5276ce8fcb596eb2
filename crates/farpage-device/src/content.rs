//! What a page that leaves memory needs, by its content, and whether what comes back is what left.
//!
//! Callers: the writer and the pager of `run`, reclaim and faulting threads of regions. No locks but those of the
//! devices.

use super::{Entry, SwapSpace};
use farpage_base::mem::units::Page;
use farpage_base::sys::message::fatal_fmt;
use farpage_codec::page_hash::{ContentKey, is_zero};
use farpage_swap::PAGE_SIZE;
use farpage_swap::clean_slots::CleanSlotPolicy;

/// What is to be done with a page that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// It is zero: it needs no place.
    Zero,
    /// This copy holds the same bytes: it needs no other.
    Same(Entry),
    /// It is to be stored; this is its hash.
    New(u128),
}

impl SwapSpace {
    /// Looks at a page that leaves and may be what `old`, the copy that was kept, holds. Where it is not, `old` is the
    /// caller's to free. Notes in `clean` whether keeping the copy has paid.
    pub fn leaving(&self, page: &Page, old: Option<Entry>, key: &ContentKey, clean: &CleanSlotPolicy) -> Leaving {
        if is_zero(page) {
            return Leaving::Zero;
        }
        let hash = key.hash(page);
        let Some(old) = old else { return Leaving::New(hash) };
        let same = self.check(old) == Some(hash);
        clean.note(same);
        if same { Leaving::Same(old) } else { Leaving::New(hash) }
    }

    /// The bytes read back must be the bytes that were stored. `addr`: where the page belongs, for the message. Ends
    /// the process if they are others. Allocates nothing.
    pub fn verify(&self, entry: Entry, page: &Page, key: &ContentKey, addr: usize) {
        let got = key.hash(page);
        let want = self.check(entry);
        if want != Some(got) {
            fatal_fmt(format_args!(
                "verify: the page at {:#x} came back wrong from slot {:#x}: hash {got:#034x}, expected {:#034x}",
                addr / PAGE_SIZE * PAGE_SIZE,
                entry.raw(),
                want.unwrap_or(0)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_ipc::conf::SwapSpec;

    #[test]
    fn a_page_is_zero_or_as_it_was_or_new() {
        let specs = [SwapSpec::parse("file:/tmp").unwrap()];
        // SAFETY: there is no memory device.
        let space = unsafe { SwapSpace::build(&specs, std::ptr::null_mut(), 0, 0) }.unwrap();
        let (key, clean) = (ContentKey::random(), CleanSlotPolicy::default());
        let (zero, mut page) = ([0; PAGE_SIZE], [7; PAGE_SIZE]);
        let Leaving::New(hash) = space.leaving(&page, None, &key, &clean) else { panic!("nothing is known of it") };
        let entry = space.store(&page, hash).unwrap();
        assert_eq!(clean.unchanged_share(), 1.0);
        assert_eq!(space.leaving(&page, Some(entry), &key, &clean), Leaving::Same(entry));
        space.verify(entry, &page, &key, 0);
        page[4095] = 6;
        assert!(matches!(space.leaving(&page, Some(entry), &key, &clean), Leaving::New(other) if other != hash));
        assert_eq!(clean.unchanged_share(), 2.0 / 3.0);
        assert_eq!(space.leaving(&zero, Some(entry), &key, &clean), Leaving::Zero);
        assert!(space.free(entry), "it was kept for the caller to free");
    }
}
