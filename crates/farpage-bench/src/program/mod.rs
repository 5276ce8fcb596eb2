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
//! | [`requests`] | latencies that a server's clients have measured |
//! | [`curve`] | several `--ram`, one row each |
//! | [`report`] | medians and ranges, the table, JSON |
//! | [`suite`] | many programs in one table: `--suite` |
//! | [`super::compare::kernel`] | cgroup, swap device, and the guard that takes them away |

mod curve;
mod report;
mod requests;
mod rounds;
mod side;
mod suite;

pub use super::compare::side::catch_signals;
pub use report::{Round, Rows};
pub use rounds::{Against, ProgramArgs, Setting, managed, measure, meter, plain, swap_for};
pub use side::{Counted, Ended, Invocation};

use super::compare::{cpu_ticks, machine, stolen};
use crate::destination::Destination;
use crate::failure::{Failure, Result, say};
use crate::output::SCHEMA;
use crate::progress;
use farpage_ipc::conf::size;
use rounds::{RAM_PERCENT, check, no_kernel, setting};
use serde_json::json;
use std::process::ExitCode;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Both sides have the same memory. The kernel's limit is --ram, with its zram pool on top; farpage gets the sum \
    of both. All processes of the program count. The limit also counts files that the program is the first to \
    read, and farpage's budget only anonymous memory, so a program that reads few files makes a fair comparison. \
    Standard input is empty. A program whose output changes from run to run (times, addresses) is measured all the \
    same, with a note.

Columns: wall time; processor time of all CPUs; major faults (farpage's are those that read a swap device, the \
    others include files); peak resident anonymous memory of all processes (farpage's includes its pool; without \
    root, it is that of the first process); peak size of the pool; the kernel's time divided by farpage's.

With several --ram there is one row for each, smallest first: the limit, farpage's budget, seconds, the \
    kernel's time divided by farpage's, major faults, and a bar as long as farpage's time. The JSON object has a \
    list, sizes, with the results of each.

--suite measures well-known programs one after the other, each with its own memory limit, and prints a row as \
    each one ends: peak memory as it is, farpage's budget, seconds, the kernel's time divided by farpage's, major \
    faults, pages that farpage wrote to files, and complaints. For a program that is not installed, a line says \
    how to install it. The programs:
  sort, perl, sqlite, gather, passes, update (numpy), cc, node, java,
  objects (Python), workers (Python processes), pandas, duckdb, polars, r,
  networkx, gdal, redis

Examples:
  sudo farpage bench program -- sort -S 1G big.txt
  sudo farpage bench program --ram 64M --rounds 5 -- python3 train.py
  sudo farpage bench program --ram 64M,128M,256M -- python3 train.py
  sudo farpage bench program --ram 50% --against file -- ./solve in.dat
  sudo farpage bench program --suite --json suite.json
  sudo farpage bench program --suite --only sort,sqlite,node --rounds 1";

/// Runs the subcommand.
///
/// # Errors
/// Bad options, a program that cannot be started, or a side that could not be set up. A side that ends otherwise than
/// the program as it is, or under farpage with another output, is reported, and by the exit status.
pub fn main(args: &ProgramArgs) -> Result<ExitCode> {
    check(args)?;
    let destination = Destination::new(args.json.as_deref())?;
    let _progress = progress::begin("farpage bench program");
    match (args.suite, args.ram.len()) {
        (true, 2..) => Err(Failure::new("--suite: one --ram only, so that there is one table")),
        (true, _) => suite::main(args, destination),
        (false, 2..) => curve::main(args, destination),
        (false, _) => one(args, destination),
    }
}

/// One program of the user's.
fn one(args: &ProgramArgs, destination: Destination<'_>) -> Result<ExitCode> {
    let program = Invocation::of(&args.program);
    let mut notes = vec![machine()];
    destination.tell(&notes[0]);
    catch_signals();
    let before = cpu_ticks();
    let meter = meter();
    let meter = meter.as_ref();
    // Twice, so that no side has to read the program's files from a disk.
    let first_output = plain(&program, meter)?.output;
    let plain = plain(&program, meter)?;
    let setting = setting(args, args.one_ram(), &program, plain.peak_rss_anon, RAM_PERCENT, meter)?;
    let mut note = |text: String| {
        destination.tell(&text);
        notes.push(text);
    };
    note(format!(
        "{}: {} of anonymous memory as it is, --ram {}",
        args.program[0].to_string_lossy(),
        size::format(plain.peak_rss_anon),
        size::format(setting.ram)
    ));
    no_kernel(args).into_iter().for_each(&mut note);
    if plain.peak_rss_anon < setting.ram {
        note(String::from("it takes no more than --ram as it is"));
    }
    let rows = measure(&setting, first_output, plain, args.rounds)?;
    destination.tell(&rows.table());
    let complaints = rows.complaints();
    complaints.iter().for_each(|text| say(format_args!("farpage: bench: {text}")));
    rows.remarks().into_iter().for_each(&mut note);
    if let Some(text) = stolen("the program", before, cpu_ticks()) {
        note(text);
    }
    let mut object = json!({ "schema": SCHEMA });
    rows.put(&mut object, &args.program, &notes, setting.ram);
    destination.finish(&object)?;
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
