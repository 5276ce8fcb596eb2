//! When the pages of a queue came: how long the next one to leave has been there.
//!
//! A page has no time of its own. But a queue is in order: the oldest of `n` pages is the one that came `n` arrivals
//! ago, roughly (some leave from the middle). So it is enough to keep the times of some arrivals. Pure; the queue has
//! it.

/// Arrivals that are kept.
const KEPT: usize = 32;

/// Numbers of arrivals, and when they were.
#[derive(Debug)]
pub(super) struct Arrivals {
    count: u32,
    /// The last ones: how many had come, and when; the next place.
    kept: [(u32, u32); KEPT],
    next: usize,
}

impl Arrivals {
    /// Of an empty queue.
    pub(super) const fn new() -> Arrivals {
        Arrivals { count: 0, kept: [(0, 0); KEPT], next: 0 }
    }

    /// `n` pages came into a queue that has `len` of them now. (Numbers and times go around.)
    pub(super) fn came(&mut self, n: u32, len: u32, now: u32) {
        let (last, _) = self.kept[(self.next + KEPT - 1) % KEPT];
        // Half of what is kept reaches back to the oldest, so that a queue that grows is covered, too.
        if self.count.wrapping_sub(last) >= len / (KEPT as u32 / 2) {
            self.kept[self.next % KEPT] = (self.count, now);
            self.next = (self.next + 1) % KEPT;
        }
        self.count = self.count.wrapping_add(n);
    }

    /// When the oldest of `len` pages came.
    pub(super) fn of_oldest(&self, len: u32) -> u32 {
        let before = |&&(count, _): &&(u32, u32)| self.count.wrapping_sub(count) >= len;
        let (newer, older) = self.kept.split_at(self.next);
        let from_new = || newer.iter().rev().chain(older.iter().rev());
        from_new().find(before).or_else(|| from_new().last()).map_or(0, |(_, when)| *when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_page_is_about_as_old_as_it_is() {
        let mut arrivals = Arrivals::new();
        assert_eq!(arrivals.of_oldest(0), 0);
        let (mut len, mut next) = (0, u32::MAX - 5_000);
        let came = |arrivals: &mut Arrivals, len: u32, next: &mut u32| {
            arrivals.came(1, len, *next);
            *next = next.wrapping_add(1);
        };
        for (pages, to) in [(20_000, 1_000), (20_000, 8_000), (9_000, 100), (300, 100)] {
            for _ in 0..pages {
                len = if len < to { len + 1 } else { to };
                came(&mut arrivals, len, &mut next);
            }
            let age = next.wrapping_sub(arrivals.of_oldest(len));
            assert!((len..=len + len / 8 + 2).contains(&age), "{len} pages, the oldest {age} old");
        }
    }
}
