//! How far the pages that come back have been away: a histogram, from which the budget is divided
//! ([`crate::pool_share`]).
//!
//! Pure; the working set has it.

/// Bins of the histogram, each [`BINS_PER_BUDGET`]th of the budget wide.
const BINS: usize = 128;
const BINS_PER_BUDGET: usize = 16;
/// That of a budget of a TiB. All bins together fit the type.
const WIDTH_MOST: usize = 1 << 24;

/// How large memory would have had to be, for pages that came back from a device: a fading histogram.
#[derive(Debug, Clone)]
pub struct Distances {
    /// Pages per bin.
    pub(crate) width: u32,
    counts: [u32; BINS],
    /// Larger than all bins.
    beyond: u32,
}

impl Distances {
    /// For a budget of `pages`.
    pub fn new(pages: usize) -> Distances {
        let width = (pages / BINS_PER_BUDGET).clamp(1, WIDTH_MOST) as u32;
        Distances { width, counts: [0; BINS], beyond: 0 }
    }

    /// A page came back that would have stayed in a memory of `pages`.
    pub fn note(&mut self, pages: u32) {
        match self.counts.get_mut((pages / self.width) as usize) {
            Some(count) => *count += 1,
            None => self.beyond += 1,
        }
    }

    /// The budget has so many pages now: what was noted keeps its place as well as the bins allow.
    pub fn resize(&mut self, pages: usize) {
        let mut next = Distances::new(pages);
        for (bin, count) in self.counts.iter().enumerate() {
            let at = (bin as u32 * self.width + self.width / 2) / next.width;
            match next.counts.get_mut(at as usize) {
                Some(place) => *place += count,
                None => next.beyond += count,
            }
        }
        next.beyond += self.beyond;
        *self = next;
    }

    /// Forgets half.
    pub(crate) fn fade(&mut self) {
        self.counts.iter_mut().for_each(|n| *n /= 2);
        self.beyond /= 2;
    }

    /// How many came back that a memory of `pages` would have kept.
    pub(crate) fn within(&self, pages: f64) -> f64 {
        let width = f64::from(self.width);
        let whole = ((pages / width) as usize).min(BINS);
        let sum: f64 = self.counts[..whole].iter().map(|n| f64::from(*n)).sum();
        let part = self.counts.get(whole).map_or(0.0, |n| f64::from(*n) * (pages / width - whole as f64));
        sum + part
    }

    pub(crate) fn total(&self) -> f64 {
        self.counts.iter().map(|n| f64::from(*n)).sum::<f64>() + f64::from(self.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_of_any_size_has_bins() {
        let mut distances = Distances::new(100);
        for pages in [1 << 40, 0, usize::MAX, 1 << 30, 1] {
            distances.resize(pages);
            distances.note(u32::MAX);
            distances.note(0);
        }
        assert_eq!(distances.total(), 10.0);
    }
}
