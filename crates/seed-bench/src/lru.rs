//! `farpage-bench lru`: adding pages to shared lists one by one, in batches, and in batches spliced.
//!
//! Each thread adds pages of its own to four lists (active and inactive, of two budget groups) and then frees them in
//! batches, again and again. Throughput and the lock's times are of the adding; they are taken in runs of their own,
//! because reading the clock costs more than what is measured. Seed 002 of docs/measurements/2026-11-24-seeds.md.

use super::meter::{self, Counting};
use super::slots::spread;
use crate::failure::Result;
use crate::output::SCHEMA;
use crate::progress;
use clap::Args;
use farpage_swap::lock::Meter;
use seed_bench::splice::{self, Batch, Linking, PageLists, Place};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

pub const EXAMPLES: &str = "\
Variants: one-by-one (the lock for each page), batched (the lock for 31 pages, linked under it), spliced \
    (linked before, the lock for a splice of each list). With more threads than processors, waits are those of a \
    holder that was preempted.

Examples:
  farpage-bench lru
  farpage-bench lru --threads 2 --json lru.json";

const VARIANTS: [(&str, Linking); 3] =
    [("one-by-one", Linking::OneByOne), ("batched", Linking::Batched), ("spliced", Linking::Spliced)];
/// Pages of a thread: a multiple of 31, so that its batches are full.
const PAGES: u32 = 31 * 64;

/// `farpage-bench lru`.
#[derive(Debug, Args)]
pub struct LruArgs {
    /// Write the rows to FILE as one JSON object (-: stdout)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this many threads [default: 1, 2, 4 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Time of one measurement, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200)]
    time: u64,
    /// Measurements of each number; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
}

struct Row {
    variant: usize,
    threads: u32,
    pages_per_s: Vec<f64>,
    acquisitions_per_page: Vec<f64>,
    hold_ns_per_page: Vec<f64>,
    wait_ns_per_page: Vec<f64>,
}

/// What all threads did.
#[derive(Default)]
struct Outcome {
    pages: u64,
    /// Time of the adding, of all threads together, divided by their number.
    seconds: f64,
    count: meter::Count,
}

fn run<M: Meter>(how: Linking, threads: u32, time: Duration) -> Outcome {
    let lists = PageLists::<M>::new(threads * PAGES, 2, 2);
    let start = Barrier::new(threads as usize);
    let work = |thread: u32| {
        let pages: Vec<u32> = (thread * PAGES..(thread + 1) * PAGES).collect();
        let (mut batch, mut added, mut adding) = (Batch::new(), 0, Duration::ZERO);
        let mut freed = 0u64;
        meter::take();
        start.wait();
        let from = Instant::now();
        while from.elapsed() < time {
            let since = Instant::now();
            for &page in &pages {
                // Seven in eight are new.
                let place = Place { list: u8::from(page % 8 == 0), group: (page / 512 % 2) as u8 };
                lists.add(&mut batch, page, place, how, |_| {});
            }
            adding += since.elapsed();
            added += pages.len() as u64;
            lists.release(&pages, |_| freed += 1);
        }
        debug_assert_eq!(freed, added);
        (added, adding.as_secs_f64(), meter::take()[splice::ADD.index])
    };
    let mut outcome = Outcome::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        for (pages, seconds, count) in running.into_iter().filter_map(|thread| thread.join().ok()) {
            outcome.pages += pages;
            outcome.seconds += seconds / f64::from(threads);
            outcome.count.acquired += count.acquired;
            outcome.count.wait += count.wait;
            outcome.count.held += count.held;
        }
    });
    outcome
}

/// Runs the subcommand.
pub fn main(args: &LruArgs) -> Result<ExitCode> {
    let _progress = progress::begin("farpage-bench lru");
    let (ns_per_tick, clock_ns) = meter::calibrate();
    let time = Duration::from_millis(args.time);
    let mut rows = Vec::new();
    for threads in args.threads.map_or(vec![1, 2, 4, 16], |n| vec![n]) {
        let row = |variant| Row {
            variant,
            threads,
            pages_per_s: Vec::new(),
            acquisitions_per_page: Vec::new(),
            hold_ns_per_page: Vec::new(),
            wait_ns_per_page: Vec::new(),
        };
        let mut three: [Row; 3] = std::array::from_fn(row);
        for round in 1..=args.rounds {
            progress::step(format_args!("{threads} threads, round {round} of {}", args.rounds));
            for row in &mut three {
                let how = VARIANTS[row.variant].1;
                let plain = run::<()>(how, threads, time);
                row.pages_per_s.push(plain.pages as f64 / plain.seconds);
                let counted = run::<Counting>(how, threads, time);
                let pages = counted.pages as f64;
                row.acquisitions_per_page.push(counted.count.acquired as f64 / pages);
                row.hold_ns_per_page.push(counted.count.held as f64 * ns_per_tick / pages);
                row.wait_ns_per_page.push(counted.count.wait as f64 * ns_per_tick / pages);
            }
        }
        rows.extend(three);
    }
    crate::output::table_or_json(args.json.as_deref(), || print(&rows, clock_ns), || json(&rows))?;
    Ok(ExitCode::SUCCESS)
}

fn print(rows: &[Row], clock_ns: f64) {
    println!(
        "{:<11} {:>7} {:>10} {:>21} {:>10} {:>14} {:>14} {:>9}",
        "variant", "threads", "Mpages/s", "(range)", "locks/page", "hold ns/page", "wait ns/page", "hold"
    );
    for row in rows {
        let (median, low, high) = spread(&row.pages_per_s);
        let hold = spread(&row.hold_ns_per_page).0;
        let single = rows.iter().find(|other| other.threads == row.threads && other.variant == 0);
        let share = single.map_or(1.0, |single| hold / spread(&single.hold_ns_per_page).0.max(1e-9));
        println!(
            "{:<11} {:>7} {:>10.1} {:>21} {:>10.3} {:>14.2} {:>14.1} {:>8.3}x",
            VARIANTS[row.variant].0,
            row.threads,
            median / 1e6,
            format!("({:.1} to {:.1})", low / 1e6, high / 1e6),
            spread(&row.acquisitions_per_page).0,
            hold,
            spread(&row.wait_ns_per_page).0,
            share
        );
    }
    println!("(each hold has one reading of the clock in it, about {:.0} ns; goal: spliced at most 0.1x)", clock_ns);
}

fn json(rows: &[Row]) -> String {
    let row = |row: &Row| {
        json!({
            "variant": VARIANTS[row.variant].0,
            "threads": row.threads,
            "pages_per_s": spread(&row.pages_per_s).0,
            "acquisitions_per_page": spread(&row.acquisitions_per_page).0,
            "hold_ns_per_page": spread(&row.hold_ns_per_page).0,
            "wait_ns_per_page": spread(&row.wait_ns_per_page).0,
        })
    };
    json!({ "schema": SCHEMA, "rows": rows.iter().map(row).collect::<Vec<_>>() }).to_string()
}
