//! The address space of a pager's regions, the pages' words and list links, and where the fault handler finds them.
//!
//! A pager reserves one range of addresses for all its regions, so that a fault's address is an index: no search, no
//! lock. Words and links of the whole range are reserved too. They cost memory where pages of a region are used only
//! (`places`).
//!
//! Callers: everything in `region`. No lock but that of `places`, a leaf: a page's word is its lock, its links belong
//! to the lists' lock.

use super::places::{LEAF, Places, RegionPlace};
use super::word::{PageState, PageWord};
use farpage_base::mem::arena::Part;
use farpage_base::mem::open::open;
use farpage_swap::PAGE_SIZE;
use farpage_swap::lru::{Links, NIL};
use farpage_swap::workingset::{Pages, Rank, Shadow};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock, munmap};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages of a pager's address space: 1 TiB; less where that much cannot be reserved.
const PAGES_MAX: usize = 1 << 28;
const PAGES_MIN: usize = 1 << 20;

/// An anonymous mapping of our own.
#[derive(Debug)]
pub struct OwnMapping(pub Part);

impl OwnMapping {
    /// Reserves `len` bytes, which can be used as `prot` says until they are opened ([`farpage_base::mem::open`]).
    ///
    /// # Errors
    /// No address space.
    pub fn new(len: usize, prot: ProtFlags) -> Result<OwnMapping, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        let mapping = OwnMapping(Part { base: base as usize, len });
        mapping.without_huge_pages();
        Ok(mapping)
    }

    /// Huge pages would blur the page-wise accounting. Without this it still works.
    fn without_huge_pages(&self) {
        // SAFETY: changes how the kernel backs the memory, not its content.
        let _ = unsafe { madvise(self.0.base as *mut c_void, self.0.len, Advice::LinuxNoHugepage) };
    }

    /// A forked child shall not have it: it would read zeros where pages are swapped out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn not_in_children(&self) -> Result<(), Errno> {
        // SAFETY: changes what a fork copies, nothing here.
        unsafe { madvise(self.0.base as *mut c_void, self.0.len, Advice::LinuxDontFork) }
    }
}

