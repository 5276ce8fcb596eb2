//! `farpage bench tree`: programs of several processes on the kernel's swap and under one budget, by turns.
//!
//! [`shapes`] has what is run; how it is measured is [`super::program`]'s. All processes count, on both sides.

mod shapes;

use crate::compare::kernel::KernelSide;
use crate::compare::machine;
use crate::compare::side::catch_signals;
use crate::failure::{Failure, Result, say, why};
use crate::program::{self, Against, Invocation, Setting};
use crate::progress;
use clap::Args;
use farpage_ipc::conf::size;
use shapes::{Shape, Shapes};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Each shape gets a third of the memory that it takes as it is (all of make: a third of what make -j4 takes), \
    at least 24M; --ram gives all of them another amount. The kernel's zram pool comes on top of its limit, and \
    farpage gets the sum. Needs root, cc, make and python3.

Shapes:
  make-j1 to make-j8  40 C files, as many compilers at a time
  fork, spawn         eight Python workers, forked or started anew, 40 MiB each
  prefork             a heap of 200 MiB; eight children write a tenth each
  sort                sort | uniq -c | sort
  loop                500 short programs, one after the other

Examples:
  sudo farpage bench tree
  sudo farpage bench tree --shape make-j4 --shape make-j8 --ram 96M --rounds 5";

/// `farpage bench tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// What to run [default: all]
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
}

/// Least memory for either side.
const RAM_MIN: u64 = 24 << 20;
/// `--ram`, if it is not given: this part of what the shape takes as it is.
const RAM_PART: u64 = 3;

/// Runs the subcommand.
///
/// # Errors
/// Bad options, no root, or a side that could not be set up. What ended otherwise than as it is, is reported, and by
/// the exit status.
pub fn main(args: &TreeArgs) -> Result<ExitCode> {
    let ram = args.ram.as_deref().map(size::parse).transpose().map_err(|e| Failure::new(format!("--ram: {e}")))?;
    let wanted = shapes::chosen(&args.shape)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("only a memory cgroup can count all processes, and only root can make one"));
    }
    catch_signals();
    let _progress = progress::begin("farpage bench tree");
    let cannot = |e: std::io::Error| Failure::new(format!("cannot make files in {}: {}", args.dir.display(), why(&e)));
    let files = Shapes::make(&args.dir).map_err(cannot)?;
    let meter = KernelSide::meter()?;
    tell(&machine());
    let mut clean = true;
    let mut of_make = None;
    for shape in wanted {
        clean &= measure(args, shape, &files, &meter, ram, &mut of_make)?;
    }
    meter.remove()?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One shape. Whether all of it ended as it should.
fn measure(
    args: &TreeArgs,
    shape: &Shape,
    files: &Shapes,
    meter: &KernelSide,
    ram: Option<u64>,
    of_make: &mut Option<u64>,
) -> Result<bool> {
    let program = Invocation::of(&files.command(shape));
    let plain = |program: &Invocation| program::plain(program, Some(meter));
    let first = plain(&program)?;
    let mut peak = first.peak_rss_anon;
    if shape.is_make() {
        peak = match *of_make {
            Some(peak) => peak,
            None if std::ptr::eq(shape, shapes::make_j4()) => peak,
            None => plain(&Invocation::of(&files.command(shapes::make_j4())))?.peak_rss_anon,
        };
        *of_make = Some(peak);
    }
    let ram = ram.unwrap_or((peak / RAM_PART).next_multiple_of(1 << 20).max(RAM_MIN));
    let setting = Setting {
        program: &program,
        ram,
        swap_bytes: program::swap_for(peak),
        against: Against::Zram,
        dir: Path::new(&args.dir),
        options: Vec::new(),
        with_kernel: !args.no_kernel,
        meter: Some(meter),
    };
    let rows = program::measure(&setting, first.output, plain(&program)?, args.rounds)?;
    tell(&format!("\n{}: {} as it is, --ram {}", shape.name, size::format(first.peak_rss_anon), size::format(ram)));
    tell(&rows.table());
    let worst = rows.rounds.iter().map(program::Round::peak_share).fold(0.0, f64::max);
    tell(&format!("all processes: {:.1} % of farpage's budget at most, sampled every 10 ms", 100.0 * worst));
    let complaints = rows.complaints();
    complaints.iter().for_each(|text| say(format_args!("farpage: bench: {}: {text}", shape.name)));
    Ok(complaints.is_empty())
}

fn tell(text: &str) {
    let _ = progress::aside(|| writeln!(std::io::stdout(), "{text}"));
}
