//! `farpage-bench slots`: the slot allocator on random allocation and freeing, against two others on the same load.
//!
//! Throughput is taken from runs without lock statistics, locks from runs with them: counting costs about as much as an
//! allocation. Variants alternate, so that a busy machine hurts all of them; medians of the rounds are printed.

mod bare;
mod load;
mod model;
mod real;
mod report;
mod single;

use super::meter::{self, Counting};
use crate::failure::Result;
use crate::progress;
use bare::Bare;
use clap::Args;
use load::{Load, Outcome};
use real::Real;
pub use report::spread;
use single::{Cached, Single};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// For the help.
pub const EXAMPLES: &str = "\
Variants: single (one device lock), cached (the same with 64 slots cached per thread), isolate (the \
    engine's), and isolate-split (the same, but a large block that is not to be had becomes single slots, as in \
    the kernel).
Loads: share of the device in use; order 0 only, or 0 and 4 mixed (one object in 4, then in 64, in turn).

Examples:
  farpage-bench slots
  farpage-bench slots --threads 2 --json slots.json
  farpage-bench slots --simulate 96";

/// `farpage-bench slots`.
#[derive(Debug, Args)]
pub struct SlotsArgs {
    /// Write the rows to FILE as one JSON object (-: stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Only this many threads [default: 1, 2, 4 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Also compute how the variants would do on 1 to CPUS processors, from hold times and rates measured here
    #[arg(long, value_name = "CPUS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub simulate: Option<u32>,
    /// Slots of the device (a page each)
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = clap::value_parser!(u64).range(1 << 13..=1 << 30))]
    pub slots: u64,
    /// Time of one measurement, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub time: u64,
    /// Measurements of each number
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
}

/// Periods of the mixed load, on a device that is nearly full, in the runs that count.
const PERIODS: u64 = 16;

/// A block that a load has.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub slot: u64,
    pub order: u8,
}

/// What becomes of a large block that is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Single slots.
    Single,
    /// The next smaller orders that fit.
    Smaller,
}

/// An allocator under test.
pub trait Slots: Sync {
    /// What a thread has of its own.
    type Local: Send;
    const FALLBACK: Fallback;

    fn local(&self) -> Self::Local;
    fn alloc(&self, local: &mut Self::Local, cpu: usize, order: u8) -> Option<Block>;
    fn free(&self, local: &mut Self::Local, block: Block);
    /// The thread ends.
    fn finish(&self, _local: Self::Local) {}
    /// Clusters with a slot in use.
    fn clusters_in_use(&self) -> u64;
}

/// The CPU that runs the caller, from libc's restartable sequence (rseq): a load from memory; where there is none, from
/// getcpu. Where that fails too, a number of the thread.
#[inline]
pub fn cpu() -> usize {
    // SAFETY: no arguments, no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or_else(|_| thread_number())
}

#[cold]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

fn clusters_of(slots: u64) -> usize {
    slots.div_ceil(farpage_swap::cluster::CLUSTER_SLOTS as u64) as usize
}

/// The variants, in the order of the tables.
pub const VARIANTS: [&str; 4] = ["single", "cached", "isolate", "isolate-split"];

/// One load on one variant: throughput of each round without statistics, and one run with them.
pub struct Row {
    pub variant: usize,
    pub load: Load,
    pub ops_per_s: Vec<f64>,
    pub counted: Outcome,
}

/// Numbers that are not part of a load.
pub struct Extra {
    pub pair_ns: Vec<f64>,
    /// Share of the device in use; operations a second of two threads that share nothing, each of them alone.
    pub apart: Vec<(u64, Vec<f64>)>,
    /// Share of the device in use; two threads divided by one, without an allocator.
    pub bare: Vec<(u64, Vec<f64>)>,
    pub meta_bytes_per_slot: Vec<(u64, f64)>,
    pub cluster_bytes: usize,
    pub ns_per_tick: f64,
    pub clock_ns: f64,
    pub cpus: usize,
}

fn plain(variant: usize, load: Load, cpus: usize) -> Outcome {
    match variant {
        0 => load::run(&Single::<()>::new(load.slots, cpus), load),
        1 => load::run(&Cached::<()>::new(load.slots, cpus), load),
        2 => load::run(&Real::<(), false>::new(load.slots, cpus), load),
        _ => load::run(&Real::<(), true>::new(load.slots, cpus), load),
    }
}

