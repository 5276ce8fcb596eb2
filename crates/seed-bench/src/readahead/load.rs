//! The load process: `farpage-bench bench-readahead-load SPEC`; prints one line of JSON.

use super::linpack;
use crate::failure::{Failure, Result};
use farpage::PAGE_SIZE;
use farpage::region::{Pager, ReadaheadRule, ReadaheadTuning, Region, Stats};
use farpage_bench::anonymous;
use farpage_bench::compare::latencies::Latencies;
use farpage_ipc::conf::SwapSpec;
use farpage_swap::sim::{Random, mix};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// In order, with random writers in the background.
    Mix,
    /// At random, reading only.
    Random,
    /// A dense LU factorisation.
    Linpack,
}

/// Where the memory comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// A region with this readahead.
    Region {
        /// On compressed memory, not on a swap file.
        zram: bool,
        /// See [`ReadaheadTuning::parse`].
        readahead: String,
        /// Delay of a request that does not go on where the last one ended; 0: none.
        seek_us: u32,
    },
    /// Private anonymous memory.
    Anonymous,
}

/// What the process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The load.
    pub kind: Kind,
    /// Its memory.
    pub memory: Memory,
    /// Bytes of RAM.
    pub ram: u64,
    /// Directory of the swap file.
    pub dir: PathBuf,
    /// Seconds.
    pub seconds: u64,
    /// Threads that write at random.
    pub background: u64,
}

/// What was measured.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Done {
    /// Pages accessed in order, as MiB a second.
    pub mib_per_s: f64,
    /// Average latency of such an access, microseconds.
    pub avg_us: f64,
    /// Their latencies.
    pub latencies: Latencies,
    /// Pages read ahead.
    pub swap_ra: u64,
    /// Of them, pages that were used.
    pub swap_ra_hit: u64,
    /// Wrong words.
    pub wrong: u64,
    /// Seconds.
    pub wall_s: f64,
    /// Of the Linpack: equations.
    pub order: u64,
    /// Of the Linpack: million floating point operations a second.
    pub mflops: f64,
}

impl Done {
    /// Hits in percent of the pages read ahead.
    pub fn hit_pct(&self) -> Option<f64> {
        (self.swap_ra > 0).then(|| 100.0 * self.swap_ra_hit as f64 / self.swap_ra as f64)
    }
}

/// Memory under test: whole pages.
pub struct Words {
    base: *mut u64,
    /// Number of 8-byte words.
    pub len: usize,
    region: Option<Region>,
}

// SAFETY: plain memory; the threads that share it write to places of their own.
unsafe impl Sync for Words {}

impl Words {
    fn new(pager: Option<&Pager>, bytes: usize) -> Result<Words> {
        let len = bytes / 8;
        if let Some(pager) = pager {
            let mut region = pager.region(bytes).map_err(|e| Failure::new(format!("cannot make a region: {e}")))?;
            return Ok(Words { base: region.as_mut_ptr().cast(), len, region: Some(region) });
        }
        let base = anonymous::map(bytes).map_err(|e| Failure::new(format!("cannot map {bytes} bytes: {e}")))?;
        Ok(Words { base: base.cast(), len, region: None })
    }

    fn at(&self, i: usize) -> *mut u64 {
        assert!(i < self.len, "word {i} of {}", self.len);
        // SAFETY: inside the memory.
        unsafe { self.base.add(i) }
    }

    fn read(&self, i: usize) -> u64 {
        // SAFETY: checked by `at`; no thread writes there meanwhile (see Sync).
        unsafe { self.at(i).read_volatile() }
    }

    fn write(&self, i: usize, value: u64) {
        // SAFETY: as `read`.
        unsafe { self.at(i).write_volatile(value) }
    }

    /// The memory as numbers.
    pub fn numbers(&mut self) -> &mut [f64] {
        // SAFETY: mapped, zeroed or written as words, aligned, and exclusive because self is.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len) }
    }
}

const WORDS: usize = PAGE_SIZE / 8;
/// Pages that may have been read ahead, or be on their way, where a program stops: two of the largest windows.
const REACH: usize = 256;

/// Runs the process.
///
/// # Errors
/// No memory, no device.
pub fn main(spec: &str) -> Result<ExitCode> {
    let spec: Spec = serde_json::from_str(spec).map_err(|e| Failure::new(format!("bench load: {e}")))?;
    let pager = match &spec.memory {
        Memory::Anonymous => None,
        Memory::Region { zram, readahead, seek_us } => {
            let tuning = ReadaheadTuning::parse(readahead).map_err(|e| Failure::new(e.to_string()))?;
            let file = SwapSpec::file(&spec.dir);
            let swap = if *zram { SwapSpec::defaults() } else { vec![file] };
            let builder =
                Pager::builder().budget(spec.ram).swap(swap).readahead_tuning(tuning).simulate_seeks(*seek_us);
            Some(builder.build().map_err(|e| Failure::new(format!("cannot make a pager: {e}")))?)
        }
    };
    let done = match spec.kind {
        Kind::Mix => in_order(&spec, pager.as_ref())?,
        Kind::Random => at_random(&spec, pager.as_ref())?,
        Kind::Linpack => {
            // One and a half times the memory.
            let order = linpack::order_of(spec.ram / 2 * 3);
            let mut words = Words::new(pager.as_ref(), order * order * 8)?;
            let before = pager.as_ref().and_then(|p| p.stats().ok());
            let solved = linpack::run(words.numbers(), order);
            let done = Done {
                wall_s: solved.seconds,
                order: order as u64,
                mflops: solved.mflops,
                wrong: u64::from(!solved.is_right),
                ..Done::default()
            };
            with_hits(done, before, pager.as_ref())
        }
    };
    println!("{}", serde_json::to_string(&done).map_err(|e| Failure::new(format!("bench load: {e}")))?);
    Ok(ExitCode::SUCCESS)
}

