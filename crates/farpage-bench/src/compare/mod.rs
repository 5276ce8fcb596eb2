//! `farpage-bench compare`: the same workloads on the kernel's swap and on farpage, with equal memory, alternating.
//!
//! The kernel's run comes first in each round: its limit is B, and its zram pool grows to Z outside of the limit.
//! farpage then gets B + Z for everything. The ratio of a round is the kernel's time per access divided by farpage's.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`child`], [`workload`], [`content`], [`latencies`] | the workload process: what it does, checks and measures |
//! | [`kernel`] | cgroup, swap device, and the guard that takes them away |
//! | [`side`] | one run of the process, watched from outside |
//! | [`row`], [`report`] | medians and ranges; text and JSON |

pub mod child;
mod content;
pub mod kernel;
pub mod latencies;
mod report;
pub mod row;
mod setting;
pub mod side;
mod workload;

use crate::destination::Destination;
use crate::failure::{Failure, Result, say, why};
use crate::progress;
use child::{MemoryKind, Spec};
use clap::Args;
use farpage_command::machine::System;
use farpage_ipc::conf::parse_idle_poll;
use farpage_ipc::conf::size;
use kernel::{KernelSide, SwapKind};
use row::{Round, Row};
use setting::{Against, Mode, Setting};
use side::{INTERRUPTED, Pager, Sample};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use workload::Workload;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Memory is equal: the kernel's limit is --ram, its zram pool comes on top of it; farpage gets the sum of \
    both.
Ratio: the kernel's time divided by farpage's, above 1 farpage is faster. Needs root for the kernel's side; \
    without it only farpage is measured.
irq/page: interrupts that have a CPU forget translations, of the whole machine, for each access.
serial us: what one thread at a time can do, for each fault. With --mode run, CPU time of the thread that looks at \
    all faults; if the workload has one thread, what it does while it waits is in it. With --mode region, for how \
    long locks are held that all faults take.

Examples:
  sudo farpage-bench compare
  sudo farpage-bench compare --workload seq-read --rounds 5 --json report.json
  sudo farpage-bench compare --against file --ram 256M --data 1G
  sudo farpage-bench compare --workload fault --threads 4
  sudo farpage-bench compare --mode run --workload rand-read --threads 1,2,4,8,16";

/// `farpage-bench compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The kernel's memory limit
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    pub ram: String,
    /// Bytes of the workload's data
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub data: String,
    /// Threads of the workload; several numbers, separated by commas, show how both sides scale
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: Vec<u64>,
    /// Workloads [default: all]
    #[arg(long, value_name = "W", value_enum, value_delimiter = ',')]
    pub workload: Vec<Workload>,
    /// How farpage gets at the memory
    #[arg(long, value_enum, default_value_t = Mode::Region)]
    pub mode: Mode,
    /// What the kernel swaps to
    #[arg(long, value_enum, default_value_t = Against::Zram)]
    pub against: Against,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rounds: u64,
    /// Share of the data that does not compress, 0 to 1; by default LZ4 makes a third of it
    #[arg(long, value_name = "SHARE", default_value_t = content::ENTROPY, conflicts_with = "corpus")]
    pub entropy: f64,
    /// Take the data from FILE
    #[arg(long, value_name = "FILE")]
    pub corpus: Option<PathBuf>,
    /// farpage's swap devices [default: as farpage run; with --against file or mmap: file:DIR]
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<String>,
    /// With --mode run: whether idle CPUs are kept from sleeping, as farpage run has it [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub idle_poll: Option<String>,
    /// Where files for --against file and mmap go
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Measure farpage only
    #[arg(long)]
    pub no_kernel: bool,
    /// Write the results as JSON (-: standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
