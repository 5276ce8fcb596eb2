//! `farpage size`: how much RAM a program needs, from one recorded run and four or five measured ones.
//!
//! The program runs as it is, and once with `--trace`. The simulator's policy `run` says what less memory would have to
//! do. What a fault costs here, and how much of a budget is memory, is taken from two real runs, or three. Two more,
//! at other budgets, are predicted first and made then. A prediction that was wrong calibrates, too, and the answer
//! that comes of it is checked again.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`model`] | curve, calibration, knees: numbers only |
//! | [`budgets`] | which budgets are run and shown: numbers only |
//! | [`report`] | the table, JSON |
//!
//! Called by the command. Runs are [`crate::program`]'s, the trace is read by [`crate::trace`]. No locks: threads
//! simulate, each a memory of its own.

mod budgets;
mod model;
mod report;

use crate::compare::row::Spread;
use crate::failure::{Failure, OrCannot, Result, why};
use crate::program::{self, Ended, Invocation};
use crate::trace::{self, Trace};
use crate::{output, progress};
use budgets::{KNEES, RAM_MIN, up};
use clap::Args;
use farpage::PAGE_SIZE;
use farpage_ipc::conf::{SwapSpec, size};
use farpage_swap::sim::{AccessKind, Counts, Run as Policy, replay};
use model::{Curve, Expected, Model, Run};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What stands below the help.
pub const EXAMPLES: &str = "\
It runs the program seven times or so: as it is (twice), recorded, and with four or five budgets. Two or \
    three of these say what a fault costs here. The other two are predicted first, and shown beside what was \
    measured; where that is off, up to three more. Standard input is empty.

The knee is the smallest budget at which it takes at most 1.5 times as long as with all of its memory. A \
    second one is at 1.1 times.

Columns: the budget, also in percent of all that the program takes; seconds, and as a multiple of what it \
    takes with all memory; faults on pages that were swapped out or about to be; what comes in and goes out. ~ \
    is less than was measured.

Only the program's first process is recorded. For programs of several processes that need memory there is \
    farpage bench program --ram 64M,128M,256M.

Examples:
  farpage size -- sort -S 1G big.txt
  farpage size --rounds 3 --json size.json -- python3 train.py
  farpage size --swap file:/mnt/nvme -- ./solve input.dat";

/// Memories that are simulated, and the smallest as a part of the pages.
const SIMULATED: i32 = 24;
const SIMULATED_LEAST: f64 = 0.05;
/// The budget while it is recorded: an eighth of it is mapped, and only what is smaller by far can be predicted.
const TRACE_PART: f64 = 0.5;
/// A program that takes less cannot be sized: too little would be left of it.
const PEAK_MIN: f64 = 1.5 * RAM_MIN;
/// Seconds for a fault, where the recorded run is no slower than the plain one.
const PRICE_MIN: f64 = 1e-6;
/// A prediction that is off by more was wrong, as a part of what was measured.
const GOAL: f64 = 0.25;
/// So often a wrong one is followed by another.
const REFINED_MOST: usize = 3;
/// Another process whose record is this part of the first one's needs memory, too.
const OTHERS: u64 = 10;

