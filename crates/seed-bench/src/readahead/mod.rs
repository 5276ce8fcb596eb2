//! `farpage-bench readahead`: what reading ahead brings, by rule.
//!
//! The load is that of the patch series that brought the kernel readahead per mapping: a program goes through memory in
//! order, reading it and writing to it in turns, while others write at random in the background; together four times
//! the memory. And a small Linpack, a dense LU factorisation larger than the memory. Each variant runs in a process of
//! its own (`load`), one after the other, in every round; the kernel's in a memory cgroup with a swap file on the same
//! disk.

pub mod linpack;
pub mod load;
mod side;

use crate::failure::{Failure, Result};
use crate::output::SCHEMA;
use crate::progress;
use clap::Args;
use farpage_ipc::conf::size;
use load::{Done, Kind, Memory, Spec};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Shown by `--help`.
pub const EXAMPLES: &str = "\
Variants: none, slot and vma (the kernel's rules in a farpage region), stream (farpage's own), stream-exact \
    (the same, every page read ahead unmapped until it is touched), kernel (the kernel itself: a swap file in \
    DIR; needs root).
Columns: throughput of the program that goes in order, latency of its accesses, HIT (pages read ahead for it \
    that it used; when the time is over it goes on, untimed, through those that are left), RA (pages read ahead \
    for it; on the kernel's side, by the whole machine). The rotational device is the file with a delay for \
    every request that does not go on where the last one ended. On zram (farpage's default devices) nobody \
    writes in the background; zram-random is reading at random.

Examples:
  farpage-bench readahead
  farpage-bench readahead --ram 128M --seconds 30 --rounds 3 --json out.json";

