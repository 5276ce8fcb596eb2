//! Times of single operations, and the allocations they made.

use farpage_base::mem::count::allocations;
use std::time::Instant;

/// What was measured of one kind of operation.
#[derive(Debug, Clone)]
pub struct Row {
    /// Device: memcpy, ram, lz4, zram, file; fio.
    pub device: &'static str,
    /// How it is asked: direct, sync, boxed, queued, uring, ahead, plain, crypt, raw; of fio, what is in flight.
    pub path: &'static str,
    /// read, write, free, with the order in which pages are taken where it matters.
    pub op: &'static str,
    /// Pages an operation.
    pub batch: usize,
    /// Nanoseconds an operation.
    pub avg_ns: f64,
    /// Half of the operations took at most so long.
    pub p50_ns: u64,
    /// 99 of 100 did.
    pub p99_ns: u64,
    /// Allocations an operation, of the whole process; not known of another program.
    pub allocs_per_op: Option<f64>,
    /// MiB of pages a second.
    pub mib_per_s: f64,
    /// Bytes of pages for each byte that they are stored in, where something compresses them.
    pub ratio: Option<f64>,
}

/// Times operations one by one.
pub struct Sampler {
    times: Vec<u64>,
    allocations: u64,
}

impl Sampler {
    /// For up to `most` operations.
    pub fn new(most: usize) -> Sampler {
        Sampler { times: Vec::with_capacity(most), allocations: 0 }
    }

    /// Runs and times one operation.
    #[inline]
    pub fn time<R>(&mut self, operation: impl FnOnce() -> R) -> R {
        let before = allocations();
        let start = Instant::now();
        let result = operation();
        let time = start.elapsed();
        self.allocations += allocations() - before;
        self.times.push(time.as_nanos() as u64);
        result
    }

    /// Runs one more part of the operation timed last.
    pub fn extend<R>(&mut self, part: impl FnOnce() -> R) -> R {
        let before = allocations();
        let start = Instant::now();
        let result = part();
        let time = start.elapsed();
        self.allocations += allocations() - before;
        if let Some(last) = self.times.last_mut() {
            *last += time.as_nanos() as u64;
        }
        result
    }

    /// Nothing was timed.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The sum of it.
    pub fn row(mut self, device: &'static str, path: &'static str, op: &'static str, batch: usize) -> Row {
        self.times.sort_unstable();
        let n = self.times.len().max(1);
        let total: u64 = self.times.iter().sum();
        let at = |share: usize| self.times.get(n * share / 100).copied().unwrap_or(0);
        Row {
            device,
            path,
            op,
            batch,
            avg_ns: total as f64 / n as f64,
            p50_ns: at(50),
            p99_ns: at(99),
            allocs_per_op: Some(self.allocations as f64 / n as f64),
            mib_per_s: (n * batch * farpage::PAGE_SIZE) as f64 / (1 << 20) as f64 / (total as f64 / 1e9).max(1e-9),
            ratio: None,
        }
    }
}
