//! The workloads: the same code touches the memory, whatever pages it.
//!
//! Every access is timed (one reading of the time stamp counter between two accesses) and its content checked. With
//! several threads, each has its own share of the pages where it writes or goes in order, and all pages where it
//! reads at random.

use super::content::{Content, WORDS};
use super::latencies::Latencies;
use crate::failure::{Failure, Result};
use clap::ValueEnum;
use farpage_swap::sim::{Random, Zipf, mix};
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Instant;

/// What is done with the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Write every page once, in order
    Fill,
    /// Read a word of every page, in order
    SeqRead,
    /// Read and write a word of every page, in order
    SeqRw,
    /// Read a word of pages chosen at random
    RandRead,
    /// Read and write a word of pages chosen at random
    RandRmw,
    /// Read a word of pages chosen by a Zipf law with exponent 0.99
    ZipfRead,
    /// Read a word of every 17th page, around and around
    Stride,
    /// Read in order, while another thread reads at random; the first is measured
    Mix,
    /// Map, touch and unmap pieces of memory
    Fault,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 9] = [
        Workload::Fill,
        Workload::SeqRead,
        Workload::SeqRw,
        Workload::RandRead,
        Workload::RandRmw,
        Workload::ZipfRead,
        Workload::Stride,
        Workload::Mix,
        Workload::Fault,
    ];

    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether the memory is filled before the measurement.
    pub fn is_filled_first(self) -> bool {
        !matches!(self, Workload::Fill | Workload::Fault)
    }

    /// Whether the content is worth a last look afterwards.
    pub fn writes(self) -> bool {
        matches!(self, Workload::Fill | Workload::SeqRw | Workload::RandRmw)
    }
}

/// Memory under test.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    base: usize,
    /// Pages.
    pub pages: u64,
}

impl Memory {
    /// Memory of `pages` pages at `base`.
    ///
    /// # Safety
    /// Mapped, readable and writable, and used through this type only, for as long as it exists.
    pub unsafe fn new(base: usize, pages: u64) -> Memory {
        Memory { base, pages }
    }

    /// First byte.
    pub fn address(self) -> usize {
        self.base
    }

    #[inline]
    fn at(self, page: u64, word: usize) -> *mut u64 {
        debug_assert!(page < self.pages && word < WORDS);
        (self.base + page as usize * farpage::PAGE_SIZE + word * 8) as *mut u64
    }

    #[inline]
    fn read(self, page: u64, word: usize) -> u64 {
        // SAFETY: inside the memory (promise of `new`); concurrent accesses to a word are reads only, because threads
        // write to pages of their own.
        unsafe { self.at(page, word).read_volatile() }
    }

    #[inline]
    fn write(self, page: u64, word: usize, value: u64) {
        // SAFETY: as `read`; the page is the calling thread's.
        unsafe { self.at(page, word).write_volatile(value) }
    }
}

/// Where the memory of the workload `fault` comes from.
pub trait Source: Sync {
    /// New memory.
    ///
    /// # Errors
    /// There is none.
    fn map(&self, pages: u64) -> Result<Memory>;
    /// Gives memory of [`Source::map`] back.
    fn unmap(&self, memory: Memory);
}

/// One run's setting.
pub struct Bench<'a> {
    /// The memory under test.
    pub memory: Memory,
    /// What is in it.
    pub content: &'a Content,
    /// How often each page was written since it was filled.
    pub versions: &'a [AtomicU32],
    /// Threads.
    pub threads: u64,
    /// For random numbers.
    pub seed: u64,
    /// Accesses at random, over all threads.
    pub accesses: u64,
    /// Pages of a piece of `fault`.
    pub piece: u64,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// Accesses.
    pub ops: u64,
    /// Their latencies.
    pub latencies: Latencies,
    /// From the first thread's start to the last one's end, seconds.
    pub wall_s: f64,
    /// Words that were wrong.
    pub wrong: u64,
}