fn counted(variant: usize, load: Load, cpus: usize) -> Outcome {
    match variant {
        0 => load::run(&Single::<Counting>::new(load.slots, cpus), load),
        1 => load::run(&Cached::<Counting>::new(load.slots, cpus), load),
        2 => load::run(&Real::<Counting, false>::new(load.slots, cpus), load),
        _ => load::run(&Real::<Counting, true>::new(load.slots, cpus), load),
    }
}

/// Metadata per slot in use when `pct` of a device was filled once and nothing freed.
fn meta_bytes_per_slot(slots: u64, pct: u64) -> f64 {
    let real = Real::<(), false>::new(slots, 1);
    for _ in 0..slots * pct / 100 {
        real.alloc(&mut (), 0, 0);
    }
    real.stats().meta_bytes as f64 / real.stats().in_use as f64
}

/// Runs the subcommand.
pub fn main(args: &SlotsArgs) -> Result<ExitCode> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let _progress = progress::begin("farpage-bench slots");
    let (ns_per_tick, clock_ns) = meter::calibrate();
    let slots = args.slots;
    let mut extra = Extra {
        pair_ns: vec![
            load::pair_ns(&Single::<()>::new(slots, cpus), slots),
            load::pair_ns(&Cached::<()>::new(slots, cpus), slots),
            load::pair_ns(&Real::<(), false>::new(slots, cpus), slots),
        ],
        apart: Vec::new(),
        bare: Vec::new(),
        meta_bytes_per_slot: [5, 30, 95].map(|pct| (pct, meta_bytes_per_slot(slots, pct))).to_vec(),
        cluster_bytes: farpage_swap::cluster::CLUSTER_BYTES,
        ns_per_tick,
        clock_ns,
        cpus,
    };
    let threads = args.threads.map_or(vec![1, 2, 4, 16], |n| vec![n as usize]);
    let mut rows: Vec<Row> = Vec::new();
    for mixed in [false, true] {
        for fill_pct in [30, 60, 95] {
            for &threads in &threads {
                let time = Duration::from_millis(args.time);
                let orders = if mixed { "mixed orders" } else { "order 0" };
                progress::step(format_args!("{orders}, {fill_pct} % full, {threads} threads"));
                let load = Load { slots, fill_pct, mixed, threads, time, periods: 0 };
                // Where room is short counts depend on what came before: whole periods, from the steady state on.
                let whole = Load { periods: if mixed && fill_pct == 95 { PERIODS } else { 0 }, ..load };
                let variants = if mixed { 0..4 } else { 0..3 };
                let mut all: Vec<Vec<Outcome>> = vec![Vec::new(); VARIANTS.len()];
                let (mut apart, mut bare) = (Vec::new(), Vec::new());
                for _ in 0..args.rounds {
                    for variant in variants.clone() {
                        all[variant].push(plain(variant, load, cpus));
                    }
                    if !mixed && threads == 2 {
                        apart.push(load::apart(|slots| Real::<(), false>::new(slots, cpus), load));
                        let [one, two] =
                            [1, 2].map(|threads| load::run(&Bare::new(slots), Load { threads, ..load }).ops_per_s());
                        bare.push(two / one);
                    }
                }
                if !apart.is_empty() {
                    extra.apart.push((fill_pct, apart));
                    extra.bare.push((fill_pct, bare));
                }
                for variant in variants {
                    let ops_per_s = all[variant].iter().map(Outcome::ops_per_s).collect();
                    let row = Row { variant, load, ops_per_s, counted: counted(variant, whole, cpus) };
                    if args.json.as_deref().is_none_or(|path| path.as_os_str() != "-") {
                        progress::aside(|| report::print_row(&row, &extra, rows.is_empty()));
                    }
                    rows.push(row);
                }
            }
        }
    }
    let print = || {
        report::print_locks(&rows, &extra);
        report::print_goals(&rows, &extra);
        if let Some(cpus) = args.simulate {
            model::print(&rows, &extra, cpus as usize);
        }
    };
    crate::output::table_or_json(args.json.as_deref(), print, || report::json(&rows, &extra))?;
    Ok(ExitCode::SUCCESS)
}
