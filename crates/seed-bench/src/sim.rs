//! `farpage-bench sim`: which page goes, for the engine's policy and for others, over page traces.

use crate::failure::{Failure, Result};
use crate::output::{SCHEMA, table_or_json};
use crate::progress;
use clap::Args;
use farpage_bench::trace::{self, Trace};
use farpage_ipc::conf::size;
use farpage_swap::PAGE_SIZE;
use farpage_swap::sim::{CachedLen, Clock, Counts, Fifo, Lru, Opt, Ours, Policy, Run, S3Fifo, Synthetic, replay};
use farpage_swap::sim::{Division, Mix, Tree};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Traces: what farpage run --trace FILE recorded (for memories that are not much smaller than the one it ran \
    in), the output of valgrind --tool=lackey --trace-mem=yes (every access), and what --save wrote; each also \
    compressed with zstd. -: stdin.
Workloads: zipf[:THETA], uniform, loop, scan (with a hot set), phases.
Mixes (--mix NAME, or all): programs that share a memory. Policy tree gives each of them lists of its own, as \
    the processes of a tree have, and parts an equal part of the memory; all others have one list.
Policies: ours; run (ours with the readahead and the batches of farpage run: what that will read); lru, \
    clock, fifo, s3fifo, opt (knows the future). All but the first two and fifo see every access, or an accessed \
    bit.

Columns: reads are misses on pages that had been thrown out; first touches are the same for all and read \
    nothing. pages in: with those that readahead brought in. minor: faults on pages that were unmapped, but \
    still in memory. out: pages thrown out; writes: those of them that had been written since they last were.

Examples:
  farpage-bench sim --synthetic zipf:0.99
  farpage-bench sim --mix all --policy tree --policy parts --policy ours
  farpage-bench sim --trace tests/traces/sort.trace.zst --ram 25%
  valgrind --tool=lackey --trace-mem=yes --log-fd=1 PROGRAM >program.trace
  farpage-bench sim --trace program.trace --save program.trace.zst
  farpage run --ram 32M --trace faults -- PROGRAM
  farpage-bench sim --trace faults --policy run --ram 64M --ram 128M";

/// `farpage-bench sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// A recorded trace (-: stdin); may be repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// A trace by rule; may be repeated
    #[arg(long, value_name = "WORKLOAD")]
    synthetic: Vec<String>,
    /// A mix of programs, or all of them; may be repeated
    #[arg(long, value_name = "NAME")]
    mix: Vec<String>,
    /// Memory, or a share of the trace's pages; may be repeated [default: 50%, 25% and 12.5%]
    #[arg(long, value_name = "SIZE|N%")]
    ram: Vec<String>,
    /// Only this policy; may be repeated
    #[arg(long, value_name = "NAME", value_parser = POLICIES)]
    policy: Vec<String>,
    /// Pages of a trace by rule
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = clap::value_parser!(u32).range(16..=1 << 26))]
    pages: u32,
    /// Accesses of a trace by rule
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    accesses: u64,
    /// Seed of a trace by rule
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep one page in N unmapped but in memory, instead of as many as pays
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    stage: Option<u32>,
    /// Write the trace to FILE, compressed, and do nothing else
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the rows to FILE as one JSON object (-: stdout)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const POLICIES: [&str; 9] = ["ours", "run", "lru", "clock", "fifo", "s3fifo", "opt", "tree", "parts"];

/// A trace, and the pages of each program in it, where it is a mix.
struct Workload {
    trace: Trace,
    members: Vec<Range<u32>>,
}

