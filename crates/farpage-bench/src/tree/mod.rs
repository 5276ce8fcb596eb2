//! `farpage-bench tree`: programs of several processes on the kernel's swap and under one budget, by turns.
//!
//! [`shapes`] has what is run; how it is measured is [`super::program`]'s. All processes count, on both sides.

mod shapes;

use crate::compare::kernel::KernelSide;
use crate::compare::machine;
use crate::compare::side::catch_signals;
use crate::destination::Destination;
use crate::failure::{Failure, Result, say, why};
use crate::output::SCHEMA;
use crate::program::{self, Against, Invocation, Setting};
use crate::progress;
use clap::Args;
use farpage_ipc::conf::size;
use serde_json::{Value, json};
use shapes::{Shape, Shapes};
use std::path::PathBuf;
use std::process::ExitCode;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Each shape gets a third of the memory that it takes as it is (all of make: a third of what make -j4 takes), \
    at least 24M; --ram gives all of them another amount. The kernel's zram pool comes on top of its limit, and \
    farpage gets the sum. The limit counts shared memory of postgres, too, farpage's budget does not. Needs root, cc, \
    make and python3; the last two shapes need their servers.

Shapes:
  make-j1 to make-j8  40 C files, as many compilers at a time
  fork, spawn         eight Python workers, forked or started anew, 40 MiB each
  prefork             a heap of 200 MiB; eight children write a tenth each
  sort                sort | uniq -c | sort
  loop                500 short programs, one after the other
  gunicorn            --preload, four workers, 80 MiB of objects; four clients,
                      240 requests, two reloads meanwhile
  postgres            a table, a parallel join with JIT, indexes, pgbench with
                      six clients, 3000 transactions each

Below the table of the last two: latencies of requests, or of transactions, medians of all rounds, and the \
    kernel's p99 divided by farpage's of the same round; all bad answers.

Examples:
  sudo farpage-bench tree
  sudo farpage-bench tree --shape make-j4 --shape make-j8 --ram 96M --rounds 5
  sudo farpage-bench tree --shape gunicorn --json gunicorn.json";

/// `farpage-bench tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// What to run [default: all that is installed]
    #[arg(long, value_name = "NAME")]
    pub shape: Vec<String>,
    /// The kernel's memory limit
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<String>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rounds: u64,
    /// Measure the programs as they are and farpage only
    #[arg(long)]
    pub no_kernel: bool,
    /// Where files go
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Write the results as JSON (-: standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Least memory for either side.
const RAM_MIN: u64 = 24 << 20;
/// `--ram`, if it is not given: this part of what the shape takes as it is.
const RAM_PART: u64 = 3;

/// Runs the subcommand.
///
/// # Errors
/// Bad options, no root, a named shape's server is not installed, or a side could not be set up. What ended otherwise
/// than as it is, is reported, and by the exit status.
pub fn main(args: &TreeArgs) -> Result<ExitCode> {
    let ram = args.ram.as_deref().map(size::parse).transpose().map_err(|e| Failure::new(format!("--ram: {e}")))?;
    let wanted = shapes::chosen(&args.shape)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("only a memory cgroup can count all processes, and only root can make one"));
    }
    if let Some((name, install)) = wanted.iter().find_map(|shape| Some((shape.name, shape.missing()?)))
        && !args.shape.is_empty()
    {
        return Err(Failure::new(format!("--shape: {name} is not installed: {install}")));
    }
    let destination = Destination::new(args.json.as_deref())?;
    catch_signals();
    let _progress = progress::begin("farpage-bench tree");
    let cannot = |e: std::io::Error| Failure::new(format!("cannot make files in {}: {}", args.dir.display(), why(&e)));
    let files = Shapes::make(&args.dir).map_err(cannot)?;
    let mut bench = TreeBench { args, ram, destination, files, meter: KernelSide::meter()?, of_make: None };
    let notes = [machine()];
    destination.tell(&notes[0]);
    let mut measured = Vec::new();
    let json = |shapes: &[Value]| json!({ "schema": SCHEMA, "notes": notes, "shapes": shapes });
    let mut clean = true;
    for shape in wanted {
        let mut object = json!({ "name": shape.name });
        match shape.missing() {
            None => clean &= bench.measure(shape, &mut object)?,
            Some(install) => {
                destination.tell(&format!("\n{}: not installed: {install}", shape.name));
                object["install"] = install.into();
            }
        }
        object["installed"] = shape.missing().is_none().into();
        measured.push(object);
        // What there is so far is worth having, should the rest be interrupted.
        destination.save(&json(&measured))?;
    }
    bench.meter.remove()?;
    destination.finish(&json(&measured))?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What all shapes have in common.
struct TreeBench<'a> {
    args: &'a TreeArgs,
    /// `--ram`.
    ram: Option<u64>,
    destination: Destination<'a>,
    files: Shapes,
    meter: KernelSide,
    /// What [`shapes::make_j4`] takes as it is, once that is known.
    of_make: Option<u64>,
}

impl TreeBench<'_> {
    /// One shape. Whether all of it ended as it should.
    fn measure(&mut self, shape: &Shape, object: &mut Value) -> Result<bool> {
        let program = self.files.invocation(shape);
        let plain = |program: &Invocation| program::plain(program, Some(&self.meter));
        let first = plain(&program)?;
        if !first.status.success() {
            return Err(Failure::new(format!("{}: as it is it ended with {}", shape.name, first.status)));
        }
        let mut peak = first.peak_rss_anon;
        if shape.is_make() {
            peak = match self.of_make {
                Some(peak) => peak,
                None if std::ptr::eq(shape, shapes::make_j4()) => peak,
                None => plain(&self.files.invocation(shapes::make_j4()))?.peak_rss_anon,
            };
            self.of_make = Some(peak);
        }
        let ram = self.ram.unwrap_or((peak / RAM_PART).next_multiple_of(1 << 20).max(RAM_MIN));
        let setting = Setting {
            program: &program,
            ram,
            swap_bytes: program::swap_for(peak),
            against: Against::Zram,
            dir: &self.args.dir,
            options: Vec::new(),
            with_kernel: !self.args.no_kernel,
            meter: Some(&self.meter),
        };
        let rows = program::measure(&setting, first.output, plain(&program)?, self.args.rounds)?;
        let tell = |text: &str| self.destination.tell(text);
        tell(&format!("\n{}: {} as it is, --ram {}", shape.name, size::format(first.peak_rss_anon), size::format(ram)));
        tell(&rows.table());
        let worst = 100.0 * rows.peak_share();
        tell(&format!("all processes: {worst:.1} % of farpage's budget at most, sampled every 10 ms"));
        let complaints = rows.complaints();
        complaints.iter().for_each(|text| say(format_args!("farpage: bench: {}: {text}", shape.name)));
        let remarks = rows.remarks();
        rows.put(object, &program.argv, &remarks, ram);
        Ok(complaints.is_empty())
    }
}