/// Bad options, or a side that could not be set up. A failed run is reported in the table, and by the exit status.
pub fn main(args: &CompareArgs) -> Result<ExitCode> {
    let bytes = |name: &str, text: &str| size::parse(text).map_err(|e| Failure::new(format!("{name}: {e}")));
    let (ram, data) = (bytes("--ram", &args.ram)?, bytes("--data", &args.data)?);
    if ram < 16 << 20 {
        return Err(Failure::new("--ram: at least 16M"));
    }
    if !(1 << 20..=1 << 40).contains(&data) {
        return Err(Failure::new("--data: from 1M to 1T"));
    }
    if !(0.0..=1.0).contains(&args.entropy) {
        return Err(Failure::new("--entropy: from 0 (compresses best) to 1 (does not compress)"));
    }
    let idle = args.idle_poll.as_deref().map(parse_idle_poll).transpose();
    let idle = idle.map_err(|e| Failure::new(e.to_string()))?;
    if idle.is_some() && args.mode != Mode::Run {
        return Err(Failure::new("--idle-poll: only with --mode run"));
    }
    let mut workloads = if args.workload.is_empty() { Workload::ALL.to_vec() } else { args.workload.clone() };
    if args.against == Against::Mmap {
        // It maps and unmaps memory without a file.
        if args.workload.contains(&Workload::Fault) {
            return Err(Failure::new("--against mmap: the workload fault is one of anonymous memory"));
        }
        workloads.retain(|workload| *workload != Workload::Fault);
    }
    if let Some(corpus) = &args.corpus {
        let bad = |e: &std::io::Error| Failure::new(format!("--corpus: cannot use {}: {}", corpus.display(), why(e)));
        content::Content::corpus(0, corpus).map_err(|e| bad(&e))?;
        kernel::warm(corpus);
    }
    let destination = Destination::new(args.json.as_deref())?;
    side::catch_signals();
    let _progress = progress::begin("farpage-bench compare");
    let left_out = kernel::left_out(args.no_kernel, args.against == Against::Zram);
    let with_kernel = left_out.is_none();
    let mut setting = Setting {
        ram,
        data: data.next_multiple_of(farpage::PAGE_SIZE as u64),
        mode: args.mode,
        against: args.against,
        rounds: args.rounds,
        notes: vec![machine()],
    };
    if args.mode == Mode::Run && farpage_run::cpus::cpu_latency::is_possible(idle.unwrap_or_default()) {
        setting
            .notes
            .push(String::from("idle CPUs are kept from sleeping while farpage's faults come fast (--idle-poll)"));
    }
    if let Some(reason) = left_out {
        setting.notes.push(format!(
            "the kernel's side was not measured ({reason}): farpage had the {} of --ram in all",
            size::format(ram)
        ));
    }
    setting.notes.iter().for_each(|note| destination.tell(note));
    destination.tell(report::HEADER);
    let (mut rows, mut failed) = (Vec::new(), false);
    for (workload, threads) in workloads.into_iter().flat_map(|w| args.threads.iter().map(move |n| (w, *n))) {
        let before = cpu_ticks();
        let mut rounds = Vec::new();
        for number in 0..args.rounds {
            let spec = spec(args, &setting, (workload, threads), number);
            progress::step(format_args!(
                "{}, threads {threads}, round {} of {}",
                workload.name(),
                number + 1,
                args.rounds
            ));
            match round(args, &setting, &spec, with_kernel) {
                Ok(round) => rounds.push(round),
                Err(failure) if INTERRUPTED.load(Relaxed) => return Err(failure),
                Err(failure) => {
                    say(format_args!("{}, threads {threads}, round {}: {failure}", workload.name(), number + 1));
                    failed = true;
                }
            }
        }
        if !rounds.is_empty() {
            let row = Row { workload, threads, rounds };
            destination.tell(&report::line(&row));
            rows.push(row);
        }
        if let Some(note) = stolen(&format!("{}, threads {threads}", workload.name()), before, cpu_ticks()) {
            destination.tell(&note);
            setting.notes.push(note);
        }
        // What there is so far is worth having, should the rest be interrupted.
        destination.save(&report::json(&setting, &rows))?;
    }
    if !rows.is_empty() {
        destination.finish(&report::json(&setting, &rows))?;
    }
    if failed || rows.is_empty() { Ok(ExitCode::FAILURE) } else { Ok(ExitCode::SUCCESS) }
}

