//! How far runs of neighbours go: of those that came to some length, how many ended there.
//!
//! A program that works on columns, records or objects of some pages goes on for that many pages, and then elsewhere.
//! What came before tells how many: a window is as long as it is likely to be used. So runs of some pages are read in
//! few pieces that end where they end, and faults at random one at a time, and neither has to be told to the other by a
//! rule of its own.
//!
//! Lengths up to 16 pages are told apart, longer ones by powers of two. Of each the share of runs that ended there is
//! an average over the last [`MEMORY`] or so that came to it, so a flood of short runs says nothing about how long ones
//! go on. Pure.

/// Lengths that are told apart.
const EXACT: u32 = 16;
/// And five ranges, each twice as long as the one before, and all beyond.
const KINDS: usize = EXACT as usize + 6;
/// Runs that came to a length and are remembered.
const MEMORY: u8 = 32;
/// What is believed at first counts as so many runs.
const PRIOR: u8 = 2;
/// So many, and it is known rather than believed.
const SURE: u8 = 8;
/// The whole, of shares.
const ONE: u32 = 1 << 16;
/// Of the pages that a window reads ahead, at most one in so many is expected to be in vain; and of each it is likelier
/// that it is used.
const WASTE_PART: u64 = 8;

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Of the runs that came to this length, the share that ended there.
    ended: [u32; KINDS],
    /// How many this is known from.
    seen: [u8; KINDS],
}

impl Lengths {
    /// Runs are believed to go on.
    pub const fn believing() -> Lengths {
        Lengths { ended: [0; KINDS], seen: [PRIOR; KINDS] }
    }

    /// The same, but a page alone is believed to stay alone.
    pub const fn doubting() -> Lengths {
        let mut lengths = Lengths::believing();
        lengths.ended[0] = ONE;
        lengths
    }

    /// A run has ended after `pages` pages.
    pub fn note(&mut self, pages: u32) {
        let last = kind(pages);
        for at in 0..=last {
            let seen = u32::from((self.seen[at] + 1).min(MEMORY));
            self.ended[at] = (self.ended[at] * (seen - 1) + if at == last { ONE } else { 0 }) / seen;
            self.seen[at] = seen as u8;
        }
    }

    /// How many pages to bring in when a run comes to its `reached`-th page, that one included; at most `max`. More
    /// than `limit` only where it is known how runs of such a length go on.
    pub fn window(&self, reached: u32, limit: u32, max: u32) -> u32 {
        // Of the next page, how likely it is to be used; and of all so far together.
        let (mut likely, mut sum) = (u64::from(ONE), 0);
        let mut pages = 1;
        while pages < max {
            let at = kind(reached.saturating_add(pages - 1));
            if pages >= limit && self.seen[at] < SURE {
                break;
            }
            likely -= likely * self.ends_within(at) / u64::from(ONE);
            sum += likely;
            let in_vain = sum * WASTE_PART < u64::from(ONE) * u64::from(pages) * (WASTE_PART - 1);
            if in_vain || likely < u64::from(ONE / 2) {
                break;
            }
            pages += 1;
        }
        pages
    }

    /// The share of the runs in one kind that end with each page of it.
    fn ends_within(&self, at: usize) -> u64 {
        let share = u64::from(self.ended[at]);
        match at.checked_sub(EXACT as usize) {
            None => share,
            Some(5) => 0, // somewhere beyond
            Some(doublings) => share >> (4 + doublings),
        }
    }
}

/// Where a length is counted.
fn kind(pages: u32) -> usize {
    if pages <= EXACT {
        return pages.saturating_sub(1) as usize;
    }
    // 17 to 32 pages, 33 to 64, ...
    let doublings = (pages - 1).ilog2() - EXACT.ilog2();
    (EXACT + doublings.min(5)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_single_lengths_and_then_powers_of_two() {
        let pages = [0, 1, 2, 16, 17, 32, 33, 64, 65, 512, 513, 1 << 30, u32::MAX];
        assert_eq!(pages.map(kind), [0, 0, 1, 15, 16, 16, 17, 17, 18, 20, 21, 21, KINDS - 1]);
    }

    #[test]
    fn nothing_known_is_as_the_caller_believes() {
        assert_eq!([1, 4, 100].map(|limit| Lengths::believing().window(2, limit, 32)), [1, 4, 32]);
        assert_eq!(Lengths::doubting().window(1, 4, 32), 1);
        assert_eq!(Lengths::doubting().window(2, 4, 32), 4, "two are a run");
    }

    #[test]
    fn runs_of_one_length_are_read_to_their_end() {
        for pages in [2, 5, 12] {
            let mut lengths = Lengths::doubting();
            (0..40).for_each(|_| lengths.note(pages));
            for reached in 1..=pages {
                assert_eq!(lengths.window(reached, 1, 128), pages + 1 - reached, "run of {pages}, page {reached}");
            }
        }
    }

    #[test]
    fn short_runs_say_nothing_about_long_ones() {
        let mut lengths = Lengths::doubting();
        (0..20).for_each(|_| lengths.note(5000));
        (0..100_000).for_each(|i| lengths.note(1 + i % 2));
        assert_eq!(lengths.window(1, 8, 128), 1);
        assert_eq!(lengths.window(3, 8, 128), 128);
    }

    #[test]
    fn what_is_expected_in_vain_is_little() {
        // Half of the runs end after each page: nothing is likely enough. One in thirty-two: some pages.
        let mut lengths = Lengths::believing();
        (0..2000u32).for_each(|i| lengths.note(1 + (i.wrapping_mul(0x9e37_79b9) | 1 << 31).trailing_zeros()));
        assert_eq!(lengths.window(2, 16, 128), 1);
        let mut lengths = Lengths::believing();
        (0..2000u32).for_each(|i| lengths.note(1 + i % 32));
        let pages = lengths.window(2, 128, 128);
        assert!((4..16).contains(&pages), "{pages}");
    }

    #[test]
    fn it_forgets() {
        let mut lengths = Lengths::believing();
        (0..1000).for_each(|_| lengths.note(3));
        (0..200).for_each(|_| lengths.note(40));
        assert!(lengths.window(1, 1, 128) >= 32);
    }
}
