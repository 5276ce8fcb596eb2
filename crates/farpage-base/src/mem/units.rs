//! The units in which pages are counted and named, and the end of what can be named.
//!
//! Callers: all crates. Types only. A number of pages or frames that names none of them is a plain `usize`.

use farpage_swap::PAGE_SIZE;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// One page of data. References to frames are page-aligned; others work, but cost a copy on files.
pub type Page = [u8; PAGE_SIZE];
/// End of the addresses a program can have, bytes.
pub const USER_END: usize = (1 << 47) - PAGE_SIZE;

/// Virtual page number: which page of the program. It counts pages from address 0.
///
/// A page and a number of pages is a page; the difference of two pages is a number of pages. Two of them as a pair are
/// the first page of a range and the one behind its last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Vpn(u64);

impl Vpn {
    /// The page with this number.
    #[inline]
    pub const fn new(number: u64) -> Vpn {
        Vpn(number)
    }

    /// The page that the byte at `addr` is in.
    #[inline]
    pub const fn of(addr: usize) -> Vpn {
        Vpn((addr / PAGE_SIZE) as u64)
    }

    /// Address of its first byte.
    #[inline]
    pub const fn addr(self) -> usize {
        self.0 as usize * PAGE_SIZE
    }

    /// Its number, for what counts pages without knowing what they are: policies, sets of ranges, statistics.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The page so many pages before this one; the first one of all, if there are fewer.
    #[inline]
    pub const fn saturating_sub(self, pages: usize) -> Vpn {
        Vpn(self.0.saturating_sub(pages as u64))
    }

    /// The pages from this one on, up to before `end`.
    #[inline]
    pub fn up_to(self, end: Vpn) -> impl DoubleEndedIterator<Item = Vpn> {
        (self.0..end.0).map(Vpn)
    }
}

impl Add<usize> for Vpn {
    type Output = Vpn;

    #[inline]
    fn add(self, pages: usize) -> Vpn {
        Vpn(self.0 + pages as u64)
    }
}

impl Sub<usize> for Vpn {
    type Output = Vpn;

    #[inline]
    fn sub(self, pages: usize) -> Vpn {
        Vpn(self.0 - pages as u64)
    }
}

impl AddAssign<usize> for Vpn {
    #[inline]
    fn add_assign(&mut self, pages: usize) {
        *self = *self + pages;
    }
}

impl SubAssign<usize> for Vpn {
    #[inline]
    fn sub_assign(&mut self, pages: usize) {
        *self = *self - pages;
    }
}

impl Sub for Vpn {
    type Output = usize;

    #[inline]
    fn sub(self, other: Vpn) -> usize {
        (self.0 - other.0) as usize
    }
}

/// Frame number: which of the page-sized addresses that the engine reads and writes ([`crate::mem::frame`]).
///
/// A frame and a number of frames is a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct FrameNo(u32);

impl FrameNo {
    /// The frame with this number.
    #[inline]
    pub const fn new(number: u32) -> FrameNo {
        FrameNo(number)
    }

    /// Its number, for words that have room for 32 bits.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Its place in what has one for each frame.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// `n` neighbours, from this one on.
    #[inline]
    pub fn run(self, n: usize) -> impl Iterator<Item = FrameNo> {
        (self.0..self.0 + n as u32).map(FrameNo)
    }
}

impl Add<usize> for FrameNo {
    type Output = FrameNo;

    #[inline]
    fn add(self, frames: usize) -> FrameNo {
        FrameNo(self.0 + frames as u32)
    }
}

impl Sub<usize> for FrameNo {
    type Output = FrameNo;

    #[inline]
    fn sub(self, frames: usize) -> FrameNo {
        FrameNo(self.0 - frames as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_addresses_and_numbers_of_pages() {
        let page = Vpn::of(0x12_3fff);
        assert_eq!((page.number(), page.addr()), (0x123, 0x12_3000));
        assert_eq!((Vpn::of(0x12_4000), page + 1 - page, page - 0x123), (page + 1, 1, Vpn::default()));
        assert_eq!((page.saturating_sub(0x124), page.saturating_sub(3)), (Vpn::default(), Vpn::new(0x120)));
        assert_eq!(page.up_to(page + 3).collect::<Vec<_>>(), [page, page + 1, page + 2]);
        assert_eq!((page.up_to(page).count(), page.up_to(page - 1).count()), (0, 0));
    }
}