/// `farpage size`.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// Swap device, as of farpage run; may be repeated [default: zram, then file:/var/tmp]
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// How often each time is measured: medians are taken
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// No run takes longer: what is recorded by then is taken for all
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Write the result to FILE as JSON (-: to standard output, without the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM", value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// A line of the table.
struct Row {
    ram: f64,
    expected: Expected,
}

/// A run that was measured.
struct Checked {
    /// It was predicted before it was made; else it calibrates.
    check: bool,
    /// It was wrong, calibrates since, and another one was made.
    used: bool,
    /// Seconds.
    predicted: f64,
    /// Pages that came in.
    predicted_pages: f64,
    measured: Run,
    /// It did not end in time.
    stopped: bool,
}

impl Checked {
    /// How far the prediction is off, as a part of what was measured.
    fn error(&self) -> f64 {
        self.predicted / self.measured.seconds - 1.0
    }

    /// The prediction was wrong, and nothing has come of it yet.
    fn is_missed(&self) -> bool {
        self.check && !self.stopped && !self.used && self.error().abs() > GOAL
    }
}

/// All that was found out.
struct Found {
    program: Vec<String>,
    notes: Vec<String>,
    /// With all memory: seconds, bytes.
    plain_s: f64,
    peak: f64,
    trace_s: f64,
    accesses: usize,
    /// The trace ends before the program.
    partial: bool,
    /// Times the plain time, bytes.
    knees: [(f64, f64); 2],
    rows: Vec<Row>,
    runs: Vec<Checked>,
}

/// In words, that the library did not start in a program of this name.
pub type DidNotStart = fn(&dyn std::fmt::Display) -> String;

/// Runs the subcommand.
///
/// # Errors
/// Wrong options; a program that cannot be started, fails, or takes too little memory to be sized.
pub fn main(args: &SizeArgs, did_not_start: DidNotStart) -> Result<ExitCode> {
    for spec in &args.swap {
        SwapSpec::parse(spec).map_err(|e| Failure::usage(format!("--swap: {e}")))?;
    }
    if let Some(path) = args.json.as_deref().filter(|path| path.as_os_str() != "-") {
        let fail = |e| Failure::new(format!("--json: cannot write {}: {}", path.display(), why(&e)));
        output::open(path).map_err(fail)?;
    }
    program::catch_signals();
    let _progress = progress::begin("farpage size");
    let found = Sizing::new(args, did_not_start).run()?;
    found.write(args.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// What all runs have in common.
struct Sizing<'a> {
    args: &'a SizeArgs,
    did_not_start: DidNotStart,
    program: Invocation,
    options: Vec<OsString>,
    notes: Vec<String>,
    /// What the program wrote as it is.
    output: (u64, u64),
    steady: bool,
}

impl Sizing<'_> {
    fn new(args: &SizeArgs, did_not_start: DidNotStart) -> Sizing<'_> {
        let limit = Some(Duration::from_secs(args.limit));
        Sizing {
            args,
            did_not_start,
            program: Invocation { limit, ..Invocation::of(&args.program) },
            options: args.swap.iter().flat_map(|spec| ["--swap".into(), spec.into()]).collect(),
            notes: Vec::new(),
            output: (0, 0),
            steady: true,
        }
    }

    fn run(mut self) -> Result<Found> {
        let (plain_s, peak) = self.plain()?;
        let recorded = self.record(peak, plain_s)?;
        let Recorded { curve, pages, price, partial, seconds: trace_s, accesses } = recorded;
        let mut model = Model::new(curve, (plain_s, peak), pages, price, partial);
        let least = budgets::least(peak);
        let mut runs = Vec::new();

        let ram = budgets::first(&model, peak);
        let first = self.calibrate(&mut model, ram, peak, &mut runs)?;
        let ram = budgets::second(&model, first.0, first.1 / plain_s, peak);
        let second = self.calibrate(&mut model, ram, peak, &mut runs)?;
        if let Some(ram) = budgets::third(first, second, peak) {
            self.calibrate(&mut model, ram, first.0.max(second.0), &mut runs)?;
        }
        for ram in budgets::checks(&model, &budgets_of(&runs), peak) {
            runs.push(self.check(&model, ram)?);
        }
        for _ in 0..REFINED_MOST {
            let missed: Vec<&mut Checked> = runs.iter_mut().filter(|run| run.is_missed()).collect();
            if missed.is_empty() {
                break;
            }
            for run in missed {
                run.used = true;
                model.calibrate(&run.measured);
            }
            let Some(ram) = budgets::knee_to_check(&model, &budgets_of(&runs), peak) else { break };
            runs.push(self.check(&model, ram)?);
        }
        runs.iter().filter(|run| run.is_missed()).for_each(|run| model.calibrate(&run.measured));
        runs.sort_by_key(|run| run.check);
        if !self.steady {
            self.notes.push(String::from("what it writes is not the same each time: it may not do the same, either"));
        }

        let knees = KNEES.map(|times| (times, up(model.knee(times, least), peak)));
        let rows = budgets::rows(peak, least, &knees).into_iter().map(|ram| Row { ram, expected: model.expect(ram) });
        let rows = rows.collect();
        let program = self.args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Found { program, notes: self.notes, plain_s, peak, trace_s, accesses, partial, knees, rows, runs })
    }

    /// Seconds and bytes of the program as it is.
    fn plain(&mut self) -> Result<(f64, f64)> {
        let meter = program::meter();
        let mut seconds = Vec::new();
        let mut peak = 0;
        // Once more, so that no run has to read the program's files from a disk.
        for round in 0..=self.args.rounds {
            let ended = program::plain(&self.program, meter.as_ref())?;
            if ended.stopped {
                let text = format!("as it is, {} does not end within {} s", self.program.name(), self.args.limit);
                return Err(Failure::new(text).help("--limit SECONDS gives it more time"));
            }
            if !ended.status.success() {
                let text = format!("as it is, {} ended with {}: nothing to size", self.program.name(), ended.status);
                return Err(Failure::new(text));
            }
            peak = peak.max(ended.peak_rss_anon);
            self.steady &= round == 0 || ended.output == self.output;
            self.output = ended.output;
            if round > 0 {
                seconds.push(ended.wall_s);
            }
        }
        let peak = peak as f64;
        if peak < PEAK_MIN {
            let [takes, least] = [peak, RAM_MIN].map(|bytes| size::format(bytes as u64));
            let name = self.program.name();
            let text = match peak {
                0.0 => format!("{name} ends before it can be seen what it takes: the least budget, {least}, will do"),
                _ => format!("{name} takes no more than {takes}: the least budget, {least}, will do"),
            };
            return Err(Failure::new(text));
        }
        Ok((median(seconds), peak))
    }

    /// Whatever is made under farpage.
    fn managed(&self, ram: f64, options: &[OsString]) -> Result<Ended> {
        let ended = program::managed(&self.program, ram as u64, options, None)?;
        let name = self.program.name();
        if !ended.stopped && !ended.status.success() {
            let text = format!("under farpage, {name} ended with {}, as it is with success", ended.status);
            return Err(Failure::new(text));
        }
        if !ended.stopped && !ended.managed {
            let failure = Failure::new((self.did_not_start)(&name));
            return Err(failure.help("farpage run --verbose -- PROGRAM says more"));
        }
        Ok(ended)
    }

    /// The recorded run, and what the simulator makes of it.
    fn record(&mut self, peak: f64, plain_s: f64) -> Result<Recorded> {
        let directory = tempfile::Builder::new().prefix("farpage-size-").tempdir_in("/var/tmp");
        let directory = directory.or_else(|_| tempfile::tempdir());
        let directory = directory.or_cannot("make a directory")?;
        let path = directory.path().join("trace");
        let options: Vec<OsString> =
            self.options.iter().cloned().chain(["--trace".into(), path.clone().into_os_string()]).collect();
        progress::step("recorded: each page that it touches is a fault");
        let ended = self.managed((TRACE_PART * peak).max(RAM_MIN).floor(), &options)?;
        self.others(directory.path(), &path)?;
        progress::step("reading the record");
        let trace = trace::read(&path)?;
        if ended.stopped {
            let text = format!(
                "recording was stopped after {} s (--limit): pages in and out are of that part only, times are scaled",
                self.args.limit
            );
            self.notes.push(text);
        }
        let accesses = trace.accesses.len();
        let pages = f64::from(live(&trace));
        let price = ((ended.wall_s - plain_s) / accesses as f64).max(PRICE_MIN);
        let curve = simulate(&trace, pages);
        Ok(Recorded { curve, pages, price, partial: ended.stopped, seconds: ended.wall_s, accesses })
    }

    /// Refuses programs of several processes.
    fn others(&self, directory: &Path, first: &Path) -> Result<()> {
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        let entries = fs::read_dir(directory).map(|entries| entries.flatten().map(|entry| entry.path()));
        let paths: Vec<PathBuf> = entries.map(Iterator::collect).unwrap_or_default();
        let others: u64 = paths.iter().filter(|path| *path != first).map(|path| bytes(path)).sum();
        if others * OTHERS <= bytes(first) {
            return Ok(());
        }
        let text =
            format!("{} has several processes that need memory: one record does not say it all", self.program.name());
        Err(Failure::new(text).help("farpage bench program --ram 64M,128M,256M -- PROGRAM measures it"))
    }

    /// A run that calibrates; with more memory, up to `most`, if it does not end in time. The budget that it had,
    /// and its time.
    fn calibrate(&mut self, model: &mut Model, ram: f64, most: f64, runs: &mut Vec<Checked>) -> Result<(f64, f64)> {
        let mut ram = ram;
        loop {
            let expected = model.expect(ram);
            let run = self.budget(ram)?;
            runs.push(Checked::of(false, &expected, &run));
            if !run.stopped {
                model.calibrate(&run.numbers);
                return Ok((ram, run.numbers.seconds));
            }
            let Some(more) = budgets::more(ram, most) else {
                let text = format!("with {} it does not end within {} s", size::format(ram as u64), self.args.limit);
                return Err(Failure::new(text).help("--limit SECONDS gives it more time"));
            };
            ram = more;
        }
    }

    /// A run that is predicted first.
    fn check(&mut self, model: &Model, ram: f64) -> Result<Checked> {
        let expected = model.expect(ram);
        Ok(Checked::of(true, &expected, &self.budget(ram)?))
    }

    /// All rounds with a budget.
    fn budget(&mut self, ram: f64) -> Result<Budgeted> {
        let mut rounds = Vec::new();
        for _ in 0..self.args.rounds {
            progress::step(format_args!("with {}", size::format(ram as u64)));
            let ended = self.managed(ram, &self.options)?;
            let counted = ended.counted;
            self.steady &= ended.stopped || ended.output == self.output;
            let [pages_in, reads, file_reads] =
                [counted.pages_in, counted.reads, counted.file_reads].map(|count| count as f64);
            rounds.push((ended.stopped, Run { ram, seconds: ended.wall_s, pages_in, reads, file_reads }));
            if ended.stopped {
                break;
            }
        }
        let of = |value: fn(&Run) -> f64| median(rounds.iter().map(|(_, run)| value(run)).collect());
        let numbers = Run {
            ram,
            seconds: of(|run| run.seconds),
            pages_in: of(|run| run.pages_in),
            reads: of(|run| run.reads),
            file_reads: of(|run| run.file_reads),
        };
        Ok(Budgeted { numbers, stopped: rounds.iter().any(|(stopped, _)| *stopped) })
    }
}