fn spec(args: &CompareArgs, setting: &Setting, (workload, threads): (Workload, u64), round: u64) -> Spec {
    Spec {
        workload,
        data: setting.data,
        threads,
        seed: 0xfa0 + round,
        entropy: args.entropy,
        corpus: args.corpus.clone(),
        piece: (setting.ram / 2).min(setting.data).next_multiple_of(farpage::PAGE_SIZE as u64),
        memory: MemoryKind::Anonymous,
    }
}

/// Both sides, once.
fn round(args: &CompareArgs, setting: &Setting, spec: &Spec, with_kernel: bool) -> Result<Round> {
    let kernel = with_kernel.then(|| kernel_run(args, setting, spec)).transpose()?;
    let pool = kernel.as_ref().map_or(0, |k| k.pool_peak_bytes);
    let ram = setting.ram + pool;
    let swap = match (&args.swap[..], setting.against) {
        ([], Against::File | Against::Mmap) => vec![format!("file:{}", args.dir.display())],
        (given, _) => given.to_vec(),
    };
    let farpage = match args.mode {
        Mode::Run => {
            let mut options: Vec<&str> = swap.iter().flat_map(|spec| ["--swap", spec]).collect();
            options.extend(args.idle_poll.iter().flat_map(|when| ["--idle-poll", when]));
            side::run(spec, &Pager::Run(ram, &options))
        }
        Mode::Region => {
            let spec = Spec { memory: MemoryKind::Region(ram, swap), ..spec.clone() };
            side::run(&spec, &Pager::Itself)
        }
    };
    let farpage = farpage.map_err(|f| Failure { sentence: format!("farpage's side: {}", f.sentence), ..f })?;
    Ok(Round { kernel, farpage, ram })
}

fn kernel_run(args: &CompareArgs, setting: &Setting, spec: &Spec) -> Result<Sample> {
    let swap = match setting.against {
        Against::Zram => SwapKind::Zram(setting.data * 2 + (64 << 20)),
        Against::File => SwapKind::File(args.dir.clone(), setting.data * 2 + (64 << 20)),
        Against::Mmap => SwapKind::None,
    };
    let mut spec = spec.clone();
    if setting.against == Against::Mmap {
        spec.memory = MemoryKind::File(args.dir.clone());
    }
    let kernel = KernelSide::new(setting.ram, &swap)?;
    let result = side::run(&spec, &Pager::Kernel(&kernel));
    let sample = result.map_err(|f| Failure { sentence: format!("the kernel's side: {}", f.sentence), ..f })?;
    kernel.remove()?;
    Ok(sample)
}

/// Processor time so far that the host gave to others while a virtual CPU wanted to run, and all of it; in
/// ticks.
pub fn cpu_ticks() -> (u64, u64) {
    const STEAL: usize = 7;
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
    // Behind it come the guests' times, which are counted as user time already.
    let ticks: Vec<u64> = all.take(STEAL + 1).map(|n| n.parse().unwrap_or(0)).collect();
    (ticks.get(STEAL).copied().unwrap_or(0), ticks.iter().sum())
}

/// What to say of a measurement if the host was busy: such times are not only the two sides'.
pub fn stolen(what: &str, before: (u64, u64), after: (u64, u64)) -> Option<String> {
    let (stolen, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    let percent = 100.0 * stolen as f64 / all.max(1) as f64;
    (percent >= 1.0).then(|| format!("{what}: the host took {percent:.0} % of the processor time meanwhile"))
}

/// The machine in one line.
pub fn machine() -> String {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("{}, load {} at the start", System::here(), loads.split(' ').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_takes_is_said_from_one_percent_on() {
        assert_eq!(stolen("fill", (10, 1000), (14, 1500)), None);
        let said = stolen("fill", (10, 1000), (60, 1500)).unwrap();
        assert_eq!(said, "fill: the host took 10 % of the processor time meanwhile");
        let (stolen, all) = cpu_ticks();
        assert!(stolen <= all && all > 0);
    }
}