#[inline]
fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds per tick, measured over some milliseconds.
fn tick_ns() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed().as_millis() < 20 {
        std::hint::spin_loop();
    }
    let ns = start.elapsed().as_nanos() as f64;
    ns / (ticks() - from).max(1) as f64
}

/// One thread's record.
struct Thread<'a> {
    bench: &'a Bench<'a>,
    index: u64,
    random: Random,
    last: u64,
    tick_ns: f64,
    measured: Measured,
}

impl Thread<'_> {
    /// An access ended now.
    #[inline]
    fn done(&mut self) {
        let now = ticks();
        // Counters of two CPUs may differ by a little.
        let ns = now.saturating_sub(self.last) as f64 * self.tick_ns;
        self.measured.latencies.record(ns as u64);
        self.measured.ops += 1;
        self.last = now;
    }

    /// The pages that are this thread's to go through in order.
    fn share(&self) -> (u64, u64) {
        let (pages, n) = (self.bench.memory.pages, self.bench.threads);
        (pages * self.index / n, pages * (self.index + 1) / n)
    }

    #[inline]
    fn read(&mut self, page: u64) {
        let (b, at) = (self.bench, self.random.index(WORDS));
        let version = b.versions[page as usize].load(Relaxed);
        let right = b.memory.read(page, at) == b.content.expected(page, at, version);
        self.measured.wrong += u64::from(!right);
        self.done();
    }

    #[inline]
    fn read_and_write(&mut self, page: u64) {
        let b = self.bench;
        let at = b.content.stamp_at(page);
        let version = b.versions[page as usize].load(Relaxed);
        let right = b.memory.read(page, at) == b.content.stamp(page, version);
        self.measured.wrong += u64::from(!right);
        b.memory.write(page, at, b.content.stamp(page, version + 1));
        b.versions[page as usize].store(version + 1, Relaxed);
        self.done();
    }

    fn fill(&mut self) {
        let (from, to) = self.share();
        for page in from..to {
            // SAFETY: the page is this thread's.
            unsafe { self.bench.content.fill(page, self.bench.memory.at(page, 0)) };
            self.done();
        }
    }

    fn run(&mut self, workload: Workload, source: &dyn Source, stop: &AtomicBool) -> Result<()> {
        let b = self.bench;
        let pages = b.memory.pages;
        let accesses = b.accesses / b.threads;
        let (from, to) = self.share();
        self.last = ticks();
        match workload {
            Workload::Fill => self.fill(),
            Workload::SeqRead => (from..to).for_each(|page| self.read(page)),
            Workload::SeqRw => (from..to).for_each(|page| self.read_and_write(page)),
            Workload::RandRead => (0..accesses).for_each(|_| {
                let page = self.random.index(pages as usize) as u64;
                self.read(page);
            }),
            Workload::RandRmw => (0..accesses).for_each(|_| {
                let page = from + self.random.index((to - from) as usize) as u64;
                self.read_and_write(page);
            }),
            Workload::ZipfRead => {
                let zipf = Zipf::new(pages, 0.99);
                self.last = ticks();
                (0..accesses).for_each(|_| {
                    let rank = zipf.rank(&mut self.random);
                    // Popular pages lie anywhere.
                    self.read(mix(b.seed ^ rank) % pages);
                });
            }
            Workload::Stride => (0..accesses).for_each(|i| self.read((from + i * 17) % pages)),
            Workload::Mix if self.index == 0 => (0..pages).for_each(|page| self.read(page)),
            Workload::Mix => {
                while !stop.load(Relaxed) {
                    let page = self.random.index(pages as usize) as u64;
                    self.read(page);
                }
            }
            Workload::Fault => self.fault(accesses, source)?,
        }
        Ok(())
    }

    fn fault(&mut self, accesses: u64, source: &dyn Source) -> Result<()> {
        let pages = self.bench.piece;
        while self.measured.ops < accesses {
            let memory = source.map(pages)?;
            for page in 0..pages {
                self.measured.wrong += u64::from(memory.read(page, 7) != 0);
                memory.write(page, 7, page);
                self.done();
            }
            source.unmap(memory);
        }
        Ok(())
    }
}

