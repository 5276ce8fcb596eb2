//! Latencies, nanoseconds, right to 1 %: a histogram, and the form in which it travels between processes.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Some longer than a quarter of an hour count as that.
const LONGEST_NS: u64 = 1 << 40;

/// Counts of latencies.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("bounds that it takes"))
    }
}

impl Latencies {
    /// Counts one.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another one's counts.
    pub fn merge(&mut self, other: &Latencies) {
        // All have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `share` (0 to 1) of all stay at or below, microseconds; 0 if there are none.
    pub fn percentile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }
}

/// Latencies that were found, and how often.
impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Vec<(u64, u64)> {
        latencies.0.iter_recorded().map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(buckets: Vec<(u64, u64)>) -> Latencies {
        let mut latencies = Latencies::default();
        buckets.into_iter().for_each(|(ns, count)| latencies.0.saturating_record_n(ns, count));
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_arrive_as_they_were() {
        let mut latencies = Latencies::default();
        let mut values: Vec<u64> = (0..10_000u64).map(|i| i * i % 70_001).collect();
        values.iter().for_each(|ns| latencies.record(*ns));
        values.sort_unstable();
        let text = serde_json::to_string(&latencies).unwrap();
        let back: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(back.count(), 10_000);
        for share in [0.5, 0.9, 0.99, 0.999, 1.0] {
            let (exact, got) = (values[(10_000.0 * share) as usize - 1] as f64 / 1e3, back.percentile_us(share));
            assert!(got >= exact && got <= exact * 1.01 + 0.001, "{share}: {got} for {exact}");
            assert_eq!(got, latencies.percentile_us(share));
        }
        latencies.merge(&back);
        latencies.record(u64::MAX);
        assert_eq!((latencies.count(), Latencies::default().percentile_us(0.5)), (20_001, 0.0));
        assert!((latencies.percentile_us(1.0) / (LONGEST_NS as f64 / 1e3) - 1.0).abs() < 0.01);
    }
}