impl Drop for OwnMapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`; there are no references into it when it is dropped.
        let _ = unsafe { munmap(self.0.base as *mut c_void, self.0.len) };
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Space {
    memory: OwnMapping,
    words: OwnMapping,
    links: OwnMapping,
    pages: usize,
    /// A forked child has the memory, too.
    inherit: bool,
    /// Where the regions are.
    pub places: Places,
}

impl Space {
    /// Reserves the largest space that can be had; `inherit`: a forked child has it too.
    ///
    /// # Errors
    /// There is no address space for even a small one.
    pub fn reserve(inherit: bool) -> Result<Space, Errno> {
        let mut pages = PAGES_MAX;
        loop {
            match Space::of(pages, inherit) {
                Err(_) if pages > PAGES_MIN => pages /= 4,
                result => return result,
            }
        }
    }

    fn of(pages: usize, inherit: bool) -> Result<Space, Errno> {
        let memory = OwnMapping::new(pages * PAGE_SIZE, ProtFlags::empty())?;
        if !inherit {
            memory.not_in_children()?;
        }
        let tables = |len| OwnMapping::new(len, ProtFlags::READ);
        let (words, links) = (tables(pages * 8)?, tables(pages * 8)?);
        let space = Space { memory, words, links, pages, inherit, places: Places::default() };
        // Numbers beyond the end are taken for the last page.
        space.open_tables(pages - 1, 1)?;
        Ok(space)
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The page at an address.
    #[inline]
    pub fn page_at(&self, addr: usize) -> Option<u32> {
        let page = addr.wrapping_sub(self.memory.0.base) / PAGE_SIZE;
        (page < self.pages).then_some(page as u32)
    }

    /// Address of a page.
    #[inline]
    pub fn addr(&self, page: u32) -> usize {
        self.memory.0.base + page as usize * PAGE_SIZE
    }

    /// A page's word.
    #[inline]
    pub fn word(&self, page: u32) -> &PageWord {
        // SAFETY: the mapping has a word per page, zeroed (a valid PageWord) or written as one, and lives as long as
        // self.
        unsafe { &*(self.words.0.base as *const PageWord).add((page as usize).min(self.pages - 1)) }
    }

    /// Sees to it that a page of a region has a word that is not Outside; `false`: no open region is there. To be
    /// asked before such a page's word is changed.
    #[inline]
    pub fn touch(&self, page: u32) -> bool {
        self.word(page).load().state() != PageState::Outside
            || self.places.touch(page, |pages, hint| pages.for_each(|page| self.word(page).begin(hint)))
    }

    /// The same of some neighbours, which are a region's; another thread may still be giving them their words.
    pub fn touch_all(&self, pages: Range<u32>) {
        let leaves = (pages.start / LEAF + 1..pages.end.div_ceil(LEAF)).map(|leaf| leaf * LEAF);
        std::iter::once(pages.start).chain(leaves).filter(|page| pages.contains(page)).for_each(|page| {
            self.touch(page);
        });
    }

    #[inline]
    fn link(&self, page: u32) -> &[AtomicU32; 2] {
        // SAFETY: as for `word`.
        unsafe { &*(self.links.0.base as *const [AtomicU32; 2]).add((page as usize).min(self.pages - 1)) }
    }

    /// Makes what is kept of pages writable.
    fn open_tables(&self, first: usize, pages: usize) -> Result<(), Errno> {
        for table in [&self.words, &self.links] {
            // SAFETY: the mapping is ours and has 8 bytes for each page.
            unsafe { open(table.0.base + first * 8, pages * 8) }?;
        }
        Ok(())
    }

    /// Makes pages accessible, to be registered.
    ///
    /// # Errors
    /// The kernel's: too many mappings, no memory for page tables.
    pub fn open(&self, place: RegionPlace) -> Result<(), Errno> {
        self.open_tables(place.first as usize, place.pages as usize)?;
        let (at, len) = (self.addr(place.first) as *mut c_void, place.pages as usize * PAGE_SIZE);
        // SAFETY: inside our reservation; no region is there yet.
        unsafe { mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Makes pages inaccessible and empty, at once: a thread that still reads must not find the kernel's zeros. By a
    /// new mapping: what is left of an old one that had pages cannot be joined with others, and a region over two
    /// mappings could not be filled across their border.
    ///
    /// # Errors
    /// The kernel's. The place must not be used again then.
    pub fn close(&self, place: RegionPlace) -> Result<(), Errno> {
        let (first, pages) = (place.first, place.pages as usize);
        let memory = ManuallyDrop::new(OwnMapping(Part { base: self.addr(first), len: pages * PAGE_SIZE }));
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: inside our reservation; the region is being dropped: there are no references into it.
        unsafe { mmap_anonymous(memory.0.base as *mut c_void, memory.0.len, ProtFlags::empty(), flags) }?;
        memory.without_huge_pages();
        // After `mlockall` new mappings are locked, which these are not to be.
        // SAFETY: changes how the kernel backs the memory, not its content.
        let _ = unsafe { munlock(memory.0.base as *mut c_void, memory.0.len) };
        if !self.inherit {
            memory.not_in_children()?;
        }
        for table in [&self.words, &self.links] {
            let from = (table.0.base + first as usize * 8).next_multiple_of(PAGE_SIZE);
            let to = (table.0.base + (first as usize + pages) * 8) & !(PAGE_SIZE - 1);
            if to > from {
                // SAFETY: words that are zero already (Outside), and links of pages on no list.
                let _ = unsafe { madvise(from as *mut c_void, to - from, Advice::LinuxDontNeed) };
            }
        }
        Ok(())
    }

    /// Makes every access to pages a SIGSEGV.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forbid(&self, place: RegionPlace) -> Result<(), Errno> {
        let (at, len) = (self.addr(place.first) as *mut c_void, place.pages as usize * PAGE_SIZE);
        // SAFETY: inside our reservation; takes rights away, changes no content.
        unsafe { mprotect(at, len, MprotectFlags::empty()) }
    }
}

/// The high bits of a page's second link are its rank, while it is in memory. So the rank is guarded as the links are:
/// by the lists' lock or, for a page that is on no list, by its being busy. Page numbers take the other bits.
const RANK_SHIFT: u32 = 28;
const NEXT_MASK: u32 = (1 << RANK_SHIFT) - 1;
const _: () = assert!(PAGES_MAX <= 1 << RANK_SHIFT);

impl Space {
    /// Keeps the shadow of a page that has left memory: in place of a link. For the thread that has it busy.
    pub fn set_shadow(&self, page: u32, shadow: Shadow) {
        self.set_prev(page, shadow.bits());
    }

    /// What [`Space::set_shadow`] left.
    pub fn shadow(&self, page: u32) -> Shadow {
        Shadow::from_bits(self.prev(page))
    }
}

impl Links for Space {
    fn prev(&self, n: u32) -> u32 {
        self.link(n)[0].load(Ordering::Relaxed)
    }
    fn next(&self, n: u32) -> u32 {
        // The highest number is no page (a region ends below it), but the end of a list.
        match self.link(n)[1].load(Ordering::Relaxed) & NEXT_MASK {
            NEXT_MASK => NIL,
            next => next,
        }
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.link(n)[0].store(to, Ordering::Relaxed);
    }
    fn set_next(&self, n: u32, to: u32) {
        let link = &self.link(n)[1];
        link.store(link.load(Ordering::Relaxed) & !NEXT_MASK | to & NEXT_MASK, Ordering::Relaxed);
    }
}

impl Pages for Space {
    fn rank(&self, n: u32) -> Rank {
        Rank::from_bits((self.link(n)[1].load(Ordering::Relaxed) >> RANK_SHIFT) as u8)
    }
    fn set_rank(&self, n: u32, rank: Rank) {
        let link = &self.link(n)[1];
        let to = link.load(Ordering::Relaxed) & NEXT_MASK | u32::from(rank.bits()) << RANK_SHIFT;
        link.store(to, Ordering::Relaxed);
    }
}