/// What a recorded run says.
struct Recorded {
    curve: Curve,
    /// Most pages at a time.
    pages: f64,
    /// Seconds for a fault.
    price: f64,
    partial: bool,
    seconds: f64,
    accesses: usize,
}

/// Medians of the rounds with one budget.
struct Budgeted {
    numbers: Run,
    stopped: bool,
}

impl Checked {
    fn of(check: bool, expected: &Expected, run: &Budgeted) -> Checked {
        Checked {
            check,
            used: false,
            predicted: expected.seconds,
            predicted_pages: expected.work.pages_in,
            measured: run.numbers,
            stopped: run.stopped,
        }
    }
}

/// Of runs that ended.
fn budgets_of(runs: &[Checked]) -> Vec<f64> {
    runs.iter().filter(|run| !run.stopped).map(|run| run.measured.ram).collect()
}

/// The median; of nothing, 0.
fn median(values: Vec<f64>) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// Most pages that have content at a time.
fn live(trace: &Trace) -> u32 {
    let mut there = vec![false; trace.pages as usize];
    let (mut now, mut most) = (0u32, 0);
    for access in &trace.accesses {
        let page = &mut there[access.page() as usize];
        match access.kind() {
            AccessKind::Free => now -= u32::from(std::mem::take(page)),
            _ => now += u32::from(!std::mem::replace(page, true)),
        }
        most = most.max(now);
    }
    most
}

