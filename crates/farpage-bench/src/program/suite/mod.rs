//! `farpage bench program --suite`: programs that many use, one after the other, in one table.
//!
//! Each has a directory of its own, in which it runs and which is gone when it has been measured. How it is measured is
//! [`super`]'s: by turns as it is, on the kernel's swap, and under `farpage run`.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`programs`] | which programs there are, what they need, how they are run |
//! | [`inputs`] | what they work on, where that is too large to be shipped |
//! | [`table`] | lines of the table, the summary, JSON |

mod inputs;
mod programs;
mod table;

use super::rounds::{ProgramArgs, measure, meter, no_kernel, plain, setting};
use super::side::Invocation;
use crate::compare::kernel::KernelSide;
use crate::compare::side::{INTERRUPTED, catch_signals};
use crate::compare::{cpu_ticks, machine, stolen};
use crate::destination::Destination;
use crate::failure::{Failure, OrCannot, Result, say};
use programs::{SuiteProgram, VARIABLES};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use table::{SuiteOutcome, SuiteRounds, SuiteRow};
use tempfile::TempDir;

/// Runs the suite.
///
/// # Errors
/// A name that is no program's, or the bench was interrupted. What could not be measured, and what went wrong, is
/// reported, and by the exit status.
pub fn main(args: &ProgramArgs, destination: Destination<'_>) -> Result<ExitCode> {
    let wanted = programs::chosen(&args.only)?;
    let pythons: Vec<PathBuf> =
        args.python.iter().cloned().chain(["python3", "/usr/bin/python3"].map(PathBuf::from)).collect();
    catch_signals();
    let mut notes = vec![machine()];
    notes.extend(no_kernel(args));
    notes.iter().for_each(|note| destination.tell(note));
    destination.tell(table::HEADER);
    let meter = meter();
    let mut rows = Vec::new();
    for program in wanted {
        let outcome = match program.find(&pythons) {
            None => SuiteOutcome::NotInstalled,
            Some(argv) => match rounds(args, program, argv, meter.as_ref()) {
                Ok(rounds) => SuiteOutcome::Measured(Box::new(rounds)),
                Err(failure) if INTERRUPTED.load(Relaxed) => return Err(failure),
                Err(failure) => SuiteOutcome::Failed(failure.sentence),
            },
        };
        let row = SuiteRow { program, outcome };
        destination.tell(&row.line());
        if let SuiteOutcome::Measured(rounds) = &row.outcome {
            rounds.notes.iter().for_each(|note| destination.tell(&format!("{:10}{note}", "")));
            let complaints = rounds.rows.complaints();
            complaints.iter().for_each(|text| say(format_args!("farpage: bench: {}: {text}", program.name)));
        }
        rows.push(row);
        // What there is so far is worth having, should the rest be interrupted.
        destination.save(&table::json(&rows, &notes))?;
    }
    destination.tell(&table::summary(&rows));
    destination.finish(&table::json(&rows, &notes))?;
    Ok(if rows.iter().all(SuiteRow::is_clean) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All rounds of one program.
fn rounds(
    args: &ProgramArgs,
    program: &SuiteProgram,
    argv: Vec<OsString>,
    meter: Option<&KernelSide>,
) -> Result<SuiteRounds> {
    let before = cpu_ticks();
    let directory = directory_in(&args.dir)?;
    program.prepare(directory.path())?;
    let directory_of = Some(directory.path().to_path_buf());
    let invocation = Invocation { argv, directory: directory_of, variables: VARIABLES, ..Invocation::default() };
    // Twice, so that no side has to read the program's files from a disk.
    let first = plain(&invocation, meter)?;
    if !first.status.success() {
        return Err(Failure::new(format!("as it is it ended with {}", first.status)));
    }
    let plain = plain(&invocation, meter)?;
    let setting = setting(args, args.one_ram(), &invocation, plain.peak_rss_anon, program.percent, meter)?;
    let rows = measure(&setting, first.output, plain, args.rounds)?;
    let ram = setting.ram;
    let notes = rows.remarks().into_iter().chain(stolen(program.name, before, cpu_ticks())).collect();
    Ok(SuiteRounds { rows, argv: invocation.argv, ram, notes })
}

/// A directory that goes when this is dropped.
fn directory_in(place: &Path) -> Result<TempDir> {
    let made =
        place.canonicalize().and_then(|place| tempfile::Builder::new().prefix("farpage-bench-").tempdir_in(place));
    made.or_cannot(format_args!("make a directory in {}", place.display()))
}
