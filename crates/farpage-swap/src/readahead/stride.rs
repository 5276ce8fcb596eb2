//! Equal distances between faults: column accesses, records with one field touched.
//!
//! [`Strides`] remembers the last faults that continued nothing. Four of them with three equal distances, the newest
//! being the last of the four, are a strided stream. Faults of others may lie between them, as many as the memory has
//! room for. Three equal distances hardly occur by chance: for faults at random in `n` pages about (16 / n)^2 times 16.

/// Faults remembered.
const RECENT: usize = 16;
/// Largest distance, pages: beyond it a page read ahead is too far away to be called a neighbour.
const STRIDE_MAX: u64 = 4096;

/// See the module documentation.
#[derive(Debug, Clone, Default)]
pub struct Strides {
    /// A ring of page numbers plus 1; 0: none.
    recent: [u64; RECENT],
    at: usize,
}

impl Strides {
    /// Nothing seen yet.
    pub const fn new() -> Strides {
        Strides { recent: [0; RECENT], at: 0 }
    }

    /// A fault at `page` that continues nothing. The stride (never 0, 1 or -1) if it is the fourth of a row.
    pub fn note(&mut self, page: u64) -> Option<i64> {
        let seen = |p: u64| self.recent.contains(&p.wrapping_add(1));
        let before = |p: u64, d: i64| p.checked_add_signed(d.checked_neg()?);
        let found = self.recent.iter().filter_map(|last| last.checked_sub(1)).filter_map(|last| {
            let distance = page.abs_diff(last);
            if !(1..=STRIDE_MAX).contains(&distance) {
                return None;
            }
            let d = if page > last { distance as i64 } else { -(distance as i64) };
            let second = before(last, d)?;
            (seen(second) && seen(before(second, d)?)).then_some(d)
        });
        // A row also is one of every second and every third of its own. That of neighbours is the streams' matter.
        let found = found.min_by_key(|d| d.unsigned_abs()).filter(|d| d.unsigned_abs() > 1);
        self.recent[self.at] = page.wrapping_add(1);
        self.at = (self.at + 1) % RECENT;
        found
    }
}

#[cfg(test)]
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
}
