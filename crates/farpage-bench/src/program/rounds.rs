//! What all rounds have in common, and how they are measured: by turns the program as it is, on the kernel's swap, and
//! under `farpage run`. Called by [`super`], [`super::curve`] and [`super::suite`].

use super::report::{Round, Rows};
use super::side::{self, Ended, Invocation, Pager};
use crate::compare::kernel::{self, KernelSide, SwapKind};
use crate::failure::{Failure, Result};
use crate::progress;
use clap::{Args, ValueEnum};
use farpage_ipc::conf::{SwapSpec, parse_idle_poll, size};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Least memory for either side.
const RAM_MIN: u64 = 16 << 20;
/// `--ram`, if it is not given: percent of what the program takes as it is.
pub const RAM_PERCENT: u64 = 25;

/// `farpage bench program`.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The kernel's memory limit: a size, or a percentage of what the program takes as it is; several, joined by
    /// commas, give a curve [default: 25%, some programs of the suite 50%; at least 16M]
    #[arg(short = 'm', long, visible_alias = "memory", value_name = "SIZE", value_delimiter = ',')]
    pub ram: Vec<String>,
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
    /// Where the swap file for --against file goes, and the suite's files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Measure the program as it is and farpage only
    #[arg(long)]
    pub no_kernel: bool,
    /// Write the results as JSON (-: standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure the programs of the suite
    #[arg(long, conflicts_with = "program")]
    pub suite: bool,
    /// Of the suite, only these
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "suite", conflicts_with = "program")]
    pub only: Vec<String>,
    /// A Python that has the suite's packages [default: python3, then /usr/bin/python3]
    #[arg(long, value_name = "PATH", requires = "suite", conflicts_with = "program")]
    pub python: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "suite", value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl ProgramArgs {
    /// `--ram`, where it is one.
    pub fn one_ram(&self) -> Option<&str> {
        self.ram.first().map(String::as_str)
    }
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
    pub program: &'a Invocation,
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

/// Refuses options that cannot be understood, before anything is measured.
pub fn check(args: &ProgramArgs) -> Result<()> {
    for ram in &args.ram {
        limit(Some(ram), u64::MAX >> 1, RAM_PERCENT)?;
    }
    swap_size(args)?;
    for spec in &args.swap {
        SwapSpec::parse(spec).map_err(|e| Failure::new(format!("--swap: {e}")))?;
    }
    if let Some(when) = &args.idle_poll {
        parse_idle_poll(when).map_err(|e| Failure::new(format!("--idle-poll: {e}")))?;
    }
    Ok(())
}

/// The kernel's limit for a program that takes `peak` bytes as it is, bytes; `percent` of them, if nothing is said.
fn limit(ram: Option<&str>, peak: u64, percent: u64) -> Result<u64> {
    let part = |bytes: u64| bytes.next_multiple_of(1 << 20).max(RAM_MIN);
    let Some(text) = ram else { return Ok(part(peak / 100 * percent)) };
    let bytes = size::parse_of(text, Some(peak)).map_err(|e| Failure::new(format!("--ram: {e}")))?;
    if text.ends_with('%') { Ok(part(bytes)) } else { at_least(RAM_MIN, "--ram", bytes) }
}

/// What `--swap-size` says, bytes.
fn swap_size(args: &ProgramArgs) -> Result<Option<u64>> {
    let parse = |text: &str| size::parse(text).map_err(|e| Failure::new(format!("--swap-size: {e}")));
    args.swap_size.as_deref().map(|text| at_least(RAM_MIN, "--swap-size", parse(text)?)).transpose()
}

fn at_least(least: u64, name: &str, bytes: u64) -> Result<u64> {
    if bytes < least { Err(Failure::new(format!("{name}: at least {}", size::format(least)))) } else { Ok(bytes) }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What counts the memory of all processes; `None`: only the first one's can be counted.
pub fn meter() -> Option<KernelSide> {
    is_root().then(KernelSide::meter)?.ok()
}

fn left_out(args: &ProgramArgs) -> Option<&'static str> {
    kernel::left_out(args.no_kernel, args.against == Against::Zram)
}

/// Why the kernel's side is not measured, if it is not.
pub fn no_kernel(args: &ProgramArgs) -> Option<String> {
    let reason = left_out(args)?;
    Some(format!("the kernel's side was not measured ({reason}): farpage had the --ram in all"))
}

/// What is the same in all rounds with `ram` of a program that takes `peak` bytes as it is; `percent`: [`limit`].
pub fn setting<'a>(
    args: &'a ProgramArgs,
    ram: Option<&str>,
    program: &'a Invocation,
    peak: u64,
    percent: u64,
    meter: Option<&'a KernelSide>,
) -> Result<Setting<'a>> {
    Ok(Setting {
        program,
        against: args.against,
        dir: &args.dir,
        ram: limit(ram, peak, percent)?,
        swap_bytes: swap_size(args)?.unwrap_or(swap_for(peak)),
        options: options(args),
        with_kernel: left_out(args).is_none(),
        meter,
    })
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
pub fn plain(program: &Invocation, meter: Option<&KernelSide>) -> Result<Ended> {
    progress::step(format_args!("{} as it is", program.name()));
    side::run(program, &Pager::Plain, meter)
}

/// The program under `farpage run` with a budget of `ram` bytes and these options.
///
/// # Errors
/// As [`plain`].
pub fn managed(program: &Invocation, ram: u64, options: &[OsString], meter: Option<&KernelSide>) -> Result<Ended> {
    side::run(program, &Pager::Farpage(ram, options), meter)
}

/// All rounds; the first begins with `plain`.
///
/// # Errors
/// A side could not be set up or started, or the bench was interrupted.
pub fn measure(setting: &Setting<'_>, first_output: (u64, u64), plain: Ended, rounds: u64) -> Result<Rows> {
    let mut rows = Rows { first_output, ..Rows::default() };
    let mut plain = Some(plain);
    for round in 1..=rounds {
        let plain = plain.take().map_or_else(|| self::plain(setting.program, setting.meter), Ok)?;
        let ram = size::format(setting.ram);
        progress::step(format_args!("{} with {ram}, round {round} of {rounds}", setting.program.name()));
        rows.rounds.push(self::round(setting, plain)?);
    }
    Ok(rows)
}

/// Both sides, after the program as it is.
fn round(setting: &Setting<'_>, plain: Ended) -> Result<Round> {
    let kernel = setting.with_kernel.then(|| kernel_run(setting)).transpose()?;
    let ram = setting.ram + kernel.as_ref().map_or(0, |k| k.pool_peak_bytes);
    let farpage = managed(setting.program, ram, &setting.options, setting.meter)?;
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
