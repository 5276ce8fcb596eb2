//! `farpage size`: how much RAM a program needs, from one recorded run and four or five measured ones.
//!
//! The program runs as it is, and once with `--trace`. The simulator's policy `run` says what less memory would have to
//! do. What a fault costs here, and how much of a budget is memory, is taken from two real runs, or three. The budgets
//! that would be the answer are predicted first and measured then. A prediction that was wrong calibrates, too, and the
//! answer that comes of it is measured again. A program of several processes is not recorded: budgets are tried. The
//! answer is always one that was measured.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`model`] | curve, calibration, expectations: numbers only |
//! | [`budgets`] | which budgets are run and shown: numbers only |
//! | [`answer`] | what was measured, as a curve and an answer: numbers only |
//! | [`report`] | the table, JSON |
//!
//! Called by the command. Runs are [`crate::program`]'s, the trace is read by [`crate::trace`]. No locks: threads
//! simulate, each a memory of its own.

mod answer;
mod budgets;
mod model;
mod report;

use crate::compare::row::Spread;
use crate::failure::{Failure, OrCannot, Result, say, why};
use crate::program::{self, Counted, Ended, Invocation};
use crate::trace::{self, Trace};
use crate::{output, progress};
use answer::{Measured, Row};
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
farpage size runs the program about eight times: three times as it is, once recorded, and with four or five \
    budgets. Two or three of these budgets show what a fault costs here. The others are candidates for the answer: \
    their time is predicted, then measured, and both are shown. If a prediction is off, up to three more runs \
    follow. In all this takes 20 to 60 times as long as the program; an estimate is printed after the first run. \
    Standard input is empty.

The knee is the smallest budget at which the program takes at most 1.5 times as long as with all of its \
    memory. A second answer is for 1.1 times. Both budgets have been measured.

Columns: the budget, also as a percentage of the program's memory; the time in seconds, also as a multiple of \
    the time with all memory; faults on pages that were swapped out or about to be; MiB read from and written to \
    swap devices. ~ marks predictions, which lie between measured budgets.

A program that starts others is measured as a whole, with up to eight budgets and without predictions.

Examples:
  farpage size -- sort -S 1G big.txt
  farpage size --quick -- make -j4
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
/// How long all runs take, in multiples of the plain time: from, to.
const ALL_RUNS: [f64; 2] = [20.0, 60.0];
/// The budget of `--quick`, of the peak, and how long it may take, in multiples of the plain time.
const QUICK_PART: f64 = 0.5;
const QUICK_TIMES: f64 = 2.0;
/// Another process whose record is this part of the first one's needs memory, too.
const OTHERS: u64 = 10;