/// One policy on one trace in one memory.
struct Row {
    trace: String,
    pages: u32,
    ram: u32,
    policy: &'static str,
    counts: Counts,
    /// Reads of exact least-recently-used order, and of Belady's.
    lru: u64,
    opt: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// A trace or an argument that cannot be read, a file that cannot be written.
pub fn main(args: &SimArgs) -> Result<ExitCode> {
    let _progress = progress::begin("farpage-bench sim");
    let synthetic = |text: &String| {
        let kind = Synthetic::parse(text).map_err(|e| Failure::usage(format!("--synthetic: {e}")))?;
        progress::step(format_args!("making {text}"));
        let trace = Trace::synthetic(text, kind.trace(args.pages, args.accesses, args.seed));
        Ok(Workload { trace, members: Vec::new() })
    };
    let read = |path: &PathBuf| {
        progress::step(format_args!("reading {}", path.display()));
        trace::read(path).map(|trace| Workload { trace, members: Vec::new() })
    };
    // Wrong names are found before long traces are read.
    let mixes = mixes(args)?;
    let made: Vec<Workload> = args.synthetic.iter().map(synthetic).collect::<Result<_>>()?;
    let read: Vec<Workload> = args.trace.iter().map(read).collect::<Result<_>>()?;
    let traces: Vec<Workload> = made.into_iter().chain(mixes).chain(read).collect();
    if traces.is_empty() {
        return Err(Failure::usage("nothing to simulate")
            .help("name a trace with --trace FILE, --synthetic WORKLOAD or --mix NAME"));
    }
    if let Some(path) = &args.save {
        let [trace] = &traces[..] else { return Err(Failure::usage("--save: exactly one trace can be saved")) };
        trace.trace.save(path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::new();
    for trace in &traces {
        for ram in sizes(args, trace.trace.pages)? {
            rows.extend(run(args, trace, ram));
        }
    }
    write(&rows, args.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// The memories asked for, in pages.
fn sizes(args: &SimArgs, pages: u32) -> Result<Vec<u32>> {
    if args.ram.is_empty() {
        return Ok([2, 4, 8].map(|share| (pages / share).max(1)).to_vec());
    }
    let size = |text: &String| {
        let bytes = size::parse_of(text, Some(u64::from(pages) * PAGE_SIZE as u64));
        let bytes = bytes.map_err(|e| Failure::usage(format!("--ram: {e}")))?;
        Ok(u32::try_from(bytes / PAGE_SIZE as u64).unwrap_or(u32::MAX).max(1))
    };
    args.ram.iter().map(size).collect()
}

/// The mixes that are named.
fn mixes(args: &SimArgs) -> Result<Vec<Workload>> {
    let all = Mix::all();
    if let Some(name) = args.mix.iter().find(|name| *name != "all" && all.iter().all(|mix| mix.name != **name)) {
        let known: Vec<&str> = all.iter().map(|mix| mix.name).collect();
        return Err(Failure::usage(format!("--mix: {name} is none of all, {}", known.join(", "))));
    }
    let wanted = |mix: &Mix| args.mix.iter().any(|name| name == "all" || name == mix.name);
    let workload = |mix: Mix| {
        progress::step(format_args!("making {}", mix.name));
        let (accesses, members) = mix.trace(args.accesses, args.seed);
        Workload { trace: Trace::synthetic(mix.name, accesses), members }
    };
    Ok(all.into_iter().filter(wanted).map(workload).collect())
}

fn run(args: &SimArgs, Workload { trace, members }: &Workload, ram: u32) -> Vec<Row> {
    let stage = args.stage.map_or(CachedLen::Adaptive, CachedLen::Fixed);
    let counts = |name: &str| {
        progress::step(format_args!("{}, {ram} of {} pages: {name}", trace.name, trace.pages));
        let mut policy: Box<dyn Policy> = match name {
            "ours" => Box::new(Ours::new(ram, trace.pages, stage)),
            "run" => Box::new(Run::new(ram, &trace.numbers)),
            "lru" => Box::new(Lru::new(ram, trace.pages)),
            "clock" => Box::new(Clock::new(ram, trace.pages)),
            "fifo" => Box::new(Fifo::new(ram, trace.pages)),
            "s3fifo" => Box::new(S3Fifo::new(ram, trace.pages)),
            "tree" => Box::new(Tree::new(ram, members, Division::Ages)),
            "parts" => Box::new(Tree::new(ram, members, Division::Equal)),
            _ => Box::new(Opt::new(ram, &trace.accesses, trace.pages)),
        };
        replay(&mut *policy, &trace.accesses, trace.pages)
    };
    let (lru, opt) = (counts("lru"), counts("opt"));
    let wanted = |name: &&&str| {
        let fits = !members.is_empty() || !matches!(**name, "tree" | "parts");
        fits && (args.policy.is_empty() || args.policy.iter().any(|p| p == **name))
    };
    let row = |name: &&'static str| {
        let counts = match *name {
            "lru" => lru,
            "opt" => opt,
            name => counts(name),
        };
        let trace_name = trace.name.clone();
        Row { trace: trace_name, pages: trace.pages, ram, policy: name, counts, lru: lru.reads, opt: opt.reads }
    };
    POLICIES.iter().filter(wanted).map(row).collect()
}

fn ratio(a: u64, b: u64) -> String {
    match (a, b) {
        (0, 0) => String::from("1.00"),
        (_, 0) => String::from("-"),
        (a, b) => format!("{:.2}", a as f64 / b as f64),
    }
}

fn table(rows: &[Row]) {
    let mut last = None;
    for row in rows {
        let head = (&row.trace, row.ram);
        if last != Some(head) {
            println!(
                "{}{}: {} accesses to {} pages, {} pages of memory, {} first touches",
                if last.is_some() { "\n" } else { "" },
                row.trace,
                row.counts.accesses,
                row.pages,
                row.ram,
                row.counts.first
            );
            println!(
                "  {:<8} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>7} {:>7}",
                "policy", "reads", "pages in", "miss %", "minor", "out", "writes", "x LRU", "x OPT"
            );
            last = Some(head);
        }
        let c = &row.counts;
        println!(
            "  {:<8} {:>10} {:>10} {:>8.3} {:>10} {:>10} {:>10} {:>7} {:>7}",
            row.policy,
            c.reads,
            c.reads + c.ahead,
            100.0 * c.miss_ratio(),
            c.minor,
            c.out,
            c.writes,
            ratio(c.reads, row.lru),
            ratio(c.reads, row.opt)
        );
    }
}

fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "trace": row.trace.as_str(),
            "pages": row.pages,
            "ram_pages": row.ram,
            "policy": row.policy,
            "accesses": row.counts.accesses,
            "first_touches": row.counts.first,
            "reads": row.counts.reads,
            "pages_in": row.counts.reads + row.counts.ahead,
            "minor_faults": row.counts.minor,
            "pages_out": row.counts.out,
            "writes": row.counts.writes,
            "miss_ratio": row.counts.miss_ratio(),
            "lru_reads": row.lru,
            "opt_reads": row.opt,
        })
    };
    json!({ "schema": SCHEMA, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

/// Prints the table, or writes JSON.
fn write(rows: &[Row], to: Option<&Path>) -> Result<()> {
    table_or_json(to, || table(rows), || json(rows).to_string())
}
