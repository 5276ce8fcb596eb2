//! `farpage bench program`: a program of the user's on the kernel's swap and under `farpage run`, with equal memory, by
//! turns.
//!
//! Each round: the program as it is; in a cgroup with limit B, swapping to a zram device that grows to Z outside of the
//! limit, or to a file; and under `farpage run` with B + Z for everything. What it writes to its standard output must
//! be the same each time.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`side`] | one run, watched from outside |
//! | [`report`] | medians and ranges, the table, JSON |
//! | [`super::compare::kernel`] | cgroup, swap device, and the guard that takes them away |

mod report;
mod side;

use super::compare::kernel::{KernelSide, SwapKind};
use super::compare::side::catch_signals;
use super::compare::{cpu_ticks, machine, stolen};
use crate::failure::{Failure, Result, say, why};
use crate::output;
use clap::{Args, ValueEnum};
use farpage::internals::conf::size;
use farpage::internals::conf::{SwapSpec, parse_idle_poll};
pub use report::Rows;
pub use side::Ended;
use side::Pager;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Memory is equal: the kernel's limit is --ram, its zram pool comes on top of it; farpage gets the sum of both. Both count
all processes of the program; the limit counts files that it is the first to read, too, farpage's budget only anonymous
memory: a fair comparison has few files. Standard input is empty. A program that writes something else each time (times,
addresses) is measured, and said to.

Columns: wall time, processor time of all CPUs, major faults (farpage's are those that read a swap device, the others
count files, too), peak of resident anonymous memory of all processes (farpage's with its pool; without root, of the
first process), the pool's peak, and how many times as fast as the kernel.

Examples:
  sudo farpage bench program -- sort -S 1G big.txt
  sudo farpage bench program --ram 64M --rounds 5 -- python3 train.py
  sudo farpage bench program --against file --json - -- ./solve input.dat";

/// Least memory for either side.
const RAM_MIN: u64 = 16 << 20;
/// `--ram`, if it is not given: this part of what the program takes as it is.
const RAM_PART: u64 = 4;

/// `farpage bench program`.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The kernel's memory limit [default: a quarter of what the program takes as it is, at least 16M]
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<String>,
    /// What the kernel swaps to
    #[arg(long, value_enum, default_value_t = Against::Zram)]
    pub against: Against,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rounds: u64,
    /// farpage's swap devices [default: as farpage run; with --against file: file:DIR]
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<String>,
    /// Whether idle CPUs are kept from sleeping, as farpage run has it [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub idle_poll: Option<String>,
    /// Size of the kernel's swap [default: four times what the program takes as it is, at least 256M]
    #[arg(long, value_name = "SIZE")]
    pub swap_size: Option<String>,
    /// Where the swap file for --against file goes
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Measure the program as it is and farpage only
    #[arg(long)]
    pub no_kernel: bool,
    /// Write the results as JSON (-: standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What farpage is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// Swap on compressed RAM
    Zram,
    /// A swap file
    File,
}

/// What is the same in all rounds.
pub struct Setting<'a> {
    /// The program and its arguments.
    pub program: &'a [OsString],
    /// The kernel's limit, bytes.
    pub ram: u64,
    /// Size of its swap, bytes.
    pub swap_bytes: u64,
    /// What it swaps to.
    pub against: Against,
    /// Where a swap file goes.
    pub dir: &'a Path,
    /// Options of `farpage run`.
    pub options: Vec<OsString>,
    /// The kernel's side is measured.
    pub with_kernel: bool,
    /// Counts the memory of all processes where the kernel's side does not.
    pub meter: Option<&'a KernelSide>,
}

/// One of each.
#[derive(Debug, Clone)]
pub struct Round {
    plain: Ended,
    kernel: Option<Ended>,
    farpage: Ended,
    /// farpage's budget, bytes.
    ram: u64,
}