/// `farpage size`.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// Swap device, as in farpage run; may be repeated [default: zram, then file:/var/tmp]
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Number of measurements of each time; the median counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Run the program only twice, as it is and with half of its memory; takes three times as long as the program
    #[arg(long, conflicts_with_all = ["rounds"])]
    quick: bool,
    /// Time limit of each run; a recording that reaches it stands for the whole run
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Write the result to FILE as JSON (-: to standard output, without the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM", value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// A run that was measured.
struct Checked {
    /// It was predicted before it was made; else it calibrates.
    check: bool,
    /// It was wrong, calibrates since, and another one was made.
    used: bool,
    /// Seconds; `None`: nothing was predicted.
    predicted: Option<f64>,
    /// Pages that came in.
    predicted_pages: f64,
    measured: Run,
    /// It did not end in time.
    stopped: bool,
}

impl Checked {
    /// How far the prediction is off, as a part of what was measured.
    fn error(&self) -> f64 {
        self.predicted.map_or(0.0, |predicted| predicted / self.measured.seconds - 1.0)
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
    recorded: Option<Record>,
    /// Times the plain time, bytes: budgets that were measured, or the peak.
    knees: [(f64, f64); 2],
    /// The smallest budget that was measured, bytes.
    least: f64,
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
    output: Option<(u64, u64)>,
    steady: bool,
    /// How long it took as it is, and most memory that it had, bytes.
    plain: Vec<f64>,
    peak: f64,
    runs: Vec<Checked>,
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
            output: None,
            steady: true,
            plain: Vec::new(),
            peak: 0.0,
            runs: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Found> {
        let first = self.as_it_is()?;
        let from = if self.args.quick { [1.0 + QUICK_TIMES; 2] } else { ALL_RUNS.map(|times| times * self.rounds()) };
        let [from, to] = from.map(|times| seconds((times * first).max(1.0)));
        let all = if from == to { from } else { format!("{from} to {to}; --quick takes {}", seconds(3.0 * first)) };
        say(format_args!("farpage size: as it is, it takes {}; all runs together take {all}", seconds(first)));
        if self.args.quick {
            self.plain.push(first);
            self.quick(first)?;
            return Ok(self.found(None, None));
        }
        // The first one may have had to read the program's files from a disk.
        let begin = self.plain_rounds()?;
        let recorded = self.record(self.peak, begin)?;
        let model = match recorded {
            Some((curve, pages, price, record)) => {
                let mut model = Model::new(curve, (begin, self.peak), pages, price, record.partial);
                self.predict(&mut model, begin)?;
                Some((model, record))
            }
            None => {
                self.notes.push(String::from("it starts others that need memory: all were measured together"));
                self.search(begin)?;
                None
            }
        };
        let end = self.plain_rounds()?;
        if (end / begin - 1.0).abs() > GOAL {
            let text = format!(
                "as it is, it took {begin:.1} s at first and {end:.1} s at the end: other programs here\n\
                 change its times; --rounds 3 measures more often"
            );
            self.notes.push(text);
        }
        let (model, record) = model.unzip();
        Ok(self.found(model.as_ref(), record))
    }

    fn rounds(&self) -> f64 {
        self.args.rounds as f64
    }

    fn found(mut self, model: Option<&Model>, recorded: Option<Record>) -> Found {
        if !self.steady {
            self.notes.push(String::from("what it writes is not the same each time: it may not do the same, either"));
        }
        self.runs.sort_by_key(|run| run.check);
        let plain_s = median(self.plain.clone());
        let measured = self.measured(plain_s);
        Found {
            program: self.args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            plain_s,
            peak: self.peak,
            recorded,
            knees: KNEES.map(|times| (times, measured.knee(times))),
            least: measured.least(),
            rows: measured.rows(model),
            notes: self.notes,
            runs: self.runs,
        }
    }

    fn measured(&self, plain_s: f64) -> Measured {
        Measured::new((plain_s, self.peak), self.runs.iter().map(|run| (run.measured, run.stopped)))
    }

    /// With half of its memory, and for no longer than it takes to know that this is too little.
    fn quick(&mut self, plain_s: f64) -> Result<()> {
        self.program.limit = self.program.limit.min(Some(Duration::from_secs_f64(QUICK_TIMES * plain_s)));
        let run = self.budget(up(QUICK_PART * self.peak, self.peak))?;
        self.runs.push(Checked::of(false, None, &run));
        Ok(())
    }

    /// Budgets that are tried one after the other.
    fn search(&mut self, plain_s: f64) -> Result<()> {
        while let Some(ram) = self.measured(plain_s).next() {
            let run = self.budget(ram)?;
            self.runs.push(Checked::of(false, None, &run));
        }
        Ok(())
    }

    /// Budgets that calibrate, and those that would be the answer.
    fn predict(&mut self, model: &mut Model, plain_s: f64) -> Result<()> {
        let peak = self.peak;
        let first = self.calibrate(model, budgets::first(model, peak), peak)?;
        let second = self.calibrate(model, budgets::second(model, first.0, first.1 / plain_s, peak), peak)?;
        if let Some(ram) = budgets::third(first, second, peak) {
            self.calibrate(model, ram, first.0.max(second.0))?;
        }
        for ram in budgets::checks(model, &budgets_of(&self.runs), peak) {
            self.check(model, ram)?;
        }
        for _ in 0..REFINED_MOST {
            for run in self.runs.iter_mut().filter(|run| run.is_missed()) {
                run.used = true;
                model.calibrate(&run.measured);
            }
            let knee = budgets::knee_to_check(model, &budgets_of(&self.runs), peak);
            let Some(ram) = knee.or_else(|| self.measured(plain_s).between()) else { break };
            self.check(model, ram)?;
        }
        self.runs.iter().filter(|run| run.is_missed()).for_each(|run| model.calibrate(&run.measured));
        Ok(())
    }

    /// All rounds of the program as it is: the median.
    fn plain_rounds(&mut self) -> Result<f64> {
        let times = (0..self.args.rounds).map(|_| self.as_it_is()).collect::<Result<Vec<f64>>>()?;
        self.plain.extend(&times);
        Ok(median(times))
    }

    /// The program as it is: seconds.
    fn as_it_is(&mut self) -> Result<f64> {
        let ended = program::plain(&self.program, program::meter().as_ref())?;
        if ended.stopped {
            let text = format!("as it is, {} does not end within {} s", self.program.name(), self.args.limit);
            return Err(Failure::new(text).help("--limit SECONDS gives it more time"));
        }
        if !ended.status.success() {
            let text = format!("as it is, {} ended with {}: nothing to size", self.program.name(), ended.status);
            return Err(Failure::new(text));
        }
        self.peak = self.peak.max(ended.peak_rss_anon as f64);
        self.steady &= self.output.is_none_or(|output| output == ended.output);
        self.output = Some(ended.output);
        if self.peak < PEAK_MIN {
            let [takes, least] = [self.peak, RAM_MIN].map(|bytes| size::format(bytes as u64));
            let name = self.program.name();
            let text = match self.peak {
                0.0 => format!("{name} ends before it can be seen what it takes: the least budget, {least}, will do"),
                _ => format!("{name} takes no more than {takes}: the least budget, {least}, will do"),
            };
            return Err(Failure::new(text));
        }
        Ok(ended.wall_s)
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

    /// The recorded run, and what the simulator makes of it: the curve, most pages at a time, seconds for a fault.
    /// `None`: other processes need memory, too, and one record does not say it all.
    fn record(&mut self, peak: f64, plain_s: f64) -> Result<Option<(Curve, f64, f64, Record)>> {
        let directory = tempfile::Builder::new().prefix("farpage-size-").tempdir_in("/var/tmp");
        let directory = directory.or_else(|_| tempfile::tempdir());
        let directory = directory.or_cannot("make a directory")?;
        let path = directory.path().join("trace");
        let options: Vec<OsString> =
            self.options.iter().cloned().chain(["--trace".into(), path.clone().into_os_string()]).collect();
        progress::step("recorded: each page that it touches is a fault");
        let ended = self.managed((TRACE_PART * peak).max(RAM_MIN).floor(), &options)?;
        if has_others(directory.path(), &path) {
            return Ok(None);
        }
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
        Ok(Some((curve, pages, price, Record { partial: ended.stopped, seconds: ended.wall_s, accesses })))
    }

    /// A run that calibrates; with more memory, up to `most`, if it does not end in time. The budget that it had,
    /// and its time.
    fn calibrate(&mut self, model: &mut Model, ram: f64, most: f64) -> Result<(f64, f64)> {
        let mut ram = ram;
        loop {
            let expected = model.expect(ram);
            let run = self.budget(ram)?;
            self.runs.push(Checked::of(false, Some(&expected), &run));
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
    fn check(&mut self, model: &Model, ram: f64) -> Result<()> {
        let expected = model.expect(ram);
        let run = self.budget(ram)?;
        self.runs.push(Checked::of(true, Some(&expected), &run));
        Ok(())
    }

    /// All rounds with a budget.
    fn budget(&mut self, ram: f64) -> Result<Budgeted> {
        let mut rounds = Vec::new();
        for _ in 0..self.args.rounds {
            progress::step(format_args!("with {}", size::format(ram as u64)));
            let ended = self.managed(ram, &self.options)?;
            self.steady &= ended.stopped || Some(ended.output) == self.output;
            let Counted { pages_in, pages_out, reads, file_reads, minor, .. } = ended.counted;
            let [pages_in, pages_out, reads, file_reads, minor] =
                [pages_in, pages_out, reads, file_reads, minor].map(|count| count as f64);
            let run = Run { ram, seconds: ended.wall_s, pages_in, reads, file_reads, minor, pages_out };
            rounds.push((ended.stopped, run));
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
            minor: of(|run| run.minor),
            pages_out: of(|run| run.pages_out),
        };
        Ok(Budgeted { numbers, stopped: rounds.iter().any(|(stopped, _)| *stopped) })
    }
}

/// A recorded run.
struct Record {
    /// The trace ends before the program.
    partial: bool,
    seconds: f64,
    accesses: usize,
}

/// Whether other processes than the first one need memory.
fn has_others(directory: &Path, first: &Path) -> bool {
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    let entries = fs::read_dir(directory).map(|entries| entries.flatten().map(|entry| entry.path()));
    let paths: Vec<PathBuf> = entries.map(Iterator::collect).unwrap_or_default();
    let others: u64 = paths.iter().filter(|path| *path != first).map(|path| bytes(path)).sum();
    others * OTHERS > bytes(first)
}

/// A time as a person says it.
fn seconds(time: f64) -> String {
    match time {
        ..10.0 => format!("{time:.1} s"),
        ..120.0 => format!("{time:.0} s"),
        _ => format!("{:.0} min", time / 60.0),
    }
}

/// Medians of the rounds with one budget.
struct Budgeted {
    numbers: Run,
    stopped: bool,
}

impl Checked {
    fn of(check: bool, expected: Option<&Expected>, run: &Budgeted) -> Checked {
        Checked {
            check,
            used: false,
            predicted: expected.map(|expected| expected.seconds),
            predicted_pages: expected.map_or(0.0, |expected| expected.work.pages_in),
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