fn with_hits(done: Done, before: Option<Stats>, pager: Option<&Pager>) -> Done {
    let (Some(before), Some(after)) = (before, pager.and_then(|p| p.stats().ok())) else { return done };
    if std::env::var_os("FARPAGE_BENCH_VERBOSE").is_some() {
        eprintln!("{before:?}\n{after:?}");
    }
    Done {
        swap_ra: after.swap_ra - before.swap_ra,
        swap_ra_hit: after.swap_ra_hit.saturating_sub(before.swap_ra_hit),
        ..done
    }
}

/// The memory in turns read and written, in order, until the time is over; five parts of eight of the data. The rest
/// belongs to the threads in the background.
fn in_order(spec: &Spec, pager: Option<&Pager>) -> Result<Done> {
    let pages = (spec.ram * 4) as usize / PAGE_SIZE;
    let (own, others) = (pages / 8 * 5, pages / 8 * 3);
    let words = Words::new(pager, own * PAGE_SIZE)?;
    let rest = Words::new(pager, others * PAGE_SIZE)?;
    let fill = |words: &Words, salt: u64| {
        (0..words.len).for_each(|i| words.write(i, mix((i / WORDS * 4 + i % 4) as u64 ^ salt)));
    };
    let stamp = |page: usize, pass: u64| mix((page as u64) << 24 ^ pass);
    fill(&words, 1);
    fill(&rest, 2);
    (0..own).for_each(|page| words.write(page * WORDS + page % WORDS, stamp(page, 0)));
    let stop = AtomicBool::new(false);
    let before = words.region.as_ref().and_then(|r| r.readahead_stats().ok()).unwrap_or_default();
    let mut latencies = Latencies::default();
    let (mut accesses, mut wrong, mut writes, mut stopped_at) = (0u64, 0, 0, own);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..spec.background {
            let (rest, stop) = (&rest, &stop);
            scope.spawn(move || {
                let mut random = Random(mix(thread));
                while !stop.load(Relaxed) {
                    // Each thread has words of its own.
                    let page = random.index(others);
                    let at = page * WORDS + thread as usize % WORDS;
                    rest.write(at, rest.read(at).wrapping_add(1));
                }
            });
        }
        let end = start + Duration::from_secs(spec.seconds);
        let mut last = Instant::now();
        'time: for pass in 0u64.. {
            for page in 0..own {
                let at = page * WORDS + page % WORDS;
                wrong += u64::from(words.read(at) != stamp(page, writes));
                if pass % 2 == 1 {
                    words.write(at, stamp(page, writes + 1));
                }
                let now = Instant::now();
                latencies.record((now - last).as_nanos() as u64);
                (last, accesses) = (now, accesses + 1);
                if now >= end {
                    stopped_at = page + 1;
                    break 'time;
                }
            }
            writes += pass % 2;
        }
        stop.store(true, Relaxed);
    });
    let done = Done { wrong, ..measured(latencies, accesses, start) };
    // What was read ahead when the clock stopped was neither wanted nor in vain: the program goes on to there, untimed,
    // and nothing more is read ahead. No other thread is at work then.
    let Some((region, pager)) = words.region.as_ref().zip(pager) else { return Ok(done) };
    let failed = |e| Failure::new(format!("bench load: {e}"));
    let (timed, until) = (region.readahead_stats().map_err(failed)?, pager.stats().map_err(failed)?);
    region.set_readahead(ReadaheadTuning::of(ReadaheadRule::None)).map_err(failed)?;
    for page in stopped_at..own.min(stopped_at + REACH) {
        words.read(page * WORDS + page % WORDS);
    }
    let after = pager.stats().map_err(failed)?;
    Ok(Done {
        swap_ra: timed.swap_ra - before.swap_ra + (after.swap_ra - until.swap_ra),
        swap_ra_hit: timed.swap_ra_hit - before.swap_ra_hit + (after.swap_ra_hit - until.swap_ra_hit),
        ..done
    })
}

fn measured(latencies: Latencies, accesses: u64, start: Instant) -> Done {
    let wall_s = start.elapsed().as_secs_f64();
    Done {
        mib_per_s: accesses as f64 * PAGE_SIZE as f64 / (1 << 20) as f64 / wall_s,
        avg_us: wall_s * 1e6 / accesses.max(1) as f64,
        latencies,
        wall_s,
        ..Done::default()
    }
}

/// Four times the memory, read at random until the time is over.
fn at_random(spec: &Spec, pager: Option<&Pager>) -> Result<Done> {
    let pages = (spec.ram * 4) as usize / PAGE_SIZE;
    let words = Words::new(pager, pages * PAGE_SIZE)?;
    let word = |i: usize| mix((i / WORDS * 4 + i % 4) as u64);
    (0..words.len).for_each(|i| words.write(i, word(i)));
    let before = pager.and_then(|p| p.stats().ok());
    let (mut latencies, mut accesses, mut wrong, mut random) = (Latencies::default(), 0, 0, Random(1));
    let start = Instant::now();
    let (end, mut last) = (start + Duration::from_secs(spec.seconds), start);
    while last < end {
        let at = random.index(words.len);
        wrong += u64::from(words.read(at) != word(at));
        let now = Instant::now();
        latencies.record((now - last).as_nanos() as u64);
        (last, accesses) = (now, accesses + 1);
    }
    Ok(with_hits(Done { wrong, ..measured(latencies, accesses, start) }, before, pager))
}
