//! The workload process: `farpage-bench bench-workload SPEC`, a plain program.
//!
//! It talks with its parent over its standard streams, one line each way:
//! ```text
//!   child: {"step":"ready"}      filled; now the clock may start        parent: go
//!   child: {"step":"done", ...}  measured; the memory is still in use   parent: end
//!   child: {"step":"verified", "wrong": N}                              (exits)
//! ```

use super::content::Content;
use super::latencies::Latencies;
use super::workload::{Bench, Measured, Memory, Source, Workload};
use crate::anonymous;
use crate::failure::{Failure, Result, why};
use farpage::PAGE_SIZE;
use farpage::region::{Pager, Region};
use farpage_base::sys::mutex;
use farpage_command::process::anonymous;
use farpage_ipc::conf::SwapSpec;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::fs;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};

/// Where the workload's memory comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Private anonymous memory.
    Anonymous,
    /// A shared mapping of a new file in this directory.
    File(PathBuf),
    /// A farpage region. The process as a whole gets this much anonymous memory, bytes; swap devices as for
    /// `farpage run`.
    Region(u64, Vec<String>),
}

/// What the process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The workload.
    pub workload: Workload,
    /// Bytes of data.
    pub data: u64,
    /// Threads.
    pub threads: u64,
    /// For contents and random numbers.
    pub seed: u64,
    /// Share of phrases that do not compress.
    pub entropy: f64,
    /// Contents from this file instead.
    pub corpus: Option<PathBuf>,
    /// Bytes of a piece of `fault`.
    pub piece: u64,
    /// Where the memory comes from.
    pub memory: MemoryKind,
}

/// A line from the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Memory is filled.
    Ready,
    /// The measurement is over.
    Done(Box<Done>),
    /// The last look.
    Verified {
        /// Wrong words.
        wrong: u64,
    },
}

/// What the child measured.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Done {
    /// Accesses.
    pub ops: u64,
    /// Seconds.
    pub wall_s: f64,
    /// CPU seconds, user mode, all threads.
    pub user_s: f64,
    /// CPU seconds, kernel mode.
    pub sys_s: f64,
    /// Faults that had to wait, as the kernel counts them.
    pub major_faults: u64,
    /// Interrupts meanwhile, of all CPUs of the machine, that have a CPU forget translations; where they are counted.
    pub shootdowns: Option<u64>,
    /// What only one thread at a time can do, microseconds a fault. Of regions: for how long the locks that all faults
    /// take were held; of `farpage run`: CPU time of the thread that looks at all of them, which the parent adds.
    pub serial_us: Option<f64>,
    /// Wrong words.
    pub wrong: u64,
    /// Of the accesses.
    pub latencies: Latencies,
    /// Of a region: memory of the compressed pool, and the bytes that it stands for.
    pub pool: Option<(u64, u64)>,
}

/// Plain anonymous memory, for `fault`.
struct Anonymous;

impl Source for Anonymous {
    fn map(&self, pages: u64) -> Result<Memory> {
        let bytes = pages as usize * PAGE_SIZE;
        let base = anonymous::map(bytes).map_err(|e| Failure::new(format!("cannot map memory: {e}")))?;
        // SAFETY: just mapped.
        Ok(unsafe { Memory::new(base as usize, pages) })
    }

    fn unmap(&self, memory: Memory) {
        // SAFETY: the whole mapping of `map`; its user has given it up.
        let _ = unsafe { libc::munmap(memory.address() as *mut c_void, memory.pages as usize * PAGE_SIZE) };
    }
}

/// Regions of a pager.
struct Regions {
    pager: Pager,
    /// Those that are in use, by their first byte.
    alive: Mutex<Vec<Region>>,
}

impl Regions {
    fn new(ram: u64, swap: &[String]) -> Result<Regions> {
        // The limit is for the whole process, as the kernel's is.
        let budget = ram.saturating_sub(anonymous(std::process::id()));
        let mut builder = Pager::builder().budget(budget);
        if !swap.is_empty() {
            let devices = swap.iter().map(|s| SwapSpec::parse(s)).collect::<std::result::Result<Vec<_>, _>>();
            builder = builder.swap(devices.map_err(|e| Failure::new(format!("--swap: {e}")))?);
        }
        let pager = builder.build().map_err(|e| Failure::new(format!("cannot make a pager: {e}")))?;
        Ok(Regions { pager, alive: Mutex::default() })
    }
}

impl Source for Regions {
    fn map(&self, pages: u64) -> Result<Memory> {
        let mut region = self
            .pager
            .region(pages as usize * PAGE_SIZE)
            .map_err(|e| Failure::new(format!("cannot make a region: {e}")))?;
        let base = region.as_mut_ptr() as usize;
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).push(region);
        // SAFETY: the region lives until `unmap`.
        Ok(unsafe { Memory::new(base, pages) })
    }

    fn unmap(&self, memory: Memory) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let at = alive.iter().position(|region| region.as_ptr() as usize == memory.address());
        let region = at.map(|at| alive.swap_remove(at));
        drop(alive);
        drop(region);
    }
}