/// `farpage-bench readahead`.
#[derive(Debug, Args)]
pub struct ReadaheadArgs {
    /// Memory: budget of the pager, limit of the cgroup
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub ram: u64,
    /// Directory of the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Measure each variant so long
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Alternated repetitions; the median by throughput is shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Threads that write at random meanwhile
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub background: u64,
    /// Delay of the simulated rotational device, microseconds (0: leave that device out)
    #[arg(long, value_name = "US", default_value_t = 2000)]
    pub seek: u32,
    /// Leave compressed memory out (in order alone, and at random)
    #[arg(long)]
    pub no_zram: bool,
    /// Leave the Linpack out
    #[arg(long)]
    pub no_linpack: bool,
    /// Leave the kernel's swap out
    #[arg(long)]
    pub no_kernel: bool,
    /// Only these variants
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub variants: Vec<String>,
    /// Write the rows to FILE as one JSON object (-: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Why it is no size of a region.
#[derive(Debug, Clone, thiserror::Error)]
enum RegionSizeError {
    #[error(transparent)]
    Size(#[from] size::SizeError),
    #[error("at least 8M")]
    Small,
}

fn parse_size(text: &str) -> std::result::Result<u64, RegionSizeError> {
    let bytes = size::parse(text)?;
    if bytes < 8 << 20 { Err(RegionSizeError::Small) } else { Ok(bytes) }
}

/// Name, and the readahead of the region (`None`: the kernel's swap).
const VARIANTS: [(&str, Option<&str>); 6] = [
    ("none", Some("none")),
    ("slot", Some("slot")),
    ("vma", Some("vma")),
    ("stream", Some("stream")),
    ("stream-exact", Some("stream,exact")),
    ("kernel", None),
];

/// One variant's result on one device.
struct Row {
    device: &'static str,
    variant: &'static str,
    done: Done,
}

/// Measures.
///
/// # Errors
/// A device that cannot be used, wrong bytes, no privilege for the kernel's side.
pub fn main(args: &ReadaheadArgs) -> Result<ExitCode> {
    let unknown = args.variants.iter().find(|v| !VARIANTS.iter().any(|(name, _)| name == v));
    if let Some(name) = unknown {
        let all: Vec<&str> = VARIANTS.iter().map(|v| v.0).collect();
        return Err(
            Failure::new(format!("--variants: there is no {name:?}")).help(format_args!("use {}", all.join(",")))
        );
    }
    let wanted = |name: &str| args.variants.is_empty() || args.variants.iter().any(|v| v == name);
    let mut kernel = !args.no_kernel && wanted("kernel");
    if kernel && !rustix::process::geteuid().is_root() {
        crate::failure::say(format_args!("farpage: bench: not root: without the kernel's swap"));
        kernel = false;
    }
    let chosen: Vec<_> =
        VARIANTS.into_iter().filter(|(name, rule)| wanted(name) && (rule.is_some() || kernel)).collect();
    let _progress = progress::begin("farpage-bench readahead");
    let measure = |device: &'static str, kind: Kind, seek_us: u32, zram: bool| -> Result<Vec<Row>> {
        let mut rows: Vec<(&'static str, Vec<Done>)> = chosen.iter().map(|(name, _)| (*name, Vec::new())).collect();
        for round in 1..=args.rounds {
            for ((name, rule), (_, all)) in chosen.iter().zip(&mut rows) {
                if rule.is_none() && (seek_us > 0 || zram) {
                    continue; // the delay is in farpage's device; `farpage-bench compare` has the kernel's zram
                }
                let memory = match rule {
                    Some(rule) => Memory::Region { zram, readahead: (*rule).to_owned(), seek_us },
                    None => Memory::Anonymous,
                };
                let spec = Spec {
                    kind,
                    memory,
                    ram: args.ram,
                    dir: args.dir.clone(),
                    seconds: args.seconds,
                    background: if zram { 0 } else { args.background },
                };
                progress::step(format_args!("{device}, {name}, round {round} of {}", args.rounds));
                let done = side::run(&spec)?;
                (done.wrong == 0)
                    .then_some(())
                    .ok_or_else(|| Failure::new(format!("bench: {name}: {} accesses found wrong bytes", done.wrong)))?;
                all.push(done);
            }
        }
        let median = |(variant, mut all): (&'static str, Vec<Done>)| {
            all.sort_by(|a, b| a.mib_per_s.total_cmp(&b.mib_per_s));
            let done = all.get(all.len() / 2)?.clone();
            Some(Row { device, variant, done })
        };
        Ok(rows.into_iter().filter_map(median).collect())
    };
    let mut rows = measure("file", Kind::Mix, 0, false)?;
    if args.seek > 0 {
        rows.extend(measure("rotational", Kind::Mix, args.seek, false)?);
    }
    if !args.no_zram {
        rows.extend(measure("zram", Kind::Mix, 0, true)?);
        rows.extend(measure("zram-random", Kind::Random, 0, true)?);
    }
    let linpack = if args.no_linpack { Vec::new() } else { measure("file", Kind::Linpack, 0, false)? };
    let json = || format!("{:#}", object(args, &rows, &linpack));
    crate::output::table_or_json(args.json.as_deref(), || table(&rows, &linpack), json)?;
    Ok(ExitCode::SUCCESS)
}

const SHARES: [(&str, f64); 7] =
    [("p50", 0.5), ("p60", 0.6), ("p70", 0.7), ("p80", 0.8), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

fn table(rows: &[Row], linpack: &[Row]) {
    let hit = |done: &Done| done.hit_pct().map_or("-".to_owned(), |pct| format!("{pct:.2}"));
    println!(
        "DEVICE      VARIANT        MiB/s   AVG us      P50      P60      P70      P80      P90      P95      P99   HIT %       \
         RA"
    );
    for r in rows {
        print!("{:<11} {:<13} {:>6.1} {:>8.2}", r.device, r.variant, r.done.mib_per_s, r.done.avg_us);
        SHARES.iter().for_each(|(_, share)| print!(" {:>8.2}", r.done.latencies.percentile_us(*share)));
        println!(" {:>7} {:>8}", hit(&r.done), r.done.swap_ra);
    }
    if let Some(first) = linpack.first() {
        println!("\nLinpack, {} equations   SECONDS  MFLOP/s   HIT %       RA", first.done.order);
        for r in linpack {
            let d = &r.done;
            println!("{:<24} {:>8.2} {:>8.0} {:>7} {:>8}", r.variant, d.wall_s, d.mflops, hit(d), d.swap_ra);
        }
    }
}

fn object(args: &ReadaheadArgs, rows: &[Row], linpack: &[Row]) -> Value {
    let mut object = json!({
        "schema": SCHEMA,
        "bench": "readahead",
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "ram_bytes": args.ram,
        "ram": size::format(args.ram),
        "dir": args.dir.to_string_lossy(),
        "seconds": args.seconds,
        "rounds": args.rounds,
        "background": args.background,
    });
    let round = |x: f64| (x * 1000.0).round() / 1000.0;
    let put_hits = |row: &mut Value, done: &Done| {
        row["ra_hit_pct"] = json!(done.hit_pct().map(round));
        row["swap_ra"] = done.swap_ra.into();
        row["swap_ra_hit"] = done.swap_ra_hit.into();
    };
    let list = rows.iter().map(|r| {
        let mut row = json!({
            "device": r.device,
            "variant": r.variant,
            "mib_per_s": round(r.done.mib_per_s),
        });
        let mut latency = json!({ "avg": round(r.done.avg_us) });
        SHARES.iter().for_each(|(name, share)| latency[name] = round(r.done.latencies.percentile_us(*share)).into());
        row["latency_us"] = latency;
        put_hits(&mut row, &r.done);
        row
    });
    object["rows"] = list.collect();
    let list = linpack.iter().map(|r| {
        let mut row = json!({
            "variant": r.variant,
            "order": r.done.order,
            "elapsed_s": round(r.done.wall_s),
            "mflops": round(r.done.mflops),
        });
        put_hits(&mut row, &r.done);
        row
    });
    object["linpack"] = list.collect();
    object
}
