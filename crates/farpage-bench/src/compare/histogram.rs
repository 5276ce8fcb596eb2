//! Latencies in log-linear buckets: 32 to each power of two nanoseconds, so every value is right to 3 %.

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = 40 * SUB;

/// Counts per bucket, and the exact maximum.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; BUCKETS], max_ns: 0 }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let log = 63 - ns.leading_zeros();
    let sub = (ns >> (log - SUB_BITS)) as usize & (SUB - 1);
    ((log - SUB_BITS + 1) as usize * SUB + sub).min(BUCKETS - 1)
}

/// First value above the bucket, nanoseconds.
fn bucket_end(i: usize) -> u64 {
    if i < SUB {
        return i as u64 + 1;
    }
    let (log, sub) = ((i / SUB - 1) as u32, (i % SUB) as u64);
    (SUB as u64 + sub + 1) << log
}

impl Histogram {
    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds another one's counts.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest one, nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency, nanoseconds, that `share` (0 to 1) of all stay at or below; 0 if there are none.
    pub fn percentile_ns(&self, share: f64) -> f64 {
        let total = self.count();
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if *n > 0 && seen >= wanted {
                return bucket_end(i).min(self.max_ns) as f64;
            }
        }
        0.0
    }

    /// The buckets that are not empty: (number, count). The form in which it travels between processes.
    pub fn sparse(&self) -> Vec<(u32, u64)> {
        (0u32..).zip(&self.counts).filter(|(_, n)| **n > 0).map(|(i, n)| (i, *n)).collect()
    }

    /// Back from [`Histogram::sparse`].
    pub fn from_sparse(buckets: &[(u32, u64)], max_ns: u64) -> Histogram {
        let mut histogram = Histogram { max_ns, ..Histogram::default() };
        for &(i, n) in buckets {
            if let Some(count) = histogram.counts.get_mut(i as usize) {
                *count += n;
            }
        }
        histogram
    }

    /// The distribution as points (nanoseconds, share of latencies at or below).
    pub fn distribution(&self) -> Vec<(f64, f64)> {
        let total = self.count().max(1) as f64;
        let mut seen = 0;
        self.sparse()
            .into_iter()
            .map(|(i, n)| {
                seen += n;
                (bucket_end(i as usize) as f64, seen as f64 / total)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_line_and_are_narrow() {
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789, 1 << 37]) {
            let i = bucket_of(ns);
            assert!(ns < bucket_end(i), "{ns} {i}");
            assert!(i == 0 || ns >= bucket_end(i - 1), "{ns} {i}");
            assert!(bucket_end(i) - ns <= ns / 32 + 1, "{ns}");
        }
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut h = Histogram::default();
        let values: Vec<u64> = (0..10_000u64).map(|i| i * i % 70_001).collect();
        values.iter().for_each(|v| h.record(*v));
        let mut sorted = values;
        sorted.sort_unstable();
        for share in [0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = sorted[(10_000.0 * share) as usize - 1] as f64;
            let got = h.percentile_ns(share);
            assert!(got >= exact && got <= exact * 1.04 + 1.0, "{share}: {got} for {exact}");
        }
        let back = Histogram::from_sparse(&h.sparse(), h.max_ns());
        assert_eq!((back.count(), back.max_ns()), (10_000, h.max_ns()));
        assert_eq!(back.percentile_ns(0.99), h.percentile_ns(0.99));
    }
}