impl Round {
    /// farpage's largest resident anonymous memory, as a part of its budget.
    pub fn peak_share(&self) -> f64 {
        self.farpage.peak_rss_anon as f64 / self.ram.max(1) as f64
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Bad options, a program that cannot be started, or a side that could not be set up. A side that ends otherwise than
/// the program as it is, or under farpage with another output, is reported, and by the exit status.
pub fn main(args: &ProgramArgs) -> Result<ExitCode> {
    let bytes = |name: &str, text: &Option<String>| {
        text.as_deref().map(size::parse).transpose().map_err(|e| Failure::new(format!("{name}: {e}")))
    };
    let (ram, swap_bytes) = (bytes("--ram", &args.ram)?, bytes("--swap-size", &args.swap_size)?);
    for (name, bytes) in [("--ram", ram), ("--swap-size", swap_bytes)] {
        if bytes.is_some_and(|bytes| bytes < RAM_MIN) {
            return Err(Failure::new(format!("{name}: at least {}", size::format(RAM_MIN))));
        }
    }
    for spec in &args.swap {
        SwapSpec::parse(spec).map_err(|e| Failure::new(format!("--swap: {e}")))?;
    }
    if let Some(when) = &args.idle_poll {
        parse_idle_poll(when).map_err(|e| Failure::new(format!("--idle-poll: {e}")))?;
    }
    let root = rustix::process::geteuid().is_root();
    let json_on_stdout = args.json.as_deref() == Some(Path::new("-"));
    let json = args.json.as_deref().filter(|_| !json_on_stdout);
    let unwritable =
        |path: &Path, e: &io::Error| Failure::new(format!("--json: cannot write {}: {}", path.display(), why(e)));
    if let Some(path) = json {
        // Now, and not when all has been measured.
        output::open(path).map_err(|e| unwritable(path, &e))?;
    }
    let tell = |text: &str| {
        if !json_on_stdout {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    };
    let mut notes = vec![machine()];
    tell(&notes[0]);
    catch_signals();
    let before = cpu_ticks();
    // Twice, so that no side has to read the program's files from a disk.
    let meter = if root { KernelSide::meter().ok() } else { None };
    let meter = meter.as_ref();
    let first_output = plain(&args.program, meter)?.output;
    let plain = plain(&args.program, meter)?;
    let setting = Setting {
        program: &args.program,
        against: args.against,
        dir: &args.dir,
        ram: ram.unwrap_or((plain.peak_rss_anon / RAM_PART).next_multiple_of(1 << 20).max(RAM_MIN)),
        swap_bytes: swap_bytes.unwrap_or(swap_for(plain.peak_rss_anon)),
        options: options(args),
        with_kernel: root && !args.no_kernel,
        meter,
    };
    let mut note = |text: String| {
        tell(&text);
        notes.push(text);
    };
    note(format!(
        "{}: {} of anonymous memory as it is, --ram {}",
        args.program[0].to_string_lossy(),
        size::format(plain.peak_rss_anon),
        size::format(setting.ram)
    ));
    if !setting.with_kernel {
        let reason = if root { "--no-kernel" } else { "not root" };
        note(format!("the kernel's side was not measured ({reason}): farpage had the --ram in all"));
    }
    if plain.peak_rss_anon < setting.ram {
        note(String::from("it takes no more than --ram as it is"));
    }
    let rows = measure(&setting, first_output, plain, args.rounds)?;
    tell(&rows.table());
    let complaints = rows.complaints();
    complaints.iter().for_each(|text| say(format_args!("farpage: bench: {text}")));
    rows.remarks().into_iter().for_each(&mut note);
    if let Some(text) = stolen("the program", before, cpu_ticks()) {
        note(text);
    }
    let text = rows.json(&args.program, &notes, setting.ram).pretty() + "\n";
    if json_on_stdout {
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    if let Some(path) = json {
        output::write(path, text).map_err(|e| unwritable(path, &e))?;
    }
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Options of `farpage run` besides the budget.
fn options(args: &ProgramArgs) -> Vec<OsString> {
    let swap = match (&args.swap[..], args.against) {
        ([], Against::File) => vec![format!("file:{}", args.dir.display())],
        (given, _) => given.to_vec(),
    };
    let mut options: Vec<OsString> = swap.into_iter().flat_map(|spec| ["--swap".into(), spec.into()]).collect();
    options.extend(args.idle_poll.iter().flat_map(|when| ["--idle-poll".into(), when.into()]));
    options
}

/// Size of the kernel's swap for a program that takes `peak` bytes as it is.
pub fn swap_for(peak: u64) -> u64 {
    (4 * peak).next_multiple_of(1 << 20).max(256 << 20)
}

/// The program as it is.
///
/// # Errors
/// It cannot be started, or the bench was interrupted.
pub fn plain(program: &[OsString], meter: Option<&KernelSide>) -> Result<Ended> {
    side::run(program, &Pager::Nobody, meter)
}

/// All rounds; the first begins with `plain`.
///
/// # Errors
/// A side could not be set up or started, or the bench was interrupted.
pub fn measure(setting: &Setting<'_>, first_output: (u64, u64), plain: Ended, rounds: u64) -> Result<Rows> {
    let mut rows = Rows { first_output, ..Rows::default() };
    let mut plain = Some(plain);
    for _ in 0..rounds {
        let plain = plain.take().map_or_else(|| self::plain(setting.program, setting.meter), Ok)?;
        rows.rounds.push(round(setting, plain)?);
    }
    Ok(rows)
}

/// Both sides, after the program as it is.
fn round(setting: &Setting<'_>, plain: Ended) -> Result<Round> {
    let kernel = setting.with_kernel.then(|| kernel_run(setting)).transpose()?;
    let ram = setting.ram + kernel.as_ref().map_or(0, |k| k.pool_peak_bytes);
    let farpage = side::run(setting.program, &Pager::Farpage(ram, &setting.options), setting.meter)?;
    Ok(Round { plain, kernel, farpage, ram })
}

fn kernel_run(setting: &Setting<'_>) -> Result<Ended> {
    let swap = match setting.against {
        Against::Zram => SwapKind::Zram(setting.swap_bytes),
        Against::File => SwapKind::File(setting.dir.to_path_buf(), setting.swap_bytes),
    };
    let kernel = KernelSide::new(setting.ram, &swap)?;
    let ended = side::run(setting.program, &Pager::Kernel(&kernel), None)?;
    kernel.remove()?;
    Ok(ended)
}
