//! Equal distances between faults: column accesses, records with one field touched.
//!
//! [`Strides`] remembers the last faults that continued nothing. Four of them with three equal distances, the newest
//! being the last of the four, are a strided stream. Faults of others may lie between them, as many as the memory has
//! room for. Three equal distances hardly occur by chance: for faults at random in `n` pages about (16 / n)^2 times 16.
//!
//! It is asked at every fault of a program that jumps about, so it must cost such a program next to nothing: a filter
//! of a few bits says of most pages that they have not been seen, without a look at the ring.

/// Faults remembered.
const RECENT: usize = 16;
/// Largest distance, pages: beyond it a page read ahead is too far away to be called a neighbour.
const STRIDE_MAX: u64 = 4096;

/// Words of the filter.
const FILTER: usize = 4;

/// See the module documentation.
#[derive(Debug, Clone, Default)]
pub struct Strides {
    /// A ring of page numbers plus 1; 0: none.
    recent: [u64; RECENT],
    at: usize,
    /// A bit for each of those numbers, and for up to as many that have left since it was made anew.
    filter: [u64; FILTER],
}

impl Strides {
    /// Nothing seen yet.
    pub const fn new() -> Strides {
        Strides { recent: [0; RECENT], at: 0, filter: [0; FILTER] }
    }

    /// A fault at `page` that continues nothing. The stride (never 0, 1 or -1) if it is the fourth of a row.
    pub fn note(&mut self, page: u64) -> Option<i64> {
        let before = |p: u64, d: i64| p.checked_add_signed(d.checked_neg()?);
        // Which are near enough, without a jump for each: which of them are cannot be foreseen.
        let near = self.recent.iter().enumerate().fold(0u32, |near, (i, last)| {
            let distance = page.wrapping_add(1).abs_diff(*last);
            near | u32::from(distance.wrapping_sub(1) < STRIDE_MAX && *last != 0) << i
        });
        let mut found: Option<i64> = None;
        let mut left = near;
        while left != 0 {
            let i = left.trailing_zeros() as usize;
            left &= left - 1;
            let last = self.recent[i] - 1; // those near are not 0
            let d = page.wrapping_sub(last) as i64;
            let row = before(last, d).filter(|p| self.has(*p)).and_then(|p| before(p, d)).is_some_and(|p| self.has(p));
            if row && found.is_none_or(|best| d.unsigned_abs() < best.unsigned_abs()) {
                found = Some(d);
            }
        }
        self.add(page);
        // A row also is one of every second and every third of its own. That of neighbours is the streams' matter.
        found.filter(|d| d.unsigned_abs() > 1)
    }

    /// Whether `page` is among the last.
    fn has(&self, page: u64) -> bool {
        let number = page.wrapping_add(1);
        let (word, bit) = filter_bit(number);
        self.filter[word] & bit != 0 && self.recent.contains(&number)
    }

    /// `page` takes the place of the oldest.
    fn add(&mut self, page: u64) {
        if self.at == 0 {
            self.filter = [0; FILTER];
            self.recent.into_iter().for_each(|number| self.mark(number));
        }
        let number = page.wrapping_add(1);
        self.mark(number);
        self.recent[self.at] = number;
        self.at = (self.at + 1) % RECENT;
    }

    fn mark(&mut self, number: u64) {
        let (word, bit) = filter_bit(number);
        self.filter[word] |= bit;
    }
}

/// Where the bit of a number is.
fn filter_bit(number: u64) -> (usize, u64) {
    ((number >> 6) as usize % FILTER, 1 << (number % 64))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn four_in_a_row_are_a_stride() {
        for d in [2i64, 7, 37, 512, 4096, -3, -100] {
            let mut s = Strides::new();
            let at = |i: i64| 1_000_000u64.checked_add_signed(d * i).unwrap();
            assert_eq!([0, 1, 2, 3].map(|i| s.note(at(i))), [None, None, None, Some(d)]);
        }
        let mut s = Strides::new();
        assert!((0..9).all(|i| s.note(i).is_none()), "neighbours are no stride");
        assert!((0..9).all(|i| s.note(100_000 + i * 5000).is_none()), "too far");
    }

    #[test]
    fn others_between_do_not_hide_a_stride() {
        let mut s = Strides::new();
        let found: Vec<_> = (0..12u64).flat_map(|i| [1000 + i * 9, 50_000 - i * 4]).map(|p| s.note(p)).collect();
        assert!(found[..6].iter().all(Option::is_none));
        assert!(found[6..].chunks(2).all(|pair| pair == [Some(9), Some(-4)]), "{found:?}");
    }

    /// As `note`, looking at all of the last pages.
    fn note_plainly(recent: &mut Vec<u64>, page: u64) -> Option<i64> {
        let seen = |p: i64| p >= 0 && recent.contains(&(p as u64));
        let rows = recent
            .iter()
            .map(|last| page as i64 - *last as i64)
            .filter(|d| (1..=STRIDE_MAX).contains(&d.unsigned_abs()) && (2..=3).all(|i| seen(page as i64 - i * d)));
        let found = rows.min_by_key(|d| d.unsigned_abs()).filter(|d| d.unsigned_abs() > 1);
        recent.push(page);
        if recent.len() > RECENT {
            recent.remove(0);
        }
        found
    }

    proptest::proptest! {
        /// Rows of all kinds among others, near 0, too: the same as with a look at everything.
        #[test]
        fn the_filter_hides_nothing(
            rows in proptest::collection::vec((0u64..9000, -5000i64..5000, 1usize..7), 1..12),
            order in proptest::collection::vec(0usize..12, 1..120),
        ) {
            let (mut s, mut recent) = (Strides::new(), Vec::new());
            let mut at = vec![0i64; rows.len()];
            for i in order {
                let i = i % rows.len();
                let (start, d, often) = rows[i];
                let page = (start as i64 + d * at[i]).max(0) as u64;
                at[i] = (at[i] + 1) % often as i64;
                let (found, plainly) = (s.note(page), note_plainly(&mut recent, page));
                // Of two rows as long, up and down, either will do.
                proptest::prop_assert_eq!(found.map(i64::unsigned_abs), plainly.map(i64::unsigned_abs));
            }
        }
    }
}