impl Bench<'_> {
    /// Writes all pages, unmeasured.
    pub fn fill(&self) {
        for page in 0..self.memory.pages {
            // SAFETY: no other thread uses the memory yet.
            unsafe { self.content.fill(page, self.memory.at(page, 0)) };
        }
    }

    /// Runs the workload.
    ///
    /// # Errors
    /// Memory for `fault` could not be had.
    pub fn run(&self, workload: Workload, source: &dyn Source) -> Result<Measured> {
        let threads = if workload == Workload::Mix { self.threads.max(2) } else { self.threads };
        let tick_ns = tick_ns();
        let barrier = Barrier::new(threads as usize + 1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|index| {
                    let (barrier, stop) = (&barrier, &stop);
                    scope.spawn(move || {
                        let random = Random(mix(self.seed ^ index << 40));
                        let measured = Measured::default();
                        let mut thread = Thread { bench: self, index, random, last: 0, tick_ns, measured };
                        barrier.wait();
                        let result = thread.run(workload, source, stop);
                        if index == 0 {
                            stop.store(true, Relaxed);
                        }
                        (result.map(|()| thread.measured), Instant::now())
                    })
                })
                .collect();
            barrier.wait();
            let start = Instant::now();
            let mut all = Measured::default();
            for (index, handle) in handles.into_iter().enumerate() {
                let (result, end) = handle.join().map_err(|_| Failure::new("a thread of the workload panicked"))?;
                let one = result?;
                all.wrong += one.wrong;
                if workload != Workload::Mix || index == 0 {
                    all.ops += one.ops;
                    all.latencies.merge(&one.latencies);
                    all.wall_s = all.wall_s.max(end.duration_since(start).as_secs_f64());
                }
            }
            Ok(all)
        })
    }

    /// Looks at every page once more; the number of wrong words among those looked at.
    pub fn verify(&self) -> u64 {
        let wrong = |page: u64| {
            let version = self.versions[page as usize].load(Relaxed);
            let places = [self.content.stamp_at(page), mix(page ^ self.seed) as usize % WORDS];
            places.iter().any(|&at| self.memory.read(page, at) != self.content.expected(page, at, version))
        };
        (0..self.memory.pages).filter(|page| wrong(*page)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Anonymous;
    impl Source for Anonymous {
        fn map(&self, pages: u64) -> Result<Memory> {
            let words = vec![0u64; pages as usize * WORDS].leak();
            // SAFETY: leaked, used here only.
            Ok(unsafe { Memory::new(words.as_mut_ptr() as usize, pages) })
        }
        fn unmap(&self, _: Memory) {}
    }

    #[test]
    fn every_workload_checks_what_it_reads() {
        let content = Content::generated(5, super::super::content::ENTROPY);
        for workload in Workload::ALL {
            for threads in [1, 2] {
                let memory = Anonymous.map(64).unwrap();
                let versions: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();
                let (versions, content) = (&versions[..], &content);
                let bench = Bench { memory, content, versions, threads, seed: 3, accesses: 640, piece: 16 };
                if workload.is_filled_first() {
                    bench.fill();
                }
                let measured = bench.run(workload, &Anonymous).unwrap();
                assert_eq!(measured.wrong, 0, "{workload:?}");
                assert!(measured.ops >= 64 && measured.latencies.count() == measured.ops, "{workload:?}");
                if workload == Workload::Fault {
                    continue;
                }
                assert_eq!(bench.verify(), 0, "{workload:?}");
                memory.write(9, content.stamp_at(9), 1);
                assert_eq!(bench.verify(), 1, "{workload:?}");
                if workload == Workload::SeqRw {
                    assert_eq!(bench.run(workload, &Anonymous).unwrap().wrong, 1);
                }
            }
        }
    }
}