/// A shared mapping of an unnamed file.
fn map_file(directory: &std::path::Path, bytes: u64) -> Result<Memory> {
    let fail = |e: &std::io::Error| Failure::new(format!("cannot map a file in {}: {}", directory.display(), why(e)));
    let file = tempfile::tempfile_in(directory).map_err(|e| fail(&e))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).map_err(|e| fail(&e.into()))?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(std::ptr::null_mut(), bytes as usize, prot, MapFlags::SHARED, &file, 0) }
        .map_err(|e| fail(&e.into()))?;
    // SAFETY: just mapped, never unmapped.
    Ok(unsafe { Memory::new(base as usize, bytes / PAGE_SIZE as u64) })
}

fn usage() -> libc::rusage {
    // SAFETY: plain data that getrusage fills.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    }
}

/// Interrupts of this machine so far that had a CPU forget translations, where the kernel counts them.
fn shootdowns() -> Option<u64> {
    let text = fs::read_to_string("/proc/interrupts").ok()?;
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(row.split_ascii_whitespace().map_while(|n| n.parse::<u64>().ok()).sum())
}

fn seconds(t: libc::timeval) -> f64 {
    t.tv_sec as f64 + t.tv_usec as f64 / 1e6
}

fn say(step: &Step) -> Result<()> {
    let fail = |e: std::io::Error| Failure::new(format!("bench workload: cannot write: {}", why(&e)));
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, step).map_err(|e| fail(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(fail)
}

/// Waits for the parent; without one there is nothing more to do.
fn read_go() -> Result<()> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(n) if n > 0 => Ok(()),
        _ => Err(Failure::new("bench workload: the bench that started it is gone")),
    }
}

/// Runs the process.
///
/// # Errors
/// No memory, an unreadable corpus, or no parent.
pub fn main(spec: &str) -> Result<ExitCode> {
    let spec: Spec = serde_json::from_str(spec).map_err(|e| Failure::new(format!("bench workload: {e}")))?;
    let content = match &spec.corpus {
        None => Content::generated(spec.seed, spec.entropy),
        Some(path) => Content::corpus(spec.seed, path)
            .map_err(|e| Failure::new(format!("--corpus: cannot use {}: {}", path.display(), why(&e))))?,
    };
    let pages = spec.data / PAGE_SIZE as u64;
    let versions: Vec<AtomicU32> = (0..pages).map(|_| AtomicU32::new(0)).collect();
    let mut regions = None;
    let memory = match &spec.memory {
        MemoryKind::Anonymous => Anonymous.map(pages)?,
        MemoryKind::File(directory) => map_file(directory, spec.data)?,
        MemoryKind::Region(ram, swap) => regions.insert(Regions::new(*ram, swap)?).map(pages)?,
    };
    let source: &dyn Source = regions.as_ref().map_or(&Anonymous, |regions| regions as &dyn Source);
    let bench = Bench {
        memory,
        content: &content,
        versions: &versions,
        threads: spec.threads,
        seed: spec.seed,
        accesses: pages,
        piece: spec.piece / PAGE_SIZE as u64,
    };
    if spec.workload.is_filled_first() {
        bench.fill();
    }
    say(&Step::Ready)?;
    read_go()?;
    let stats = || regions.as_ref().and_then(|r| r.pager.stats().ok());
    mutex::measure_common();
    let held = mutex::held_ns();
    let (faults_before, shootdowns, before) = (stats(), shootdowns(), usage());
    let measured = bench.run(spec.workload, source)?;
    let mut done = done(measured, &before, &usage());
    done.shootdowns = shootdowns.and_then(|before| self::shootdowns()?.checked_sub(before));
    if let (Some(before), Some(after)) = (faults_before, stats()) {
        done.major_faults = after.pgmajfault - before.pgmajfault;
        let faults = after.pgfault - before.pgfault;
        done.serial_us = (faults > 0).then(|| (mutex::held_ns() - held) as f64 / 1e3 / faults as f64);
        done.pool = Some((after.pool_bytes, after.pool_orig_bytes));
        if std::env::var_os("FARPAGE_BENCH_VERBOSE").is_some() {
            eprintln!("{before:?}\n{after:?}");
        }
    }
    say(&Step::Done(Box::new(done)))?;
    read_go()?;
    let wrong = if spec.workload.writes() { bench.verify() } else { 0 };
    say(&Step::Verified { wrong })?;
    Ok(ExitCode::SUCCESS)
}

fn done(measured: Measured, before: &libc::rusage, after: &libc::rusage) -> Done {
    Done {
        ops: measured.ops,
        wall_s: measured.wall_s,
        user_s: seconds(after.ru_utime) - seconds(before.ru_utime),
        sys_s: seconds(after.ru_stime) - seconds(before.ru_stime),
        major_faults: (after.ru_majflt - before.ru_majflt).max(0) as u64,
        shootdowns: None,
        serial_us: None,
        wrong: measured.wrong,
        latencies: measured.latencies,
        pool: None,
    }
}
