//! One row of the result: the rounds of a workload, their medians and ranges.

use super::side::Sample;
use super::workload::Workload;

/// Both sides of one round.
#[derive(Debug)]
pub struct Round {
    /// The kernel's, if it was measured.
    pub kernel: Option<Sample>,
    /// farpage's.
    pub farpage: Sample,
    /// farpage's budget, bytes.
    pub ram: u64,
}

/// Median and range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of some values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Spread { median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, min, max })
    }
}

/// A number with so many decimals, for a table; a dash if there is none.
pub fn or_dash(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// The rounds of a workload.
#[derive(Debug)]
pub struct Row {
    /// The workload.
    pub workload: Workload,
    /// Its threads.
    pub threads: u64,
    /// At least one round.
    pub rounds: Vec<Round>,
}

/// Medians of one side.
#[derive(Debug, Clone, Default)]
pub struct Side {
    /// Accesses per second.
    pub ops_per_s: f64,
    /// Microseconds per access.
    pub us_per_page: f64,
    /// Latency of an access, microseconds: median, 90 %, 99 %, 99.9 %, 99.99 %, longest.
    pub p50_us: f64,
    /// See above.
    pub p90_us: f64,
    /// See above.
    pub p99_us: f64,
    /// See above.
    pub p999_us: f64,
    /// See above.
    pub p9999_us: f64,
    /// See above.
    pub max_us: f64,
    /// CPU seconds per GiB accessed, user mode.
    pub cpu_user_s_per_gib: f64,
    /// CPU seconds per GiB accessed, kernel mode.
    pub cpu_sys_s_per_gib: f64,
    /// Faults that had to wait.
    pub major_faults: f64,
    /// Interrupts for translations, per access; where they are counted.
    pub shootdowns_per_page: Option<f64>,
    /// CPU time of the thread that serves all faults, microseconds a fault; where there is such a thread.
    pub serial_us: Option<f64>,
    /// Largest resident anonymous memory seen, bytes.
    pub peak_rss_anon: f64,
    /// Compressed pool, bytes.
    pub pool_bytes: f64,
    /// Bytes stored per byte of pool.
    pub pool_ratio: f64,
}

impl Side {
    fn of(samples: &[&Sample]) -> Option<Side> {
        let median = |f: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(|s| f(s))).map(|s| s.median);
        let known =
            |f: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().filter_map(|s| f(s))).map(|s| s.median);
        let latency = |share: f64| median(&|s| s.done.latencies.percentile_us(share));
        Some(Side {
            ops_per_s: median(&|s| 1e6 / s.us_per_page())?,
            us_per_page: median(&Sample::us_per_page)?,
            p50_us: latency(0.5)?,
            p90_us: latency(0.9)?,
            p99_us: latency(0.99)?,
            p999_us: latency(0.999)?,
            p9999_us: latency(0.9999)?,
            max_us: latency(1.0)?,
            cpu_user_s_per_gib: median(&|s| s.cpu_s_per_gib().0)?,
            cpu_sys_s_per_gib: median(&|s| s.cpu_s_per_gib().1)?,
            major_faults: median(&|s| s.done.major_faults as f64)?,
            shootdowns_per_page: known(&Sample::shootdowns_per_page),
            serial_us: known(&|s| s.done.serial_us),
            peak_rss_anon: median(&|s| s.peak_rss_anon as f64)?,
            pool_bytes: median(&|s| s.pool_bytes as f64)?,
            pool_ratio: median(&|s| s.pool_ratio)?,
        })
    }
}

impl Row {
    /// farpage's medians.
    pub fn farpage(&self) -> Side {
        Side::of(&self.rounds.iter().map(|r| &r.farpage).collect::<Vec<_>>()).unwrap_or_default()
    }

    /// The kernel's medians, if it was measured.
    pub fn kernel(&self) -> Option<Side> {
        Side::of(&self.rounds.iter().filter_map(|r| r.kernel.as_ref()).collect::<Vec<_>>())
    }

    /// The kernel's time divided by farpage's, of the same round.
    pub fn ratio(&self) -> Option<Spread> {
        let ratio = |r: &Round| Some(r.kernel.as_ref()?.us_per_page() / r.farpage.us_per_page());
        Spread::of(self.rounds.iter().filter_map(ratio))
    }

    /// The kernel's 99th percentile of latency divided by farpage's, of the same round.
    pub fn p99_ratio(&self) -> Option<Spread> {
        let p99 = |s: &Sample| s.done.latencies.percentile_us(0.99);
        let ratio = |r: &Round| Some(p99(r.kernel.as_ref()?) / p99(&r.farpage).max(1e-3));
        Spread::of(self.rounds.iter().filter_map(ratio))
    }

    /// farpage's budget, bytes: the largest of all rounds.
    pub fn ram(&self) -> u64 {
        self.rounds.iter().map(|r| r.ram).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(us: f64) -> Sample {
        let mut sample = Sample::default();
        (sample.done.ops, sample.done.wall_s) = (1000, us / 1e3);
        sample
    }

    fn row_of(rounds: Vec<Round>) -> Row {
        Row { workload: Workload::Fill, threads: 1, rounds }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let round = |k: f64, f: f64| Round { kernel: Some(sample(k)), farpage: sample(f), ram: 1 };
        let row = row_of(vec![round(10.0, 5.0), round(90.0, 10.0), round(12.0, 4.0)]);
        let ratio = row.ratio().unwrap();
        assert!((ratio.median - 3.0).abs() < 1e-9 && (ratio.min - 2.0).abs() < 1e-9 && (ratio.max - 9.0).abs() < 1e-9);
        assert!((row.farpage().us_per_page - 5.0).abs() < 1e-9);
        let alone = row_of(vec![Round { kernel: None, farpage: sample(1.0), ram: 1 }]);
        assert!(alone.ratio().is_none() && alone.kernel().is_none());
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
    }
}