/// Memories from all pages down, on all CPUs.
fn simulate(trace: &Trace, pages: f64) -> Curve {
    let memory = |i: i32| ((pages * SIMULATED_LEAST.powf(f64::from(i) / f64::from(SIMULATED - 1))) as u32).max(1);
    let memories: Vec<u32> = (0..SIMULATED).map(memory).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(u32, Counts)>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(memory) = memories.get(next.fetch_add(1, Relaxed)) {
                    let bytes = u64::from(*memory) * PAGE_SIZE as u64;
                    progress::step(format_args!("simulating {}", size::format(bytes)));
                    let counts = replay(&mut Policy::new(*memory, &trace.numbers), &trace.accesses, trace.pages);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((*memory, counts));
                }
            });
        }
    });
    Curve::new(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use farpage_swap::sim::Access;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SizeArgs,
    }

    fn parse(line: &str) -> std::result::Result<SizeArgs, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| line.args)
    }

    #[test]
    fn the_program_is_behind_the_dashes() {
        let args = parse("size --swap zram --rounds 2 -- sort -S 1G --json").unwrap();
        assert_eq!((args.rounds, args.program.len(), args.json.is_none()), (2, 4, true));
        assert!(parse("size").is_err() && parse("size --rounds 0 -- sort").is_err());
    }

    #[test]
    fn pages_that_are_there_at_a_time_are_counted() {
        let accesses = vec![Access::new(0, true), Access::new(1, true), Access::free(0), Access::new(2, true)];
        let trace = Trace::synthetic("x", accesses);
        assert_eq!((trace.pages, live(&trace)), (3, 2));
    }
}
