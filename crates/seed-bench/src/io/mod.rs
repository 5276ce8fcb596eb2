//! `farpage-bench io`: what it costs to write a page to a swap device and to read it back (`swap_writepage`,
//! `swap_readpage`), by device and by the way in which it is asked.
//!
//! An operation is one call: of one page, or of a batch of them. Pages are written in order and read in order (seq) or
//! not (rand). Baselines are in the table: `memcpy` for ram, bare LZ4 for zram, reads of the same file with a full
//! queue of the kernel (raw), one `pread` after the other (plain) and fio for file. Every page read is compared with
//! what was written, outside of the timed part (not what fio reads).

mod ahead;
mod bare;
mod fio;
mod measure;
mod orders;
mod queue;
mod sample;
mod server;

use crate::failure::Result;
use crate::output::SCHEMA;
use crate::progress;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

use sample::Row;

/// Shown by `--help`.
pub const EXAMPLES: &str = "\
Columns: DEVICE, PATH (sync: in the calling thread; boxed, queued: a request from the heap, completed by the \
    caller or by another thread; uring: io_uring; ahead, ahead16: io_uring, 4 or 16 windows in flight; plain: \
    pread and pwrite; bare: a client of a server that does nothing else; depth1, depth8: so many pages of a \
    server in flight; t1 to t8: threads that read, 64 pages each in an operation; crypt: encrypted; raw: the \
    kernel alone; unit: BATCH pages compressed as one; depth4, depth32: so many requests of fio in flight), \
    OP (free: what was stored earlier in place of a page just written), BATCH (pages an operation), AVG, P50, \
    P99 (of one operation), ALLOCS (an operation), MiB/s, RATIO (pages to what they are stored in).

The file is also read by fio, if that is installed: each of its rows is below the one of ours that it is to \
    be compared with.

Examples:
  farpage-bench io
  farpage-bench io --dir /mnt/nvme --pages 65536 --json io.json
  farpage-bench io --server nbd+unix:///run/nbd.sock
  farpage-bench io --sample core.1234     # pages as a program has them";

/// `farpage-bench io`.
#[derive(Debug, Args)]
pub struct IoArgs {
    /// Directory of the swap file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Pages written to and read from each device
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1024..))]
    pub pages: u32,
    /// Alternated repetitions of the memory devices, and of fio
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Also a server as in --swap, and a bare client of it; may be given several times
    #[arg(long = "server", value_name = "SPEC")]
    pub servers: Vec<String>,
    /// Take the pages from FILE, those that are not zero, instead of making them up
    #[arg(long, value_name = "FILE")]
    pub sample: Option<PathBuf>,
    /// Write the rows to FILE as one JSON object (-: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Measures.
///
/// # Errors
/// A device that cannot be used, wrong bytes.
pub fn main(args: &IoArgs) -> Result<ExitCode> {
    let _progress = progress::begin("farpage-bench io");
    progress::step("devices in memory");
    let source = measure::source(args.pages as usize, args.sample.as_deref())?;
    let mut rows = measure::memory(source, args.rounds as usize)?;
    progress::step("several pages at a time");
    rows.extend(orders::rows(source, args.rounds as usize)?);
    progress::step("a file");
    rows.extend(measure::file(&args.dir, source, args.rounds as usize)?);
    for server in &args.servers {
        progress::step("a server");
        rows.extend(server::rows(server, source, args.rounds as usize)?);
    }
    crate::output::table_or_json(args.json.as_deref(), || table(&rows), || format!("{:#}", object(args, &rows)))?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) {
    println!("DEVICE  PATH    OP          BATCH     AVG us     P50 us     P99 us  ALLOCS    MiB/s  RATIO");
    for r in rows {
        let us = |ns: f64| ns / 1000.0;
        let allocs = r.allocs_per_op.map_or(String::new(), |n| format!("{n:.2}"));
        let ratio = r.ratio.map_or(String::new(), |ratio| format!("{ratio:7.2}"));
        println!(
            "{:<7} {:<7} {:<10} {:>6} {:>10.2} {:>10.2} {:>10.2} {allocs:>7} {:>8.0}{ratio}",
            r.device,
            r.path,
            r.op,
            r.batch,
            us(r.avg_ns),
            us(r.p50_ns as f64),
            us(r.p99_ns as f64),
            r.mib_per_s
        );
    }
}

fn object(args: &IoArgs, rows: &[Row]) -> Value {
    let rows = rows.iter().map(|r| {
        let mut row = json!({
            "device": r.device,
            "path": r.path,
            "op": r.op,
            "batch": r.batch,
            "avg_ns": r.avg_ns.round() as u64,
            "p50_ns": r.p50_ns,
            "p99_ns": r.p99_ns,
        });
        if let Some(allocs) = r.allocs_per_op {
            row["allocs_per_op"] = ((allocs * 1000.0).round() / 1000.0).into();
        }
        row["mib_per_s"] = ((r.mib_per_s * 10.0).round() / 10.0).into();
        if let Some(ratio) = r.ratio {
            row["ratio"] = ((ratio * 1000.0).round() / 1000.0).into();
        }
        row
    });
    json!({
        "schema": SCHEMA,
        "bench": "io",
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "dir": args.dir.to_string_lossy(),
        "pages": args.pages,
        "rows": rows.collect::<Vec<_>>(),
    })
}
